#include <doctest/doctest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <cstring>
#include <random>
#include <set>
#include <thread>

#include "tests/train/progress/progress_helpers.h"

namespace troupe::train {
namespace {

struct Seen final : PointObserver {
  explicit Seen(RecordMemory& memory) : memory(memory) {}
  void reached(const Point& point) override {
    points.push_back(point);
    operations.emplace_back(point.operation);
    // The record knows of a point before a fault can strike there.
    const ProgressSnapshot snapshot = memory.read();
    CHECK(snapshot.entries.back().kind == point.kind);
    CHECK(snapshot.entries.back().number == point.number);
  }
  RecordMemory& memory;
  std::vector<Point> points;
  std::vector<std::string> operations;
};

TEST_CASE("Every stage and every kind of point has a name of its own") {
  std::set<std::string_view> names;
  for (int i = 0; i < kStageCount; ++i) names.insert(stage_name(static_cast<Stage>(i)));
  CHECK(names.size() == kStageCount);
  CHECK(!names.contains("unknown"));
  CHECK(stage_name(Stage::kIdle) == "idle");
  CHECK(stage_name(Stage::kOptimizer) == "optimizer");
  CHECK(stage_name(Stage::kFinish) == "finish");
  CHECK(stage_name(static_cast<Stage>(kStageCount)) == "unknown");
  names.clear();
  for (int i = 0; i < kPointKindCount; ++i)
    names.insert(point_kind_name(static_cast<PointKind>(i)));
  CHECK(names.size() == kPointKindCount);
  CHECK(!names.contains("unknown"));
  CHECK(point_kind_name(PointKind::kFileEnd) == "file end");
}

TEST_CASE("The parts of a step: from one point to the next, by name, variant and place") {
  using std::chrono::milliseconds;
  RecordMemory memory;
  ManualClock clock;
  ProgressRecorder recorder(memory.record(), nullptr, clock);
  recorder.operation("gemm", "nt");  // nobody asks
  CHECK(recorder.take_operator_seconds().empty());
  OperatorTimes times(4);
  recorder.time_operators(&times);
  const auto spend = [&](int ms) { clock.advance(milliseconds(ms)); };
  recorder.stage(1, Stage::kData), spend(1);
  recorder.stage(1, Stage::kForward), spend(2);  // no part that has a name
  recorder.unit(0, Phase::kForward), spend(3);   // nor this one
  recorder.operation("embedding_forward"), spend(4);
  recorder.unit(1, Phase::kForward);
  recorder.enter("acquire"), spend(5);
  recorder.leave(), spend(6);
  recorder.operation("gemm", "nt"), spend(7);
  recorder.operation("rope"), spend(8);
  recorder.operation("gemm", "nt"), spend(9);
  recorder.unit(3, Phase::kBackward);
  recorder.operation("gemm", "nt"), spend(10);
  recorder.operation("gemm", "tn"), spend(11);
  std::vector<float> values(4);
  recorder.gradient(3, values), spend(12);
  recorder.stage(1, Stage::kNorm), spend(13);
  const std::vector<OperatorSeconds> first = {
      {"data", 0.001},         {"head embedding_forward", 0.004},
      {"acquire", 0.005},      {"gemm nt", 0.016},
      {"rope", 0.008},         {"head gemm nt", 0.010},
      {"head gemm tn", 0.011}, {"norm", 0.013},
  };
  CHECK(recorder.take_operator_seconds() == first);
  // What ran when they were taken is part of the next step; what did not run is not named.
  spend(1);
  recorder.stage(1, Stage::kOptimizer), spend(2);
  const std::vector<OperatorSeconds> second = {{"norm", 0.001}, {"optimizer", 0.002}};
  CHECK(recorder.take_operator_seconds() == second);
  recorder.time_operators(nullptr);
  recorder.stage(1, Stage::kPublish), spend(1);
  CHECK(recorder.take_operator_seconds().empty());
}

TEST_CASE("What a rank tells lies in its record, in order, with step, stage, unit and time") {
  RecordMemory memory;
  CHECK_FALSE(read_progress(memory.bytes()));  // nothing was told yet
  ManualClock clock;
  clock.advance(std::chrono::seconds(5));
  Seen seen(memory);
  ProgressRecorder recorder(memory.record(), &seen, clock);
  recorder.begin_generation(7);
  CHECK(memory.read().pid == ::getpid());
  CHECK(memory.read().generation == 7);
  CHECK(memory.read().entries.empty());
  recorder.stage(41, Stage::kForward);
  clock.advance(std::chrono::milliseconds(2));
  recorder.unit(3, Phase::kForward);
  recorder.operation("gemm");
  recorder.unit(3, Phase::kBackward);
  std::vector<float> values(4);
  recorder.gradient(3, values);
  recorder.collective("all_reduce", 1207, true, "shard");
  CHECK(memory.read().in_collective);
  CHECK(memory.read().collective == "all_reduce");
  CHECK(memory.read().collective_group == "shard");
  recorder.collective("all_reduce", 1207, false, "shard");
  recorder.stage(41, Stage::kOptimizer);
  recorder.chunk(12, "saved");
  recorder.file("fsync", true);
  CHECK(memory.read().in_file);
  recorder.file("fsync", false);

  const ProgressSnapshot snapshot = memory.read();
  CHECK_FALSE(snapshot.in_collective);
  CHECK_FALSE(snapshot.in_file);
  CHECK(snapshot.step == 41);
  CHECK(snapshot.stage == Stage::kOptimizer);
  CHECK(recorder.step() == 41);
  CHECK(recorder.stage() == Stage::kOptimizer);
  using Entry = ProgressSnapshot::Entry;
  const std::int64_t t0 = 5'000'000'000, t1 = t0 + 2'000'000;
  const auto point = [&](PointKind kind, Stage stage, int unit, std::string operation = {},
                         std::uint64_t number = 0) {
    return Entry{.at_ns = t1,
                 .step = 41,
                 .kind = kind,
                 .stage = stage,
                 .unit = unit,
                 .operation = std::move(operation),
                 .number = number};
  };
  std::vector<Entry> expected = {
      point(PointKind::kStage, Stage::kForward, -1),
      point(PointKind::kUnit, Stage::kForward, 3),
      point(PointKind::kOperator, Stage::kForward, 3, "gemm"),
      point(PointKind::kStage, Stage::kBackward, -1),  // told by the unit's phase
      point(PointKind::kUnit, Stage::kBackward, 3),
      point(PointKind::kGradient, Stage::kBackward, 3),
      point(PointKind::kCollective, Stage::kBackward, 3, "all_reduce shard", 1207),
      point(PointKind::kCollectiveEnd, Stage::kBackward, 3, "all_reduce shard", 1207),
      point(PointKind::kStage, Stage::kOptimizer, -1),
      point(PointKind::kChunk, Stage::kOptimizer, -1, "saved", 12),
      point(PointKind::kFile, Stage::kOptimizer, -1, "fsync"),
      point(PointKind::kFileEnd, Stage::kOptimizer, -1, "fsync"),
  };
  expected[0].at_ns = t0;
  CHECK(snapshot.entries == expected);
  CHECK(snapshot.changes == expected.size());
  CHECK(snapshot.changed_at_ns == t1);

  // The observer saw the same points; the gradient is handed on as it is.
  REQUIRE(seen.points.size() == expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CHECK(seen.points[i].kind == expected[i].kind);
    CHECK(seen.points[i].stage == expected[i].stage);
    CHECK(seen.points[i].unit == expected[i].unit);
    CHECK(seen.points[i].step == 41);
    CHECK(seen.points[i].number == expected[i].number);
  }
  CHECK(seen.points[5].gradient.data() == values.data());
  CHECK(seen.operations[6] == "all_reduce");
  CHECK(seen.points[6].group == "shard");
}

TEST_CASE("A stage that is neither forward nor backward keeps standing while units are used") {
  RecordMemory memory;
  ProgressRecorder recorder(memory.record());
  recorder.stage(9, Stage::kEvaluate);
  recorder.unit(0, Phase::kForward);
  CHECK(recorder.stage() == Stage::kEvaluate);
  CHECK(memory.read().entries.size() == 2);
}

TEST_CASE("Moved bytes are a change without a point") {
  RecordMemory memory;
  ProgressRecorder recorder(memory.record());
  recorder.moved(1 << 20);
  recorder.moved(2 << 20);
  CHECK(memory.read().moved_bytes == 2 << 20);
  CHECK(memory.read().changes == 2);
  CHECK(memory.read().entries.empty());
}

TEST_CASE("The ring keeps the last points; another observer, or none, is asked from then on") {
  RecordMemory memory;
  Seen first(memory), second(memory);
  ProgressRecorder recorder(memory.record(), &first);
  const auto count = static_cast<std::int64_t>(3 * kProgressRing + 5);
  for (std::int64_t step = 1; step <= count; ++step) {
    if (step == 11) recorder.observe(&second);
    if (step == 21) recorder.observe(nullptr);
    recorder.stage(step, Stage::kBegin);
  }
  const ProgressSnapshot snapshot = memory.read();
  REQUIRE(snapshot.entries.size() == kProgressRing);
  for (std::size_t i = 0; i < kProgressRing; ++i)
    CHECK(snapshot.entries[i].step == count - static_cast<std::int64_t>(kProgressRing - 1 - i));
  CHECK(first.points.size() == 10);
  CHECK(second.points.size() == 10);
}

TEST_CASE("A process that takes a record over waits for nothing, and continues the ring") {
  RecordMemory memory;
  {
    ProgressRecorder killed(memory.record());
    killed.stage(4, Stage::kBackward);
    killed.collective("all_gather", 3, true);
    killed.file("write", true);
    memory.record().pid.store(1);
  }
  ProgressRecorder recorder(memory.record());
  const ProgressSnapshot snapshot = memory.read();
  CHECK_FALSE(snapshot.in_collective);
  CHECK_FALSE(snapshot.in_file);
  CHECK(snapshot.stage == Stage::kIdle);
  CHECK(snapshot.pid == ::getpid());
  CHECK(snapshot.entries.size() == 3);
  CHECK(describe_progress(snapshot) == "waiting for a generation");
}

TEST_CASE("Several threads tell points at once: none is lost, none is mixed up") {
  RecordMemory memory;
  ProgressRecorder recorder(memory.record());
  recorder.stage(1, Stage::kBackward);
  constexpr int kThreads = 3;
  constexpr std::uint64_t kPoints = 3'200;
  // So that nobody is a whole ring ahead of one who is in the middle of a point.
  constexpr std::uint64_t kBetweenMeetings = 16;
  static_assert(kThreads * kBetweenMeetings < kProgressRing);
  std::barrier meeting(kThreads);
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      const std::string name(static_cast<std::size_t>(8 + 4 * t), static_cast<char>('a' + t));
      for (std::uint64_t i = 0; i < kPoints; ++i) {
        if (i % kBetweenMeetings == 0) meeting.arrive_and_wait();
        recorder.collective(name, static_cast<std::uint64_t>(t), i % 2 == 0);
      }
    });
  // A reader at the same time sees whole points only.
  std::thread reader([&] {
    while (!done.load()) {
      const ProgressSnapshot snapshot = read_progress(memory.record()).value();
      for (const auto& entry : snapshot.entries) {
        if (entry.kind == PointKind::kStage) continue;
        const std::string name(8 + 4 * entry.number, static_cast<char>('a' + entry.number));
        if (entry.operation != name) FAIL_CHECK(entry.operation);
      }
    }
  });
  for (std::thread& thread : threads) thread.join();
  done.store(true);
  reader.join();
  const ProgressSnapshot snapshot = memory.read();
  CHECK(snapshot.changes == kThreads * kPoints + 1);
  CHECK(snapshot.entries.size() == kProgressRing);
  CHECK_FALSE(snapshot.in_collective);
}

TEST_CASE("Progress is described in words") {
  RecordMemory memory;
  ProgressRecorder recorder(memory.record());
  const auto words = [&] { return describe_progress(memory.read()); };
  recorder.stage(0, Stage::kLoad);
  CHECK(words() == "loading its state");
  recorder.file("read", true);
  CHECK(words() == "loading its state, file operation read");
  recorder.file("read", false);
  recorder.stage(41, Stage::kForward);
  recorder.unit(3, Phase::kBackward);
  CHECK(words() == "step 41, backward of unit 3");
  recorder.operation("gemm");
  CHECK(words() == "step 41, backward of unit 3, operator gemm");
  recorder.collective("all_reduce", 1207, true);
  CHECK(words() == "step 41, waits in all-reduce 1207");
  // Another thread is in the collective: the loop goes on beside it.
  recorder.operation("rope");
  CHECK(words() == "step 41, backward of unit 3, operator rope, all-reduce 1207 beside it");
  for (std::size_t i = 0; i < kProgressRing; ++i) recorder.operation("add");
  CHECK(words() == "step 41, backward of unit 3, operator add, all-reduce 1207 beside it");
  recorder.collective("all_reduce", 1207, false);
  CHECK(words() == "step 41, backward of unit 3, operator add");
  recorder.collective("reduce_scatter", 5, true, "replicate");
  CHECK(words() == "step 41, waits in reduce-scatter 5 of group 'replicate'");
  recorder.collective("reduce_scatter", 5, false, "replicate");
  CHECK(describe_collective(memory.read()) == "reduce-scatter 5 of group 'replicate'");
  recorder.gradient(2, {});
  CHECK(words() == "step 41, backward of unit 3, gradient of unit 2 complete");
  recorder.stage(41, Stage::kOptimizer);
  recorder.chunk(12, "written");
  CHECK(words() == "step 41, optimizer, chunk 12 written");
  recorder.stage(41, Stage::kCommitted);
  CHECK(words() == "step 41, committed");
  recorder.stage(41, Stage::kCheckpoint);
  recorder.file("fsync", true);
  CHECK(words() == "step 41, beginning a checkpoint, file operation fsync");
}

TEST_CASE("Long names are cut, what is no text is not shown") {
  RecordMemory memory;
  ProgressRecorder recorder(memory.record());
  recorder.operation("a_name_that_is_longer_than_there_is_room_for");
  CHECK(memory.read().entries.back().operation == "a_name_that_is_longer_th");
  recorder.operation("\x1b[31mred");
  CHECK(memory.read().entries.back().operation == "?[31mred");
}

TEST_CASE("Bytes that are no record are refused; damaged words never do harm") {
  RecordMemory memory;
  ProgressRecorder recorder(memory.record());
  recorder.stage(1, Stage::kForward);
  for (int i = 0; i < 100; ++i) recorder.unit(i, Phase::kForward);
  CHECK(read_progress(memory.bytes()) == memory.read());
  CHECK_FALSE(read_progress(memory.bytes().first(sizeof(ProgressRecord) - 1)));
  // Unaligned, and with more behind it: the record is the beginning.
  std::vector<std::byte> moved(sizeof(ProgressRecord) + 9);
  std::memcpy(moved.data() + 1, memory.bytes().data(), sizeof(ProgressRecord));
  CHECK(read_progress(std::span(moved).subspan(1)) == memory.read());

  std::mt19937_64 random(5);
  std::uint64_t read = 0;
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::byte> bytes(memory.bytes().begin(), memory.bytes().end());
    for (int i = 0; i < 200; ++i) bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    // The magic stays, so that the rest is looked at.
    std::memcpy(bytes.data(), memory.bytes().data(), 8);
    const auto snapshot = read_progress(bytes);
    if (!snapshot) continue;
    ++read;
    CHECK(snapshot->entries.size() <= kProgressRing);
    for (const auto& entry : snapshot->entries) {
      CHECK(static_cast<int>(entry.kind) < kPointKindCount);
      CHECK(static_cast<int>(entry.stage) < kStageCount);
      CHECK(entry.unit >= -1);
    }
    CHECK(static_cast<int>(snapshot->stage) < kStageCount);
    for (const char c : describe_progress(*snapshot)) CHECK((c >= 0x20 && c <= 0x7e));
  }
  CHECK(read > 0);
  std::vector<std::byte> bytes(memory.bytes().begin(), memory.bytes().end());
  bytes[0] ^= std::byte{2};  // another version
  CHECK_FALSE(read_progress(bytes));
}

TEST_CASE("The record of a killed process says where it was") {
  void* shared = ::mmap(nullptr, sizeof(ProgressRecord), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(shared != MAP_FAILED);
  const std::span<std::byte> memory(static_cast<std::byte*>(shared), sizeof(ProgressRecord));
  const pid_t child = ::fork();
  if (child == 0) {
    ProgressRecorder recorder(progress_record_in(memory));
    recorder.stage(12, Stage::kForward);
    recorder.unit(1, Phase::kForward);
    recorder.operation("attention_forward");
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status));
  const auto snapshot = read_progress(memory);
  REQUIRE(snapshot);
  CHECK(snapshot->pid == child);
  CHECK(describe_progress(*snapshot) == "step 12, forward of unit 1, operator attention_forward");
  ::munmap(shared, sizeof(ProgressRecord));
}

}  // namespace
}  // namespace troupe::train
