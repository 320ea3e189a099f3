// ManifestReader: a directory's records as they lie in RocksDB, for who judges them rather than uses them:
// keys and values raw, the database opened for reading only, no file made or changed. DropRecords is the one
// write that verify makes. Manifest (manifest.h) is the tier's own way.
//
// Threads: one caller at a time. The disk outlives it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backends/nvme/disk.h"
#include "terrace/status.h"

namespace terrace {

// kOwn: what the tier keeps of itself (manifest.h).
enum class RecordFamily : uint8_t { kPlaces, kContents, kRoots, kOwn };

class ManifestReader {
 public:
  // kNotFound where there is no database; kDataLoss or kUnavailable where it cannot be read.
  static Result<std::unique_ptr<ManifestReader>> Open(Disk& disk);
  virtual ~ManifestReader() = default;

  using Record = std::function<void(std::string_view key, std::string_view value)>;
  // In the order of the keys. An error ends it where it was met.
  virtual Status ForEach(RecordFamily family, const Record& record) = 0;
  // Both families side by side: a missing half is null.
  using Pair = std::function<void(std::string_view key, const std::string_view* place,
                                  const std::string_view* content)>;
  virtual Status ForEachObject(const Pair& pair) = 0;
  virtual Result<std::optional<std::string>> Get(RecordFamily family, std::string_view key) = 0;
};

// The files of the database, in bytes; 0 where there is none.
uint64_t ManifestFileBytes(Disk& disk);

// Records by their keys.
struct RecordDrops {
  std::vector<std::string> objects;  // places and contents
  std::vector<std::string> roots;
  // Contents alone. The value is what the object's place becomes.
  std::vector<std::pair<std::string, std::string>> contents;

  size_t size() const { return objects.size() + roots.size() + contents.size(); }
};

// Deletes them. Durable when it returns OK; after an error or a crash some may be deleted.
Status DropRecords(Disk& disk, const RecordDrops& drops);

}  // namespace terrace
