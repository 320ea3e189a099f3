// MeasureRestart: how long a restart takes, from nothing to a manager that answers lookups, beside a bare
// RocksDB iterator over what must be read.
//
// A tier's directory is made with `entries` records as the tier writes them: prompts of 32 chunks, one object
// each, with random tokens, and segments that are sparse files, since no payload is read at a start. It lies
// in the page cache then. Phases, each as often as `repetitions` says, the fastest counts:
//
//   manifest_scan_bare  the records of places, key and value looked at; RocksDB's opening left out
//   contents_scan_bare  the same of tokens and items
//   nvme_open           MakeNvmeBackend
//   manager_restore     StorageManager::Open, and one Lookup that finds all chunks of a prompt
//   total               nvme_open + manager_restore: the restart
//   contents            from there until tokens and items of every chunk are in the index
//
// `ratio` is the phase's rate by that of manifest_scan_bare; `rss_bytes_per_entry` what the process has grown
// by since before the restart; `cpu_s` of all threads. An open manifest's own memory (up to 32 MiB) is in it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "terrace/status.h"

namespace terrace::bench {

struct RestartBenchOptions {
  std::string directory;         // `terrace-restart` is made in it, and removed
  uint64_t entries = 1'000'000;  // about 1.4 GB on disk
  uint32_t tokens = 256;         // of one chunk
  int repetitions = 3;
};

struct RestartResult {
  std::string phase;
  uint64_t entries = 0;
  double seconds = 0;
  double cpu_s = 0;
  double ratio = 0;
  double rss_bytes_per_entry = 0;

  // One line: {"phase": ..., "entries": ..., "seconds": ..., "entries_per_s": ..., "ratio": ..., "cpu_s":
  // ..., "rss_bytes_per_entry": ...}
  std::string ToJson() const;
};

Result<std::vector<RestartResult>> MeasureRestart(const RestartBenchOptions& options);

}  // namespace terrace::bench
