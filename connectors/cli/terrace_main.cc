// terrace: the program of operators and performance engineers.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "benchmarks/copy_probe.h"
#include "benchmarks/device_calibration.h"
#include "benchmarks/index_probe.h"
#include "benchmarks/lookup_probe.h"
#include "benchmarks/nvme_probe.h"
#include "benchmarks/remote_probe.h"
#include "benchmarks/restart_probe.h"
#include "benchmarks/store_probe.h"
#include "connectors/cli/bench_command.h"
#include "connectors/cli/verify_command.h"
#include "connectors/options/key_file.h"
#include "connectors/server/serve_command.h"

namespace terrace::cli {
namespace {

constexpr char kBenchText[] = R"(
Each measurement alternates with a bare probe in the same process; `ratio` compares the two. Absolute figures move
with the machine and with what else runs on it.)";

template <typename T>
JsonRows RowsOf(const std::vector<T>& results) {
  JsonRows rows;
  for (const T& result : results) rows.push_back(result.ToJson());
  return rows;
}

template <typename T>
JsonRows RowsOf(const Result<std::vector<T>>& results) {
  if (!results.ok()) throw std::runtime_error(results.status().ToString());
  return RowsOf(*results);
}

// What the command line named; run after it was parsed.
using Run = std::function<JsonRows()>;

void AddLookup(CLI::App* bench, Run& run) {
  CLI::App* command = bench->add_subcommand("lookup", "Lookup and Peek beside the bare hash chain and map");
  auto options = std::make_shared<bench::LookupBenchOptions>();
  command->add_option("--tokens", options->tokens, "tokens of the prompt, a multiple of 256")
      ->check(CLI::Range(256, 1 << 24))
      ->capture_default_str();
  command->add_option("--repeat", options->repetitions)->check(CLI::Range(1, 100000))->capture_default_str();
  command->callback([options, &run] { run = [options] { return RowsOf(bench::MeasureLookups(*options)); }; });
}

void AddStore(CLI::App* bench, Run& run) {
  CLI::App* command =
      bench->add_subcommand("store", "What a store costs the engine's thread beside the one copy");
  auto options = std::make_shared<bench::StoreBenchOptions>();
  command->add_option("--payload-bytes", options->payload_bytes, "of one chunk, a multiple of 2 MiB")
      ->check(CLI::Range(uint64_t{2} << 20, uint64_t{256} << 20))
      ->capture_default_str();
  command->add_option("--repeat", options->repetitions)->check(CLI::Range(1, 100000))->capture_default_str();
  command->callback([options, &run] { run = [options] { return RowsOf(bench::MeasureStores(*options)); }; });
}

void AddCopy(CLI::App* bench, Run& run) {
  CLI::App* command =
      bench->add_subcommand("copy", "Copies between pool and engines' pages beside a streaming probe");
  auto options = std::make_shared<bench::CopyBenchOptions>();
  command->add_option("--bytes", options->sizes_bytes, "sizes of one contiguous copy")->capture_default_str();
  command
      ->add_option("--chunk-bytes", options->chunk_bytes, "that are gathered and scattered at once, x 1 MiB")
      ->check(CLI::Range(uint64_t{1} << 20, uint64_t{1} << 30))
      ->capture_default_str();
  command->add_option("--threads", options->threads)->check(CLI::Range(1, 256))->capture_default_str();
  command->add_option("--repeat", options->repetitions)->check(CLI::Range(1, 100000))->capture_default_str();
  const auto device = std::make_shared<std::optional<int>>();
  command->add_option("--device", *device, "a CUDA device whose strategies are measured; all without it")
      ->check(CLI::Range(0, 1024));
  command->callback([options, device, &run] {
    run = [options, device] {
      const Result<std::string> calibration = bench::CalibrateDevices(*device);
      if (!calibration.ok()) throw std::runtime_error(calibration.status().ToString());
      std::fputs(calibration->c_str(), stderr);  // for people; standard output holds rows alone
      return RowsOf(bench::MeasureCopies(*options));
    };
  });
}

void AddIndex(CLI::App* bench, Run& run) {
  CLI::App* command = bench->add_subcommand("index", "The index beside a bare sharded hash map");
  auto options = std::make_shared<bench::IndexBenchOptions>();
  command->add_option("--entries", options->entries, "about 300 B of memory each")
      ->check(CLI::Range(uint64_t{1000}, uint64_t{1} << 30))
      ->capture_default_str();
  command->add_option("--children", options->children, "of one key, for `neighbours`")->capture_default_str();
  command->add_option("--threads", options->threads)->check(CLI::Range(1, 256))->capture_default_str();
  command->add_option("--repeat", options->repetitions)->check(CLI::Range(1, 1000))->capture_default_str();
  command->callback([options, &run] { run = [options] { return RowsOf(bench::MeasureIndex(*options)); }; });
}

void AddNvme(CLI::App* bench, Run& run) {
  CLI::App* command = bench->add_subcommand("nvme", "The NVMe tier's data path beside fio");
  auto options = std::make_shared<bench::NvmeBenchOptions>();
  command->add_option("--dir", options->directory, "an existing directory on the device")->required();
  command->add_option("--bytes", options->bytes, "of the tier; twice that must be free")
      ->capture_default_str();
  command->add_option("--chunk-bytes", options->chunk_bytes, "payloads, separated by commas")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--repeat", options->repetitions)->check(CLI::Range(1, 1000))->capture_default_str();
  const std::map<std::string, IoEngineKind> engines = {{"auto", IoEngineKind::kAuto},
                                                       {"io_uring", IoEngineKind::kIoUring},
                                                       {"threads", IoEngineKind::kThreads}};
  command->add_option("--io-engine", options->io_engine, "auto, io_uring or threads")
      ->transform(CLI::CheckedTransformer(engines))
      ->default_str("auto");
  const std::map<std::string, Durability> durabilities = {
      {"none", Durability::kNone}, {"flush", Durability::kFlush}, {"sync", Durability::kSync}};
  command->add_option("--durability", options->durability, "none, flush or sync")
      ->transform(CLI::CheckedTransformer(durabilities))
      ->default_str("flush");
  const auto key_file = std::make_shared<std::string>();
  command->add_option("--nvme-key-file", *key_file, "the tier is encrypted with the newest of these keys");
  command->add_option("--ops", options->ops, "some of them, separated by commas")->delimiter(',');
  command->add_option("--request-bytes", options->request_bytes)->capture_default_str();
  command->add_option("--inflight-bytes", options->inflight_bytes, "per direction")->capture_default_str();
  command->add_flag("--baselines", options->baselines, "RocksDB's blob files and a file per chunk as well");
  command->callback([options, key_file, &run] {
    run = [options, key_file] {
      if (!key_file->empty()) {
        const Result<std::vector<EncryptionKey>> keys = options::ReadKeyFile(*key_file);
        if (!keys.ok()) throw std::runtime_error(keys.status().ToString());
        options->keys = *keys;
      }
      return RowsOf(bench::MeasureNvme(*options));
    };
  });
}

void AddRestart(CLI::App* bench, Run& run) {
  CLI::App* command =
      bench->add_subcommand("restart", "A restart with many records beside a bare scan of them");
  auto options = std::make_shared<bench::RestartBenchOptions>();
  command->add_option("--dir", options->directory, "where a directory for it is made, and removed")
      ->required()
      ->check(CLI::ExistingDirectory);
  command->add_option("--entries", options->entries, "about 1.4 KB of disk each")
      ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 28))
      ->capture_default_str();
  command->add_option("--tokens", options->tokens, "of one chunk")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command->add_option("--repeat", options->repetitions)->check(CLI::Range(1, 1000))->capture_default_str();
  command->callback([options, &run] { run = [options] { return RowsOf(bench::MeasureRestart(*options)); }; });
}

void AddRemote(CLI::App* bench, Run& run) {
  CLI::App* command =
      bench->add_subcommand("remote", "The remote tier beside bare sockets, bare gRPC and Redis");
  auto options = std::make_shared<bench::RemoteBenchOptions>();
  options->program = std::filesystem::read_symlink("/proc/self/exe").string();
  command->add_option("--address", options->address,
                      "HOST:PORT or unix:PATH of a server; without it one is started for the run");
  const auto token_file = std::make_shared<std::string>();
  command->add_option("--token-file", *token_file, "holds the token for that server")
      ->check(CLI::ExistingFile);
  command->add_option("--chunk-bytes", options->chunk_bytes, "payloads, separated by commas")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--bytes", options->bytes, "that a round moves in each direction")
      ->capture_default_str();
  const auto transports = std::make_shared<std::vector<std::string>>(1, "all");
  command
      ->add_option("--transport", *transports,
                   "some of grpc_tcp, grpc_unix, bulk_tcp, bulk_unix, shm, separated by commas, or all")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--connections", options->connections, "of the bulk channel")->capture_default_str();
  command->add_option("--batch", options->batch, "chunks in one call")->capture_default_str();
  command->add_option("--in-flight", options->batches_in_flight, "calls")->capture_default_str();
  command->add_option("--clients", options->clients, "sessions at once, beside a single one")
      ->capture_default_str();
  command->add_option("--seconds", options->seconds, "of a measurement with many clients")
      ->capture_default_str();
  command->add_option("--repeat", options->repetitions)->check(CLI::Range(1, 1000))->capture_default_str();
  command->callback([options, transports, token_file, &run] {
    run = [options, transports, token_file] {
      if (!token_file->empty()) {
        std::ifstream file(*token_file);
        file >> options->token;
      }
      if (*transports != std::vector<std::string>{"all"}) options->transports = *transports;
      return RowsOf(bench::MeasureRemote(*options));
    };
  });
}

int Main(int argc, const char* const* argv) {
  CLI::App app("Terrace: the KV cache of LLM inference beyond GPU memory.", "terrace");
  app.set_version_flag("--version", TERRACE_VERSION);
  app.require_subcommand(1);
  CLI::App* bench =
      app.add_subcommand("bench", "Measures one part of Terrace beside what the hardware allows");
  bench->require_subcommand(1);
  bench->footer(kBenchText);
  bool as_json = false;
  bench->add_flag("--json", as_json, "one JSON object per line");
  Run run;
  AddLookup(bench, run);
  AddStore(bench, run);
  AddCopy(bench, run);
  AddIndex(bench, run);
  AddNvme(bench, run);
  AddRestart(bench, run);
  AddRemote(bench, run);
  for (CLI::App* command : bench->get_subcommands(nullptr)) command->fallthrough();
  const std::shared_ptr<VerifyArguments> verify = AddVerifyCommand(app);
  const std::shared_ptr<server::ServeArguments> serve = server::AddServeCommand(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  try {
    if (app.got_subcommand("serve")) return server::RunServe(*serve);
    if (app.got_subcommand("verify")) return RunVerify(*verify, options::ReadKeyFile);
    std::fputs(FormatRows(run(), as_json).c_str(), stdout);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "terrace: %s\n", error.what());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace terrace::cli

int main(int argc, char** argv) { return terrace::cli::Main(argc, argv); }
