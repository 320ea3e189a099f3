#include "kernels/cuda/pci_device.h"

#include <fstream>

namespace terrace {

int NumaNodeOfPciDevice(std::string bus_id, const std::string& root) {
  for (char& c : bus_id) {
    const bool is_hex = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
    if (!is_hex && c != ':' && c != '.') return -1;
    if (c >= 'A' && c <= 'F') c = static_cast<char>(c - 'A' + 'a');  // as the system spells it
  }
  std::ifstream file(root + "/" + bus_id + "/numa_node");
  int node = -1;
  if (!(file >> node) || node < 0) return -1;
  return node;
}

}  // namespace terrace
