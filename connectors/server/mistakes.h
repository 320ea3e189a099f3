// Mistakes: everything that is wrong with a configuration, gathered so that one message names all of it.
//
// Threads: one at a time.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "terrace/status.h"

namespace terrace::server {

class Mistakes {
 public:
  // FIELD: VALUE is not allowed; allowed: ALLOWED. Values are cut after 80 bytes.
  void Add(std::string_view field, std::string_view value, std::string_view allowed);
  // FIELD: WHAT. For secrets, whose value is not shown, and for what a file or library said.
  void AddLine(std::string_view field, std::string_view what);

  // Whether something was wrong with the field of that key, or with its flag: what follows need not be said.
  bool Names(std::string_view key) const;
  bool empty() const { return lines_.empty(); }
  size_t size() const { return lines_.size(); }
  // OK where there are none, else kInvalidArgument with one line each.
  Status ToStatus() const;

 private:
  std::vector<std::string> fields_;  // of each line
  std::vector<std::string> lines_;
};

}  // namespace terrace::server
