// PrivateFileSystem: RocksDB's files with mode 0600, whatever the umask.
#pragma once

#include <rocksdb/file_system.h>

#include <memory>

namespace terrace {

std::shared_ptr<rocksdb::FileSystem> MakePrivateFileSystem(std::shared_ptr<rocksdb::FileSystem> base);

}  // namespace terrace
