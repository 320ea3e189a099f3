// One access of a copy, on devices and on the host: vectors of 16 to 1 bytes, and the form in which a payload
// holds them.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__CUDACC__)
#define TERRACE_HD __host__ __device__
#define TERRACE_UNROLL _Pragma("unroll")
#else
#define TERRACE_HD
#define TERRACE_UNROLL _Pragma("GCC unroll 4")
#endif

namespace terrace {

// What is loaded and stored in one access.
template <uint32_t kWidth>
struct Vector;
template <>
struct __attribute__((aligned(16), may_alias)) Vector<16> {
  uint32_t x, y, z, w;
};
template <>
struct __attribute__((aligned(8), may_alias)) Vector<8> {
  uint32_t x, y;
};
template <>
struct __attribute__((may_alias)) Vector<4> {
  uint32_t x;
};
template <>
struct __attribute__((may_alias)) Vector<2> {
  uint16_t x;
};
template <>
struct __attribute__((may_alias)) Vector<1> {
  uint8_t x;
};

// `at` is a multiple of kWidth. Neither side is read again soon: streaming accesses.
template <uint32_t kWidth>
TERRACE_HD inline Vector<kWidth> LoadVector(const std::byte* at) {
#if defined(__CUDA_ARCH__)
  if constexpr (kWidth == 16) {
    const uint4 v = __ldcs(reinterpret_cast<const uint4*>(at));
    return {v.x, v.y, v.z, v.w};
  } else if constexpr (kWidth == 8) {
    const uint2 v = __ldcs(reinterpret_cast<const uint2*>(at));
    return {v.x, v.y};
  } else if constexpr (kWidth == 4) {
    return {__ldcs(reinterpret_cast<const unsigned int*>(at))};
  } else if constexpr (kWidth == 2) {
    return {__ldcs(reinterpret_cast<const unsigned short*>(at))};
  } else {
    return {__ldcs(reinterpret_cast<const unsigned char*>(at))};
  }
#else
  return *reinterpret_cast<const Vector<kWidth>*>(at);
#endif
}

template <uint32_t kWidth>
TERRACE_HD inline void StoreVector(std::byte* at, const Vector<kWidth>& v) {
#if defined(__CUDA_ARCH__)
  if constexpr (kWidth == 16) {
    __stcs(reinterpret_cast<uint4*>(at), make_uint4(v.x, v.y, v.z, v.w));
  } else if constexpr (kWidth == 8) {
    __stcs(reinterpret_cast<uint2*>(at), make_uint2(v.x, v.y));
  } else if constexpr (kWidth == 4) {
    __stcs(reinterpret_cast<unsigned int*>(at), v.x);
  } else if constexpr (kWidth == 2) {
    __stcs(reinterpret_cast<unsigned short*>(at), v.x);
  } else {
    __stcs(reinterpret_cast<unsigned char*>(at), v.x);
  }
#else
  *reinterpret_cast<Vector<kWidth>*>(at) = v;
#endif
}

// The payload holds the engine's bytes as they are. A form that converts while copying has the same members:
// of kWidth bytes of the engine it makes PayloadBytes(kWidth) of the payload's and back, its vectors are of
// any type.
struct SameForm {
  TERRACE_HD static constexpr uint64_t PayloadBytes(uint64_t engine_bytes) { return engine_bytes; }
  // Its lowest bit is the widest vector of the engine for which an address in the payload is aligned.
  TERRACE_HD static uint64_t PayloadAlignment(uint64_t address) { return address; }

  template <uint32_t kWidth>
  TERRACE_HD Vector<kWidth> LoadEngine(const std::byte* at) const {
    return LoadVector<kWidth>(at);
  }
  template <uint32_t kWidth>
  TERRACE_HD Vector<kWidth> LoadPayload(const std::byte* at) const {
    return LoadVector<kWidth>(at);
  }
  template <uint32_t kWidth>
  TERRACE_HD void StoreEngine(std::byte* at, const Vector<kWidth>& v) const {
    StoreVector<kWidth>(at, v);
  }
  template <uint32_t kWidth>
  TERRACE_HD void StorePayload(std::byte* at, const Vector<kWidth>& v) const {
    StoreVector<kWidth>(at, v);
  }
};

}  // namespace terrace
