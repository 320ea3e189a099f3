// Calls of a backend made synchronous, with the chunks of service_fixture.h.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <future>
#include <memory>
#include <span>
#include <vector>

#include "connectors/server/tests/service_fixture.h"
#include "terrace/backend.h"

namespace terrace::server {

// What `call(done)` gives to done; nothing, and a failed test, after `limit`.
template <typename Answer, typename Call>
std::vector<Answer> Await(Duration limit, const Call& call) {
  auto promise = std::make_shared<std::promise<std::vector<Answer>>>();
  std::future<std::vector<Answer>> future = promise->get_future();
  call([promise](std::span<const Answer> answers) { promise->set_value({answers.begin(), answers.end()}); });
  if (future.wait_for(limit) == std::future_status::ready) return future.get();
  ADD_FAILURE() << "no completion";
  return {};
}

// `frame`: a buffer as long as the chunk's frame, which is filled.
inline PutOp PutOpOf(const TestChunk& chunk, BufferRef frame) {
  std::memcpy(frame.mutable_frame().data(), chunk.frame.data(), chunk.frame.size());
  return {.id = chunk.id, .frame = std::move(frame), .meta = chunk.meta};
}

// Of a prompt that begins with these chunks.
inline PrefixQuery QueryOf(const std::vector<TestChunk>& chunks) {
  PrefixQuery query;
  query.root = TestRoot().root;
  query.parent = query.root;
  query.tokens_per_chunk = kChunkTokens;
  query.parts = {{0, 0}};
  query.lease = std::chrono::seconds(10);
  for (const TestChunk& chunk : chunks) {
    query.keys.push_back(chunk.id.key);
    const auto& tokens = chunk.meta.content->tokens;
    query.content.tokens.insert(query.content.tokens.end(), tokens.begin(), tokens.end());
  }
  return query;
}

inline std::vector<PrefixMatch> AwaitMatch(Backend& backend, Duration limit, PrefixQuery query) {
  return Await<PrefixMatch>(limit, [&](const auto& done) {
    backend.Match(std::move(query),
                  [done](const PrefixMatch& match) { done(std::span<const PrefixMatch>(&match, 1)); });
  });
}

}  // namespace terrace::server
