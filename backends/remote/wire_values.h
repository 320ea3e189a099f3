// Values of the contract and those of Terrace. What a server says is bounded here before anybody uses it.
#pragma once

#include <grpcpp/support/status.h>

#include <string>
#include <string_view>

#include "proto/terrace/v1/cache.pb.h"
#include "terrace/backend.h"
#include "terrace/object_meta.h"
#include "terrace/status.h"

namespace terrace::remote {

// The message is cut to 300 printable characters.
Status FromGrpc(const grpc::Status& status);
Status FromResult(const v1::Result& result);

// False unless 32 bytes.
bool ReadDigest(std::string_view bytes, Digest& digest);
inline std::string DigestBytes(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.bytes.data()), digest.bytes.size()};
}

void SetName(const ObjectId& id, v1::ObjectName* name);
void SetPutObject(const ObjectId& id, const ObjectMeta& meta, v1::PutObject* object);
Result<ScannedObject> FromPutObject(const v1::PutObject& object);
void SetRoot(const RootRecord& record, v1::RootRecord* root);
Result<RootRecord> FromRoot(const v1::RootRecord& root);

}  // namespace terrace::remote
