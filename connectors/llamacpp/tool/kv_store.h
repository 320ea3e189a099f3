// KvStore: the tiers that a command works with, opened by the composition root (terrace_llama_main.cc), which
// alone knows the backends.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "connectors/llamacpp/llama_cache.h"
#include "connectors/llamacpp/tool/command_line.h"
#include "terrace/status.h"
#include "terrace/storage_manager.h"

namespace terrace::llamacpp {

// Tier names in ManagerStats.
inline constexpr char kHostTier[] = "host";
inline constexpr char kNvmeTier[] = "nvme";
inline constexpr char kRemoteTier[] = "remote";

struct KvStore {
  std::shared_ptr<StorageManager> manager;  // null: nothing is kept
  bool has_nvme = false;
  std::string remote;  // the option that names the remote tier; empty: there is none
  // How long a prompt, and the end of the program, wait for the remote tier.
  Duration remote_deadline{};
  // Why a tier that was asked for is left out, with the option in front; OK else.
  Status refused;
};

using StoreOpener = std::function<KvStore(const CacheOptions&)>;

// Opens, says on standard error what is left out. The second is an exit code other than 0 where the command
// must end.
std::pair<KvStore, int> OpenStore(const StoreOpener& opener, const CacheOptions& options);

// Waits (with progress) until everything is on its tiers, with a remote tier at most for its deadline;
// closes; says on standard error what went wrong.
void CloseStore(KvStore* store);

// Sets what of the store the engine's cache must know.
void UseStore(const KvStore& store, LlamaCacheOptions* cache);

// Objects loaded from the tier so far.
uint64_t TierHits(const KvStore& store, const std::string& tier);
// What of a load came from the tier.
TierShare ShareOf(const KvStore& store, const FetchResult& fetched, const std::string& tier);
// Prompts so far of which the remote tier could not say what it has.
uint64_t RemoteFailures(const KvStore& store);

// The program's exit code for how a command ended, after "terrace-llama: MESSAGE" on standard error where it
// failed. kInvalidArgument is wrong usage.
int ExitCode(const Status& status);

}  // namespace terrace::llamacpp
