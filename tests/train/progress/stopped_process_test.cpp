// A real process, a real SIGSTOP, real clocks: record, beat and watch together.

#include <doctest/doctest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "train/progress/beat.h"
#include "train/progress/hang_watch.h"
#include "train/progress/progress_recorder.h"

namespace troupe::train {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// A rank that runs operators for ever, or waits in a collective, in a process of its own.
class RankProcess {
 public:
  explicit RankProcess(bool waits) {
    void* shared = ::mmap(nullptr, sizeof(ProgressRecord), PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(shared != MAP_FAILED);
    memory_ = {static_cast<std::byte*>(shared), sizeof(ProgressRecord)};
    pid_ = ::fork();
    REQUIRE(pid_ >= 0);
    if (pid_ == 0) run(waits);
  }
  ~RankProcess() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    ::munmap(memory_.data(), memory_.size());
  }
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  void stop() { ::kill(pid_, SIGSTOP); }
  std::optional<ProgressSnapshot> read() const { return read_progress(memory_); }

 private:
  [[noreturn]] void run(bool waits) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ProgressRecorder recorder(progress_record_in(memory_));
    recorder.begin_generation(1);
    recorder.stage(8, Stage::kForward);
    recorder.unit(2, Phase::kForward);
    if (waits) recorder.collective("all_reduce", 77, true);
    const Beat beat(progress_record_in(memory_));
    const auto deadline = Deadline::after(seconds(60));
    while (!deadline.passed()) {
      if (!waits) recorder.operation("gemm");
      ::poll(nullptr, 0, 1);
    }
    ::_exit(0);
  }

  std::span<std::byte> memory_;
  pid_t pid_ = -1;
};

TEST_CASE("A process that is stopped is named in time, the one that waits for it is not") {
  RankProcess stopped(false), waiting(true);
  const HangSettings settings = HangSettings::with_timeout(milliseconds(400));
  HangWatch watch(2, settings);
  const SystemClock clock;
  const auto tick = [&] {
    ::poll(nullptr, 0, 20);
    const TimePoint now = clock.now();
    watch.read(0, stopped.read(), now);
    watch.read(1, waiting.read(), now);
    return watch.decide();
  };
  watch.rank_started(0, clock.now());
  watch.rank_started(1, clock.now());
  watch.generation_begun(1, clock.now());
  const auto deadline = Deadline::after(seconds(10));
  const auto watched_until = clock.now() + milliseconds(700);
  while (clock.now() < watched_until) {
    const auto verdicts = tick();
    REQUIRE_MESSAGE(verdicts.empty(), to_string(verdicts.front()));
  }
  stopped.stop();
  const TimePoint stopped_at = clock.now();
  std::vector<HangVerdict> verdicts;
  while (verdicts.empty() && !deadline.passed()) verdicts = tick();
  REQUIRE(verdicts.size() == 1);
  const Stuck& stuck = std::get<Stuck>(verdicts[0]);
  CHECK(stuck.rank == 0);
  CHECK(stuck.kind == Stuck::Kind::kStopped);
  CHECK(stuck.what == "step 8, forward of unit 2, operator gemm");
  CHECK(stuck.waiting == std::vector<Stuck::Waiting>{{1, "all-reduce 77"}});
  // Its last beat was up to 100 ms before.
  CHECK(clock.now() - stopped_at >= settings.hang_timeout - kBeatInterval);
}

}  // namespace
}  // namespace troupe::train
