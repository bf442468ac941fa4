#include "train/trainer/rank_watch.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <atomic>

#include "train/progress/progress_recorder.h"
#include "train/trainer/progress_memory.h"
#include "troupe/detail/mutex.h"

namespace troupe::train {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// What a watch told, for a test that waits for it.
class Told {
 public:
  void add(RankWatch::Noticed noticed) {
    MutexLock lock(mutex_);
    noticed_.push_back(std::move(noticed));
    changed_.notify_all();
  }
  std::optional<RankWatch::Noticed> wait() {
    MutexLock lock(mutex_);
    changed_.wait_until(mutex_, Deadline::after(seconds(8)),
                        [this]() TROUPE_NO_ANALYSIS { return !noticed_.empty(); });
    if (noticed_.empty()) return std::nullopt;
    return noticed_.front();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<RankWatch::Noticed> noticed_ TROUPE_GUARDED_BY(mutex_);
};

wire::Bytes segment_bytes(const memory::Segment& segment, std::size_t bytes) {
  return {segment.data(), segment.data() + bytes};
}

TEST_CASE("a rank whose record stands still is told, with its generation; one that moves is not") {
  ProgressMemory still, moving;
  ProgressRecorder still_recorder(still.record()), moving_recorder(moving.record());
  still_recorder.begin_generation(3);
  moving_recorder.begin_generation(3);
  still_recorder.stage(7, Stage::kForward);
  Told told;
  std::atomic<std::int64_t> step{7};
  const auto id = [](std::uint64_t n) { return ActorId{1, n}; };
  RankWatch watch(2, {.hang_timeout = milliseconds(240),
                      .read = [&](ActorId actor, const std::string& segment, std::size_t bytes,
                                  Deadline) -> Result<wire::Bytes> {
                        if (actor == id(0)) {
                          CHECK(segment == "rank-0/progress");
                          // A process that runs and moves.
                          still.record();
                          moving_recorder.stage(step++, Stage::kForward);
                          moving.record().beats++;
                          moving.record().beat_at_ns = step * 1'000'000;
                          return segment_bytes(moving.segment(), bytes);
                        }
                        CHECK(segment == "rank-1/progress");
                        // It beat once after it was first looked at: it runs, and then is stopped.
                        if (step < 10) still.record().beats++;
                        return segment_bytes(still.segment(), bytes);
                      },
                      .tell = [&](RankWatch::Noticed noticed) { told.add(std::move(noticed)); }});
  RankWatch::Ranks ranks{.generation = 3, .running = true};
  ranks.processes = {RankWatch::Process{id(0), 1, ::getpid()},
                     RankWatch::Process{id(1), 1, ::getpid()}};
  watch.look_at(ranks);
  const auto noticed = told.wait();
  REQUIRE(noticed);
  CHECK(noticed->generation == 3);
  REQUIRE(noticed->hangs.size() == 1);
  const auto* stuck = std::get_if<Stuck>(&noticed->hangs.front());
  REQUIRE(stuck);
  CHECK(stuck->rank == 1);
  CHECK(stuck->kind == Stuck::Kind::kStopped);
  CHECK(stuck->silence >= milliseconds(240));
  CHECK(stuck->what.find("step 7") != std::string::npos);
}

TEST_CASE("records that cannot be read, and ranks without a process, are nobody's fault") {
  std::atomic<int> reads{0};
  Told told;
  {
    RankWatch watch(2, {.hang_timeout = milliseconds(60),
                        .read = [&](ActorId actor, const std::string&, std::size_t,
                                    Deadline) -> Result<wire::Bytes> {
                          CHECK(actor == ActorId{1, 1});
                          ++reads;
                          return error(Code::kNotFound, "no such segment");
                        },
                        .tell = [&](RankWatch::Noticed noticed) { told.add(std::move(noticed)); }});
    RankWatch::Ranks ranks{.generation = 1, .running = true};
    ranks.processes = {std::nullopt, RankWatch::Process{ActorId{1, 1}, 1}};
    watch.look_at(ranks);
    const auto until = Deadline::after(seconds(5));
    while (reads < 40 && !until.passed()) std::this_thread::yield();
  }
  CHECK(reads >= 40);
  told.add({.generation = 99});
  CHECK(told.wait()->generation == 99);  // nothing before it
}

}  // namespace
}  // namespace troupe::train
