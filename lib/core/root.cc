// ComputeRoot: who may share KV with whom. Format in terrace/kv_spec.h.
#include <algorithm>
#include <bit>
#include <cmath>
#include <string>

#include "lib/core/sha256.h"
#include "terrace/kv_spec.h"

namespace terrace {
namespace {

constexpr std::string_view kRootTag("terrace-root-1\0", 15);

Result<std::string> CanonicalAdapters(std::span<const Adapter> adapters) {
  std::vector<std::pair<Digest, uint32_t>> active;
  for (const Adapter& adapter : adapters) {
    if (!std::isfinite(adapter.scale))
      return InvalidArgumentError("adapter scale is not finite; allowed: any finite number");
    if (adapter.scale == 0.0f) continue;  // -0 too
    active.emplace_back(adapter.content, std::bit_cast<uint32_t>(adapter.scale));
  }
  std::sort(active.begin(), active.end());
  std::string out;
  for (const auto& [digest, bits] : active) {
    out.append(reinterpret_cast<const char*>(digest.bytes.data()), digest.bytes.size());
    out.append(reinterpret_cast<const char*>(&bits), sizeof(bits));
  }
  return out;
}

void AddSized(std::string_view part, Sha256Stream& sha) {
  sha.AddU32(static_cast<uint32_t>(part.size()));
  sha.Add(part);
}

}  // namespace

Result<RootRecord> ComputeRoot(const KvSpec& spec, std::span<const Adapter> adapters, std::string_view salt) {
  if (Status status = spec.Validate(); !status.ok()) return status;
  Result<std::string> canonical = CanonicalAdapters(adapters);
  if (!canonical.ok()) return canonical.status();
  RootRecord record;
  record.spec = spec.SerializeIdentity();
  record.adapters = *std::move(canonical);
  if (!salt.empty()) record.salt_sha256 = Sha256Of(salt);
  Sha256Stream sha;
  sha.Begin();
  sha.Add(kRootTag);
  AddSized(record.spec, sha);
  AddSized(record.adapters, sha);
  AddSized(salt, sha);
  record.root = sha.Finish();
  return record;
}

}  // namespace terrace
