// OpenedRecords: the part of an opening that gives a directory's records - the manifest as it is, or made
// again from the segments where it is lost, and the log of what was erased.
//
// A manifest counts as lost where files of it are missing or damaged, where its making was not finished,
// where it is another directory's, and where it is older than the superblock. It is removed then. Not where
// the device fails, or the file system is full: the opening does.
#pragma once

#include "backends/nvme/manifest.h"
#include "backends/nvme/opened_store.h"
#include "backends/nvme/superblock.h"
#include "terrace/status.h"

namespace terrace {

// Fills manifest, erased log, index, accounting and generations of a store whose directory and segments are
// open.
Status OpenRecords(OpenedStore& store);

// What a manifest of this directory calls itself.
ManifestIdentity IdentityOf(const Superblock& superblock);
// A rebuild adopts nothing older than `floor` from here on; durable. By whoever writes manifest and
// superblock.
Status RaiseRebuildFloor(OpenedStore& store, uint64_t floor);

}  // namespace terrace
