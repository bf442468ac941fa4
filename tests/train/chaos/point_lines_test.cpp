#include "train/chaos/point_lines.h"

#include <doctest/doctest.h>

namespace troupe::train {
namespace {

TEST_CASE("a point's line reads back; a torn last line is left out") {
  const Point point{.kind = PointKind::kCollective,
                    .step = 3,
                    .stage = Stage::kNorm,
                    .unit = 2,
                    .operation = "all_gather",
                    .number = 17};
  const std::string line = point_line(point);
  const auto read = read_points(line + "\n" + line.substr(0, 9));
  REQUIRE(read.ok());
  REQUIRE(read->size() == 1);
  CHECK(read->front().kind == point.kind);
  CHECK(read->front().step == 3);
  CHECK(read->front().stage == Stage::kNorm);
  CHECK(read->front().unit == 2);
  CHECK(read->front().operation == "all_gather");
  CHECK(read->front().number == 17);
  CHECK(read_points(line + "\n{}\n").status().message().find("line 2") != std::string::npos);
}

TEST_CASE("a kill for each distinct point, told apart by how often it was met") {
  const auto stage = [](std::int64_t step, Stage stage) {
    return RecordedPoint{.kind = PointKind::kStage, .step = step, .stage = stage};
  };
  const auto reduce = [](std::int64_t step) {
    return RecordedPoint{.kind = PointKind::kCollective, .step = step, .operation = "all_reduce"};
  };
  std::vector<RecordedPoint> points = {
      stage(0, Stage::kForm),
      stage(1, Stage::kForward),
      reduce(1),
      stage(2, Stage::kForward),
      stage(2, Stage::kForward),
      reduce(2),
      reduce(2),
      {.kind = PointKind::kCollectiveEnd, .step = 2, .operation = "all_reduce"},
      {.kind = PointKind::kUnit, .step = 2, .stage = Stage::kBackward, .unit = 1},
      {.kind = PointKind::kOperator, .step = 2, .stage = Stage::kBackward, .operation = "gemm"},
      {.kind = PointKind::kChunk, .step = 2, .operation = "saved", .number = 1},
      {.kind = PointKind::kFile, .step = 2, .operation = "append"},
      {.kind = PointKind::kFile, .step = 3, .operation = "append"},
      stage(3, Stage::kForward),
      stage(4, Stage::kFinish)};
  const auto text = [&](bool operators) {
    return faults_text(faults_at_points(points, {.step = 2, .operators = operators}, 1));
  };
  CHECK(text(false) ==
        "kill@rank=1,phase=form,point=stage;"
        "kill@step=2,rank=1,phase=forward,point=stage;"
        "kill@step=2,rank=1,phase=forward,point=stage,hit=2;"
        "kill@step=2,rank=1,point=collective,operation=all_reduce;"
        "kill@step=2,rank=1,point=collective,operation=all_reduce,hit=2;"
        "kill@step=2,rank=1,phase=backward,point=unit,unit=1;"
        "kill@step=2,rank=1,point=chunk,operation=saved,number=1;"
        "kill@rank=1,point=file,operation=append;"
        "kill@rank=1,point=file,operation=append,hit=2;"
        "kill@rank=1,phase=finish,point=stage");
  CHECK(text(true).find("point=operator,operation=gemm") != std::string::npos);
}

}  // namespace
}  // namespace troupe::train
