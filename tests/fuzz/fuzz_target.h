// What the fuzz targets share. A target takes any bytes and throws FuzzFailure where a property does not
// hold. Each source makes one program for libFuzzer (TERRACE_LIBFUZZER) and is a part of fuzz_test, which
// runs the checked-in corpus and seeded mutations of it in every build.
//
// The first byte of an input says what is done with the rest:
//   0  decoded as it is
//   1  decoded with its checksum (and what follows from other fields) made right first: what someone writes
//      who knows the format
//   2  read as choices: a valid value is made of them, encoded, and decoded whole and with one change
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "terrace/bytes.h"

#ifdef TERRACE_LIBFUZZER
#define TERRACE_FUZZ_TARGET(name) extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size)
#else
#define TERRACE_FUZZ_TARGET(name) int name(const uint8_t* data, size_t size)
#endif

#define FUZZ_CHECK(condition)                                                                     \
  do {                                                                                            \
    if (!(condition))                                                                             \
      throw ::terrace::fuzz::FuzzFailure(std::string(__FILE__) + ":" + std::to_string(__LINE__) + \
                                         ": " #condition);                                        \
  } while (false)

namespace terrace::fuzz {

enum Mode : uint8_t { kAsItIs = 0, kResealed = 1, kFromChoices = 2, kNumModes = 3 };

class FuzzFailure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Reads choices; behind the end everything is zero.
class FuzzInput {
 public:
  FuzzInput(const uint8_t* data, size_t size) : bytes_(data, size) {}

  template <typename T>
  requires std::is_integral_v<T> T Take() {
    T value{};
    Fill(std::as_writable_bytes(std::span(&value, 1)));
    return value;
  }
  // In [low, high].
  uint64_t TakeIn(uint64_t low, uint64_t high) { return low + Take<uint64_t>() % (high - low + 1); }
  void Fill(MutableBytes to) {
    const size_t n = std::min(to.size(), bytes_.size());
    for (size_t i = 0; i < to.size(); ++i) to[i] = i < n ? static_cast<std::byte>(bytes_[i]) : std::byte{0};
    bytes_ = bytes_.subspan(n);
  }
  std::span<const uint8_t> rest() const { return bytes_; }

 private:
  std::span<const uint8_t> bytes_;
};

// A copy of exactly these bytes on the heap, so that the address sanitizer sees a read beyond them.
class ExactCopy {
 public:
  explicit ExactCopy(Bytes from) : data_(new std::byte[from.size()]), size_(from.size()) {
    if (!from.empty()) std::memcpy(data_.get(), from.data(), from.size());
  }
  explicit ExactCopy(std::span<const uint8_t> from) : ExactCopy(std::as_bytes(from)) {}
  MutableBytes bytes() const { return {data_.get(), size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_.get()), size_}; }

 private:
  std::unique_ptr<std::byte[]> data_;
  size_t size_;
};

// Changes one run of up to eight bytes in front of `end`: what a checksum of 64 bits and more always tells.
// False where nothing was changed.
inline bool ChangeOneRun(FuzzInput& input, size_t end, MutableBytes bytes) {
  if (end == 0) return false;
  const uint64_t mask = input.Take<uint64_t>();
  const size_t at = input.Take<uint32_t>() % end;
  bool changed = false;
  for (size_t i = 0; i < 8 && at + i < end; ++i) {
    const auto flip = static_cast<std::byte>(mask >> (8 * i));
    bytes[at + i] ^= flip;
    changed |= flip != std::byte{0};
  }
  return changed;
}

}  // namespace terrace::fuzz
