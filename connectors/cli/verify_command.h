// `terrace verify DIR...`: options, the bar on a terminal, the summary, JSON, exit codes.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "terrace/nvme_verify.h"

namespace CLI {
class App;
}

namespace terrace::cli {

// What `terrace verify` ends with.
enum VerifyExit : int {
  kVerifyClean = 0,
  kVerifyFound = 1,  // something was wrong; with --repair its records are dropped
  kVerifyUsage = 2,
  kVerifyFailed = 3,  // nothing was judged: not a tier, held, newer version, without its keys, ...
};

// What the command line says.
struct VerifyArguments {
  NvmeVerifyOptions options;  // but directory and keys
  std::vector<std::string> directories;
  std::string key_file;  // empty: none
  bool as_json = false;
};

// Adds the subcommand; its arguments are read when the line has been parsed.
std::shared_ptr<VerifyArguments> AddVerifyCommand(CLI::App& app);

// Gives the keys that are in a file.
using KeyReader = std::function<Result<std::vector<EncryptionKey>>(const std::string& path)>;
// Runs it, one directory after another: reports on standard output, the bar and errors on standard error. The
// highest VerifyExit of all of them.
int RunVerify(const VerifyArguments& arguments, const KeyReader& read_keys);

// One JSON object in one line.
std::string VerifyJson(const NvmeVerifyOptions& options, const NvmeVerifyReport& report, double seconds);
// For people; several lines.
std::string VerifyText(const NvmeVerifyOptions& options, const NvmeVerifyReport& report, double seconds);

}  // namespace terrace::cli
