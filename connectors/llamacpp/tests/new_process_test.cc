// One hit from NVMe in a process that has nothing in memory, for each architecture. The second process is
// this program again, running only ItComputesTheSame.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "connectors/llamacpp/tests/engine_host.h"

namespace terrace::llamacpp {
namespace {

constexpr char kDirectoryVariable[] = "TERRACE_TEST_NEW_PROCESS_DIRECTORY";
constexpr TinyArchitecture kAll[] = {TinyArchitecture::kGqa,         TinyArchitecture::kMha,
                                     TinyArchitecture::kMla,         TinyArchitecture::kSmallWindow,
                                     TinyArchitecture::kLargeWindow, TinyArchitecture::kHybrid,
                                     TinyArchitecture::kRecurrent};

std::vector<llama_token> Document() { return RandomTokens(530, 51); }
std::vector<llama_token> Question() { return Joined(Document(), 530, RandomTokens(60, 52)); }

TEST(NewProcessTest, AHitFromNvme) {
  const TemporaryDirectory directory;
  for (const TinyArchitecture architecture : kAll) {
    const ModelPtr model = MakeTinyModel(architecture);
    const std::shared_ptr<StorageManager> store = OpenStore(directory.path() / NameOf(architecture));
    ASSERT_NE(store, nullptr);
    EXPECT_EQ(
        RunPrompt(*MakeCache(model.get(), TinyContextParams(), store), 0, Document(), true).stored_objects,
        3u);
    CloseStore(*store);
    BareEngine bare(model.get(), TinyContextParams());
    const std::vector<float> logits = bare.Decode(Question(), 0, {256, 512, 530, 590});
    std::ofstream(directory.path() / (std::string(NameOf(architecture)) + ".logits"), std::ios::binary)
        .write(reinterpret_cast<const char*>(logits.data()),
               static_cast<std::streamsize>(logits.size() * sizeof(float)));
  }
  ASSERT_EQ(setenv(kDirectoryVariable, directory.path().c_str(), 1), 0);
  const std::string command =
      "'" + std::filesystem::read_symlink("/proc/self/exe").string() +
      "' --gtest_also_run_disabled_tests --gtest_filter=NewProcessTest.DISABLED_ItComputesTheSame";
  EXPECT_EQ(std::system(command.c_str()), 0);
  unsetenv(kDirectoryVariable);
  for (const TinyArchitecture architecture : kAll) {
    EXPECT_TRUE(std::filesystem::exists(directory.path() / (std::string(NameOf(architecture)) + ".done")));
  }
}

TEST(NewProcessTest, DISABLED_ItComputesTheSame) {
  const char* const given = std::getenv(kDirectoryVariable);
  ASSERT_NE(given, nullptr) << "run by NewProcessTest.AHitFromNvme";
  const std::filesystem::path directory = given;
  for (const TinyArchitecture architecture : kAll) {
    SCOPED_TRACE(NameOf(architecture));
    std::vector<float> expected(kTinyVocabulary);
    std::ifstream(directory / (std::string(NameOf(architecture)) + ".logits"), std::ios::binary)
        .read(reinterpret_cast<char*>(expected.data()),
              static_cast<std::streamsize>(expected.size() * sizeof(float)));
    const ModelPtr model = MakeTinyModel(architecture);
    const std::shared_ptr<StorageManager> store = OpenStore(directory / NameOf(architecture));
    ASSERT_NE(store, nullptr);
    const auto cache = MakeCache(model.get(), TinyContextParams(), store);
    ASSERT_NE(cache, nullptr);
    const HostRun run = RunPrompt(*cache, 0, Question());
    EXPECT_EQ(run.fetch.loaded_tokens, 530u) << run.fetch.reason.ToString();
    EXPECT_EQ(run.decoded, 60u);
    ASSERT_TRUE(SameBytes(run.logits, expected));
    CloseStore(*store);
    std::ofstream(directory / (std::string(NameOf(architecture)) + ".done")) << "done";
  }
}

}  // namespace
}  // namespace terrace::llamacpp
