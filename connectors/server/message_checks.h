// What stands in messages of the wire contract, checked, as Terrace's own types, and back. Nothing of a
// message is used before it went through here.
//
// Errors are kInvalidArgument with the field, but for a key that is not that of its parent and content:
// kDataLoss.
#pragma once

#include <string_view>
#include <vector>

#include "connectors/server/session_table.h"
#include "proto/terrace/v1/cache.pb.h"
#include "terrace/backend.h"
#include "terrace/kv_spec.h"
#include "terrace/status.h"

namespace terrace::server {

inline constexpr uint32_t kMaxBatch = 1024;             // objects in one call
inline constexpr uint32_t kMaxLookupKeys = 65536;       // keys x parts of one lookup
inline constexpr uint64_t kMaxLookupTokens = 4u << 20;  // of one lookup
inline constexpr size_t kMaxNameBytes = 256;

Result<Digest> DigestOf(std::string_view bytes, std::string_view field);
Result<SessionId> SessionIdOf(std::string_view bytes);
Result<ObjectId> ObjectIdOf(const v1::ObjectName& name);
// Of Lookup and Pin.
Result<PrefixQuery> PrefixQueryOf(const v1::LookupRequest& request);

struct PutNames {
  ObjectId id;
  ObjectMeta meta;  // without content, which was checked against the key
};
Result<PutNames> PutNamesOf(const v1::PutObject& object, uint64_t largest_frame_bytes);
// Multiples of 4,096, disjoint, at most 4,096 of them; where each lies in a frame is checked with the frame.
Result<std::vector<FrameRange>> RangesOf(const v1::GetObject& object);
// The ranges' bytes; kInvalidArgument where one does not lie in the frame.
Result<uint64_t> BytesWithin(const std::vector<FrameRange>& ranges, uint64_t frame_bytes);
Result<RootRecord> RootRecordOf(const v1::RootRecord& record);

void SetDigest(const Digest& digest, std::string* out);
void SetResult(const Status& status, v1::Result* result);
void SetScanned(const ScannedObject& scanned, v1::ScannedObject* out);
void SetRoot(const RootRecord& record, v1::RootRecord* out);
void SetEvent(const NumberedEvent& event, v1::WatchEvent* out);

}  // namespace terrace::server
