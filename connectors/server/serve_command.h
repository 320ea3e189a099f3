// `terrace serve`: options, start, signals, end.
#pragma once

#include <memory>
#include <string>

#include "connectors/server/server_setup.h"

namespace CLI {
class App;
}

namespace terrace::server {

// What `terrace serve` ends with.
enum ServeExit : int {
  kServeStopped = 0,  // SIGTERM or SIGINT, drained
  kServeFailed = 1,   // could not start: an address or a directory that cannot be had; or could not close
  kServeUsage = 2,    // what it was told is wrong; nothing was started
  kServeForced = 3,   // a second SIGTERM or SIGINT, or the orderly stop took too long
};

struct ServeArguments {
  SetupSource source;
  bool check_only = false;
  CLI::App* command = nullptr;
};

// Adds the subcommand; its arguments are read when the line has been parsed.
std::shared_ptr<ServeArguments> AddServeCommand(CLI::App& app);

// Runs until a signal ends it. A ServeExit.
int RunServe(const ServeArguments& arguments);

}  // namespace terrace::server
