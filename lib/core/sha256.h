// SHA-256 over several parts, by OpenSSL's EVP with the method fetched once per process (fetching costs more
// than hashing a chunk). Not thread safe; one object per thread of work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "terrace/bytes.h"
#include "terrace/object_id.h"

struct evp_md_ctx_st;

namespace terrace {

class Sha256Stream {
 public:
  Sha256Stream();
  ~Sha256Stream();
  Sha256Stream(const Sha256Stream&) = delete;
  Sha256Stream& operator=(const Sha256Stream&) = delete;

  void Begin();
  void Add(Bytes bytes);
  void Add(std::string_view bytes) { Add(std::as_bytes(std::span(bytes))); }
  void AddU32(uint32_t value) { Add(std::as_bytes(std::span(&value, 1))); }
  Digest Finish();

 private:
  evp_md_ctx_st* context_;
};

// SHA-256 of one piece of text.
Digest Sha256Of(std::string_view text);

}  // namespace terrace
