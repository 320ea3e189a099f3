// What `terrace bench` prints: one line per measurement as JSON, or a table. The measuring is done elsewhere
// and handed in as rows.
#pragma once

#include <string>
#include <vector>

namespace terrace::cli {

// Rows of one table: JSON objects in text form, as the measurements give them, with the same keys in each.
using JsonRows = std::vector<std::string>;

// Lines for standard output. `as_json`: the rows as they are. Else a table with the keys as heads, numbers
// with three decimals at most.
std::string FormatRows(const JsonRows& rows, bool as_json);

}  // namespace terrace::cli
