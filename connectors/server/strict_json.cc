#include "connectors/server/strict_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

namespace terrace::server {
namespace {

using nlohmann::json;

std::string PlaceOf(std::string_view text, size_t byte) {
  const std::string_view before = text.substr(0, std::min(byte == 0 ? 0 : byte - 1, text.size()));
  const size_t line = static_cast<size_t>(std::count(before.begin(), before.end(), '\n')) + 1;
  const size_t line_begin = before.rfind('\n');
  const size_t column = before.size() - (line_begin == std::string_view::npos ? 0 : line_begin + 1) + 1;
  return "line " + std::to_string(line) + ", column " + std::to_string(column);
}

}  // namespace

Result<json> ParseStrictJson(std::string_view text) {
  std::vector<std::set<std::string>> open_objects;
  std::string twice;
  const json::parser_callback_t watch = [&](int, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start) open_objects.emplace_back();
    if (event == json::parse_event_t::object_end) open_objects.pop_back();
    if (event == json::parse_event_t::key) {
      const auto key = parsed.get<std::string>();
      if (!open_objects.back().insert(key).second) twice += (twice.empty() ? "" : ", ") + key;
    }
    return true;
  };
  json value;
  try {
    value = json::parse(text, watch);
  } catch (const json::parse_error& error) {
    // Its own text quotes the file.
    return InvalidArgumentError("is no valid JSON at " + PlaceOf(text, error.byte));
  } catch (const json::exception&) {  // a number that no double holds
    return InvalidArgumentError("is no valid JSON: a number is out of range");
  }
  if (!value.is_object()) return InvalidArgumentError("is no JSON object");
  if (!twice.empty()) return InvalidArgumentError("keys that stand twice in one object: " + twice);
  return value;
}

std::string ShowJson(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

}  // namespace terrace::server
