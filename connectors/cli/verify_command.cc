#include "connectors/cli/verify_command.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

namespace terrace::cli {
namespace {

using nlohmann::ordered_json;
using SteadyClock = std::chrono::steady_clock;

constexpr char kVerifyText[] = R"(
Reads every record and every byte that a directory of the NVMe tier holds, on its own terms: records, places, tier
pages, frame headers, the hash of each piece. The directory must not be in use. Without --repair no file changes.
With it, the records of what is wrong are dropped, durably; the objects are misses from then on, but for those of which
only the content record was wrong. Nothing else is touched, and a run that was interrupted may be repeated.

A key file has a line for each key: its id and 64 hex digits. It is its owner's alone (mode 0600).

Exit codes: 0 clean; 1 something was wrong (and, with --repair, is dropped; what --repair cannot mend, a manifest or a
log of erased objects that is lost, or a capacity that is exceeded, says so); 2 bad usage; 3 nothing was judged: not a
tier, held by a process, of a newer version, encrypted with keys that were not given. Of several directories the
highest counts.)";

constexpr std::chrono::milliseconds kBarPeriod(100);
constexpr size_t kBarColumns = 30;

std::string SizeText(uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  char text[48];
  std::snprintf(text, sizeof(text), unit == 0 ? "%.0f %s" : "%.1f %s", value, kUnits[unit]);
  return text;
}

double Gbps(uint64_t bytes, double seconds) {
  return seconds > 0 ? static_cast<double>(bytes) / 1e9 / seconds : 0;
}

// A line on standard error that is drawn over itself, ten times a second at most.
class ProgressBar {
 public:
  void Show(const NvmeVerifyProgress& progress) {
    const SteadyClock::time_point now = SteadyClock::now();
    const bool is_last = progress.objects_checked == progress.objects_total;
    if (!is_last && now - shown_ < kBarPeriod) return;
    shown_ = now;
    const double part = progress.bytes_total == 0 ? 1
                                                  : static_cast<double>(progress.bytes_read) /
                                                        static_cast<double>(progress.bytes_total);
    const auto done = static_cast<size_t>(part * kBarColumns);
    const std::string bar = std::string(done, '#') + std::string(kBarColumns - done, '.');
    const std::chrono::duration<double> elapsed = now - begin_;
    std::fprintf(stderr, "\r[%s] %3.0f %%  %s of %s  %.2f GB/s  %llu found ", bar.c_str(), part * 100,
                 SizeText(progress.bytes_read).c_str(), SizeText(progress.bytes_total).c_str(),
                 Gbps(progress.bytes_read, elapsed.count()),
                 static_cast<unsigned long long>(progress.findings));
    drawn_ = true;
  }
  ~ProgressBar() {
    if (drawn_) std::fputc('\n', stderr);
  }

 private:
  const SteadyClock::time_point begin_ = SteadyClock::now();
  SteadyClock::time_point shown_;
  bool drawn_ = false;
};

uint64_t Total(const NvmeVerifyReport& report) {
  uint64_t total = 0;
  for (const NvmeFindingCount& count : report.counts) total += count.count;
  return total;
}

int Refuse(const Status& status) {
  std::fprintf(stderr, "terrace: %s\n", status.ToString().c_str());
  return status.code() == StatusCode::kInvalidArgument ? kVerifyUsage : kVerifyFailed;
}

int VerifyOne(const NvmeVerifyOptions& options, bool as_json) {
  const SteadyClock::time_point begin = SteadyClock::now();
  std::function<void(const NvmeVerifyProgress&)> progress;
  if (!as_json && isatty(STDERR_FILENO) == 1) {
    progress = [bar = std::make_shared<ProgressBar>()](const NvmeVerifyProgress& now) { bar->Show(now); };
  }
  const Result<NvmeVerifyReport> report = VerifyNvmeDirectory(options, progress);
  progress = nullptr;
  if (!report.ok()) return Refuse(report.status());
  const std::chrono::duration<double> elapsed = SteadyClock::now() - begin;
  const std::string text =
      as_json ? VerifyJson(options, *report, elapsed.count()) : VerifyText(options, *report, elapsed.count());
  std::fputs(text.c_str(), stdout);
  return report->IsClean() ? kVerifyClean : kVerifyFound;
}

}  // namespace

std::shared_ptr<VerifyArguments> AddVerifyCommand(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("verify", "Reads all of an NVMe tier's directory and says what is wrong");
  auto arguments = std::make_shared<VerifyArguments>();
  NvmeVerifyOptions& options = arguments->options;
  command->add_option("DIR", arguments->directories, "the tier's directories, each for itself")->required();
  command->add_flag("--repair", options.repair, "drop the records of what is wrong");
  command->add_flag("--json", arguments->as_json, "one JSON object for each, and no progress bar");
  command->add_option("--nvme-key-file", arguments->key_file, "the keys of encrypted directories");
  command
      ->add_option("--capacity-bytes", options.capacity_bytes,
                   "what segments and manifest of each may take; 0: not checked")
      ->capture_default_str();
  command->add_option("--max-findings", options.max_findings, "listed; all are counted")
      ->capture_default_str();
  const std::map<std::string, IoEngineKind> engines = {{"auto", IoEngineKind::kAuto},
                                                       {"io_uring", IoEngineKind::kIoUring},
                                                       {"threads", IoEngineKind::kThreads}};
  command->add_option("--io-engine", options.io_engine, "auto, io_uring or threads")
      ->transform(CLI::CheckedTransformer(engines));
  command->footer(kVerifyText);
  return arguments;
}

int RunVerify(const VerifyArguments& arguments, const KeyReader& read_keys) {
  NvmeVerifyOptions options = arguments.options;
  if (!arguments.key_file.empty()) {
    Result<std::vector<EncryptionKey>> keys = read_keys(arguments.key_file);
    if (!keys.ok()) return Refuse(keys.status());
    options.keys = std::move(*keys);
  }
  int worst = kVerifyClean;
  for (const std::string& directory : arguments.directories) {
    options.directory = directory;
    worst = std::max(worst, VerifyOne(options, arguments.as_json));
  }
  return worst;
}

std::string VerifyJson(const NvmeVerifyOptions& options, const NvmeVerifyReport& report, double seconds) {
  ordered_json counts = ordered_json::object();
  for (size_t kind = 0; kind < report.counts.size(); ++kind) {
    counts[std::string(NvmeFindingKindName(static_cast<NvmeFindingKind>(kind)))] = {
        {"count", report.counts[kind].count}, {"bytes", report.counts[kind].bytes}};
  }
  ordered_json findings = ordered_json::array();
  for (const NvmeFinding& finding : report.findings) {
    findings.push_back({{"kind", NvmeFindingKindName(finding.kind)},
                        {"name", finding.name},
                        {"reason", finding.reason},
                        {"bytes", finding.bytes}});
  }
  const ordered_json json = {{"directory", options.directory},
                             {"clean", report.IsClean()},
                             {"repair", options.repair},
                             {"dropped_records", report.dropped_records},
                             {"records", report.records},
                             {"roots", report.roots},
                             {"objects_checked", report.objects_checked},
                             {"bytes_read", report.bytes_read},
                             {"seconds", seconds},
                             {"gbps", Gbps(report.bytes_read, seconds)},
                             {"segments", report.segments},
                             {"segment_bytes", report.segment_bytes},
                             {"live_bytes", report.live_bytes},
                             {"free_bytes", report.free_bytes},
                             {"quarantined_bytes", report.quarantined_bytes},
                             {"manifest_bytes", report.manifest_bytes},
                             {"counts", counts},
                             {"findings", findings}};
  // A name on disk may be no UTF-8.
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

std::string VerifyText(const NvmeVerifyOptions& options, const NvmeVerifyReport& report, double seconds) {
  std::string out;
  for (const NvmeFinding& finding : report.findings) {
    out +=
        std::string(NvmeFindingKindName(finding.kind)) + "  " + finding.name + "  " + finding.reason + "\n";
  }
  const uint64_t total = Total(report);
  if (total > report.findings.size()) {
    out += "... and " + std::to_string(total - report.findings.size()) + " more\n";
  }
  char speed[32];
  std::snprintf(speed, sizeof(speed), "%.2f GB/s", Gbps(report.bytes_read, seconds));
  out += options.directory + ": " + std::to_string(report.objects_checked) + " objects read, " +
         SizeText(report.bytes_read) + " at " + speed + "\n";
  out += "  " + std::to_string(report.segments) + " segments of together " + SizeText(report.segment_bytes) +
         ": " + SizeText(report.live_bytes) + " live, " + SizeText(report.free_bytes) + " free, " +
         SizeText(report.quarantined_bytes) + " quarantined; manifest " + SizeText(report.manifest_bytes) +
         ", " + std::to_string(report.records) + " records, " + std::to_string(report.roots) + " roots\n";
  for (size_t kind = 0; kind < report.counts.size(); ++kind) {
    const NvmeFindingCount& count = report.counts[kind];
    if (count.count == 0) continue;
    out += "  " + std::string(NvmeFindingKindName(static_cast<NvmeFindingKind>(kind))) + ": " +
           std::to_string(count.count) + (count.bytes > 0 ? ", " + SizeText(count.bytes) : "") + "\n";
  }
  if (report.IsClean()) {
    out += "clean\n";
  } else if (report.dropped_records > 0) {
    out += "dropped " + std::to_string(report.dropped_records) + " records\n";
  } else {
    out += options.repair ? "nothing that dropping a record mends\n"
                          : "--repair drops the records of what is wrong\n";
  }
  return out;
}

}  // namespace terrace::cli
