// The device under test, and an engine's pages in its memory beside their reference on the host.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/cuda/cuda_device.h"
#include "lib/codec/paged_copy.h"
#include "tests/core/paged_layouts.h"

namespace terrace {

inline TimePoint Soon() { return std::chrono::steady_clock::now() + std::chrono::seconds(60); }

inline std::shared_ptr<CudaDevice> OpenDevice(const CudaDeviceOptions& options = {}) {
  Result<std::shared_ptr<CudaDevice>> device = CudaDevice::Open(0, options);
  if (!device.ok()) {
    ADD_FAILURE() << device.status().ToString();
    return nullptr;
  }
  return *std::move(device);
}

inline void WaitFor(Stream& stream) {
  const auto event = stream.Record();
  ASSERT_TRUE(event.ok()) << event.status().ToString();
  const Status done = (*event)->Wait(Soon());
  ASSERT_TRUE(done.ok()) << done.ToString();
}

// Whole pages, as registration wants them.
class HostMemory {
 public:
  explicit HostMemory(size_t bytes)
      : bytes_((bytes + 4095) / 4096 * 4096),
        memory_(static_cast<std::byte*>(std::aligned_alloc(4096, bytes_)), &std::free) {
    std::memset(memory_.get(), static_cast<int>(kUntouched), bytes_);
  }
  MutableBytes bytes() const { return {memory_.get(), bytes_}; }
  std::byte* data() const { return memory_.get(); }

 private:
  size_t bytes_;
  std::unique_ptr<std::byte, void (*)(void*)> memory_;
};

// Host memory that is registered while it lives.
class PinnedMemory {
 public:
  PinnedMemory(std::shared_ptr<Device> device, size_t bytes) : device_(std::move(device)), memory_(bytes) {
    const Status registered = device_->RegisterHost(memory_.bytes());
    EXPECT_TRUE(registered.ok()) << registered.ToString();
  }
  ~PinnedMemory() { device_->UnregisterHost(memory_.bytes()); }
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  MutableBytes bytes() const { return memory_.bytes(); }
  std::byte* data() const { return memory_.data(); }
  std::byte* mapped() const {
    const auto address = device_->MappedAddress(memory_.data());
    EXPECT_TRUE(address.ok()) << address.status().ToString();
    return address.ok() ? *address : nullptr;
  }

 private:
  const std::shared_ptr<Device> device_;
  const HostMemory memory_;
};

// The allocations of `pages` in device memory, and the view that describes them there.
class DevicePages {
 public:
  DevicePages(Pages& pages, std::shared_ptr<Device> device, Stream& stream)
      : pages_(pages),
        device_(std::move(device)),
        stream_(stream),
        view(pages.view),
        planes_(pages.planes),
        bases_(pages.bases) {
    for (const auto& allocation : pages_.memory) {
      auto memory = device_->Allocate(allocation.size());
      EXPECT_TRUE(memory.ok()) << memory.status().ToString();
      memory_.push_back(*std::move(memory));
    }
    for (size_t kv = 0; kv < planes_.size(); ++kv) {
      planes_[kv].base = OnDevice(planes_[kv].base);
      if (kv >= bases_.size()) continue;
      for (std::byte*& base : bases_[kv]) base = OnDevice(base);
      planes_[kv].layer_bases = bases_[kv];
    }
    view.planes = planes_;
  }

  PagedCopy CopyOf(TokenRange payload_tokens) const { return {pages_.payload_layout, view, payload_tokens}; }

  void Upload() {
    for (size_t i = 0; i < memory_.size(); ++i) {
      auto& host = pages_.memory[i];
      const Status copied =
          device_->Copy(stream_, CopyDirection::kToDevice, {memory_[i].get(), host.data(), host.size()});
      ASSERT_TRUE(copied.ok()) << copied.ToString();
    }
    WaitFor(stream_);
  }
  Memory Download() {
    Memory memory = pages_.memory;
    for (size_t i = 0; i < memory_.size(); ++i) {
      const Status copied = device_->Copy(stream_, CopyDirection::kToHost,
                                          {memory[i].data(), memory_[i].get(), memory[i].size()});
      EXPECT_TRUE(copied.ok()) << copied.ToString();
    }
    WaitFor(stream_);
    return memory;
  }
  std::byte* allocation(size_t index) const { return memory_[index].get(); }

 private:
  std::byte* OnDevice(std::byte* host) const {
    for (size_t i = 0; i < memory_.size(); ++i) {
      auto& allocation = pages_.memory[i];
      if (host >= allocation.data() && host < allocation.data() + allocation.size()) {
        return memory_[i].get() + (host - allocation.data());
      }
    }
    ADD_FAILURE() << "a base outside of all allocations";
    return nullptr;
  }

  Pages& pages_;
  const std::shared_ptr<Device> device_;
  Stream& stream_;
  std::vector<std::shared_ptr<std::byte>> memory_;

 public:
  PagedKvView view;

 private:
  std::vector<PlaneView> planes_;
  std::vector<std::vector<std::byte*>> bases_;
};

// What a copy has to bring about, by the layouts' hand-written formulas.
inline void CopyByHand(const Pages& pages, TokenRange payload_tokens, TokenRange tokens, LayerSpan layers,
                       CopyDirection direction, Memory& memory, std::byte* payload) {
  pages.ForEachRun(payload_tokens, tokens, layers, [&](const Place& place, int64_t offset) {
    std::byte* const page = memory[static_cast<size_t>(place.allocation)].data() + place.offset;
    const auto bytes = static_cast<size_t>(pages.g.head_bytes);
    if (direction == CopyDirection::kToHost) std::memcpy(payload + offset, page, bytes);
    if (direction == CopyDirection::kToDevice) std::memcpy(page, payload + offset, bytes);
  });
}

// A stream as an engine makes them.
class EngineStream {
 public:
  explicit EngineStream(unsigned int flags = cudaStreamNonBlocking) {
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, flags), cudaSuccess);
  }
  ~EngineStream() {
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
  }
  EngineStream(const EngineStream&) = delete;
  EngineStream& operator=(const EngineStream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace terrace
