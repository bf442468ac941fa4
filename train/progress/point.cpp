#include "train/progress/point.h"

#include <array>
#include <cstddef>

namespace troupe::train {

std::string_view stage_name(Stage stage) {
  constexpr std::array<std::string_view, kStageCount> kNames = {
      "idle",          "form",     "load",      "begin",      "data",  "forward",   "backward",
      "communication", "norm",     "replicate", "prepared",   "vote",  "committed", "optimizer",
      "publish",       "finished", "evaluate",  "checkpoint", "finish"};
  static_assert(static_cast<int>(Stage::kFinish) + 1 == kStageCount);
  const auto index = static_cast<std::size_t>(stage);
  return index < kNames.size() ? kNames[index] : "unknown";
}

std::string_view point_kind_name(PointKind kind) {
  constexpr std::array<std::string_view, kPointKindCount> kNames = {
      "stage",          "unit",  "gradient", "operator", "collective",
      "collective end", "chunk", "file",     "file end"};
  static_assert(static_cast<int>(PointKind::kFileEnd) + 1 == kPointKindCount);
  const auto index = static_cast<std::size_t>(kind);
  return index < kNames.size() ? kNames[index] : "unknown";
}

}  // namespace troupe::train
