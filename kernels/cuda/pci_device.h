// What the system says of a PCI device.
#pragma once

#include <string>

namespace terrace {

// The NUMA node of a device by its bus id as CUDA spells it ("0000:3B:00.0"); -1 where the system does not
// know (virtual machines, one node only). `root`: replaced in tests.
int NumaNodeOfPciDevice(std::string bus_id, const std::string& root = "/sys/bus/pci/devices");

}  // namespace terrace
