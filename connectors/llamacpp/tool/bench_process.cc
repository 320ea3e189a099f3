#include "connectors/llamacpp/tool/bench_process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

extern char** environ;

namespace terrace::llamacpp {
namespace {

void AddTier(const BenchOptions& options, const std::string& name, std::vector<std::string>* arguments) {
  const CacheOptions& cache = options.cache;
  if (name == kNvmeTier) {
    arguments->insert(arguments->end(), {"--cache", cache.directory, "--nvme-bytes",
                                         std::to_string(cache.nvme_bytes), "--io-engine", cache.io_engine});
    if (!cache.nvme_key_file.empty())
      arguments->insert(arguments->end(), {"--nvme-key-file", cache.nvme_key_file});
    return;
  }
  std::string addresses;
  for (const std::string& address : cache.remote) addresses += (addresses.empty() ? "" : ",") + address;
  arguments->insert(arguments->end(),
                    {"--remote", addresses, "--remote-path", cache.remote_path, "--remote-deadline",
                     std::to_string(cache.remote_deadline.count()) + "ms"});
  if (!cache.remote_token_file.empty())
    arguments->insert(arguments->end(), {"--remote-token-file", cache.remote_token_file});
  if (!cache.remote_ca.empty()) arguments->insert(arguments->end(), {"--remote-ca", cache.remote_ca});
}

std::vector<std::string> ChildArguments(const BenchOptions& options, const std::string& name,
                                        const std::string& salt, const std::string& logits) {
  std::vector<std::string> arguments = {"terrace-llama",
                                        "bench",
                                        "--json",
                                        "--cases",
                                        name,
                                        "--require-cache",
                                        "--model",
                                        options.model.path,
                                        "--salt",
                                        salt,
                                        "--text",
                                        options.text,
                                        "--child-logits",
                                        logits,
                                        "--prefix-tokens",
                                        std::to_string(options.prefix_tokens),
                                        "--suffix-tokens",
                                        std::to_string(options.suffix_tokens),
                                        "--flash-attn",
                                        options.model.flash_attn ? "on" : "off",
                                        "--kv-type",
                                        ggml_type_name(options.model.kv_type)};
  const auto add = [&](const char* option, uint64_t value) {
    arguments.push_back(option);
    arguments.push_back(std::to_string(value));
  };
  AddTier(options, name, &arguments);
  if (options.cache.host_bytes) add("--host-bytes", *options.cache.host_bytes);
  if (options.model.threads != 0) add("--threads", options.model.threads);
  if (options.model.ctx != 0) add("--ctx", options.model.ctx);
  return arguments;
}

// The program's standard output, if it ends with 0.
Result<std::string> Output(const std::vector<std::string>& arguments) {
  std::array<int, 2> ends;
  if (pipe2(ends.data(), O_CLOEXEC) != 0)
    return UnavailableError(std::string("pipe: ") + std::strerror(errno));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  pid_t child = 0;
  const int error = posix_spawn(&child, "/proc/self/exe", &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  std::string output;
  std::array<char, 4096> buffer;
  while (error == 0) {
    const ssize_t count = read(ends[0], buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    output.append(buffer.data(), static_cast<size_t>(count));
  }
  close(ends[0]);
  if (error != 0)
    return UnavailableError(std::string("starting this program again: ") + std::strerror(error));
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    return InternalError("the process that measures the case failed (status " + std::to_string(status) + ")");
  }
  return output;
}

Result<std::vector<float>> ReadLogits(const std::string& path) {
  std::error_code error;
  const uintmax_t bytes = std::filesystem::file_size(path, error);
  std::ifstream file(path, std::ios::binary);
  if (error || !file || bytes % sizeof(float) != 0) return InternalError("no logits in " + path);
  std::vector<float> logits(bytes / sizeof(float));
  file.read(reinterpret_cast<char*>(logits.data()), static_cast<std::streamsize>(bytes));
  if (!file) return InternalError("no logits in " + path);
  return logits;
}

}  // namespace

Result<TierRun> MeasureInNewProcess(const BenchOptions& options, const std::string& name,
                                    const std::string& salt) {
  std::string path = (std::filesystem::temp_directory_path() / "terrace-logits-XXXXXX").string();
  const int file = mkstemp(path.data());
  if (file < 0) return UnavailableError("a temporary file " + path + ": " + std::strerror(errno));
  close(file);
  const Result<std::string> output = Output(ChildArguments(options, name, salt, path));
  Result<std::vector<float>> logits = ReadLogits(path);
  unlink(path.c_str());
  if (!output.ok()) return output.status();
  if (!logits.ok()) return logits.status();
  TierRun run;
  try {
    const nlohmann::json json = nlohmann::json::parse(*output);
    run.first.loaded_tokens = json.at("loaded_tokens").get<uint64_t>();
    run.first.decoded_tokens = json.at("decoded_tokens").get<uint64_t>();
    run.first.ttft_ms = json.at("ttft_ms").get<double>();
    run.first.load_ms = json.at("load_ms").get<double>();
    run.set_data_ms = json.at("set_data_ms").get<double>();
    run.tier_objects = json.at("tier_objects").get<uint64_t>();
  } catch (const nlohmann::json::exception& error) {
    return InternalError("what the process for the case " + name + " printed: " + error.what());
  }
  run.first.logits = *std::move(logits);
  return run;
}

Status MeasureAsNewProcess(const BenchOptions& options, const LoadedModel& model, const KvStore& store,
                           const std::vector<llama_token>& prompt) {
  const BenchContext::Tokens warm_up = BenchContext::Tokens(prompt).last(options.suffix_tokens);
  Result<std::unique_ptr<BenchContext>> context =
      BenchContext::Make(model, options.model, store, options.cache.salt, warm_up);
  if (!context.ok()) return context.status();
  const char* const tier = options.cases.front() == kNvmeTier ? kNvmeTier : kRemoteTier;
  const uint64_t hits = TierHits(store, tier);
  Result<FirstToken> first = (*context)->Loaded(prompt);
  if (!first.ok()) return first.status();
  const uint64_t objects = TierHits(store, tier) - hits;
  std::ofstream file(options.child_logits, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(first->logits.data()),
             static_cast<std::streamsize>(first->logits.size() * sizeof(float)));
  file.close();
  if (!file) return UnavailableError("--child-logits: \"" + options.child_logits + "\" cannot be written");
  double set_data_ms = 0;
  if (first->loaded_tokens > 0) {
    Result<BenchContext::Blobs> blobs = (*context)->TakeBlobs(first->loaded_tokens);
    if (!blobs.ok()) return blobs.status();
    Result<double> bare = (*context)->BareSetDataMs(*blobs);
    if (!bare.ok()) return bare.status();
    set_data_ms = *bare;
  }
  const nlohmann::ordered_json line = {{"loaded_tokens", first->loaded_tokens},
                                       {"decoded_tokens", first->decoded_tokens},
                                       {"ttft_ms", first->ttft_ms},
                                       {"load_ms", first->load_ms},
                                       {"set_data_ms", set_data_ms},
                                       {"tier_objects", objects}};
  std::printf("%s\n", line.dump().c_str());
  return OkStatus();
}

}  // namespace terrace::llamacpp
