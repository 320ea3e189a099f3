// JSON as configuration: one object, no key twice, and no message that shows what the file holds (which may
// be a token).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "terrace/status.h"

namespace terrace::server {

// kInvalidArgument with line and column, or the keys that stand twice.
Result<nlohmann::json> ParseStrictJson(std::string_view text);

// A value as messages show it: compact JSON.
std::string ShowJson(const nlohmann::json& value);

}  // namespace terrace::server
