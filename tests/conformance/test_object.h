// Objects for tests of backends: an id, what is to be known of it, and a frame whose every byte follows from
// a seed. The memory is plain and aligned, with a BufferControl of its own: no pool is needed.
#pragma once

#include <cstdint>
#include <functional>

#include "terrace/backend.h"

namespace terrace {

using HeaderWriter = std::function<Status(ObjectId& id, ObjectMeta& meta, MutableBytes frame)>;

// A buffer for `frame_bytes` and a tier page, filled with `fill`.
BufferRef MakeTestBuffer(uint64_t frame_bytes, std::byte fill = std::byte{0xee});

struct TestObject {
  ObjectId id;
  ObjectMeta meta;
  BufferRef frame;  // never handed to a backend in a test that looks at use_count

  // Whether the first meta.frame_bytes of `other` are this object's.
  bool Holds(const BufferRef& other) const;
};

// `seed` decides chunk and metadata, `version` the bytes: two versions are two saves of one object.
TestObject MakeTestObject(uint64_t seed, uint64_t frame_bytes, const HeaderWriter& header = {},
                          uint64_t version = 0, ObjectPart part = {});

PutOp PutOpOf(const TestObject& object);
GetOp GetOpOf(const TestObject& object, BufferRef dst);

}  // namespace terrace
