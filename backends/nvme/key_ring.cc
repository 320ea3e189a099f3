#include "backends/nvme/key_ring.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <set>
#include <string>

namespace terrace {
namespace {

constexpr std::string_view kCheckLabel{"terrace-key-check-1\0", 20};

std::string Names(const std::vector<uint32_t>& ids) {
  std::string names;
  for (const uint32_t id : ids) names += (names.empty() ? "" : ", ") + std::to_string(id);
  return names;
}

Status Refused(std::string message) { return Status(StatusCode::kPermissionDenied, std::move(message)); }

bool SameCheck(const KeyCheck& a, const KeyCheck& b) {
  return a.id == b.id && CRYPTO_memcmp(a.check.data(), b.check.data(), a.check.size()) == 0;
}

}  // namespace

Status ValidateKeys(std::span<const EncryptionKey> keys) {
  if (keys.size() > kMaxKeys) {
    return InvalidArgumentError("keys has " + std::to_string(keys.size()) + ", allowed: at most " +
                                std::to_string(kMaxKeys));
  }
  std::set<uint32_t> seen = {0};
  for (const EncryptionKey& key : keys) {
    if (!seen.insert(key.id).second) {
      return InvalidArgumentError("keys have the id " + std::to_string(key.id) +
                                  ", allowed: ids above 0, each once");
    }
  }
  return OkStatus();
}

KeyCheck CheckOf(uint32_t id, const CipherKey& key, const DirectoryId& directory) {
  std::string message(kCheckLabel);
  message.append(reinterpret_cast<const char*>(directory.data()), directory.size());
  const std::array<std::byte, 32> code = HmacSha256(key, std::as_bytes(std::span(message)));
  KeyCheck check{.id = id};
  std::copy_n(code.begin(), check.check.size(), check.check.begin());
  return check;
}

KeyRing::KeyRing(std::span<const EncryptionKey> keys) {
  for (const EncryptionKey& key : keys) keys_.emplace(key.id, CipherKey(key.bytes));
}

const CipherKey* KeyRing::Find(uint32_t id) const {
  const auto found = keys_.find(id);
  return found == keys_.end() ? nullptr : &found->second;
}

std::vector<KeyCheck> KeyRing::Checks(const DirectoryId& directory) const {
  std::vector<KeyCheck> checks;
  for (const auto& [id, key] : keys_) checks.push_back(CheckOf(id, key, directory));
  return checks;
}

Result<std::vector<KeyCheck>> KeyRing::Match(const DirectoryId& directory,
                                             const std::vector<KeyCheck>& stored) const {
  if (stored.empty()) {
    if (empty()) return stored;
    return InvalidArgumentError(
        "keys: the directory was made without encryption and stays so; an encrypted one has to be a new one");
  }
  std::vector<uint32_t> missing;
  std::vector<uint32_t> wrong;
  for (const KeyCheck& check : stored) {
    const CipherKey* key = Find(check.id);
    if (key == nullptr) {
      missing.push_back(check.id);
    } else if (!SameCheck(CheckOf(check.id, *key, directory), check)) {
      wrong.push_back(check.id);
    }
  }
  if (!wrong.empty()) {
    return Refused("key id " + Names(wrong) + ": not the key that the directory was made with");
  }
  if (!missing.empty()) {
    return Refused("the directory is encrypted, and key id " + Names(missing) + " was not given");
  }
  const uint32_t newest = std::max_element(stored.begin(), stored.end(), [](const auto& a, const auto& b) {
                            return a.id < b.id;
                          })->id;
  std::vector<KeyCheck> checks = stored;
  for (const auto& [id, key] : keys_) {
    const bool known = std::any_of(stored.begin(), stored.end(),
                                   [id = id](const KeyCheck& check) { return check.id == id; });
    if (known) continue;
    if (id < newest) {
      return InvalidArgumentError("key id " + std::to_string(id) +
                                  ": new to the directory, allowed: a new key's id is above " +
                                  std::to_string(newest));
    }
    checks.push_back(CheckOf(id, key, directory));
  }
  return checks;
}

}  // namespace terrace
