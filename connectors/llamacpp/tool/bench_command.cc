#include "connectors/llamacpp/tool/bench_command.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "connectors/llamacpp/tool/bench_context.h"
#include "connectors/llamacpp/tool/bench_process.h"
#include "connectors/llamacpp/tool/serve_process.h"
#include "terrace/token_hasher.h"

namespace terrace::llamacpp {
namespace {

struct CaseResult {
  std::string name;
  uint64_t loaded_tokens = 0;
  uint64_t decoded_tokens = 0;
  std::vector<double> ttft_ms, load_ms, set_data_ms;
  double store_ms = 0;
  double store_thread_ms = 0;
  bool logits_equal = true;
};

// The cache without its remote tier.
CacheOptions LocalTiers(CacheOptions cache) {
  cache.remote.clear();
  cache.require = cache.require && !cache.directory.empty();
  return cache;
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

bool SameBytes(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// One run of the benchmark: what all cases share.
class Bench {
 public:
  Bench(const BenchOptions& options, const LoadedModel& model, KvStore* store, const StoreOpener& opener,
        const std::vector<llama_token>& prompt)
      : options_(options), model_(model), store_(store), opener_(opener), prompt_(prompt) {
    // Each run under a salt of its own: what earlier runs left in the directory is no hit.
    salt_ = options.cache.salt + "/bench-" + std::to_string(getpid()) + "-" +
            std::to_string(std::chrono::system_clock::now().time_since_epoch().count());
    for (const std::string& name : options.cases) cases_.push_back({name});
  }

  Status Run() {
    if (Status done = RunEngineAlone(); !done.ok()) return done;
    if (Wants("host") || Wants("nvme")) {
      if (Status done = RunStore(); !done.ok()) return done;
    }
    if (Status done = RunWarm(); !done.ok()) return done;
    cached_.reset();
    if (Wants("nvme")) {
      if (Status done = RunNvme(); !done.ok()) return done;
    }
    CloseStore(store_);  // its memory is the next cases'
    for (const char* name : {"remote", "shm"}) {
      if (!Wants(name)) continue;
      if (Status done = RunRemote(name); !done.ok()) return done;
    }
    return OkStatus();
  }
  // Erases what the run stored in the directory, and ends the server.
  void CleanUp();
  void Print() const;

 private:
  CaseResult* Find(const std::string& name) {
    const auto found =
        std::find_if(cases_.begin(), cases_.end(), [&](const CaseResult& c) { return c.name == name; });
    return found == cases_.end() ? nullptr : &*found;
  }
  bool Wants(const std::string& name) { return Find(name) != nullptr; }
  void Record(CaseResult* result, const FirstToken& first) {
    result->loaded_tokens = first.loaded_tokens;
    result->decoded_tokens = first.decoded_tokens;
    result->ttft_ms.push_back(first.ttft_ms);
    result->load_ms.push_back(first.load_ms);
    result->logits_equal = result->logits_equal && SameBytes(first.logits, cold_logits_);
  }
  BenchContext::Tokens WarmUp() const { return BenchContext::Tokens(prompt_).last(options_.suffix_tokens); }
  Status RunEngineAlone();
  Status RunStore();
  Status RunWarm();
  Status RunNvme();
  Status RunRemote(const std::string& name);
  // One measurement per repeat, each in a new process, with the tier of `options`.
  Status MeasureTier(const BenchOptions& options, const std::string& salt, CaseResult* result);
  // The options of the case, with a server of the benchmark's own where none was given.
  Result<BenchOptions> RemoteCase(const std::string& name);

  const BenchOptions& options_;
  const LoadedModel& model_;
  KvStore* const store_;
  const StoreOpener& opener_;
  const std::vector<llama_token>& prompt_;
  std::string salt_;
  std::vector<CaseResult> cases_;
  std::vector<float> cold_logits_;
  std::unique_ptr<BenchContext> engine_;  // never touched by the cache
  std::unique_ptr<BenchContext> cached_;  // filled from it
  std::optional<ChunkKey> first_key_;     // of what was stored in the tiers of this process
  std::unique_ptr<ServeProcess> server_;  // of the cases remote and shm
};

// The key of the prompt's first chunk.
Result<ChunkKey> FirstKey(const LlamaCache& cache, const std::vector<llama_token>& prompt) {
  TokenHasher hasher(cache.root(), cache.tokens_per_chunk());
  const std::vector<Token> tokens(prompt.begin(), prompt.begin() + cache.tokens_per_chunk());
  if (Status hashed = hasher.Append(TokenView(tokens)); !hashed.ok()) return hashed;
  return hasher.full_keys().front();
}

void EraseBelow(StorageManager& manager, const ChunkKey& key) {
  const Result<uint64_t> erased = manager.Erase(std::span(&key, 1));
  if (!erased.ok()) std::fprintf(stderr, "terrace-llama: erasing: %s\n", erased.status().ToString().c_str());
}

Status Bench::RunEngineAlone() {
  Result<std::unique_ptr<BenchContext>> context =
      BenchContext::Make(model_, options_.model, KvStore(), salt_, WarmUp());
  if (!context.ok()) return context.status();
  engine_ = *std::move(context);
  // Always run: the other cases' logits are compared with it.
  Result<FirstToken> cold = engine_->Cold(prompt_);
  if (!cold.ok()) return cold.status();
  cold_logits_ = cold->logits;
  if (CaseResult* result = Find("cold")) Record(result, *cold);
  return OkStatus();
}

Status Bench::RunStore() {
  Result<std::unique_ptr<BenchContext>> context =
      BenchContext::Make(model_, options_.model, *store_, salt_, WarmUp());
  if (!context.ok()) return context.status();
  cached_ = *std::move(context);
  Result<StoreRun> stored = cached_->Store(prompt_, options_.prefix_tokens);
  if (!stored.ok()) return stored.status();
  if (stored->stored_objects > 0) {
    const Result<ChunkKey> key = FirstKey(cached_->cache(), prompt_);
    if (!key.ok()) return key.status();
    first_key_ = *key;
  }
  for (const char* name : {"host", "nvme"}) {
    CaseResult* result = Find(name);
    if (result == nullptr) continue;
    result->store_ms = stored->store_ms;
    result->store_thread_ms = stored->store_thread_ms;
  }
  // The case cold has no cache; that saving leaves the logits alone is seen here.
  if (CaseResult* cold = Find("cold")) cold->logits_equal = SameBytes(stored->first.logits, cold_logits_);
  return OkStatus();
}

// Slot, bare set_data and host alternate, so that the machine's moods fall on all of them.
Status Bench::RunWarm() {
  CaseResult* const slot = Find("slot");
  CaseResult* const host = Find("host");
  BenchContext::Blobs blobs;
  if (host != nullptr) {
    const uint32_t chunk = cached_->cache().tokens_per_chunk();
    Result<BenchContext::Blobs> taken = engine_->TakeBlobs(options_.prefix_tokens / chunk * chunk);
    if (!taken.ok()) return taken.status();
    blobs = *std::move(taken);
  }
  for (uint32_t i = 0; i < options_.repeat; ++i) {
    if (slot != nullptr) {
      Result<FirstToken> first = engine_->Slot(prompt_, options_.prefix_tokens);
      if (!first.ok()) return first.status();
      Record(slot, *first);
    }
    if (host != nullptr) {
      Result<double> bare = cached_->BareSetDataMs(blobs);
      if (!bare.ok()) return bare.status();
      host->set_data_ms.push_back(*bare);
      Result<FirstToken> first = cached_->Loaded(prompt_);
      if (!first.ok()) return first.status();
      Record(host, *first);
    }
  }
  return OkStatus();
}

Status Bench::MeasureTier(const BenchOptions& options, const std::string& salt, CaseResult* result) {
  for (uint32_t i = 0; i < options.repeat; ++i) {
    Result<TierRun> run = MeasureInNewProcess(options, result->name, salt);
    if (!run.ok()) return run.status();
    if (run->first.loaded_tokens > 0 && run->tier_objects == 0) {
      return InternalError("the case " + result->name + " was not loaded from its tier");
    }
    Record(result, run->first);
    result->set_data_ms.push_back(run->set_data_ms);
  }
  return OkStatus();
}

Status Bench::RunNvme() {
  CloseStore(store_);  // the new processes open the directory
  return MeasureTier(options_, salt_, Find("nvme"));
}

Result<BenchOptions> Bench::RemoteCase(const std::string& name) {
  BenchOptions options = options_;
  CacheOptions& cache = options.cache;
  cache.directory.clear();
  cache.nvme_key_file.clear();
  const bool is_shm = name == "shm";
  if (is_shm) {
    cache.remote_path = "shm";
  } else if (cache.remote_path == "auto") {
    cache.remote_path = "bulk";
  }
  if (!cache.remote.empty()) return options;
  if (server_ == nullptr) {
    ServeProcess::Options serve;
    serve.program = options.serve_program.empty() ? ServeProgramBeside() : options.serve_program;
    serve.host_bytes = *cache.host_bytes;
    Result<std::unique_ptr<ServeProcess>> server = ServeProcess::Start(std::move(serve));
    if (!server.ok()) return server.status();
    server_ = *std::move(server);
  }
  cache.remote = {is_shm ? server_->unix_address() : server_->tcp_address()};
  return options;
}

// Stored by a context of this process, loaded by new ones.
Status Bench::RunRemote(const std::string& name) {
  CaseResult* const result = Find(name);
  const Result<BenchOptions> options = RemoteCase(name);
  if (!options.ok()) return options.status();
  const std::string salt = salt_ + "/" + name;
  KvStore store = opener_(options->cache);
  if (!store.refused.ok()) return store.refused;
  Result<std::unique_ptr<BenchContext>> context =
      BenchContext::Make(model_, options->model, store, salt, WarmUp());
  if (!context.ok()) return context.status();
  const Result<StoreRun> stored = (*context)->Store(prompt_, options->prefix_tokens);
  if (!stored.ok()) return stored.status();
  result->store_ms = stored->store_ms;
  result->store_thread_ms = stored->store_thread_ms;
  const Result<ChunkKey> key = FirstKey((*context)->cache(), prompt_);
  if (!key.ok()) return key.status();
  context->reset();
  Status done = MeasureTier(*options, salt, result);
  if (done.ok() && stored->stored_objects > 0 && result->loaded_tokens == 0)
    done = InternalError("the case " + name + " found nothing on the server");
  EraseBelow(*store.manager, *key);
  CloseStore(&store);
  return done;
}

void Bench::CleanUp() {
  engine_.reset();
  cached_.reset();
  server_.reset();
  if (!first_key_ || options_.cache.directory.empty()) return;
  if (store_->manager == nullptr) *store_ = opener_(LocalTiers(options_.cache));
  if (store_->manager == nullptr) return;
  EraseBelow(*store_->manager, *first_key_);
  CloseStore(store_);
}

void Bench::Print() const {
  double cold_ms = 0;
  for (const CaseResult& result : cases_) {
    if (result.name == "cold") cold_ms = Median(result.ttft_ms);
  }
  if (!options_.json) {
    std::printf("%-6s %8s %8s %8s %11s %9s %10s %10s %14s %9s  %s\n", "case", "prefix", "loaded", "decoded",
                "ttft ms", "load ms", "set_data", "store ms", "store thread", "speed-up", "logits equal");
  }
  for (const CaseResult& result : cases_) {
    const double ttft_ms = Median(result.ttft_ms);
    if (options_.json) {
      const nlohmann::ordered_json line = {{"case", result.name},
                                           {"prefix_tokens", options_.prefix_tokens},
                                           {"loaded_tokens", result.loaded_tokens},
                                           {"decoded_tokens", result.decoded_tokens},
                                           {"ttft_ms", ttft_ms},
                                           {"load_ms", Median(result.load_ms)},
                                           {"set_data_ms", Median(result.set_data_ms)},
                                           {"store_ms", result.store_ms},
                                           {"store_thread_ms", result.store_thread_ms},
                                           {"logits_equal", result.logits_equal},
                                           {"ttft_ms_all", result.ttft_ms},
                                           {"set_data_ms_all", result.set_data_ms}};
      std::printf("%s\n", line.dump().c_str());
      continue;
    }
    char speed_up[16] = "";
    if (cold_ms > 0 && ttft_ms > 0) std::snprintf(speed_up, sizeof speed_up, "%.1f x", cold_ms / ttft_ms);
    std::printf("%-6s %8llu %8llu %8llu %11.1f %9.1f %10.1f %10.1f %14.1f %9s  %s\n", result.name.c_str(),
                static_cast<unsigned long long>(options_.prefix_tokens),
                static_cast<unsigned long long>(result.loaded_tokens),
                static_cast<unsigned long long>(result.decoded_tokens), ttft_ms, Median(result.load_ms),
                Median(result.set_data_ms), result.store_ms, result.store_thread_ms, speed_up,
                result.logits_equal ? "yes" : "NO");
  }
}

// prefix + suffix tokens of the text, repeated as often as it takes.
Result<std::vector<llama_token>> BenchPrompt(const BenchOptions& options, const LoadedModel& model) {
  std::ostringstream text;
  text << std::ifstream(options.text, std::ios::binary).rdbuf();
  const uint64_t wanted = options.prefix_tokens + options.suffix_tokens;
  Result<std::vector<llama_token>> tokens = model.Tokenize(text.str(), /*begin=*/true);
  if (!tokens.ok()) return tokens.status();
  if (tokens->empty()) return InvalidArgumentError("--text: \"" + options.text + "\" has no tokens");
  const size_t period = tokens->size();
  while (tokens->size() < wanted) tokens->push_back((*tokens)[tokens->size() - period]);
  tokens->resize(wanted);
  return tokens;
}

Status Measure(BenchOptions options, KvStore* store, const StoreOpener& opener) {
  Result<std::unique_ptr<LoadedModel>> model = LoadedModel::Load(options.model);
  if (!model.ok()) return model.status();
  const uint64_t wanted = options.prefix_tokens + options.suffix_tokens;
  const uint64_t room = (*model)->ContextParams(options.model).n_ctx;
  if (options.model.ctx == 0) {
    options.model.ctx = static_cast<uint32_t>(std::max(room, (wanted + 255) / 256 * 256));
  } else if (wanted > room) {
    return InvalidArgumentError("--ctx: \"" + std::to_string(options.model.ctx) +
                                "\" is not allowed; allowed: at least " + std::to_string(wanted) +
                                ", --prefix-tokens and --suffix-tokens together");
  }
  Result<std::vector<llama_token>> prompt = BenchPrompt(options, **model);
  if (!prompt.ok()) return prompt.status();
  if (!options.child_logits.empty()) return MeasureAsNewProcess(options, **model, *store, *prompt);
  Bench bench(options, **model, store, opener, *prompt);
  const Status done = bench.Run();
  bench.CleanUp();
  if (done.ok()) bench.Print();
  return done;
}

}  // namespace

int RunBench(const BenchOptions& given, const StoreOpener& opener) {
  BenchOptions options = given;
  if (!options.cache.host_bytes) options.cache.host_bytes = uint64_t{1} << 30;
  const bool is_new_process = !options.child_logits.empty();
  // Only the cases remote and shm speak to a server, with a store of their own.
  auto [store, exit_code] = OpenStore(opener, is_new_process ? options.cache : LocalTiers(options.cache));
  if (exit_code != 0) return exit_code;
  const auto leave_out = [&options](const char* name) {
    if (std::erase(options.cases, name) > 0)
      std::fprintf(stderr, "terrace-llama: the case %s is left out\n", name);
  };
  if (!store.has_nvme) leave_out("nvme");
  if (store.manager == nullptr || *options.cache.host_bytes == 0) leave_out("host");
  const Status done = Measure(options, &store, opener);
  CloseStore(&store);
  return ExitCode(done);
}

}  // namespace terrace::llamacpp
