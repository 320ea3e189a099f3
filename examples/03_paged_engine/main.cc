// A small decoder with paged KV - random weights, real attention - that begins its prompts with the KV which
// Terrace kept, layer by layer, and proves that its logits are those of a run without a cache.
//
//   paged_engine DIRECTORY [--layout nhd|hnd|both] [--device host|cuda] [--remote ADDRESS]
//
// DIRECTORY: of the NVMe tier. ADDRESS: of a cache server (`terrace serve`), host:port or unix:/path. Exits 0
// where every logit was the same, 1 where one was not, 2 for a wrong call, 77 where the device is not there.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

#include "proof.h"

namespace paged_engine {
namespace {

constexpr int kWrongCall = 2;
constexpr int kSkipped = 77;

int Usage() {
  std::fprintf(
      stderr,
      "usage: paged_engine DIRECTORY [--layout nhd|hnd|both] [--device host|cuda] [--remote ADDRESS]\n");
  return kWrongCall;
}

int Main(int argc, char** argv) {
  CacheOptions options;
  std::string_view layout = "both", device = "host";
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (!argument.starts_with("--")) {
      options.directory = argument;
    } else if (i + 1 == argc) {
      return Usage();
    } else if (argument == "--layout") {
      layout = argv[++i];
    } else if (argument == "--device") {
      device = argv[++i];
    } else if (argument == "--remote") {
      options.remote = argv[++i];
    } else {
      return Usage();
    }
  }
  const bool nhd = layout == "nhd" || layout == "both", hnd = layout == "hnd" || layout == "both";
  if (options.directory.empty() || !(nhd || hnd) || !(device == "host" || device == "cuda")) return Usage();

  std::unique_ptr<Compute> compute;
  if (device == "cuda") {
    terrace::Result<std::unique_ptr<Compute>> made = MakeCudaCompute(0);
    if (!made.ok()) {
      std::printf("skipped: %s\n", made.status().ToString().c_str());
      return kSkipped;
    }
    compute = std::move(*made);
  } else {
    compute = MakeHostCompute();
  }
  // Runs share nothing, though they share the directory: the salt is another one each time.
  const std::string run = std::to_string(std::chrono::system_clock::now().time_since_epoch().count()) + "-" +
                          std::to_string(getpid());
  int failures = 0;
  if (nhd) {
    std::printf("layout nhd: a region per layer, K and V apart\n");
    failures += Proof(options, PageLayout::kPerLayer, "nhd " + run, *compute).Run();
  }
  if (hnd) {
    std::printf("layout hnd: all layers of a block together, heads before tokens\n");
    failures += Proof(options, PageLayout::kCrossLayer, "hnd " + run, *compute).Run();
  }
  std::printf(failures == 0 ? "equal: every logit of every warm run, bit by bit\n" : "NOT EQUAL: %d\n",
              failures);
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace paged_engine

int main(int argc, char** argv) { return paged_engine::Main(argc, argv); }
