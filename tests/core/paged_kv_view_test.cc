// PagedKvView::Validate: what it refuses, by the name of the field.
#include "terrace/paged_kv_view.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/core/paged_layouts.h"

namespace terrace {
namespace {

// Each refusal names the field; the same view without the fault is accepted.
class ViewValidateTest : public testing::Test {
 protected:
  void Refused(const std::string& field, bool is_destination = true) {
    const Status status = view_.Validate(spec_, is_destination);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << field;
    EXPECT_NE(status.message().find(field), std::string::npos) << field << " in: " << status.ToString();
    Reset();
    EXPECT_TRUE(view_.Validate(spec_, is_destination).ok());
  }
  void Reset() {
    pages_ = std::make_unique<Pages>(kLayouts[0], Geometry{}, std::vector<int64_t>{4, 1, 0});
    spec_ = pages_->spec;
    view_ = pages_->view;
    plane_ = &pages_->planes[1];
  }
  void SetUp() override { Reset(); }

  std::unique_ptr<Pages> pages_;
  KvSpec spec_;
  PagedKvView view_;
  PlaneView* plane_ = nullptr;
};

TEST_F(ViewValidateTest, PartAndPlanes) {
  spec_.payload_form = PayloadForm::kOpaque;
  Refused("opaque");
  view_.part.group = 1;
  Refused("part.group");
  view_.part.shard = 1;
  Refused("part.shard");
  spec_.shards = {{0, 1, 0, 3}};
  spec_.groups.push_back({});
  view_.part.group = 1;
  Refused("without layers");
  view_.planes = view_.planes.first(1);
  Refused("planes");
  view_.planes = {};
  Refused("planes");
  spec_.layers[1].planes[0].bytes_per_token *= 2;
  Refused("planes");
}

TEST_F(ViewValidateTest, Tokens) {
  view_.tokens_per_block = 0;
  Refused("tokens_per_block", false);
  view_.num_tokens = 49;
  Refused("block_table", false);
  view_.first_token = UINT64_MAX - 47;
  Refused("num_tokens", false);
  view_.num_tokens = UINT64_MAX - 32;
  Refused("block_table", false);
  view_.num_tokens = 0;
  view_.block_table = {};
  EXPECT_TRUE(view_.Validate(spec_, true).ok()) << "an empty view";
}

TEST_F(ViewValidateTest, ABlockTwiceInADestination) {
  const std::vector<int64_t> twice = {4, -1, 4, -1};
  view_.block_table = twice;
  EXPECT_TRUE(view_.Validate(spec_, false).ok());
  Refused("block_table");
  view_.block_table = twice;
  view_.num_tokens = 32;
  EXPECT_TRUE(view_.Validate(spec_, true).ok()) << "the second one is not used";
}

TEST_F(ViewValidateTest, RunsHeadsAndBases) {
  plane_->run_bytes = 64;
  Refused("planes[1].num_heads");
  plane_->num_heads = 0;
  Refused("planes[1].num_heads");
  plane_->num_heads = 1u << 31;
  plane_->run_bytes = 1u << 31;
  Refused("planes[1].num_heads");
  plane_->layer_bases = plane_->layer_bases.first(2);
  Refused("planes[1].layer_bases");
  plane_->layer_bases = {};
  plane_->layer_stride = 4096;
  plane_->base = nullptr;
  Refused("planes[1].base");
  pages_->bases[1][2] = nullptr;
  Refused("planes[1].layer_bases[2]");
}

TEST_F(ViewValidateTest, NoProductBeyondTheAddressSpace) {
  const int64_t largest = INT64_MAX;
  plane_->block_stride = largest / 2;
  Refused("planes[1].layer_bases[0]", false);
  plane_->block_stride = INT64_MIN;
  Refused("planes[1].layer_bases[0]", false);
  plane_->token_stride = largest / 8;
  Refused("planes[1].layer_bases[0]", false);
  plane_->head_stride = largest;
  Refused("planes[1].layer_bases[0]", false);
  plane_->layer_bases = {};
  plane_->layer_stride = -largest;
  Refused("planes[1].base", false);
  const std::vector<int64_t> far = {0, largest, 2};
  view_.block_table = far;
  Refused("planes[0].layer_bases[0]", false);
  view_.block_table = far;
  view_.num_tokens = 16;
  EXPECT_TRUE(view_.Validate(spec_, true).ok()) << "the far block is not used";
}

TEST_F(ViewValidateTest, BytesOfADestinationAreApart) {
  plane_->block_stride = 127;
  Refused("planes[1].block_stride");
  plane_->token_stride = 0;
  Refused("planes[1].token_stride");
  plane_->head_stride = -64;
  Refused("planes[1].head_stride");
  plane_->layer_bases = {};
  Refused("planes[1].layer_stride");
  plane_->head_stride = 0;
  EXPECT_TRUE(view_.Validate(spec_, false).ok()) << "of no concern in a source";
}

TEST_F(ViewValidateTest, ElementsLieWhereTheirTypeMay) {
  // f32 in one layer of K: of all of them then.
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const auto misplaced = [&](const auto& change, const std::string& field, int64_t by) {
      spec_.layers[2].planes[1].dtype = dtype;
      EXPECT_TRUE(view_.Validate(spec_, false).ok());
      change(by);
      Refused(field, false);
    };
    const int64_t by = dtype == DType::kF32 ? 2 : 1;
    misplaced([&](int64_t n) { pages_->bases[1][2] += n; }, "planes[1].layer_bases[2]", by);
    misplaced([&](int64_t n) { plane_->head_stride += n; }, "planes[1].head_stride", by);
    misplaced([&](int64_t n) { plane_->token_stride += n; }, "planes[1].token_stride", by);
    misplaced([&](int64_t n) { plane_->block_stride += n; }, "planes[1].block_stride", by);
    misplaced(
        [&](int64_t n) {
          plane_->base = plane_->layer_bases[0];
          plane_->layer_bases = {};
          plane_->layer_stride = n + (int64_t{1} << 20);
        },
        "planes[1].layer_stride", by);
    misplaced(
        [&](int64_t n) {
          plane_->num_heads = n == 1 ? 256 : 128;
          plane_->run_bytes = static_cast<uint32_t>(n);
        },
        "planes[1].run_bytes", by);
    spec_.layers[0].planes[0].dtype = dtype;
    for (std::byte*& base : pages_->bases[1]) ++base;
    EXPECT_TRUE(view_.Validate(spec_, false).ok()) << "another plane's";
    Reset();
  }
  for (const DType dtype : {DType::kF8E4M3, DType::kI4, DType::kPacked, DType::kU8}) {
    spec_.layers[2].planes[1].dtype = dtype;
    for (std::byte*& base : pages_->bases[1]) base -= 1;
    plane_->token_stride += 1;
    EXPECT_TRUE(view_.Validate(spec_, false).ok());
    Reset();
  }
}

// The contract of memory: what lies outside of what the caller says it has is refused, and so is a view of
// memory that is known to be gone.
TEST_F(ViewValidateTest, MemoryBoundsWhatIsReached) {
  std::vector<MutableBytes> memory;
  const auto bound = [&] {  // layers 2, 1, 0; Reset makes new ones
    memory.assign(pages_->memory.rbegin(), pages_->memory.rend());
    view_.memory = memory;
  };
  bound();
  EXPECT_TRUE(view_.Validate(spec_, true).ok());
  const std::vector<int64_t> last = {6, -1, 3}, beyond = {0, 7, 2}, beyond_unused = {0, 6, 7};
  view_.block_table = last;
  EXPECT_TRUE(view_.Validate(spec_, true).ok()) << "blocks 0 to 6 are there";
  view_.block_table = beyond_unused;
  view_.num_tokens = 32;
  EXPECT_TRUE(view_.Validate(spec_, true).ok());
  view_.block_table = beyond;
  view_.num_tokens = 48;
  EXPECT_NE(view_.Validate(spec_, false).message().find("blocks up to 7"), std::string::npos);
  Refused("planes[1].layer_bases[0]", false);

  bound();
  view_.memory = view_.memory.first(2);
  Refused("planes[0].layer_bases[0]", false);
  const MutableBytes gone[] = {{}, {}, {}};
  view_.memory = gone;
  Refused("planes[0].layer_bases[0]", false);
  bound();
  memory[0] =
      memory[0].first(memory[0].size() - 2 * 4096 - 1);  // of V, up to the end of block 4 but one byte
  Refused("planes[1].layer_bases[2]", false);
  bound();
  memory[0] = memory[0].subspan(1);
  const std::vector<int64_t> first = {0, 1, 2};
  view_.block_table = first;
  Refused("planes[0].layer_bases[2]", false);
  bound();
  memory[0] = memory[0].subspan(4096);
  const std::vector<int64_t> later = {5, 1, 2};
  view_.block_table = later;
  EXPECT_TRUE(view_.Validate(spec_, false).ok()) << "block 0 is not used";
  const std::vector<int64_t> none = {-1, -1, -1};
  view_.block_table = none;
  view_.memory = gone;
  EXPECT_TRUE(view_.Validate(spec_, true).ok()) << "nothing is reached";
}

}  // namespace
}  // namespace terrace
