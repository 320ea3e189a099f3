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
#include "connectors/llamacpp/tool/byte_size.h"
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
  Bench(const BenchOptions& options, const LoadedModel& model, KvStore* store,
        const std::vector<llama_token>& prompt)
      : options_(options), model_(model), store_(store), prompt_(prompt) {
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
    return Wants("nvme") ? RunNvme() : OkStatus();
  }
  // Erases what the run stored.
  void CleanUp(const StoreOpener& opener);
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

  const BenchOptions& options_;
  const LoadedModel& model_;
  KvStore* const store_;
  const std::vector<llama_token>& prompt_;
  std::string salt_;
  std::vector<CaseResult> cases_;
  std::vector<float> cold_logits_;
  std::unique_ptr<BenchContext> engine_;  // never touched by the cache
  std::unique_ptr<BenchContext> cached_;  // filled from it
  std::optional<ChunkKey> first_key_;     // of what was stored
};

Status Bench::RunEngineAlone() {
  Result<std::unique_ptr<BenchContext>> context =
      BenchContext::Make(model_, options_.model, nullptr, salt_, WarmUp());
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
      BenchContext::Make(model_, options_.model, store_->manager, salt_, WarmUp());
  if (!context.ok()) return context.status();
  cached_ = *std::move(context);
  Result<StoreRun> stored = cached_->Store(prompt_, options_.prefix_tokens);
  if (!stored.ok()) return stored.status();
  LlamaCache& cache = cached_->cache();
  if (stored->stored_objects > 0) {
    TokenHasher hasher(cache.root(), cache.tokens_per_chunk());
    const std::vector<Token> tokens(prompt_.begin(), prompt_.begin() + cache.tokens_per_chunk());
    if (Status hashed = hasher.Append(TokenView(tokens)); !hashed.ok()) return hashed;
    first_key_ = hasher.full_keys().front();
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

Status Bench::RunNvme() {
  CaseResult* nvme = Find("nvme");
  CloseStore(store_);  // the new processes open the directory
  for (uint32_t i = 0; i < options_.repeat; ++i) {
    Result<NvmeRun> run = MeasureInNewProcess(options_, salt_);
    if (!run.ok()) return run.status();
    if (run->first.loaded_tokens > 0 && run->nvme_objects == 0) {
      return InternalError("the case nvme was not loaded from the NVMe tier");
    }
    Record(nvme, run->first);
    nvme->set_data_ms.push_back(run->set_data_ms);
  }
  return OkStatus();
}

void Bench::CleanUp(const StoreOpener& opener) {
  engine_.reset();
  cached_.reset();
  if (!first_key_) return;
  if (store_->manager == nullptr) *store_ = opener(options_.cache);
  if (store_->manager == nullptr) return;
  const Result<uint64_t> erased = store_->manager->Erase(std::span(&*first_key_, 1));
  if (!erased.ok()) std::fprintf(stderr, "terrace-llama: erasing: %s\n", erased.status().ToString().c_str());
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
  Bench bench(options, **model, store, *prompt);
  const Status done = bench.Run();
  bench.CleanUp(opener);
  if (done.ok()) bench.Print();
  return done;
}

}  // namespace

int RunBench(const BenchOptions& given, const StoreOpener& opener) {
  BenchOptions options = given;
  if (!options.cache.host_bytes) options.cache.host_bytes = uint64_t{1} << 30;
  auto [store, exit_code] = OpenStore(opener, options.cache);
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
