// Bytes of the NVMe tier that are not what was written: the prompt is computed from the damage on, its logits
// are those of the engine alone, and so are those of the prompts that follow in the same context.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "connectors/llamacpp/engine_fingerprint.h"
#include "connectors/llamacpp/scratch_sequence.h"
#include "connectors/llamacpp/tests/engine_host.h"
#include "connectors/llamacpp/tests/tier_files.h"

namespace terrace::llamacpp {
namespace {

namespace fs = std::filesystem;

const std::vector<size_t> kDocumentEnds = {256, 512, 768, 808};

int64_t Corrupt(const StorageManager& store) {
  return store.metrics().Value("terrace_tier_corrupt_objects_total", {{"tier", "nvme"}});
}
int64_t DroppedRecords(const StorageManager& store) {
  return store.metrics().Value("terrace_nvme_dropped_records_total", {{"backend", "nvme"}});
}

struct Expected {
  size_t match = 0;
  int64_t damaged = 0;  // frames; the load may end before it reads the second
  int64_t dropped_records = 0;
};

class DamageTest : public testing::Test {
 protected:
  using Damage = std::function<void(const fs::path&, std::vector<FrameOnDisk>&)>;

  void SetUp() override {
    const std::shared_ptr<StorageManager> store = OpenStore(pristine());
    ASSERT_NE(store, nullptr);
    const auto cache = MakeCache(model_.get(), params_, store);
    ASSERT_EQ(RunPrompt(*cache, 0, document_, true).stored_objects, 4u);
    CloseStore(*store);
    ASSERT_EQ(FindFrames(pristine()).size(), 4u);
  }

  fs::path pristine() const { return directory_.path() / "pristine"; }

  // A copy of the directory, damaged.
  fs::path Damaged(const Damage& damage) {
    const fs::path copy = directory_.path() / ("copy-" + std::to_string(++copies_));
    fs::copy(pristine(), copy, fs::copy_options::recursive);
    std::vector<FrameOnDisk> frames = FindFrames(copy);
    EXPECT_EQ(frames.size(), 4u);
    if (frames.size() == 4) damage(copy, frames);
    return copy;
  }

  // Tokens [0, match) as they were stored, then the steps that ended at `ends`.
  std::vector<float> Reference(const std::vector<llama_token>& prompt, size_t match,
                               const std::vector<size_t>& ends) {
    bare_.Clear();
    if (match > 0) {
      std::vector<size_t> stored;
      for (const size_t end : kDocumentEnds) {
        if (end <= match) stored.push_back(end);
      }
      EXPECT_EQ(stored.back(), match);
      bare_.Decode(document_, 0, stored);
    }
    return bare_.Decode(prompt, match, ends);
  }

  // The damaged prompt, another one, and again: each right; what the store lost, it has again.
  void ExpectRightAnswers(const std::shared_ptr<StorageManager>& store, size_t match) {
    const auto cache = MakeCache(model_.get(), params_, store);
    ASSERT_NE(cache, nullptr);
    const HostRun run = RunPrompt(*cache, 0, question_);
    EXPECT_EQ(run.fetch.ready_tokens, match) << run.fetch.reason.ToString();
    EXPECT_EQ(run.decoded, question_.size() - match);
    EXPECT_EQ(run.stored_objects, 3 - std::min<size_t>(match / 256, 3)) << run.save_reason.ToString();
    EXPECT_TRUE(SameBytes(run.logits, Reference(question_, match, run.ends)));

    const std::vector<llama_token> other = RandomTokens(300, 9);
    const HostRun unharmed = RunPrompt(*cache, 0, other);
    EXPECT_EQ(unharmed.decoded, 300u);
    EXPECT_TRUE(SameBytes(unharmed.logits, Reference(other, 0, unharmed.ends)));

    ASSERT_TRUE(store->Flush().ok());
    const std::vector<llama_token> again = Joined(document_, 768, RandomTokens(50, 10));
    const HostRun healed = RunPrompt(*cache, 0, again);
    EXPECT_EQ(healed.fetch.loaded_tokens, 768u) << healed.fetch.reason.ToString();
    EXPECT_TRUE(SameBytes(healed.logits, bare_.OneShot(again)));
    EXPECT_EQ(cache->counters().injection_failures, 0u);
  }

  void Check(const std::string& name, const Damage& damage, const Expected& expected) {
    SCOPED_TRACE(name);
    const fs::path copy = Damaged(damage);
    const std::shared_ptr<StorageManager> store = OpenStore(copy);
    ASSERT_NE(store, nullptr);
    EXPECT_EQ(DroppedRecords(*store), expected.dropped_records);
    ExpectRightAnswers(store, expected.match);
    EXPECT_GE(Corrupt(*store), std::min<int64_t>(expected.damaged, 1));
    EXPECT_LE(Corrupt(*store), expected.damaged);
    EXPECT_EQ(store->Stats().corrupt_objects, static_cast<uint64_t>(Corrupt(*store)));
    CloseStore(*store);
    fs::remove_all(copy);
  }

  const ModelPtr model_ = MakeTinyModel(TinyArchitecture::kGqa);
  const llama_context_params params_ = TinyContextParams();
  const std::vector<llama_token> document_ = RandomTokens(808, 5);
  const std::vector<llama_token> question_ = Joined(document_, 808, RandomTokens(30, 82));
  const TemporaryDirectory directory_;
  BareEngine bare_{model_.get(), params_};
  int copies_ = 0;
};

// The other tests' damage is what makes the difference.
TEST_F(DamageTest, AnUndamagedCopyIsHitWhole) {
  Check("none", [](const fs::path&, std::vector<FrameOnDisk>&) {}, {.match = 808});
}

TEST_F(DamageTest, AFlippedBitAnywhereIsAMiss) {
  struct Place {
    const char* name;
    size_t chunk;
    std::function<uint64_t(const FrameOnDisk&)> offset;
  };
  const auto page = [](uint64_t at) { return [at](const FrameOnDisk& f) { return f.page_offset + at; }; };
  const auto header = [](uint64_t at) {
    return [at](const FrameOnDisk& f) { return f.header_offset() + at; };
  };
  const Place places[] = {
      {"page magic", 0, page(3)},
      {"page generation", 1, page(32)},
      {"page code", 2, page(70)},
      {"header magic", 2, header(1)},
      {"header length", 1, header(13)},
      {"header frame length", 0, header(17)},
      {"header key", 2, header(64 + 70)},
      {"header content", 0, header(64 + 96 + 16 + 500)},
      {"header padding", 1, [](const FrameOnDisk& f) { return f.payload_offset() - 1; }},
      {"payload begin", 0, [](const FrameOnDisk& f) { return f.payload_offset(); }},
      {"payload middle", 1, [](const FrameOnDisk& f) { return f.payload_offset() + f.stored_bytes / 2; }},
      {"payload end", 2, [](const FrameOnDisk& f) { return f.payload_offset() + f.stored_bytes - 1; }},
      {"tail payload", 3, [](const FrameOnDisk& f) { return f.payload_offset() + 999; }},
  };
  int bit = 0;
  for (const Place& place : places) {
    const Damage damage = [&](const fs::path&, std::vector<FrameOnDisk>& frames) {
      const FrameOnDisk& frame = frames[place.chunk];
      ASSERT_EQ(frame.first_token, place.chunk * 256);
      FlipBit(frame.segment, place.offset(frame), bit++ % 8);
      ASSERT_NE(ReadFile(frame.segment), ReadFile(pristine() / frame.segment.filename()));
    };
    Check(place.name, damage, {.match = place.chunk * 256, .damaged = 1});
  }
}

TEST_F(DamageTest, SwappedExtentsAreNotTaken) {
  const auto swap = [](const FrameOnDisk& a, const FrameOnDisk& b, uint64_t a_at, uint64_t b_at,
                       size_t size) {
    const std::string first = ReadBytes(a.segment, a_at, size);
    const std::string second = ReadBytes(b.segment, b_at, size);
    ASSERT_NE(first, second);
    WriteBytes(a.segment, a_at, second);
    WriteBytes(b.segment, b_at, first);
  };
  Check("whole runs",
        [&](const fs::path&, std::vector<FrameOnDisk>& frames) {
          ASSERT_EQ(frames[0].run_bytes(), frames[1].run_bytes());
          swap(frames[0], frames[1], frames[0].page_offset, frames[1].page_offset, frames[0].run_bytes());
        },
        {.match = 0, .damaged = 2});
  Check("frames without their pages",
        [&](const fs::path&, std::vector<FrameOnDisk>& frames) {
          swap(frames[1], frames[2], frames[1].header_offset(), frames[2].header_offset(),
               frames[1].frame_bytes);
        },
        {.match = 256, .damaged = 2});
  Check("payloads",
        [&](const fs::path&, std::vector<FrameOnDisk>& frames) {
          ASSERT_EQ(frames[1].stored_bytes, frames[2].stored_bytes);
          swap(frames[1], frames[2], frames[1].payload_offset(), frames[2].payload_offset(),
               frames[1].stored_bytes);
        },
        {.match = 256, .damaged = 2});
}

TEST_F(DamageTest, ATruncatedSegmentLosesWhatIsBehindItsEnd) {
  Check("inside the second chunk",
        [&](const fs::path&, std::vector<FrameOnDisk>& frames) {
          // They were written in order.
          ASSERT_LT(frames[0].page_offset, frames[1].page_offset);
          ASSERT_LT(frames[1].page_offset, frames[2].page_offset);
          fs::resize_file(frames[1].segment, frames[1].payload_offset() + kTierPage);
        },
        {.match = 256, .dropped_records = 3});
  Check("to nothing",
        [&](const fs::path&, std::vector<FrameOnDisk>& frames) { fs::resize_file(frames[0].segment, 0); },
        {.match = 0, .dropped_records = 4});
}

TEST_F(DamageTest, ARemovedSegmentIsAMiss) {
  Check(
      "removed",
      [&](const fs::path&, std::vector<FrameOnDisk>& frames) { ASSERT_TRUE(fs::remove(frames[0].segment)); },
      {.match = 0, .dropped_records = 4});
}

TEST_F(DamageTest, ZerosInPlaceOfAFrameAreAMiss) {
  Check("zeros",
        [&](const fs::path&, std::vector<FrameOnDisk>& frames) {
          WriteBytes(frames[1].segment, frames[1].page_offset, std::string(frames[1].run_bytes(), '\0'));
        },
        {.match = 256, .damaged = 1});
}

// The segments are whole: the manifest is made again from them.
TEST_F(DamageTest, AGarbageManifestIsMadeAgainFromTheSegments) {
  const fs::path copy = Damaged([](const fs::path& directory, std::vector<FrameOnDisk>&) {
    int files = 0;
    for (const auto& entry : fs::directory_iterator(directory / "manifest")) {
      if (!entry.is_regular_file() || entry.file_size() == 0) continue;
      WriteBytes(entry.path(), 0, std::string(entry.file_size(), '\x5a'));
      ++files;
    }
    ASSERT_GT(files, 0);
  });
  const std::shared_ptr<StorageManager> store = OpenStore(copy);
  ASSERT_NE(store, nullptr);
  EXPECT_EQ(store->metrics().Value("terrace_nvme_rebuilt_objects_total", {{"backend", "nvme"}}), 4);
  ExpectRightAnswers(store, 808);
}

// Damage that no checksum sees, because it was stored: rows that are not a number.
TEST_F(DamageTest, StoredNanIsFoundInTheLogitsAndErasedForGood) {
  const fs::path planted = directory_.path() / "planted";
  LlamaCacheOptions options;
  options.check_logits = true;
  {
    const std::shared_ptr<StorageManager> store = OpenStore(planted);
    ASSERT_NE(store, nullptr);
    const auto cache = MakeCache(model_.get(), params_, store, options);
    BareEngine engine(model_.get(), params_);
    ScratchSequence scratch(engine.context(), 1, *CheckModel(model_.get()));
    engine.Decode(document_, 0, {256});
    const TokenView view({reinterpret_cast<const Token*>(document_.data()), document_.size()});
    auto prepared = store->Prepare(cache->root(), view, {0, 256},
                                   [&](TokenRange range, ObjectPart) { return scratch.Stage(0, range); });
    ASSERT_TRUE(prepared.ok());
    std::vector<WritableChunk> chunks;
    chunks.push_back(std::move(*prepared->chunks.at(0).writable));
    const MutableBytes payload = chunks[0].payload();
    ASSERT_TRUE(scratch.Read(payload).ok());
    for (size_t i = payload.size() - 8192; i < payload.size(); i += 2) {  // f16 NaN in the last rows of V
      payload[i] = std::byte{0x00};
      payload[i + 1] = std::byte{0x7e};
    }
    store->Commit(std::move(chunks));
    CloseStore(*store);
  }
  {
    const std::shared_ptr<StorageManager> store = OpenStore(planted);
    ASSERT_NE(store, nullptr);
    const auto cache = MakeCache(model_.get(), params_, store, options);
    const HostRun poisoned = RunPrompt(*cache, 0, document_);
    EXPECT_EQ(poisoned.fetch.loaded_tokens, 256u);
    ASSERT_FALSE(AllFinite(poisoned.logits));
    EXPECT_FALSE(cache->ReportLogits(0, poisoned.logits));
    EXPECT_EQ(cache->counters().poisoned, 1u);
    llama_memory_clear(llama_get_memory(cache->context()), true);
    // Nothing is stored by this one: what the next process finds is what was not erased.
    EXPECT_EQ(cache->Fetch(0, document_).ready_tokens, 0u);
    const std::vector<float> computed = DecodeStep(cache->context(), 0, document_, 0, 808);
    EXPECT_TRUE(cache->ReportLogits(0, computed));
    EXPECT_TRUE(SameBytes(computed, bare_.OneShot(document_)));
    CloseStore(*store);
  }
  const std::shared_ptr<StorageManager> store = OpenStore(planted);
  ASSERT_NE(store, nullptr);
  EXPECT_EQ(store->Stats().index_entries, 0u);
  ExpectRightAnswers(store, 0);
  CloseStore(*store);
}

}  // namespace
}  // namespace terrace::llamacpp
