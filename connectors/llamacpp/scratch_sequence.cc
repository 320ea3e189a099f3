#include "connectors/llamacpp/scratch_sequence.h"

#include <algorithm>
#include <string>

namespace terrace::llamacpp {
namespace {

std::string RangeText(TokenRange range) {
  return "[" + std::to_string(range.begin) + ", " + std::to_string(range.end) + ")";
}

}  // namespace

ScratchSequence::ScratchSequence(llama_context* context, llama_seq_id sequence, const ModelTraits& traits)
    : context_(context), memory_(llama_get_memory(context)), sequence_(sequence), traits_(traits) {}

uint64_t ScratchSequence::TokensIn(llama_seq_id slot) const {
  return static_cast<uint64_t>(llama_memory_seq_pos_max(memory_, slot) + 1);
}

bool ScratchSequence::IsWhole(llama_seq_id slot, uint64_t tokens) const {
  if (TokensIn(slot) != tokens) return false;
  if (tokens == 0 || traits_.recurrent || traits_.hybrid)
    return true;  // their smallest position is the state's
  const uint64_t first_read = traits_.window == 0 || tokens <= traits_.window ? 0 : tokens - traits_.window;
  const llama_pos first = llama_memory_seq_pos_min(memory_, slot);
  return first >= 0 && static_cast<uint64_t>(first) <= first_read;
}

uint64_t ScratchSequence::Cut(llama_seq_id slot, uint64_t tokens) {
  const uint64_t held = TokensIn(slot);
  if (held == tokens && tokens > 0) return tokens;
  if (tokens > 0 && held > tokens && traits_.CanCut()) {
    if (llama_memory_seq_rm(memory_, slot, static_cast<llama_pos>(tokens), -1) && IsWhole(slot, tokens))
      return tokens;
  }
  llama_memory_seq_rm(memory_, slot, -1, -1);
  return 0;
}

void ScratchSequence::Drop() { llama_memory_seq_rm(memory_, sequence_, -1, -1); }

Status ScratchSequence::CheckStaged(TokenRange range) const {
  const uint64_t end = TokensIn(sequence_);
  if (end != range.end) {
    return InternalError("the engine holds tokens up to " + std::to_string(end) + " of " + RangeText(range));
  }
  if (traits_.recurrent || traits_.hybrid) return OkStatus();
  // With a window the smallest position is the window cache's.
  const uint64_t window_begin =
      traits_.window == 0 || range.end < traits_.window ? 0 : range.end - traits_.window;
  const uint64_t expected = std::max(range.begin, window_begin);
  const llama_pos first = llama_memory_seq_pos_min(memory_, sequence_);
  if (first < 0 || static_cast<uint64_t>(first) > expected || static_cast<uint64_t>(first) < range.begin) {
    return InternalError("the engine's first position of " + RangeText(range) + " is " +
                         std::to_string(first));
  }
  return OkStatus();
}

Result<uint64_t> ScratchSequence::Stage(llama_seq_id slot, TokenRange range) {
  Drop();
  if (!traits_.CanCut() && TokensIn(slot) != range.end) {
    return FailedPreconditionError("the slot stands at " + std::to_string(TokensIn(slot)) +
                                   ", not at the end of " + RangeText(range) + ": its state there is gone");
  }
  llama_memory_seq_cp(memory_, slot, sequence_, static_cast<llama_pos>(range.begin),
                      static_cast<llama_pos>(range.end));
  if (Status staged = CheckStaged(range); !staged.ok()) {
    Drop();
    return staged;
  }
  const size_t size = llama_state_seq_get_size(context_, sequence_);
  if (size == 0) {
    Drop();
    return InternalError("the engine reports no state for " + RangeText(range));
  }
  return uint64_t{size};
}

Status ScratchSequence::Read(MutableBytes payload) {
  const size_t written = llama_state_seq_get_data(context_, reinterpret_cast<uint8_t*>(payload.data()),
                                                  payload.size(), sequence_);
  Drop();
  if (written != payload.size()) {
    return InternalError("the engine wrote " + std::to_string(written) + " bytes of state, not " +
                         std::to_string(payload.size()));
  }
  return OkStatus();
}

ScratchSequence::Injection ScratchSequence::Inject(llama_seq_id slot, Bytes payload,
                                                   TokenRange payload_tokens, uint64_t end) {
  Drop();
  if (end <= payload_tokens.begin || end > payload_tokens.end ||
      (end < payload_tokens.end && !traits_.CanCut())) {
    return {InternalError("a payload of " + RangeText(payload_tokens) + " cannot be cut at " +
                          std::to_string(end))};
  }
  if (!traits_.recurrent && !IsWhole(slot, payload_tokens.begin)) {
    return {InternalError("the slot does not stand at " + std::to_string(payload_tokens.begin)), false};
  }
  const size_t read = llama_state_seq_set_data(context_, reinterpret_cast<const uint8_t*>(payload.data()),
                                               payload.size(), sequence_);
  if (read != payload.size()) {
    Drop();  // a failed read may leave cells behind
    return {ResourceExhaustedError("the engine did not take the state of " + RangeText(payload_tokens) +
                                   " (out of cells?)")};
  }
  if (Status staged = CheckStaged(payload_tokens); !staged.ok()) {
    Drop();
    return {staged};
  }
  llama_memory_seq_cp(memory_, sequence_, slot, -1,
                      end < payload_tokens.end ? static_cast<llama_pos>(end) : llama_pos{-1});
  Drop();
  if (!IsWhole(slot, end)) {
    const Status status = InternalError("after loading " + RangeText(payload_tokens) +
                                        " the slot stands at " + std::to_string(TokensIn(slot)));
    return {status, payload_tokens.begin > 0 && traits_.CanCut() &&
                        Cut(slot, payload_tokens.begin) == payload_tokens.begin};
  }
  return {};
}

}  // namespace terrace::llamacpp
