// The directory: modes, links, foreign directories, the superblock's bytes, and who holds it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "backends/nvme/tests/nvme_test_store.h"
#include "backends/nvme/superblock.h"
#include "backends/nvme/tier_directory.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

mode_t ModeOf(const fs::path& path) {
  struct stat facts {};
  EXPECT_EQ(lstat(path.c_str(), &facts), 0) << path;
  return facts.st_mode & 07777;
}

void WriteFile(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::string ReadFile(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Every name with its bytes: what "untouched" means.
std::map<std::string, std::string> Picture(const fs::path& path) {
  std::map<std::string, std::string> picture;
  for (const auto& entry : fs::recursive_directory_iterator(path)) {
    picture[entry.path().string()] = entry.is_regular_file() ? ReadFile(entry.path()) : "";
  }
  return picture;
}

TEST(SuperblockTest, BytesAreFrozen) {
  Superblock superblock;
  for (size_t i = 0; i < superblock.directory.size(); ++i) superblock.directory[i] = std::byte(i + 1);
  for (size_t i = 0; i < superblock.secret.size(); ++i) superblock.secret[i] = std::byte(0x80 + i);
  superblock.segment_bytes = uint64_t{1} << 30;
  const std::string bytes = EncodeSuperblock(superblock);
  ASSERT_EQ(bytes.size(), 4096u);
  std::string hex;
  for (const unsigned char byte : bytes.substr(0, 88)) {
    std::array<char, 3> two{};
    std::snprintf(two.data(), two.size(), "%02x", byte);
    hex += two.data();
  }
  EXPECT_EQ(hex,
            "5445525244495231"
            "01000000"
            "00000000"
            "0102030405060708090a0b0c0d0e0f10"
            "808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f"
            "0000004000000000"
            "ffcb38ab59121cb6d20ae5ea8263360e");
  EXPECT_EQ(bytes.substr(88), std::string(4096 - 88, '\0'));
  const Result<Superblock> read = DecodeSuperblock(bytes);
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->directory, superblock.directory);
  EXPECT_EQ(read->secret, superblock.secret);
  EXPECT_EQ(read->segment_bytes, superblock.segment_bytes);
}

TEST(SuperblockTest, AnyFlippedBitIsSeen) {
  const std::string bytes = EncodeSuperblock(NewSuperblock(16 * kMiB).value());
  for (size_t bit = 0; bit < 88 * 8; ++bit) {
    std::string flipped = bytes;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_EQ(DecodeSuperblock(flipped).status().code(), StatusCode::kDataLoss) << "bit " << bit;
  }
  EXPECT_EQ(DecodeSuperblock(bytes.substr(0, 60)).status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(DecodeSuperblock("").status().code(), StatusCode::kDataLoss);
}

TEST(NvmeDirectoryTest, NobodyElseMayReadIt) {
  NvmeTestStore store;
  const mode_t mask = umask(0);
  store.Open();
  ASSERT_TRUE(store.Put(MakeNvmeObject(1, kMiB)).ok());
  ASSERT_TRUE(store.backend().PutRoot({}).ok());
  store.Reopen();
  umask(mask);
  int files = 0;
  EXPECT_EQ(ModeOf(store.path()), 0700u);
  for (const auto& entry : fs::recursive_directory_iterator(store.path())) {
    EXPECT_EQ(ModeOf(entry.path()), entry.is_directory() ? 0700u : 0600u) << entry.path();
    files += entry.is_regular_file();
  }
  EXPECT_GE(files, 6) << "superblock, lock, segment, RocksDB's";
}

TEST(NvmeDirectoryTest, AnEmptyDirectoryIsTaken) {
  NvmeTestStore store;
  fs::create_directory(store.path());
  chmod(store.path().c_str(), 0755);
  store.Open();
  EXPECT_EQ(ModeOf(store.path()), 0700u);
}

TEST(NvmeDirectoryTest, AForeignDirectoryStaysAsItIs) {
  NvmeTestStore store;
  fs::create_directory(store.path());
  WriteFile(store.path() / "thesis.tex", "mine");
  const auto before = Picture(store.path());
  const mode_t mode = ModeOf(store.path());
  const Status status = store.TryOpen(store.options());
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("thesis.tex"));
  EXPECT_EQ(Picture(store.path()), before);
  EXPECT_EQ(ModeOf(store.path()), mode);
}

TEST(NvmeDirectoryTest, ANewerVersionStaysAsItIs) {
  NvmeTestStore store;
  store.Open();
  ASSERT_TRUE(store.Put(MakeNvmeObject(1, kMiB)).ok());
  store.Close();
  std::string bytes = ReadFile(store.path() / "superblock");
  bytes[8] = 2;
  WriteFile(store.path() / "superblock", bytes);
  const auto before = Picture(store.path());
  const Status status = store.TryOpen(store.options());
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("version 2"));
  EXPECT_EQ(Picture(store.path()), before);
  bytes[8] = 1;
  WriteFile(store.path() / "superblock", bytes);
  store.Open();
  store.ExpectHas(MakeNvmeObject(1, kMiB));
}

TEST(NvmeDirectoryTest, WhatDiedWhileItWasMadeIsMadeAgain) {
  NvmeTestStore store;
  fs::create_directory(store.path());
  WriteFile(store.path() / kLockFileName, "");
  WriteFile(store.path() / kSuperblockTemporaryName, "half");
  store.Open();
  EXPECT_FALSE(fs::exists(store.path() / kSuperblockTemporaryName));
}

TEST(NvmeDirectoryTest, LinksAreNotFollowed) {
  NvmeTestStore store;
  const fs::path victim = store.root() / "victim";
  WriteFile(victim, "precious");
  // A segment that does not exist yet, planted as a link before it is made.
  store.Open();
  fs::create_symlink(victim, store.segment(0));
  EXPECT_FALSE(store.Put(MakeNvmeObject(1, kMiB)).ok());
  EXPECT_EQ(store.GetCode(MakeNvmeObject(1, kMiB)), StatusCode::kNotFound);
  EXPECT_EQ(store.backend().used_bytes(), 0u);
  store.Close();
  // Met at the next start.
  EXPECT_EQ(store.TryOpen(store.options()).code(), StatusCode::kDataLoss);
  fs::remove(store.segment(0));
  for (const char* name : {kLockFileName, kSuperblockFileName, kManifestDirectoryName}) {
    fs::rename(store.path() / name, store.root() / "real");
    fs::create_symlink(store.root() / "real", store.path() / name);
    EXPECT_EQ(store.TryOpen(store.options()).code(), StatusCode::kDataLoss) << name;
    fs::remove(store.path() / name);
    fs::rename(store.root() / "real", store.path() / name);
  }
  fs::create_symlink(store.path(), store.root() / "link");
  NvmeOptions through_link = store.options();
  through_link.directory = (store.root() / "link").string();
  EXPECT_EQ(store.TryOpen(through_link).code(), StatusCode::kDataLoss);
  EXPECT_EQ(ReadFile(victim), "precious");
  store.Open();
  EXPECT_TRUE(store.Put(MakeNvmeObject(1, kMiB)).ok());
}

TEST(NvmeDirectoryTest, TheSecondOpenerIsToldWhoHasIt) {
  NvmeTestStore store;
  store.Open();
  NvmeTestStore other;
  const Status status = other.TryOpen(store.options());
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  const std::string text(status.message());
  EXPECT_THAT(text, HasSubstr("directory " + store.path().string() + " is held by process nvme_test (" +
                              std::to_string(getpid()) + ") on " + host.data() + " since 20"));
  store.Close();
  EXPECT_TRUE(other.TryOpen(store.options()).ok()) << "closed is free";
}

// Run by the test below in a process of its own.
TEST(NvmeDirectoryChild, DISABLED_OpensWhatAnotherHolds) {
  NvmeOptions options;
  options.directory = getenv("TERRACE_NVME_TEST_DIRECTORY");
  options.capacity_bytes = 64 * kMiB;
  const auto opened = MakeNvmeBackend(options);
  std::printf("child: %s\n", opened.status().ToString().c_str());
}

TEST(NvmeDirectoryTest, AnotherProcessIsToldToo) {
  NvmeTestStore store;
  store.Open();
  setenv("TERRACE_NVME_TEST_DIRECTORY", store.path().c_str(), 1);
  const std::string command = fs::read_symlink("/proc/self/exe").string() +
                              " --gtest_also_run_disabled_tests --gtest_filter=NvmeDirectoryChild.* 2>&1";
  FILE* child = popen(command.c_str(), "r");
  ASSERT_NE(child, nullptr);
  std::string output;
  for (std::array<char, 512> line; fgets(line.data(), line.size(), child);) output += line.data();
  EXPECT_EQ(pclose(child), 0);
  EXPECT_THAT(output,
              HasSubstr("child: Unavailable: directory " + store.path().string() + " is held by process "));
  EXPECT_THAT(output, HasSubstr("(" + std::to_string(getpid()) + ")"));
}

TEST(NvmeOptionsTest, SaysFieldValueAndWhatIsAllowed) {
  NvmeOptions options;
  options.directory = "/somewhere";
  EXPECT_TRUE(options.Validate().ok());
  const std::vector<std::pair<std::string, std::function<void(NvmeOptions&)>>> wrong = {
      {"directory", [](NvmeOptions& o) { o.directory.clear(); }},
      {"segment_bytes = 5", [](NvmeOptions& o) { o.segment_bytes = 5; }},
      {"segment_bytes = 15728640", [](NvmeOptions& o) { o.segment_bytes = 15 * kMiB; }},
      {"request_bytes = 4096", [](NvmeOptions& o) { o.request_bytes = 4096; }},
      {"request_bytes = 8388608", [](NvmeOptions& o) { o.request_bytes = 8 * kMiB; }},
      {"inflight_bytes = 1048576", [](NvmeOptions& o) { o.inflight_bytes = kMiB; }},
      {"capacity_bytes", [](NvmeOptions& o) { o.capacity_bytes = ~uint64_t{0}; }},
  };
  for (const auto& [text, change] : wrong) {
    NvmeOptions changed = options;
    change(changed);
    const Status status = changed.Validate();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
    EXPECT_THAT(std::string(status.message()), HasSubstr("allowed"));
  }
}

}  // namespace
}  // namespace terrace
