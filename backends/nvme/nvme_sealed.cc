// Encryption at rest: what a Get and a Put do otherwise in an encrypted directory. What is written is
// encrypted request by request into staging memory, which the bytes in flight bound; what is read lands in
// its destination and is opened there, piece by piece, on the owner's thread.
#include "backends/nvme/nvme_core.h"
#include "backends/nvme/record_cipher.h"
#include "lib/base/check.h"

namespace terrace {

RunIdentity NvmeCore::RunIdentityOf(const Placement& placement) const {
  return {store_->directory->id(), placement.id, placement.generation, placement.frame_bytes()};
}

uint64_t NvmeCore::StoredContentBytes(size_t content_bytes) const {
  return content_bytes + (is_sealed() && content_bytes > 0 ? RecordCipher::kExtraBytes : 0);
}

void NvmeCore::PlanSealedGet(GetState& get, std::span<const FrameRange> ranges) {
  const Placement& placement = *get.placement;
  get.sealed = std::make_unique<SealedRead>(RunIdentityOf(placement), &store_->keys, ranges,
                                            get.buffer.mutable_frame(), *staging_);
  for (const SealedRead::Landing& landing : get.sealed->landings()) {
    AddSpans(placement, landing.run_offset, landing.length, landing.memory, &get.transfer->spans);
  }
  get.transfer->on_bytes = [state = &get](std::byte* memory, uint64_t n) {
    if (!state->answered) state->sealed->OnBytes(memory, n, state->on_bytes);
  };
}

void NvmeCore::PlanSealedPut(PutState& put) {
  const Placement& placement = *put.placement;
  const RunIdentity run = RunIdentityOf(placement);
  const uint64_t head_bytes = FrameOffsetInRun(run.frame_bytes, true);
  std::byte* const head = put.page.get();
  const CipherKey* key = store_->keys.Find(store_->keys.newest_id());
  TERRACE_CHECK(key != nullptr);
  put.sealer = std::make_unique<RunSealer>(DeriveRunKey(*key, put.salt, run), run,
                                           MutableBytes(head, head_bytes).subspan(kTierPageBytes));
  // Tier page and tags are last: the tags are known when the frame has been encrypted.
  AddSpans(placement, head_bytes, run.frame_bytes, const_cast<std::byte*>(put.buffer.frame().data()),
           &put.transfer->spans);
  AddSpans(placement, 0, head_bytes, head, &put.transfer->spans);
  put.transfer->stage = [this, sealer = put.sealer.get(), head, head_bytes](std::byte* memory,
                                                                            uint64_t n) -> StagedMemory {
    if (memory >= head && memory < head + head_bytes) {
      TERRACE_CHECK(sealer->done());
      return nullptr;
    }
    StagedMemory staged = staging_->Take(n);
    sealer->Seal({memory, n}, staged.get());
    return staged;
  };
}

}  // namespace terrace
