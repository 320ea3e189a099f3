#include "lib/wire/host_id.h"

#include <openssl/evp.h>

#include <array>
#include <fstream>
#include <string_view>

namespace terrace {
namespace {

constexpr std::string_view kPurpose{"terrace-host-1\0", 15};

// The first word, as both files have one.
std::string ReadWord(const std::string& path) {
  std::string word;
  std::ifstream(path) >> word;
  return word;
}

}  // namespace

std::optional<std::string> ReadHostId(const HostIdFiles& files) {
  const std::string machine = ReadWord(files.machine_id);
  const std::string boot = ReadWord(files.boot_id);
  if (machine.empty() || boot.empty()) return std::nullopt;
  const std::string text = std::string(kPurpose) + machine + '\0' + boot;
  std::array<unsigned char, 32> digest{};
  if (EVP_Digest(text.data(), text.size(), digest.data(), nullptr, EVP_sha256(), nullptr) != 1) {
    return std::nullopt;
  }
  return std::string(digest.begin(), digest.end());
}

}  // namespace terrace
