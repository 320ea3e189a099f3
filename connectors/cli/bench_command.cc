#include "connectors/cli/bench_command.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace terrace::cli {
namespace {

using nlohmann::ordered_json;

std::string CellText(const ordered_json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_number_float()) return value.dump();
  char text[64];
  std::snprintf(text, sizeof(text), "%.3f", value.get<double>());
  return text;
}

}  // namespace

std::string FormatRows(const JsonRows& rows, bool as_json) {
  std::string out;
  if (as_json) {
    for (const std::string& row : rows) out += row + "\n";
    return out;
  }
  std::vector<std::vector<std::string>> cells;
  for (const std::string& row : rows) {
    const ordered_json parsed = ordered_json::parse(row);
    if (cells.empty()) {
      cells.emplace_back();
      for (const auto& [key, value] : parsed.items()) cells.back().push_back(key);
    }
    cells.emplace_back();
    for (const auto& [key, value] : parsed.items()) cells.back().push_back(CellText(value));
  }
  std::vector<size_t> widths;
  for (const auto& line : cells) {
    widths.resize(std::max(widths.size(), line.size()));
    for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  for (const auto& line : cells) {
    for (size_t i = 0; i < line.size(); ++i) {
      if (i > 0) out += "  ";
      out += line[i] + std::string(i + 1 < line.size() ? widths[i] - line[i].size() : 0, ' ');
    }
    out += "\n";
  }
  return out;
}

}  // namespace terrace::cli
