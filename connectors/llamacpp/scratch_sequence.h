// ScratchSequence: cuts a slot's state by tokens and joins it again, through one spare sequence id of a
// unified context. A copy inside one stream only tags cells, so a chunk costs one copy of its bytes. Every
// step checks positions afterwards: the engine reports little, and a row too few is a wrong answer. On the
// thread that decodes, between decodes.
//
// Invariant: outside of Stage..Read the scratch sequence is empty.
#pragma once

#include <cstdint>

#include "connectors/llamacpp/engine_fingerprint.h"
#include "llama.h"
#include "terrace/bytes.h"
#include "terrace/status.h"
#include "terrace/tokens.h"

namespace terrace::llamacpp {

class ScratchSequence {
 public:
  // `context` is unified and has `sequence` to spare; it outlives this.
  ScratchSequence(llama_context* context, llama_seq_id sequence, const ModelTraits& traits);

  llama_seq_id sequence() const { return sequence_; }
  // Tokens that a slot holds (its last position + 1; 0 when empty).
  uint64_t TokensIn(llama_seq_id slot) const;
  // Whether the slot's rows, from the first that attention still reads, are there for `tokens` tokens.
  bool IsWhole(llama_seq_id slot, uint64_t tokens) const;
  // Keeps the first `tokens` tokens. Returns what the slot holds now: `tokens`, or 0 where the engine cannot
  // cut there.
  uint64_t Cut(llama_seq_id slot, uint64_t tokens);

  // Tags the slot's tokens of `range`; the size of their state. Recurrent state is that of the slot's last
  // token: the slot must stand at range.end.
  Result<uint64_t> Stage(llama_seq_id slot, TokenRange range);
  // The staged state into `payload` (its exact size); the scratch sequence is empty again.
  Status Read(MutableBytes payload);
  void Drop();

  struct Injection {
    Status status;
    bool slot_intact = true;  // on failure: the slot holds what it held before
  };
  // Appends the state of `payload_tokens`, cut at `end`, to the slot, which stands at payload_tokens.begin
  // (recurrent models: anywhere, the state is replaced). The payload was verified: the engine takes flipped
  // bits.
  Injection Inject(llama_seq_id slot, Bytes payload, TokenRange payload_tokens, uint64_t end);

 private:
  Status CheckStaged(TokenRange range) const;

  llama_context* const context_;
  llama_memory_t const memory_;
  const llama_seq_id sequence_;
  const ModelTraits traits_;
};

}  // namespace terrace::llamacpp
