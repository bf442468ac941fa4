#include "train/chaos/point_lines.h"

#include <map>
#include <set>
#include <tuple>

#include "runtime/base/json.h"

namespace troupe::train {
namespace {

template <typename Enum, typename Name>
Result<Enum> named(const json::Value& line, const char* key, int count, Name&& name) {
  const auto text = json::find_string(line, key);
  for (int i = 0; text && i < count; ++i) {
    if (name(static_cast<Enum>(i)) == *text) return static_cast<Enum>(i);
  }
  return error(Code::kDataLoss, "{} is missing or unknown", key);
}

constexpr int kPointKindCount = static_cast<int>(PointKind::kFileEnd) + 1;

Result<RecordedPoint> read_point(std::string_view text) {
  const json::Value line = TROUPE_TRY(json::parse(text, "point"));
  RecordedPoint point;
  point.kind = TROUPE_TRY(named<PointKind>(line, "kind", kPointKindCount, point_kind_name));
  point.stage = TROUPE_TRY(named<Stage>(line, "stage", kStageCount, stage_name));
  point.step = json::find_integer(line, "step").value_or(0);
  point.unit = json::find_integer(line, "unit").value_or(-1);
  point.operation = json::find_string(line, "operation").value_or("");
  point.number = json::find_integer(line, "number").value_or(0);
  return point;
}

}  // namespace

std::string point_line(const Point& point) {
  return json::write(json::Object{{"kind", point_kind_name(point.kind)},
                                  {"step", point.step},
                                  {"stage", stage_name(point.stage)},
                                  {"unit", point.unit},
                                  {"operation", point.operation},
                                  {"number", point.number}});
}

Result<std::vector<RecordedPoint>> read_points(std::string_view text) {
  std::vector<RecordedPoint> points;
  for (int number = 1; !text.empty(); ++number) {
    const auto end = text.find('\n');
    if (end == std::string_view::npos) break;
    auto point = read_point(text.substr(0, end));
    if (!point.ok()) {
      return Status(Code::kDataLoss, fmt::format("line {}: {}", number, point.status().message()));
    }
    points.push_back(std::move(*point));
    text.remove_prefix(end + 1);
  }
  return points;
}

std::vector<Fault> faults_at_points(const std::vector<RecordedPoint>& points,
                                    const PointChoice& choice, std::int64_t rank) {
  std::set<Stage> in_step;
  for (const auto& point : points) {
    if (point.kind == PointKind::kStage && point.step == choice.step) in_step.insert(point.stage);
  }
  std::vector<Fault> faults;
  // How often a point of this description was met.
  std::map<std::tuple<PointKind, Stage, std::int64_t, std::string, std::int64_t, std::int64_t>, int>
      met;
  std::set<Stage> elsewhere;
  for (const auto& point : points) {
    Fault fault{.kind = FaultKind::kKill, .rank = rank, .point = point.kind};
    switch (point.kind) {
      case PointKind::kCollectiveEnd:
      case PointKind::kFileEnd:
        continue;
      case PointKind::kFile:
        fault.operation = point.operation;
        break;
      case PointKind::kStage:
        fault.stage = point.stage;
        if (point.step == choice.step) {
          fault.step = point.step;
        } else if (in_step.count(point.stage) > 0 || !elsewhere.insert(point.stage).second) {
          continue;
        }
        break;
      case PointKind::kOperator:
        if (!choice.operators) continue;
        [[fallthrough]];
      case PointKind::kUnit:
      case PointKind::kGradient:
        fault.stage = point.stage;
        fault.unit = point.unit;
        fault.step = point.step;
        fault.operation = point.operation;
        break;
      case PointKind::kChunk:
        fault.number = point.number;
        [[fallthrough]];
      case PointKind::kCollective:
        // A thread of its own may be in the collectives: the loop's stage tells nothing.
        fault.step = point.step;
        fault.operation = point.operation;
        break;
    }
    if (point.kind != PointKind::kFile && point.kind != PointKind::kStage &&
        point.step != choice.step) {
      continue;
    }
    fault.hit = ++met[{point.kind, fault.stage.value_or(Stage::kIdle), fault.unit, fault.operation,
                       fault.number, fault.step}];
    faults.push_back(std::move(fault));
  }
  return faults;
}

}  // namespace troupe::train
