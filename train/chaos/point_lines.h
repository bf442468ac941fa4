#pragma once
// Points as lines of a file, and the faults that strike at each of them: what `record` writes and
// `troupe chaos enumerate` reads.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "train/chaos/fault.h"
#include "train/progress/point.h"

namespace troupe::train {

// {"kind":"collective","step":2,"stage":"backward","unit":-1,"operation":"all_reduce","number":7}
std::string point_line(const Point& point);

// A point as it was recorded. `number` is of the run that recorded it.
struct RecordedPoint {
  PointKind kind = PointKind::kStage;
  std::int64_t step = 0;
  Stage stage = Stage::kIdle;
  std::int64_t unit = -1;
  std::string operation;
  std::int64_t number = 0;
};
// A torn last line is left out; kDataLoss with the line's number for others.
Result<std::vector<RecordedPoint>> read_points(std::string_view text);

// Which of the recorded points to strike.
struct PointChoice {
  // Points inside steps are taken from this step alone; stages, also from where they occur first.
  std::int64_t step = 2;
  bool operators = false;  // those too: several times as many points
};
// A kill of `rank` at each distinct point, in their order. Points of one kind and name are told
// apart by how often they were met: within the step, and of files, whose threads do not wait for
// steps, within the generation.
std::vector<Fault> faults_at_points(const std::vector<RecordedPoint>& points,
                                    const PointChoice& choice, std::int64_t rank);

}  // namespace troupe::train
