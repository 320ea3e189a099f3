#include "lib/device/copy_calibration.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "lib/base/status_macros.h"

namespace terrace {
namespace {

using nlohmann::json;

// Far above what is ever measured; a bound on what a file can make us read.
constexpr size_t kMaxPoints = 4096;
constexpr size_t kMaxJsonBytes = size_t{1} << 20;
constexpr CopyDirection kDirections[] = {CopyDirection::kToHost, CopyDirection::kToDevice};
constexpr CopyStrategy kStrategies[] = {CopyStrategy::kPlain, CopyStrategy::kBatched, CopyStrategy::kStaged,
                                        CopyStrategy::kMapped};

const char* DirectionName(CopyDirection direction) {
  return direction == CopyDirection::kToHost ? "to_host" : "to_device";
}

// How far apart two sizes are: 1 where they are the same, never below.
double Ratio(uint64_t a, uint64_t b) {
  const auto low = static_cast<double>(std::max<uint64_t>(std::min(a, b), 1));
  return static_cast<double>(std::max<uint64_t>(std::max(a, b), 1)) / low;
}

Status BadJson(std::string_view what) { return DataLossError("copy calibration: " + std::string(what)); }

// The parser keeps the last of two members of one name; a file that says two things is refused.
std::optional<json> ParseWithoutTwins(const std::string& text) {
  std::vector<std::set<std::string>> open;
  bool has_twins = false;
  const auto watch = [&](int /*depth*/, json::parse_event_t event, json& value) {
    if (event == json::parse_event_t::object_start) open.emplace_back();
    if (event == json::parse_event_t::object_end) open.pop_back();
    if (event == json::parse_event_t::key) has_twins |= !open.back().insert(value.get<std::string>()).second;
    return true;
  };
  json parsed = json::parse(text, watch, /*allow_exceptions=*/false);
  if (parsed.is_discarded() || has_twins) return std::nullopt;
  return parsed;
}

Result<uint64_t> Count(const json& value, const char* field) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() == 0) {
    return BadJson(std::string(field) + " is not a whole number above 0");
  }
  return value.get<uint64_t>();
}

Result<CalibrationPoint> ReadPoint(const json& value) {
  constexpr const char* kFields[] = {"direction", "strategy", "piece_bytes", "num_pieces", "gbps"};
  if (!value.is_object() || value.size() != std::size(kFields)) return BadJson("a point has other members");
  for (const char* field : kFields) {
    if (!value.contains(field)) return BadJson(std::string("a point without ") + field);
  }
  CalibrationPoint point;
  const auto direction = std::find_if(std::begin(kDirections), std::end(kDirections),
                                      [&](auto d) { return value["direction"] == DirectionName(d); });
  if (direction == std::end(kDirections)) return BadJson("direction is neither to_host nor to_device");
  const auto strategy = std::find_if(std::begin(kStrategies), std::end(kStrategies),
                                     [&](auto s) { return value["strategy"] == CopyStrategyName(s); });
  if (strategy == std::end(kStrategies)) return BadJson("strategy is none of plain, batched, staged, mapped");
  point.direction = *direction;
  point.strategy = *strategy;
  TERRACE_ASSIGN_OR_RETURN(point.piece_bytes, Count(value["piece_bytes"], "piece_bytes"));
  TERRACE_ASSIGN_OR_RETURN(point.num_pieces, Count(value["num_pieces"], "num_pieces"));
  if (!value["gbps"].is_number()) return BadJson("gbps is not a number");
  point.bytes_per_second = value["gbps"].get<double>() * 1e9;
  if (!std::isfinite(point.bytes_per_second) || point.bytes_per_second <= 0) {
    return BadJson("gbps is not above 0");
  }
  return point;
}

}  // namespace

CopyStrategy CopyCalibration::Best(CopyDirection direction, uint64_t piece_bytes, uint64_t num_pieces,
                                   uint32_t allowed) const {
  // Of equally near sizes and counts the smaller, of equally fast strategies the simpler: the order in which
  // points were measured does not matter.
  const auto rank = [&](const CalibrationPoint& point) {
    return std::make_tuple(Ratio(point.piece_bytes, piece_bytes), point.piece_bytes,
                           Ratio(point.num_pieces, num_pieces), point.num_pieces, -point.bytes_per_second,
                           point.strategy);
  };
  const CalibrationPoint* best = nullptr;
  for (const CalibrationPoint& point : points_) {
    if (point.direction != direction) continue;
    if ((allowed & (1u << static_cast<uint32_t>(point.strategy))) == 0) continue;
    if (best == nullptr || rank(point) < rank(*best)) best = &point;
  }
  return best == nullptr ? CopyStrategy::kPlain : best->strategy;
}

std::string CopyCalibration::ToJson() const {
  nlohmann::ordered_json points = nlohmann::ordered_json::array();
  for (const CalibrationPoint& point : points_) {
    points.push_back({{"direction", DirectionName(point.direction)},
                      {"strategy", CopyStrategyName(point.strategy)},
                      {"piece_bytes", point.piece_bytes},
                      {"num_pieces", point.num_pieces},
                      {"gbps", point.bytes_per_second / 1e9}});
  }
  nlohmann::ordered_json whole;
  whole["points"] = std::move(points);
  return whole.dump();
}

Result<CopyCalibration> CopyCalibration::FromJson(const std::string& text) {
  if (text.size() > kMaxJsonBytes) return BadJson("longer than 1 MiB");
  const std::optional<json> whole = ParseWithoutTwins(text);
  if (!whole) return BadJson("not JSON, or a member twice");
  if (!whole->is_object() || whole->size() != 1 || !whole->contains("points") ||
      !(*whole)["points"].is_array()) {
    return BadJson("not an object of points alone");
  }
  const json& listed = (*whole)["points"];
  if (listed.size() > kMaxPoints) return BadJson("more points than are ever measured");
  std::vector<CalibrationPoint> points;
  points.reserve(listed.size());
  for (const json& value : listed) {
    TERRACE_ASSIGN_OR_RETURN(points.emplace_back(), ReadPoint(value));
  }
  return CopyCalibration(std::move(points));
}

}  // namespace terrace
