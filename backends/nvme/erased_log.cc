#include "backends/nvme/erased_log.h"

#include <xxhash.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/check.h"
#include "lib/base/status_macros.h"
#include "lib/wire/byte_codec.h"

namespace terrace {
namespace {

constexpr uint32_t kVersion = 1;
constexpr size_t kHashedBytes = 56;
constexpr size_t kEntriesPerRead = 16384;

uint64_t HashOf(std::string_view entry) { return XXH3_64bits(entry.data(), kHashedBytes); }

void Encode(const ErasedEntry& entry, ByteWriter& out) {
  const size_t begin = out.size();
  out.WriteDigest(entry.id.key);
  out.Write<uint16_t>(entry.id.part.group);
  out.Write<uint16_t>(entry.id.part.shard);
  out.Write<uint32_t>(kVersion);
  out.Write<uint64_t>(entry.floor);
  out.Write<uint64_t>(0);
  TERRACE_CHECK(out.size() == begin + kHashedBytes);
  out.Write<uint64_t>(HashOf(std::string_view(out.str()).substr(begin)));
}

// nullopt: broken.
std::optional<ErasedEntry> Decode(std::string_view bytes) {
  ByteReader in(bytes);
  ErasedEntry entry;
  entry.id.key = in.ReadDigest();
  entry.id.part.group = in.Read<uint16_t>();
  entry.id.part.shard = in.Read<uint16_t>();
  const auto version = in.Read<uint32_t>();
  entry.floor = in.Read<uint64_t>();
  in.Read<uint64_t>();
  const auto hash = in.Read<uint64_t>();
  if (!in.ok() || hash != HashOf(bytes) || version != kVersion) return std::nullopt;
  return entry;
}

class FileErasedLog : public ErasedLog {
 public:
  FileErasedLog(std::unique_ptr<DiskFile> file, size_t max_entries)
      : file_(std::move(file)), max_entries_(max_entries) {}

  Status Load() {
    TERRACE_RETURN_IF_ERROR(ReadEntries());
    TERRACE_ASSIGN_OR_RETURN(const uint64_t size, file_->Size());
    if (size == num_slots_ * kErasedEntryBytes) return OkStatus();
    TERRACE_RETURN_IF_ERROR(file_->Truncate(num_slots_ * kErasedEntryBytes));
    return file_->Sync();
  }

  Status ReadEntries() {
    TERRACE_ASSIGN_OR_RETURN(const uint64_t size, file_->Size());
    std::vector<std::byte> piece(kEntriesPerRead * kErasedEntryBytes);
    uint64_t slot = 0;
    for (uint64_t offset = 0; offset < size;) {
      TERRACE_ASSIGN_OR_RETURN(const uint64_t got, file_->ReadAt(offset, piece));
      const std::string_view bytes(reinterpret_cast<const char*>(piece.data()), got);
      for (uint64_t at = 0; at + kErasedEntryBytes <= got; at += kErasedEntryBytes, ++slot) {
        const std::optional<ErasedEntry> entry = Decode(bytes.substr(at, kErasedEntryBytes));
        if (!entry) continue;
        Note(*entry);
        num_broken_ += slot - num_slots_;
        num_slots_ = slot + 1;
      }
      if (got < piece.size()) break;
      offset += got;
    }
    return OkStatus();
  }

  Status Add(std::span<const ErasedEntry> entries) override {
    if (entries.empty()) return OkStatus();
    if (num_slots_ > max_entries_ || entries.size() > max_entries_ - num_slots_) {
      return ResourceExhaustedError("erased log: " + std::to_string(num_slots_) + " of " +
                                    std::to_string(max_entries_) + " entries are in use");
    }
    ByteWriter out;
    for (const ErasedEntry& entry : entries) Encode(entry, out);
    // After a failure the next ones go to the same place: what half of these left there is no harm, and is
    // written over.
    TERRACE_RETURN_IF_ERROR(
        file_->WriteAt(num_slots_ * kErasedEntryBytes, std::as_bytes(std::span(out.str()))));
    TERRACE_RETURN_IF_ERROR(file_->Sync());
    for (const ErasedEntry& entry : entries) Note(entry);
    num_slots_ += entries.size();
    return OkStatus();
  }

  Status Reset() override {
    TERRACE_RETURN_IF_ERROR(file_->Truncate(0));
    num_slots_ = 0;
    num_broken_ = 0;
    highest_floor_ = 0;
    floors_.clear();
    return file_->Sync();
  }

  size_t num_entries() const override { return num_slots_; }
  const ErasedFloors& Floors() const override { return floors_; }
  size_t num_broken() const override { return num_broken_; }
  uint64_t highest_floor() const override { return highest_floor_; }

 private:
  void Note(const ErasedEntry& entry) {
    uint64_t& floor = floors_[entry.id];
    floor = std::max(floor, entry.floor);
    highest_floor_ = std::max(highest_floor_, entry.floor);
  }

  const std::unique_ptr<DiskFile> file_;
  const size_t max_entries_;
  // The entries in the file, broken ones too: where the next one goes.
  size_t num_slots_ = 0;
  size_t num_broken_ = 0;
  uint64_t highest_floor_ = 0;
  ErasedFloors floors_;
};

}  // namespace

Result<std::unique_ptr<const ErasedLog>> ErasedLog::OpenForReading(Disk& disk) {
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<DiskFile> file,
                           disk.OpenFile(kErasedLogName, FileOpen::kExisting, false));
  auto log = std::make_unique<FileErasedLog>(std::move(file), 0);
  TERRACE_RETURN_IF_ERROR(log->ReadEntries().WithContext("erased log"));
  return std::unique_ptr<const ErasedLog>(std::move(log));
}

Result<std::unique_ptr<ErasedLog>> ErasedLog::Open(Disk& disk, size_t max_entries) {
  TERRACE_CHECK(max_entries > 0);
  Result<std::unique_ptr<DiskFile>> file = disk.OpenFile(kErasedLogName, FileOpen::kExisting, false);
  if (file.status().code() == StatusCode::kNotFound) {
    file = disk.OpenFile(kErasedLogName, FileOpen::kNew, false);
  }
  if (!file.ok()) return file.status();
  auto log = std::make_unique<FileErasedLog>(std::move(*file), max_entries);
  TERRACE_RETURN_IF_ERROR(log->Load().WithContext("erased log"));
  // An empty one may have been made just now, or by a process that died before its name was durable.
  if (log->num_entries() == 0) TERRACE_RETURN_IF_ERROR(disk.SyncNames());
  return std::unique_ptr<ErasedLog>(std::move(log));
}

}  // namespace terrace
