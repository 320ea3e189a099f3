// SimulatedFile: the bytes of one file as readers see them and as a power loss would leave them, and what was
// done since its last sync.
//
// What survives a power loss, of what was not synced:
//   data     of each write any subset of its 512-byte sectors, of overlapping writes any one; a sector is the
//            old one or the new one, never a mix
//   length   what the file's changes of length, in their order, had made of it after any number of them; what
//            lies beyond is gone, what lies within and did not survive is zeros or what it was before
//   a cut    (Truncate) as a change of length; what was cut off reads as zeros only if the cut survived
// Which of it survives is drawn from the seed, the file's name, and how many changes files of that name had
// seen, so that what other files and threads do does not move it.
//
// Threads: the world's mutex is held by whoever calls.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string_view>
#include <vector>

#include "terrace/bytes.h"

namespace terrace {

inline constexpr uint64_t kSectorBytes = 512;

// Uniform in 64 bits, of up to three numbers.
uint64_t DrawOf(uint64_t a, uint64_t b, uint64_t c = 0);
uint64_t DrawOf(uint64_t seed, std::string_view name);

// Bytes of which most were never written. Copies share their pages until one of them is changed.
class SparseBytes {
 public:
  void Write(uint64_t offset, Bytes from);
  void Read(uint64_t offset, MutableBytes to) const;
  // Zeros, and never written, from here on.
  void Cut(uint64_t offset);
  // The bytes in front of the first page that was never written.
  uint64_t WrittenBytes() const;
  // Behind the last page that was written.
  uint64_t end() const { return pages_.empty() ? 0 : (pages_.rbegin()->first + 1) * kPageBytes; }

 private:
  static constexpr uint64_t kPageBytes = 4096;
  using Page = std::array<std::byte, kPageBytes>;
  std::map<uint64_t, std::shared_ptr<Page>> pages_;  // null: written with zeros
};

enum class LossStyle : uint8_t {
  kDrawn,    // per file all, nothing, or a draw for each change
  kNothing,  // nothing is lost
  kAll,      // everything that was not synced is lost
};

class SimulatedFile {
 public:
  // `ordinal`: of the changes to files of this name; outlives the file.
  SimulatedFile(uint64_t stream, std::shared_ptr<uint64_t> ordinal)
      : stream_(stream), ordinal_(std::move(ordinal)) {}

  uint64_t length() const { return length_; }
  uint64_t durable_length() const { return durable_length_; }
  // Blocks that it takes from its file system; holes in front of what was written count.
  uint64_t charged_bytes() const;
  // ... once bytes up to `end` are written.
  uint64_t charged_bytes_after(uint64_t end) const;
  uint64_t WrittenBytes() const;

  // The bytes read, fewer at the end of the file.
  uint64_t Read(uint64_t offset, MutableBytes to) const;
  void Write(uint64_t offset, Bytes from);
  void Allocate(uint64_t length);
  void Truncate(uint64_t length);
  void Sync();
  // What was not synced is decided: the rest of it is lost once the power is. Readers do not notice. A failed
  // sync is this, and so is a loss, which Lose follows.
  void Settle(LossStyle style);
  // What readers see is what survived.
  void Lose();

  // The next draw of this file; `salt` tells draws for one change apart.
  uint64_t NextDraw() { return DrawOf(stream_, (*ordinal_)++); }

 private:
  struct Change {
    uint64_t ordinal = 0;
    uint64_t offset = 0;          // of a write: a multiple of a sector
    std::vector<std::byte> data;  // whole sectors as they were after the write; empty: length only
    bool changes_length = false;
    bool is_cut = false;
    uint64_t length = 0;
  };

  Change& Add();
  void SetLength(Change& change, uint64_t length);
  void ApplyWrite(const Change& change, bool whole);

  const uint64_t stream_;
  const std::shared_ptr<uint64_t> ordinal_;
  SparseBytes current_;
  SparseBytes durable_;
  uint64_t length_ = 0;
  uint64_t durable_length_ = 0;
  uint64_t reserved_bytes_ = 0;
  std::vector<Change> changes_;
};

}  // namespace terrace
