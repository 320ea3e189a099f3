#include "connectors/server/mistakes.h"

#include <algorithm>

namespace terrace::server {
namespace {

constexpr size_t kMaxValueBytes = 80;

}  // namespace

void Mistakes::Add(std::string_view field, std::string_view value, std::string_view allowed) {
  std::string what(value.substr(0, kMaxValueBytes));
  if (value.size() > kMaxValueBytes) what += "...";
  AddLine(field, what.append(" is not allowed; allowed: ").append(allowed));
}

void Mistakes::AddLine(std::string_view field, std::string_view what) {
  fields_.emplace_back(field);
  lines_.push_back(std::string(field).append(": ").append(what));
}

bool Mistakes::Names(std::string_view key) const {
  std::string flag = "--" + std::string(key);
  std::replace(flag.begin(), flag.end(), '_', '-');
  return std::any_of(fields_.begin(), fields_.end(),
                     [&](const std::string& field) { return field == key || field == flag; });
}

Status Mistakes::ToStatus() const {
  if (lines_.empty()) return OkStatus();
  std::string text = lines_.size() == 1 ? "1 mistake" : std::to_string(lines_.size()) + " mistakes";
  for (const std::string& line : lines_) text.append("\n  ").append(line);
  return InvalidArgumentError(std::move(text));
}

}  // namespace terrace::server
