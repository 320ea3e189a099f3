// terrace-llama: the composition root. It alone knows which backends make up the tiers.
#include <string.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "connectors/llamacpp/tool/bench_command.h"
#include "connectors/llamacpp/tool/chat_command.h"
#include "connectors/llamacpp/tool/command_line.h"
#include "connectors/llamacpp/tool/kv_store.h"
#include "connectors/llamacpp/tool/run_command.h"
#include "connectors/options/byte_size.h"
#include "connectors/options/key_file.h"
#include "connectors/options/private_file.h"
#include "terrace/host_backend.h"
#include "terrace/nvme_backend.h"
#include "terrace/remote_backend.h"
#include "terrace/storage_manager.h"

namespace terrace::llamacpp {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kDefaultHostBytes = 1024 * kMiB;
// What loads and stores of the NVMe tier pass through where the host tier is smaller.
constexpr uint64_t kMinPoolBytes = 256 * kMiB;

NvmeOptions NvmeFor(const CacheOptions& options) {
  NvmeOptions nvme;
  nvme.directory = options.directory;
  nvme.capacity_bytes = options.nvme_bytes;
  // At least eight segments where the capacity allows it, so that the limit is used up to a small rest.
  nvme.segment_bytes = std::clamp(options.nvme_bytes / 8 / kMiB * kMiB, 16 * kMiB, 1024 * kMiB);
  nvme.io_engine = options.io_engine == "io_uring"  ? IoEngineKind::kIoUring
                   : options.io_engine == "threads" ? IoEngineKind::kThreads
                                                    : IoEngineKind::kAuto;
  return nvme;
}

Result<std::unique_ptr<Backend>> OpenNvme(const CacheOptions& options) {
  NvmeOptions nvme = NvmeFor(options);
  if (!options.nvme_key_file.empty()) {
    Result<std::vector<EncryptionKey>> keys = terrace::options::ReadKeyFile(options.nvme_key_file);
    if (!keys.ok()) return keys.status();
    nvme.keys = std::move(*keys);
  }
  return MakeNvmeBackend(nvme);
}

// What stands in the file. The text is wiped: it is a secret.
Result<std::string> ReadToken(const std::string& path) {
  constexpr char kBlank[] = " \t\r\n";
  const std::string name = "token file \"" + path + "\"";
  Result<std::string> text = terrace::options::ReadPrivateFile(name, path, 64 << 10);
  if (!text.ok()) return text.status();
  const size_t begin = text->find_first_not_of(kBlank);
  std::string token =
      begin == std::string::npos ? "" : text->substr(begin, text->find_last_not_of(kBlank) + 1 - begin);
  explicit_bzero(text->data(), text->size());
  if (token.empty() || token.find_first_of(kBlank) != std::string::npos) {
    return InvalidArgumentError(name + ": one token is needed, on one line");
  }
  return token;
}

Result<std::unique_ptr<Backend>> OpenRemote(const CacheOptions& options) {
  RemoteOptions remote;
  remote.addresses = options.remote;
  remote.path = options.remote_path == "streams" ? RemotePath::kStreams
                : options.remote_path == "bulk"  ? RemotePath::kBulk
                : options.remote_path == "shm"   ? RemotePath::kSharedMemory
                                                 : RemotePath::kAuto;
  remote.operation_deadline = options.remote_deadline;
  remote.connect_deadline = std::min<Duration>(remote.connect_deadline, options.remote_deadline);
  if (!options.remote_token_file.empty()) {
    Result<std::string> token = ReadToken(options.remote_token_file);
    if (!token.ok()) return token.status();
    remote.token = *std::move(token);
  }
  if (!options.remote_ca.empty()) {
    Result<std::string> roots = terrace::options::ReadWholeFile("--remote-ca \"" + options.remote_ca + "\"",
                                                                options.remote_ca, 1 << 20);
    if (!roots.ok()) return roots.status();
    remote.tls.use_tls = true;
    remote.tls.roots = *std::move(roots);
  }
  return MakeRemoteBackend(remote);
}

std::string RemoteOption(const CacheOptions& options) {
  std::string list;
  for (const std::string& address : options.remote) list += (list.empty() ? "" : ",") + address;
  return "--remote \"" + list + "\"";
}

// A tier that cannot be had is left out, and the others are used.
KvStore OpenTiers(const CacheOptions& options) {
  KvStore store;
  const bool wants_nvme = !options.directory.empty();
  const bool wants_remote = !options.remote.empty();
  const uint64_t host_bytes = options.host_bytes.value_or(wants_nvme || wants_remote ? kDefaultHostBytes : 0);
  const std::string host_option = "--host-bytes " + terrace::options::FormatByteSize(host_bytes);
  StorageOptions storage;
  storage.pool_bytes = host_bytes;
  std::vector<Tier> tiers;
  if (host_bytes > 0) {
    HostOptions host;
    host.capacity_bytes = host_bytes;
    Result<std::unique_ptr<Backend>> backend = MakeHostBackend(host);
    if (backend.ok())
      tiers.push_back({*std::move(backend), nullptr});
    else
      store.refused = backend.status().WithContext(host_option);
  }
  if (wants_nvme) {
    Result<std::unique_ptr<Backend>> backend = OpenNvme(options);
    if (backend.ok()) {
      tiers.push_back({*std::move(backend), nullptr});
      storage.pool_bytes = std::max(host_bytes, kMinPoolBytes);
      store.has_nvme = true;
    } else {
      store.refused = backend.status().WithContext("--cache \"" + options.directory + "\"");
    }
  }
  if (wants_remote) {
    Result<std::unique_ptr<Backend>> backend = OpenRemote(options);
    if (backend.ok()) {
      tiers.push_back({*std::move(backend), nullptr});
      storage.pool_bytes = std::max(host_bytes, kMinPoolBytes);
      store.remote = RemoteOption(options);
      store.remote_deadline = options.remote_deadline;
    } else {
      store.refused = backend.status().WithContext(RemoteOption(options));
    }
  }
  if (tiers.empty()) return store;
  Result<std::unique_ptr<StorageManager>> manager =
      StorageManager::Open(std::move(storage), std::move(tiers));
  if (manager.ok()) {
    store.manager = *std::move(manager);
  } else {
    store.has_nvme = false;
    store.remote.clear();
    store.refused = manager.status().WithContext(wants_nvme     ? "--cache \"" + options.directory + "\""
                                                 : wants_remote ? RemoteOption(options)
                                                                : host_option);
  }
  return store;
}

int Main(int argc, const char* const* argv) {
  const std::variant<Command, int> parsed = ParseCommandLine(argc, argv);
  if (const int* exit_code = std::get_if<int>(&parsed)) return *exit_code;
  const Command& command = std::get<Command>(parsed);
  if (const auto* run = std::get_if<RunOptions>(&command)) return RunPrompts(*run, OpenTiers);
  if (const auto* chat = std::get_if<ChatOptions>(&command)) return RunChat(*chat, OpenTiers);
  return RunBench(std::get<BenchOptions>(command), OpenTiers);
}

}  // namespace
}  // namespace terrace::llamacpp

int main(int argc, char** argv) {
  try {
    return terrace::llamacpp::Main(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "terrace-llama: %s\n", error.what());
    return terrace::llamacpp::kExitFailure;
  }
}
