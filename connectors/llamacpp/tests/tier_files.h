// What lies in an NVMe tier's directory, and damage to it. The directory must be closed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace terrace::llamacpp {

inline constexpr uint64_t kTierPage = 4096;  // bytes in front of each frame

struct FrameOnDisk {
  std::filesystem::path segment;
  uint64_t page_offset = 0;  // of the tier page; the frame follows it
  uint64_t header_bytes = 0;
  uint64_t frame_bytes = 0;
  uint64_t stored_bytes = 0;  // of the payload
  uint64_t first_token = 0;

  uint64_t header_offset() const { return page_offset + kTierPage; }
  uint64_t payload_offset() const { return header_offset() + header_bytes; }
  uint64_t run_bytes() const { return kTierPage + frame_bytes; }
};

std::vector<std::filesystem::path> SegmentsOf(const std::filesystem::path& directory);
// Found by their magics, by first token.
std::vector<FrameOnDisk> FindFrames(const std::filesystem::path& directory);

std::string ReadFile(const std::filesystem::path& file);
std::string ReadBytes(const std::filesystem::path& file, uint64_t offset, size_t size);
void WriteBytes(const std::filesystem::path& file, uint64_t offset, const std::string& bytes);
void FlipBit(const std::filesystem::path& file, uint64_t offset, int bit);

}  // namespace terrace::llamacpp
