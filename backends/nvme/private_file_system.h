// PrivateFileSystem: RocksDB's files with mode 0600, whatever the umask. The place for a file system that is
// simulated to come in between.
#pragma once

#include <rocksdb/file_system.h>

#include <memory>

namespace terrace {

std::shared_ptr<rocksdb::FileSystem> MakePrivateFileSystem(std::shared_ptr<rocksdb::FileSystem> base);

}  // namespace terrace
