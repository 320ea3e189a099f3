// The directory: modes, links, foreign directories, the superblock's bytes, and who holds it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <thread>

#include "backends/nvme/superblock.h"
#include "backends/nvme/tests/nvme_test_store.h"
#include "backends/nvme/tier_directory.h"
#include "lib/wire/frame.h"

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
    const unsigned wanted = entry.is_directory() ? 0700u : 0600u;
    // RocksDB may be making one right now, in a directory that is closed to others: its mode follows at once.
    for (int tries = 0; tries < 100'000 && ModeOf(entry.path()) != wanted; ++tries) std::this_thread::yield();
    if (!fs::exists(entry.path())) continue;  // merged into another meanwhile
    EXPECT_EQ(ModeOf(entry.path()), wanted) << entry.path();
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
  const char version = bytes[8];
  bytes[8] = 3;
  WriteFile(store.path() / "superblock", bytes);
  const auto before = Picture(store.path());
  const Status status = store.TryOpen(store.options());
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("version 3"));
  EXPECT_EQ(Picture(store.path()), before);
  bytes[8] = version;
  WriteFile(store.path() / "superblock", bytes);
  store.Open();
  store.ExpectHas(MakeNvmeObject(1, kMiB));
}

// The superblock of a directory that an older program made.
void MakeVersionOne(const fs::path& path) {
  std::string bytes = ReadFile(path);
  bytes[8] = 1;
  std::memset(bytes.data() + 72, 0, bytes.size() - 72);
  const Hash128 hash = HashBytes(std::as_bytes(std::span(bytes)).first(72));
  std::memcpy(bytes.data() + 72, &hash.low, sizeof(hash.low));
  std::memcpy(bytes.data() + 80, &hash.high, sizeof(hash.high));
  WriteFile(path, bytes);
}

TEST(NvmeDirectoryTest, ADirectoryOfVersionOneOpensAndBecomesOneOfVersionTwo) {
  NvmeTestStore store;
  const TestObject object = MakeNvmeObject(1, kMiB);
  store.Open();
  ASSERT_TRUE(store.Put(object).ok());
  store.Close();
  MakeVersionOne(store.path() / "superblock");
  const Superblock old = DecodeSuperblock(ReadFile(store.path() / "superblock")).value();
  store.Open();
  store.ExpectHas(object);
  EXPECT_EQ(ReadFile(store.path() / "superblock")[8], 1) << "not before it is replaced";
  ASSERT_TRUE(store.Clear().ok());
  ASSERT_TRUE(store.Put(object).ok());
  store.Reopen();
  store.ExpectHas(object);
  const Superblock replaced = DecodeSuperblock(ReadFile(store.path() / "superblock")).value();
  EXPECT_EQ(ReadFile(store.path() / "superblock")[8], 2);
  EXPECT_EQ(replaced.directory, old.directory);
  EXPECT_EQ(replaced.segment_bytes, old.segment_bytes);
  EXPECT_NE(replaced.secret, old.secret);
}

TEST(NvmeDirectoryTest, AClearReplacesTheSecretAndNothingElse) {
  NvmeTestStore store;
  store.Open();
  store.Close();
  Superblock before = DecodeSuperblock(ReadFile(store.path() / "superblock")).value();
  before.rebuild_floor = 77;
  WriteFile(store.path() / "superblock", EncodeSuperblock(before));
  store.Open();
  ASSERT_TRUE(store.Clear().ok());
  store.Close();
  const Superblock after = DecodeSuperblock(ReadFile(store.path() / "superblock")).value();
  EXPECT_NE(after.secret, before.secret);
  EXPECT_EQ(after.directory, before.directory);
  EXPECT_EQ(after.segment_bytes, before.segment_bytes);
  EXPECT_EQ(after.rebuild_floor, 77u);
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
  NvmeOptions full = options;
  full.more_directories = {"/elsewhere", "/a"};
  full.durability = Durability::kSync;
  full.io_engine = IoEngineKind::kThreads;
  for (uint32_t id = 1; id <= 8; ++id) full.keys.push_back({.id = id});
  EXPECT_TRUE(full.Validate().ok()) << full.Validate().ToString();
  const std::vector<std::pair<std::string, std::function<void(NvmeOptions&)>>> wrong = {
      {"directory", [](NvmeOptions& o) { o.directory.clear(); }},
      {"segment_bytes = 5", [](NvmeOptions& o) { o.segment_bytes = 5; }},
      {"segment_bytes = 15728640", [](NvmeOptions& o) { o.segment_bytes = 15 * kMiB; }},
      {"request_bytes = 4096", [](NvmeOptions& o) { o.request_bytes = 4096; }},
      {"request_bytes = 8388608", [](NvmeOptions& o) { o.request_bytes = 8 * kMiB; }},
      {"inflight_bytes = 1048576", [](NvmeOptions& o) { o.inflight_bytes = kMiB; }},
      {"capacity_bytes", [](NvmeOptions& o) { o.capacity_bytes = ~uint64_t{0}; }},
      {"more_directories has an empty path",
       [](NvmeOptions& o) {
         o.more_directories = {"/a", ""};
       }},
      {"more_directories = /a/",
       [](NvmeOptions& o) {
         o.more_directories = {"/a", "/a/"};
       }},
      {"more_directories = /somewhere/", [](NvmeOptions& o) { o.more_directories = {"/somewhere/"}; }},
      {"durability = 3", [](NvmeOptions& o) { o.durability = static_cast<Durability>(3); }},
      {"io_engine = 7", [](NvmeOptions& o) { o.io_engine = static_cast<IoEngineKind>(7); }},
      {"the id 0", [](NvmeOptions& o) { o.keys.resize(1); }},
      {"the id 5",
       [](NvmeOptions& o) {
         o.keys = {{.id = 5}, {.id = 6}, {.id = 5}};
       }},
      {"keys has 9", [](NvmeOptions& o) { o.keys.resize(9); }},
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
