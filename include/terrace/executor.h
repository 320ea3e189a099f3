// Executor: where Terrace runs work that must not run on an engine's thread (hashing, publishing,
// callbacks). The caller may give its own; MakeThreadPool is the default.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "terrace/export.h"
#include "terrace/status.h"

namespace terrace {

class TERRACE_API Executor {
 public:
  virtual ~Executor() = default;
  // Enqueues and returns; never runs `work` inside the call. Work given before the executor's end is
  // run. An exception that leaves `work` is caught and counted by the executor.
  virtual void Post(std::function<void()> work) = 0;
};

struct ThreadPoolOptions {
  int num_threads = 1;           // 1..256
  std::string name = "terrace";  // thread names: name/0, name/1, ... (cut to 15 characters)
  std::vector<int> cpu_set;      // empty = inherited
  int nice_value = 0;            // added to the creator's; a refusal is ignored
  Status Validate() const;
};

// Threads start here and end with the object, after everything posted has run.
TERRACE_API Result<std::unique_ptr<Executor>> MakeThreadPool(const ThreadPoolOptions& options);

}  // namespace terrace
