#include "connectors/llamacpp/tests/tier_files.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>

namespace terrace::llamacpp {
namespace {

template <typename T>
T At(const std::string& bytes, uint64_t offset) {
  T value{};
  if (offset + sizeof(T) <= bytes.size()) std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

}  // namespace

std::vector<std::filesystem::path> SegmentsOf(const std::filesystem::path& directory) {
  std::vector<std::filesystem::path> segments;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.path().filename().string().starts_with("seg-")) segments.push_back(entry.path());
  }
  std::sort(segments.begin(), segments.end());
  return segments;
}

std::vector<FrameOnDisk> FindFrames(const std::filesystem::path& directory) {
  std::vector<FrameOnDisk> frames;
  for (const std::filesystem::path& segment : SegmentsOf(directory)) {
    const std::string bytes = ReadFile(segment);
    for (uint64_t page = 0; page + 2 * kTierPage <= bytes.size(); page += kTierPage) {
      const uint64_t header = page + kTierPage;
      if (bytes.compare(page, 8, "TERRPAGE") != 0 || bytes.compare(header, 8, "TERRACE1") != 0) continue;
      FrameOnDisk frame;
      frame.segment = segment;
      frame.page_offset = page;
      frame.header_bytes = At<uint32_t>(bytes, header + 12);
      frame.frame_bytes = At<uint64_t>(bytes, header + 16);
      frame.stored_bytes = At<uint64_t>(bytes, header + 32);
      frame.first_token = At<uint64_t>(bytes, header + 56);
      frames.push_back(frame);
    }
  }
  std::sort(frames.begin(), frames.end(),
            [](const FrameOnDisk& a, const FrameOnDisk& b) { return a.first_token < b.first_token; });
  return frames;
}

std::string ReadFile(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  EXPECT_TRUE(in.is_open()) << file;
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string ReadBytes(const std::filesystem::path& file, uint64_t offset, size_t size) {
  std::ifstream in(file, std::ios::binary);
  std::string bytes(size, '\0');
  in.seekg(static_cast<std::streamoff>(offset));
  in.read(bytes.data(), static_cast<std::streamsize>(size));
  EXPECT_TRUE(in.good()) << file << " at " << offset;
  return bytes;
}

void WriteBytes(const std::filesystem::path& file, uint64_t offset, const std::string& bytes) {
  std::fstream out(file, std::ios::binary | std::ios::in | std::ios::out);
  out.seekp(static_cast<std::streamoff>(offset));
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  out.close();
  EXPECT_TRUE(out.good()) << file << " at " << offset;
}

void FlipBit(const std::filesystem::path& file, uint64_t offset, int bit) {
  std::string byte = ReadBytes(file, offset, 1);
  byte[0] = static_cast<char>(byte[0] ^ (1 << bit));
  WriteBytes(file, offset, byte);
}

}  // namespace terrace::llamacpp
