// A FrameStore over a manager with a host tier and a MemoryDisk, and frames of prompts to put into it.
#pragma once

#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "lib/codec/piece_codec.h"
#include "terrace/frame_store.h"
#include "terrace/token_hasher.h"
#include "tests/support/manager_fixture.h"

namespace terrace {

// One object as a client sends it.
struct TestFrame {
  ObjectId id;
  ObjectMeta meta;
  FrameHeader header;
  std::vector<std::byte> bytes;

  // Writes header and pieces anew, after a change of the header.
  void Seal() {
    const uint32_t header_bytes = HeaderBytes(header).value();
    header.frame_bytes = header_bytes + RoundUp(header.stored_bytes, kFrameAlignment);
    bytes.resize(header.frame_bytes);
    const MutableBytes payload = MutableBytes(bytes).subspan(header_bytes, header.payload_bytes);
    ExpectedPayload({header.key, header.part}).Fill(payload);
    SealRawPieces(payload, header.pieces);
    EXPECT_TRUE(WriteFrameHeader(header, bytes).ok());
    id = {header.key, header.part};
    meta.root = header.root;
    meta.parent = header.parent;
    meta.first_token = header.first_token;
    meta.content = std::make_shared<const ChunkContent>(header.content);
    meta.frame_bytes = header.frame_bytes;
    meta.payload_bytes = header.payload_bytes;
    meta.division = header.division;
  }
};

inline TestFrame MakeFrame(const ChunkKey& root, const ChunkKey& parent, uint64_t first_token,
                           ChunkContent content, uint64_t payload_bytes = kTestPayload,
                           ObjectPart part = {}) {
  TestFrame frame;
  frame.header.root = root;
  frame.header.parent = parent;
  frame.header.key = TokenHasher::KeyOf(parent, content);
  frame.header.part = part;
  frame.header.first_token = first_token;
  frame.header.content = std::move(content);
  frame.header.payload_bytes = frame.header.stored_bytes = payload_bytes;
  frame.header.pieces = PlanPieces(payload_bytes, {});
  frame.Seal();
  return frame;
}

struct FrameFixture : ManagerFixture {
  std::unique_ptr<FrameStore> store;

  // The prompt's root is known, as PutRoot would make it.
  void OpenStore(const KvSpec& spec = TestSpec()) {
    store.reset();
    Open(spec);
    store = std::make_unique<FrameStore>(*manager);
  }

  // The chunks of tokens [begin, prompt's end), hashed from the prompt's first token on.
  std::vector<TestFrame> Frames(const std::vector<Token>& prompt, uint64_t begin = 0,
                                uint64_t payload_bytes = kTestPayload, ObjectPart part = {}) const {
    std::vector<TestFrame> frames;
    ChunkKey parent = root;
    for (uint64_t at = 0; at < prompt.size(); at += kTestChunk) {
      const uint64_t end = std::min<uint64_t>(at + kTestChunk, prompt.size());
      TestFrame frame =
          MakeFrame(root, parent, at, SliceContent(TokenView(prompt), {at, end}), payload_bytes, part);
      parent = frame.id.key;
      if (at >= begin) frames.push_back(std::move(frame));
    }
    return frames;
  }

  Result<std::shared_ptr<ArrivingFrame>> Send(const TestFrame& frame) const {
    Result<std::shared_ptr<ArrivingFrame>> arriving = store->Allocate(frame.bytes.size());
    if (!arriving.ok()) return arriving;
    std::memcpy((*arriving)->bytes().data(), frame.bytes.data(), frame.bytes.size());
    (*arriving)->MarkPresent(0, frame.bytes.size());
    return arriving;
  }
  Status Put(const TestFrame& frame) const {
    Result<std::shared_ptr<ArrivingFrame>> arriving = Send(frame);
    if (!arriving.ok()) return arriving.status();
    return store->Publish(frame.id, frame.meta, *arriving);
  }
  void PutAll(const std::vector<TestFrame>& frames) const {
    for (const TestFrame& frame : frames) {
      const Status put = Put(frame);
      ASSERT_TRUE(put.ok()) << put.ToString();
    }
  }

  // What a client asks for that has nothing of tokens [begin, prompt's end).
  PrefixQuery Query(const std::vector<Token>& prompt, uint64_t begin = 0) const {
    PrefixQuery query;
    query.root = query.parent = root;
    query.first_token = begin;
    query.tokens_per_chunk = kTestChunk;
    TokenHasher hasher(root, kTestChunk);
    EXPECT_TRUE(hasher.Append(TokenView(prompt)).ok());
    for (size_t i = 0; i < hasher.full_keys().size(); ++i) {
      if ((i + 1) * kTestChunk == begin) query.parent = hasher.full_keys()[i];
      if (i * kTestChunk >= begin) query.keys.push_back(hasher.full_keys()[i]);
    }
    query.content = SliceContent(TokenView(prompt), {begin, prompt.size()});
    return query;
  }
  uint64_t MatchTokens(const std::vector<Token>& prompt, uint64_t begin = 0) const {
    const PrefixMatch match = store->Match(Query(prompt, begin));
    EXPECT_TRUE(match.status.ok()) << match.status.ToString();
    return match.matched_tokens;
  }

  // Fetches and waits.
  std::vector<FetchResult> FetchAll(std::vector<FetchOp> ops) const {
    struct Answer {
      std::mutex mutex;
      std::condition_variable arrived;
      bool is_here = false;
      std::vector<FetchResult> results;
    };
    auto answer = std::make_shared<Answer>();
    store->Fetch(std::move(ops), [answer](std::vector<FetchResult> results) {
      std::lock_guard lock(answer->mutex);
      EXPECT_FALSE(answer->is_here) << "answered twice";
      answer->results = std::move(results);
      answer->is_here = true;
      answer->arrived.notify_all();
    });
    std::unique_lock lock(answer->mutex);
    EXPECT_TRUE(answer->arrived.wait_for(lock, std::chrono::seconds(60), [&] { return answer->is_here; }));
    return std::move(answer->results);
  }
  FetchResult FetchOne(const ObjectId& id) const { return FetchAll({{.id = id}}).at(0); }
  std::vector<FetchResult> FetchFrames(const std::vector<TestFrame>& frames) const {
    std::vector<FetchOp> ops;
    for (const TestFrame& frame : frames) ops.push_back({.id = frame.id});
    return FetchAll(std::move(ops));
  }

  static bool Holds(const FetchResult& result, const TestFrame& frame) {
    return result.status.ok() && result.frame_bytes == frame.bytes.size() && result.frame &&
           std::memcmp(result.frame.frame().data(), frame.bytes.data(), frame.bytes.size()) == 0;
  }
};

}  // namespace terrace
