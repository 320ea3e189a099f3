// SimulatedWorld: one file system in memory below everything that the tier keeps - segments, superblock,
// erased log and RocksDB's files - with one history of writes and syncs, that fails by a seed and outlives
// power losses. MakeSimulatedDisk (simulated_disk.h) is how a tier sees it.
//
// Data and lengths: see SimulatedFile. Names: each directory keeps the changes of its names in order (made,
// removed, renamed as one); a sync of the directory makes them durable, a power loss keeps the first few of
// those since the last sync, any number. A file whose name did not survive is gone, however often it was
// synced, and so is all that lies in a directory whose own name did not. A rename between directories is not
// supported. The tier's own directory is durable as soon as it is made.
// Requests that the engine has not completed: any sectors of them may be on the device after a power loss; a
// crash of the process leaves each one whole or not begun.
//
// One life lasts from a loss or crash to the next: Disk, files, engine and file system belong to the life in
// which they were made, and fail (EIO) for ever once it has ended. Freeze ends it for them before its rest is
// decided, so that threads of RocksDB touch nothing any more.
//
// Threads: every call from every thread. Errors are errno's values, 0 = done.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "backends/nvme/disk.h"
#include "backends/nvme/io_engine.h"
#include "backends/nvme/tests/simulated_file.h"

namespace terrace {

// Who asks: the tier's own files and engine, or RocksDB.
enum class SimulatedPart : uint8_t { kTier, kManifest };

// Of 10,000 operations each. A failed sync decides there and then what of the file survives a power loss, and
// a later one that succeeds does not bring the rest back.
struct FaultRates {
  uint32_t short_transfer = 0;  // the engine's requests only; so are the next two and `late`
  uint32_t again = 0;
  uint32_t interrupted = 0;
  uint32_t late = 0;  // completions that come some Waits later, behind others
  uint32_t io_error = 0;
  uint32_t no_space = 0;  // writes and allocations
  uint32_t failed_sync = 0;
};

struct SimulatedWorldOptions {
  uint64_t seed = 0;
  uint64_t total_bytes = uint64_t{1} << 50;  // of the file system
  bool has_direct = true;                    // O_DIRECT
};

class SimulatedWorld {
 public:
  using File = std::shared_ptr<SimulatedFile>;
  struct Caller {
    SimulatedPart part = SimulatedPart::kTier;
    uint64_t life = 0;
  };

  explicit SimulatedWorld(SimulatedWorldOptions options);
  SimulatedWorld(const SimulatedWorld&) = delete;
  SimulatedWorld& operator=(const SimulatedWorld&) = delete;

  const SimulatedWorldOptions& options() const { return options_; }
  void SetFaults(SimulatedPart part, FaultRates rates);
  // For those who look at what is there, not at how it fails.
  void SetNoFaults();

  uint64_t life() const;
  // Everything fails from here on.
  void Freeze();
  // ... after that many further operations of this thread; the last of them is in progress when it happens.
  void FreezeAfter(uint64_t operations);
  bool frozen() const;
  // Both freeze first and begin the next life.
  void LosePower(LossStyle style = LossStyle::kDrawn);
  void Crash();

  int Open(Caller who, const std::string& path, FileOpen how, File* file);
  int Size(Caller who, const File& file, uint64_t* bytes);
  int Read(Caller who, const File& file, uint64_t offset, MutableBytes to, uint64_t* done);
  // All of it, or an error with some of it perhaps written.
  int Write(Caller who, const File& file, uint64_t offset, Bytes from);
  int Append(Caller who, const File& file, Bytes from);
  int Allocate(Caller who, const File& file, uint64_t bytes);
  int Truncate(Caller who, const File& file, uint64_t bytes);
  int WrittenBytes(Caller who, const File& file, uint64_t* bytes);
  int Sync(Caller who, const File& file);

  int MakeDirectory(Caller who, const std::string& path);
  int Remove(Caller who, const std::string& path);
  int RemoveDirectory(Caller who, const std::string& path);  // with all that it holds
  int Rename(Caller who, const std::string& from, const std::string& to);
  int List(Caller who, const std::string& path, std::vector<std::string>* names);
  int IsDirectory(Caller who, const std::string& path, bool* is_directory);
  int SyncNames(Caller who, const std::string& path);
  int Lock(Caller who, const std::string& path);  // EAGAIN where it is held
  void Unlock(Caller who, const std::string& path);
  int FreeBytes(Caller who, uint64_t* bytes);

  // The engine's: what is between Begin and End is in flight.
  void BeginRequest(Caller who, IoRequest* request, const File& file, bool is_direct);
  // Carries it out, or fails it: bytes or -errno.
  int64_t EndRequest(Caller who, IoRequest* request);
  // When a request completes: `delay` Waits later than others, among those of one Wait by rising `rank`.
  struct Turn {
    uint64_t delay = 0;
    uint64_t rank = 0;
  };
  Turn NextTurn(Caller who, const File& file);

  // What files and directories hold in blocks.
  uint64_t used_bytes() const;
  // Blocks of everything below `path`.
  uint64_t UsedBelow(const std::string& path) const;

 private:
  struct Directory;
  struct Node {
    File file;
    std::shared_ptr<Directory> directory;
    explicit operator bool() const { return file || directory; }
  };
  // Names that change together: a rename is two. An empty node: the name is gone.
  using NameChange = std::map<std::string, Node>;
  struct Directory {
    std::map<std::string, Node> names;
    std::map<std::string, Node> durable_names;
    std::vector<NameChange> changes;
    uint64_t stream = 0;
    uint64_t ordinal = 0;
  };
  struct InFlight {
    File file;
    bool is_direct = false;
    uint64_t offset = 0;
    std::vector<std::byte> data;  // of a write, once the world is frozen
  };
  enum class Fault : uint8_t { kNone, kShort, kAgain, kInterrupted, kIoError, kNoSpace };

  // With mutex_ held from here on.
  // 0, or why there is nothing to be had. `last`: the world freezes when this operation has been done.
  int Enter(Caller who, bool* last);
  int Leave(bool last, int error);
  void FreezeLocked();
  void NextLife();
  void Settle(Directory& directory, LossStyle style);
  void LoseBelow(Directory& directory);
  Fault DrawFault(Caller who, SimulatedFile& file, bool is_write, bool is_engine) const;
  Node Find(const std::string& path) const;
  std::shared_ptr<Directory> ParentOf(const std::string& path, std::string* name) const;
  std::shared_ptr<Directory> NewDirectory(const std::string& path);
  File NewFile(const std::string& path);
  static void Change(Directory& directory, NameChange change);
  void Empty(Directory& directory);
  uint64_t UsedIn(const Directory& directory) const;
  bool HasRoom(uint64_t more) const;
  int WriteLocked(Caller who, const File& file, uint64_t offset, Bytes from);
  int64_t Transfer(Caller who, const IoRequest& request, InFlight& flight);

  const SimulatedWorldOptions options_;
  mutable std::mutex mutex_;
  std::array<FaultRates, 2> rates_;
  std::shared_ptr<Directory> root_;
  std::map<std::string, std::shared_ptr<uint64_t>> ordinals_;  // by path
  std::map<IoRequest*, InFlight> in_flight_;
  std::set<std::string> locks_;
  uint64_t life_ = 1;
  bool frozen_ = false;
  uint64_t operations_left_ = 0;  // 0: it does not freeze by itself
  std::thread::id counted_thread_;
};

}  // namespace terrace
