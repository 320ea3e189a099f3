// Disk: everything that the tier asks of the operating system below its directory - the directory's names,
// small files, segments, the engine that moves their bytes, and the file system that RocksDB sees. SystemDisk
// is the real one; tests put one below the tier that fails, tears and forgets.
//
// Names are plain (no slash). Files are made with mode 0600, directories with 0700; no symbolic link is
// followed. Errors as ErrnoStatus says: kNotFound for a name that is not there, kDataLoss for a link or
// something that is not a regular file, kResourceExhausted where the file system is full, kPermissionDenied
// where it refuses.
//
// Threads: every call from every thread, each file's own calls too.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "backends/nvme/io_engine.h"
#include "terrace/bytes.h"
#include "terrace/nvme_backend.h"
#include "terrace/status.h"

namespace rocksdb {
class FileSystem;
}

namespace terrace {

enum class FileOpen : uint8_t {
  kExisting,  // kNotFound without it
  kNew,       // kFailedPrecondition where the name is taken
  kOpenOrCreate,
};

// An open file; its end closes it.
class DiskFile {
 public:
  virtual ~DiskFile() = default;
  // What an IoRequest of this disk's engine names it by.
  virtual int fd() const = 0;
  // Its I/O passes by the page cache (O_DIRECT): offsets, lengths and memory are multiples of 4,096 then.
  virtual bool is_direct() const = 0;
  virtual Result<uint64_t> Size() const = 0;
  // Blocks for [0, size_bytes) and a length of at least that. Where the file system cannot reserve: a longer
  // file.
  virtual Status Allocate(uint64_t size_bytes) = 0;
  virtual Status Truncate(uint64_t size_bytes) = 0;
  // The bytes in front of the first that was never written (a hole or an unwritten extent).
  virtual Result<uint64_t> WrittenBytes() const = 0;
  // Data and length are durable when it returns OK (fdatasync). After a failure nothing is known of what was
  // written since the last success.
  virtual Status Sync() = 0;
  // Waiting reads and writes, for what is off the request path. ReadAt: the bytes read, fewer only at the end
  // of the file. WriteAt: all of them, or an error.
  virtual Result<uint64_t> ReadAt(uint64_t offset, MutableBytes to) const = 0;
  virtual Status WriteAt(uint64_t offset, Bytes from) = 0;
};

inline constexpr char kLockFileName[] = "lock";

// Held until it is destroyed.
class DiskLock {
 public:
  virtual ~DiskLock() = default;
};

class Disk {
 public:
  virtual ~Disk() = default;
  // The directory's name in messages.
  virtual const std::string& path() const = 0;

  // Makes the directory where it is absent (its parent must exist) and opens it. Once, before all else.
  virtual Status OpenDirectory() = 0;
  // Mode 0700 on what was found. Not before it is known to be ours.
  virtual Status ProtectDirectory() = 0;
  // Every name in it but "." and "..".
  virtual Result<std::vector<std::string>> List() const = 0;
  // kUnavailable naming process, host and since when, where it is held.
  virtual Result<std::unique_ptr<DiskLock>> Lock() = 0;

  // `direct` is a wish: see DiskFile::is_direct.
  virtual Result<std::unique_ptr<DiskFile>> OpenFile(const std::string& name, FileOpen how, bool direct) = 0;
  virtual Status Remove(const std::string& name) = 0;  // OK where it is not there
  virtual Status Rename(const std::string& from, const std::string& to) = 0;
  // A directory in it; OK where it is there.
  virtual Status MakeDirectory(const std::string& name) = 0;
  // A directory in it with all that it holds; OK where it is not there.
  virtual Status RemoveDirectory(const std::string& name) = 0;
  // Names made, removed and renamed are durable.
  virtual Status SyncNames() = 0;
  // What the file system has left for this user.
  virtual Result<uint64_t> FreeBytes() const = 0;

  virtual Result<std::unique_ptr<IoEngine>> MakeEngine(uint32_t depth) = 0;
  // Where RocksDB's files lie; paths begin with path().
  virtual std::shared_ptr<rocksdb::FileSystem> RocksFileSystem() = 0;
};

// The operating system's. kAuto takes io_uring where there is one and threads elsewhere; kIoUring answers
// kUnavailable at MakeEngine where there is none. `factory` (tests): another engine in io_uring's place.
std::unique_ptr<Disk> MakeSystemDisk(std::string path, IoEngineKind engine, IoEngineFactory factory = {});

}  // namespace terrace
