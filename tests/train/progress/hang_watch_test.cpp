#include "train/progress/hang_watch.h"

#include <doctest/doctest.h>

#include <limits>
#include <optional>
#include <random>

#include "tests/train/progress/simulated_ranks.h"

namespace troupe::train {
namespace {

constexpr Duration kTick = milliseconds(100);

// --- by hand: one decision after the other

ProgressSnapshot working(std::int64_t pid = 7) {
  ProgressSnapshot s;
  s.pid = pid;
  s.generation = 3;
  s.step = 41;
  s.stage = Stage::kBackward;
  s.unit = 3;
  s.entries.push_back({.step = 41,
                       .kind = PointKind::kOperator,
                       .stage = Stage::kBackward,
                       .unit = 3,
                       .operation = "gemm"});
  return s;
}

ProgressSnapshot in_collective(std::uint64_t sequence, std::string group = {}) {
  ProgressSnapshot s = working();
  s.in_collective = true;
  s.collective = "all_reduce";
  s.collective_group = std::move(group);
  s.collective_sequence = sequence;
  s.entries.push_back({.step = 41, .kind = PointKind::kCollective, .number = sequence});
  return s;
}

// Some ranks, each with a record that beats, and a watch that reads them ten times a second.
struct Scene {
  explicit Scene(std::vector<ProgressSnapshot> begin,
                 const HangSettings& settings = HangSettings::with_timeout(seconds(3)))
      : records(std::move(begin)),
        beating(records.size(), true),
        readable(records.size(), true),
        uses_cpu(records.size(), false),
        watch(static_cast<int>(records.size()), settings) {
    for (std::size_t i = 0; i < records.size(); ++i) watch.rank_started(static_cast<int>(i), now);
    tick();
    tick();
    watch.generation_begun(3, now);
  }

  void tick() {
    now += kTick;
    for (std::size_t i = 0; i < records.size(); ++i) {
      ProgressSnapshot& r = records[i];
      if (uses_cpu[i]) r.cpu_ns += kTick.count();
      if (beating[i]) {
        ++r.beats;
        r.beat_at_ns = now.time_since_epoch().count();
      }
      watch.read(static_cast<int>(i),
                 readable[i] ? std::optional<ProgressSnapshot>(r) : std::nullopt, now);
    }
    for (HangVerdict& verdict : watch.decide()) verdicts.push_back(std::move(verdict));
  }
  void change(std::size_t rank) {
    ++records[rank].changes;
    records[rank].changed_at_ns = now.time_since_epoch().count();
  }
  // Ticks for so long, or up to a verdict.
  Duration run(Duration at_most) {
    const TimePoint began = now;
    while (verdicts.empty() && now - began < at_most) tick();
    return now - began;
  }
  const Stuck& stuck() { return std::get<Stuck>(verdicts.at(0)); }

  TimePoint now = at_time(seconds(100));
  std::vector<ProgressSnapshot> records;
  std::vector<bool> beating, readable, uses_cpu;
  HangWatch watch;
  std::vector<HangVerdict> verdicts;
};

TEST_CASE("A stopped rank is named with what it did and who waits for it") {
  Scene scene({in_collective(1207), in_collective(1207), working(), in_collective(12, "shard")});
  scene.beating[2] = false;
  CHECK(scene.run(seconds(10)) == seconds(3));
  REQUIRE(scene.verdicts.size() == 1);
  CHECK(scene.stuck().rank == 2);
  CHECK(scene.stuck().kind == Stuck::Kind::kStopped);
  CHECK(scene.stuck().waiting ==
        std::vector<Stuck::Waiting>{
            {0, "all-reduce 1207"}, {1, "all-reduce 1207"}, {3, "all-reduce 12 of group 'shard'"}});
  CHECK(to_string(scene.verdicts[0]) ==
        "rank 2 has not run for 3.0 s: step 41, backward of unit 3, operator gemm; ranks 0, 1 wait "
        "for it in all-reduce 1207, rank 3 waits for it in all-reduce 12 of group 'shard'");
  // It is told once; again only if it has run since.
  scene.verdicts.clear();
  scene.run(seconds(4));
  CHECK(scene.verdicts.empty());
  scene.beating[2] = true;
  scene.change(2);
  scene.tick();
  scene.beating[2] = false;
  CHECK(scene.run(seconds(10)) == seconds(3));
}

TEST_CASE("A rank stopped inside a collective is named, those in it with it are not") {
  Scene scene({in_collective(5), in_collective(5)});
  scene.beating[1] = false;
  CHECK(scene.run(seconds(10)) == seconds(3));
  CHECK(scene.stuck().rank == 1);
  CHECK(scene.stuck().what == "step 41, waits in all-reduce 5");
  CHECK(scene.verdicts.size() == 1);
}

TEST_CASE("A rank that beats and reaches no point is stuck, or behind where all others wait") {
  Scene scene({in_collective(5), working(), working()});
  for (int i = 0; i < 20; ++i) {
    scene.change(2);
    scene.tick();
  }
  REQUIRE(scene.verdicts.empty());
  // Rank 1 has been silent for 2 s by now.
  while (scene.verdicts.empty()) {
    scene.change(2);
    scene.tick();
    REQUIRE(scene.now < at_time(seconds(110)));
  }
  CHECK(scene.stuck().rank == 1);
  CHECK(scene.stuck().kind == Stuck::Kind::kStuck);
  CHECK(scene.stuck().silence == seconds(3));

  Scene last({in_collective(5), working(), in_collective(5)});
  last.run(seconds(10));
  CHECK(last.stuck().rank == 1);
  CHECK(last.stuck().kind == Stuck::Kind::kBehind);
  CHECK(
      last.stuck().to_string() ==
      "rank 1 has not moved for 3.0 s: step 41, backward of unit 3, operator gemm; ranks 0, 2 wait "
      "for it in all-reduce 5");
}

TEST_CASE("A rank that uses its processor is in a long operator, for busy_timeout") {
  Scene scene({in_collective(5), working()});
  scene.uses_cpu[1] = true;
  CHECK(scene.run(seconds(100)) == seconds(60));
  CHECK(scene.stuck().rank == 1);
  // It computed for a while, then it hangs.
  Scene later({in_collective(5), working()});
  later.uses_cpu[1] = true;
  later.run(seconds(20));
  REQUIRE(later.verdicts.empty());
  later.uses_cpu[1] = false;
  CHECK(later.run(seconds(10)) <= seconds(3));
  CHECK(later.stuck().rank == 1);
}

TEST_CASE("Loading, forming, waiting and files take their time; missing beats do not") {
  for (const Stage stage : {Stage::kIdle, Stage::kForm, Stage::kLoad, Stage::kFinish}) {
    ProgressSnapshot patient = working();
    patient.stage = stage;
    Scene scene({patient, in_collective(5)});
    scene.run(seconds(2000));
    CHECK(scene.verdicts.empty());
    scene.beating[0] = false;
    CHECK(scene.run(seconds(10)) == seconds(3));
    CHECK(scene.stuck().rank == 0);
  }
  ProgressSnapshot saving = working();
  saving.stage = Stage::kCheckpoint;
  saving.in_file = true;
  saving.file = "fsync";
  Scene scene({saving, in_collective(5)});
  CHECK(scene.run(seconds(2000)) == std::chrono::minutes(11));
  CHECK(scene.stuck().what == "step 41, beginning a checkpoint of unit 3, file operation fsync");
}

TEST_CASE("Nobody is named where all wait and no bytes move: the network has stalled, told once") {
  Scene scene({in_collective(5), in_collective(5), in_collective(2, "shard")});
  CHECK(scene.run(seconds(20)) == seconds(6));
  REQUIRE(scene.verdicts.size() == 1);
  const Stalled& stalled = std::get<Stalled>(scene.verdicts[0]);
  CHECK(stalled.to_string() ==
        "no bytes have moved for 6.0 s and all ranks wait: ranks 0, 1 in all-reduce 5; rank 2 in "
        "all-reduce 2 of group 'shard'");
  scene.verdicts.clear();
  scene.run(seconds(20));
  CHECK(scene.verdicts.empty());
  // Bytes that trickle are no stall.
  scene.change(1);
  scene.tick();
  scene.run(seconds(20));
  REQUIRE(scene.verdicts.size() == 1);
  CHECK(std::get<Stalled>(scene.verdicts[0]).silence == seconds(6));
  scene.verdicts.clear();
  for (int i = 0; i < 300; ++i) {
    if (i % 20 == 0) scene.change(2);
    scene.tick();
  }
  CHECK(scene.verdicts.empty());
  // The next generation can stall, too.
  scene.watch.generation_ended(scene.now);
  for (ProgressSnapshot& record : scene.records) record.generation = 4;
  scene.watch.generation_begun(4, scene.now);
  scene.run(seconds(20));
  CHECK(scene.verdicts.size() == 1);
}

TEST_CASE("A rank that does not leave the collective of a generation that is over is stuck") {
  Scene scene({in_collective(5), in_collective(5)});
  scene.run(seconds(5));
  REQUIRE(scene.verdicts.empty());
  scene.watch.generation_ended(scene.now);
  scene.records[0].stage = Stage::kIdle;
  scene.records[0].in_collective = false;
  scene.change(0);
  CHECK(scene.run(seconds(10)) == seconds(3));
  CHECK(scene.verdicts.size() == 1);
  CHECK(scene.stuck().rank == 1);
  CHECK(scene.stuck().waiting.empty());
}

TEST_CASE("A started rank has time up to its first beat, whatever its predecessor's record says") {
  Scene scene({in_collective(5), working(8)});
  scene.beating[1] = false;
  scene.run(seconds(10));
  REQUIRE(scene.verdicts.size() == 1);
  scene.verdicts.clear();
  scene.watch.rank_ended(1, scene.now);
  scene.run(seconds(10));
  CHECK(scene.verdicts.empty());
  // The last words of the dead one are seen after its end only.
  ++scene.records[1].beats;
  scene.watch.rank_started(1, scene.now);
  scene.run(seconds(10));
  CHECK(scene.verdicts.empty());
  // The new process beats, then it is stopped.
  scene.records[1].pid = 9;
  scene.beating[1] = true;
  scene.tick();
  scene.tick();
  scene.beating[1] = false;
  CHECK(scene.run(seconds(20)) == seconds(3));
  // One that never begins.
  scene.verdicts.clear();
  scene.watch.rank_started(1, scene.now);
  CHECK(scene.run(seconds(100)) == seconds(30));
  CHECK(
      scene.stuck().to_string() ==
      "rank 1 has not run for 30.0 s: its process was started and has not begun to report; rank 0 "
      "waits for it in all-reduce 5");
}

TEST_CASE("What cannot be read is not held against a rank, nor is a watcher's own pause") {
  Scene scene({in_collective(5), working()});
  scene.uses_cpu[1] = true;
  scene.readable[1] = false;
  scene.run(seconds(100));
  CHECK(scene.verdicts.empty());
  scene.readable[1] = true;
  scene.run(seconds(1));
  CHECK(scene.verdicts.empty());
  // The watcher is not run for 20 s, and finds no beat: everybody may have been standing.
  scene.beating[1] = false;
  scene.now += seconds(20);
  CHECK(scene.run(seconds(10)) > seconds(2));
  CHECK(scene.stuck().rank == 1);
}

TEST_CASE("A process that was not run for a while is not stuck when it runs again") {
  Scene scene({in_collective(5), working()});
  scene.run(milliseconds(500));
  scene.beating[1] = false;
  scene.run(milliseconds(2900));
  scene.beating[1] = true;
  CHECK(scene.run(seconds(10)) >= milliseconds(1500));
  CHECK(scene.stuck().rank == 1);
  CHECK(scene.stuck().kind == Stuck::Kind::kBehind);
}

TEST_CASE(
    "A reading that took long does not put a beat off: the rank's own clock says when it was") {
  HangWatch watch(1, HangSettings::with_timeout(seconds(3)));
  // The rank's clock is a week ahead.
  const Duration ahead = std::chrono::hours(7 * 24);
  ProgressSnapshot record = working();
  watch.rank_started(0, at_time(seconds(100)));
  const auto beat = [&](TimePoint when) {
    ++record.beats;
    ++record.changes;
    record.beat_at_ns = record.changed_at_ns = (when + ahead).time_since_epoch().count();
  };
  const auto read_at = [&](Duration since_100) {
    watch.read(0, record, at_time(seconds(100) + since_100));
    return !watch.decide().empty();
  };
  for (int i = 1; i <= 10; ++i) {
    beat(at_time(seconds(100) + i * milliseconds(100)));
    CHECK_FALSE(read_at(i * milliseconds(100) + milliseconds(5)));
  }
  // The last beat, at 1.1 s, is read at 1.5 s: the answer was late.
  beat(at_time(seconds(100) + milliseconds(1100)));
  CHECK_FALSE(read_at(milliseconds(1500)));
  for (int ms = 1600; ms <= 4000; ms += 100) CHECK_FALSE(read_at(milliseconds(ms)));
  CHECK_FALSE(read_at(milliseconds(4100)));  // reading took 5 ms at least: it is not earlier
  CHECK(read_at(milliseconds(4110)));
}

TEST_CASE("Times that another process invents do no harm") {
  for (const std::int64_t ns : {std::numeric_limits<std::int64_t>::min(), std::int64_t{-1},
                                std::numeric_limits<std::int64_t>::max()}) {
    Scene scene({working(), working()});
    for (int i = 0; i < 50; ++i) {
      scene.change(0);
      scene.change(1);
      scene.records[0].changed_at_ns = scene.records[0].beat_at_ns = ns;
      scene.records[0].cpu_ns = ns;
      scene.beating[0] = false;
      ++scene.records[0].beats;
      scene.tick();
    }
    CHECK(scene.verdicts.empty());
    CHECK(scene.run(seconds(10)) <= seconds(3) + milliseconds(100));
  }
}

// --- at random

struct Watcher {
  Watcher(int world, std::uint64_t seed, bool disturbed)
      : ranks(world, seed), watch(world, HangSettings{}), random(seed + 1), disturbed(disturbed) {
    for (int i = 0; i < world; ++i) watch.rank_started(i, ranks.now());
    watch.generation_begun(1, ranks.now());
  }

  // Up to the next reading of all ranks.
  std::vector<HangVerdict> tick() {
    const Duration tick = milliseconds(50 + 10 * static_cast<int>(random() % 10));
    for (Duration passed{}; passed < tick; passed += SimulatedRanks::kTurn) ranks.turn();
    if (disturbed && random() % 200 == 0) pause();
    for (int i = 0; i < world(); ++i) {
      const bool lost = disturbed && random() % 10 == 0;
      watch.read(i, lost ? std::nullopt : std::optional(ranks.snapshot(i)), ranks.now());
    }
    return watch.decide();
  }
  // The watcher alone is not run, or nobody is, and the watcher is the first to run again.
  void pause() {
    const bool everybody = random() % 2 == 0;
    ranks.freeze(everybody);
    for (auto turns = random() % 2000; turns != 0; --turns) ranks.turn();
    ranks.freeze(false);
  }
  int world() const { return static_cast<int>(world_size); }
  static constexpr std::size_t world_size = 4;

  SimulatedRanks ranks;
  HangWatch watch;
  std::mt19937_64 random;
  bool disturbed;
};
// Longest distance of two readings without disturbance; of two beats.
constexpr Duration kTickMax = milliseconds(150), kBeatMax = milliseconds(100);

TEST_CASE("property: ranks that go on are never named, whatever they wait for") {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    Watcher watcher(4, seed, seed % 2 == 0);
    if (seed % 5 == 0) watcher.ranks.slow_network();
    for (int i = 0; i < 2000; ++i) {
      const auto verdicts = watcher.tick();
      REQUIRE_MESSAGE(verdicts.empty(), to_string(verdicts.front()));
    }
    CHECK(watcher.ranks.snapshot(0).collective_sequence > 5);
  }
}

TEST_CASE("property: a rank that is stopped at any moment is named in time, and nobody else") {
  int stopped_inside = 0;
  for (std::uint64_t seed = 0; seed < 120; ++seed) {
    CAPTURE(seed);
    Watcher watcher(4, seed, false);
    const auto before = 1 + watcher.random() % 400;
    for (std::uint64_t i = 0; i < before; ++i) REQUIRE(watcher.tick().empty());
    const int victim = static_cast<int>(watcher.random() % 4);
    watcher.ranks.stop(victim);
    const TimePoint stopped = watcher.ranks.now();
    std::vector<HangVerdict> verdicts;
    while (verdicts.empty()) {
      verdicts = watcher.tick();
      REQUIRE(watcher.ranks.now() - stopped < seconds(60));
    }
    REQUIRE(verdicts.size() == 1);
    const Stuck& stuck = std::get<Stuck>(verdicts[0]);
    CHECK(stuck.rank == victim);
    CHECK(stuck.kind == Stuck::Kind::kStopped);
    CHECK(watcher.ranks.now() - stopped <= seconds(3) + kTickMax);
    CHECK(watcher.ranks.now() - watcher.ranks.last_beat(victim) >= seconds(3));
    CHECK(stuck.silence >= seconds(3));
    std::vector<Stuck::Waiting> waiting;
    for (int i = 0; i < 4; ++i)
      if (i != victim && watcher.ranks.snapshot(i).in_collective)
        waiting.push_back({i, describe_collective(watcher.ranks.snapshot(i))});
    CHECK(stuck.waiting == waiting);
    stopped_inside += watcher.ranks.snapshot(victim).in_collective ? 1 : 0;
    // The others wait for it as long as it takes.
    for (int i = 0; i < 1000; ++i) REQUIRE(watcher.tick().empty());
  }
  CHECK(stopped_inside > 10);
}

TEST_CASE("property: a rank that hangs in an operator is named in time, and nobody else") {
  int behind = 0;
  for (std::uint64_t seed = 0; seed < 120; ++seed) {
    CAPTURE(seed);
    Watcher watcher(4, seed, false);
    const auto before = 1 + watcher.random() % 400;
    for (std::uint64_t i = 0; i < before; ++i) REQUIRE(watcher.tick().empty());
    const int victim = static_cast<int>(watcher.random() % 4);
    watcher.ranks.hang(victim);
    std::vector<HangVerdict> verdicts;
    const TimePoint begun = watcher.ranks.now();
    while (verdicts.empty()) {
      verdicts = watcher.tick();
      REQUIRE(watcher.ranks.now() - begun < seconds(300));
    }
    REQUIRE(verdicts.size() == 1);
    const Stuck& stuck = std::get<Stuck>(verdicts[0]);
    CHECK(stuck.rank == victim);
    const Duration after = watcher.ranks.now() - watcher.ranks.last_change(victim);
    CHECK(after >= seconds(3));
    CHECK(after <= seconds(3) + kBeatMax + kTickMax);
    CHECK((stuck.kind == Stuck::Kind::kBehind) == (stuck.waiting.size() == 3));
    behind += stuck.kind == Stuck::Kind::kBehind ? 1 : 0;
    for (int i = 0; i < 1000; ++i) REQUIRE(watcher.tick().empty());
  }
  CHECK(behind > 10);
  CHECK(behind < 110);
}

TEST_CASE("property: with pauses and lost readings a stopped rank is named all the same, alone") {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    CAPTURE(seed);
    Watcher watcher(4, seed, true);
    const auto before = 1 + watcher.random() % 400;
    for (std::uint64_t i = 0; i < before; ++i) REQUIRE(watcher.tick().empty());
    const int victim = static_cast<int>(watcher.random() % 4);
    watcher.ranks.stop(victim);
    const TimePoint stopped = watcher.ranks.now();
    std::vector<HangVerdict> verdicts;
    while (verdicts.empty()) {
      verdicts = watcher.tick();
      REQUIRE(watcher.ranks.now() - stopped < seconds(120));
    }
    CHECK(verdicts.size() == 1);
    CHECK(std::get<Stuck>(verdicts[0]).rank == victim);
    for (int i = 0; i < 300; ++i) {
      const auto more = watcher.tick();
      REQUIRE_MESSAGE(more.empty(), to_string(more.front()));
    }
  }
}

TEST_CASE("property: a network that carries nothing any more is a stall, and nobody's fault") {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    CAPTURE(seed);
    Watcher watcher(4, seed, false);
    for (int i = 0; i < 50; ++i) REQUIRE(watcher.tick().empty());
    watcher.ranks.cut_network();
    std::vector<HangVerdict> verdicts;
    const TimePoint begun = watcher.ranks.now();
    while (verdicts.empty()) {
      verdicts = watcher.tick();
      REQUIRE(watcher.ranks.now() - begun < seconds(600));
    }
    REQUIRE(verdicts.size() == 1);
    const Stalled& stalled = std::get<Stalled>(verdicts[0]);
    CHECK(stalled.silence >= seconds(6));
    CHECK(stalled.silence <= seconds(6) + kBeatMax + kTickMax);
    for (int i = 0; i < 4; ++i) CHECK(watcher.ranks.snapshot(i).in_collective);
    for (int i = 0; i < 300; ++i) REQUIRE(watcher.tick().empty());
  }
}

}  // namespace
}  // namespace troupe::train
