// MakeSimulatedDisk: a Disk in a SimulatedWorld, for one life of it. Its files and its engine keep the world
// alive and count as the tier's; what RocksFileSystem gives counts as the manifest's.
#pragma once

#include <memory>
#include <string>

#include "backends/nvme/disk.h"
#include "backends/nvme/tests/simulated_world.h"

namespace terrace {

// `path`: one name below the root, "/tier".
std::unique_ptr<Disk> MakeSimulatedDisk(std::shared_ptr<SimulatedWorld> world, std::string path);

// Paths as the world has them.
std::shared_ptr<rocksdb::FileSystem> MakeSimulatedFileSystem(std::shared_ptr<SimulatedWorld> world);

}  // namespace terrace
