// HostId: whether two processes run on one host, without telling anybody which one: SHA-256 over the machine
// id and the id of this boot. Both together, since images of one machine are started many times.
#pragma once

#include <optional>
#include <string>

namespace terrace {

struct HostIdFiles {
  std::string machine_id = "/etc/machine-id";
  std::string boot_id = "/proc/sys/kernel/random/boot_id";
};

// 32 bytes; none where either file cannot be read or is empty: such a host offers no shared memory.
std::optional<std::string> ReadHostId(const HostIdFiles& files = {});

}  // namespace terrace
