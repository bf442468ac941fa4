#include "scheduler/node/gpu_devices.h"

#include <doctest/doctest.h>

#include "runtime/base/timing.h"

namespace troupe::scheduler {
namespace {

using namespace std::chrono_literals;

constexpr std::int64_t kOneGpu = wire::kResourceUnit;
constexpr std::uint64_t kIdleBytes = 600u << 20;
constexpr JobId kGpuJob{7, 1};
constexpr JobId kOtherGpuJob{7, 2};

// `linked`: of the pairs (0, 1) and (2, 3).
NodeGpus gpus_of(std::size_t count) {
  NodeGpus gpus;
  for (std::size_t i = 0; i < count; ++i) {
    wire::GpuDevice device;
    device.index = static_cast<std::uint32_t>(i);
    device.uuid = "GPU-" + std::to_string(i);
    device.name = "H200";
    device.minor_number = static_cast<std::int32_t>(i);
    device.memory_total_bytes = 141ULL << 30;
    const std::size_t other = i ^ 1;
    if (other < count) device.links.push_back({"GPU-" + std::to_string(other), {}, 4, true});
    gpus.devices.push_back(device);
    GpuReading reading;
    reading.uuid = device.uuid;
    reading.used_bytes = kIdleBytes;
    gpus.readings.push_back(reading);
  }
  return gpus;
}

struct Gpus {
  ManualClock clock;
  GpuDevices state;
  std::vector<GpuReading> readings;
  bool job_keeps = false;

  explicit Gpus(const NodeGpus& gpus, std::int64_t amount)
      : state(gpus, amount), readings(gpus.readings) {}
  explicit Gpus(std::size_t count)
      : Gpus(gpus_of(count), static_cast<std::int64_t>(count) * kOneGpu) {}

  static wire::GpuHolder holder(std::uint64_t n, std::int64_t share) {
    return {ActorId{3, n}, "actor-" + std::to_string(n), share};
  }
  GpuDevices::KeepsMemory keeps() const {
    return [yes = job_keeps](const JobId&) { return yes; };
  }
  // The names of what it gets; empty: not now.
  std::vector<std::string> take(std::uint64_t n, std::int64_t share = kOneGpu,
                                std::vector<std::string> before = {}, JobId job = kGpuJob) {
    const bool got = state.take(holder(n, share), job, before, keeps());
    const auto names = state.names_of(ActorId{3, n});
    CHECK(got == !names.empty());
    check();
    return names;
  }
  void release(std::uint64_t n) {
    state.release(ActorId{3, n}, clock.now());
    check();
  }
  void read() {
    const auto number = state.begin_reading();
    state.seen(number, readings);
    check();
  }
  void tick(Duration by) {
    clock.advance(by);
    state.tick(clock.now(), keeps());
    check();
  }
  wire::GpuState state_of(std::size_t i) const { return state.status()[i].state; }
  void check() const {
    const auto broken = state.broken_invariant();
    REQUIRE_MESSAGE(!broken, *broken);
  }
};
using Names = std::vector<std::string>;

TEST_CASE("whole GPUs: linked ones together, each to one, none twice") {
  Gpus g(4);
  CHECK(g.take(1) == Names{"GPU-0"});
  CHECK(g.take(2, 2 * kOneGpu) == Names{"GPU-2", "GPU-3"});
  CHECK(g.take(3, 2 * kOneGpu).empty());
  CHECK(g.take(4) == Names{"GPU-1"});
  CHECK(g.take(5, kOneGpu / 2).empty());
  CHECK(g.state.devices_of(ActorId{3, 2}).size() == 2);
  const auto status = g.state.status();
  REQUIRE(status[3].holders.size() == 1);
  CHECK(status[3].holders[0] == wire::GpuHolder{ActorId{3, 2}, "actor-2", kOneGpu});
  CHECK(g.state_of(3) == wire::GpuState::kHeld);
}

TEST_CASE("parts of GPUs: the fullest that has room, up to the whole") {
  Gpus g(2);
  CHECK(g.take(1, kOneGpu * 4 / 10) == Names{"GPU-0"});
  CHECK(g.take(2, kOneGpu * 5 / 10) == Names{"GPU-0"});
  CHECK(g.take(3, kOneGpu * 2 / 10) == Names{"GPU-1"});
  CHECK(g.take(4, kOneGpu / 10) == Names{"GPU-0"});
  CHECK(g.take(5).empty());
  g.release(3);
  g.read();
  CHECK(g.take(5) == Names{"GPU-1"});
  // The share of one who shared is free at once: the memory is the others', too.
  g.release(1);
  CHECK(g.take(6, kOneGpu * 4 / 10) == Names{"GPU-0"});
}

TEST_CASE("a GPU is free when its memory is, not when its process is gone") {
  Gpus g(1);
  CHECK(g.take(1) == Names{"GPU-0"});
  g.readings[0].used_bytes = 80ULL << 30;
  g.readings[0].processes = {{4711, 79ULL << 30}};
  g.read();
  CHECK_FALSE(g.state.reading_interval());
  g.release(1);
  CHECK(g.state_of(0) == wire::GpuState::kReleasing);
  CHECK(g.state.reading_interval());
  CHECK(g.state.amount() == kOneGpu);
  CHECK(g.take(2).empty());
  g.read();
  CHECK(g.take(2).empty());
  // The process is not there any more, its memory is.
  g.readings[0].processes.clear();
  g.read();
  CHECK(g.take(2).empty());
  g.readings[0].used_bytes = kIdleBytes + GpuDevices::kSlackBytes + 1;
  g.read();
  CHECK(g.take(2).empty());
  g.readings[0].used_bytes -= 1;
  g.read();
  CHECK(g.state_of(0) == wire::GpuState::kFree);
  CHECK_FALSE(g.state.reading_interval());
  CHECK(g.take(2) == Names{"GPU-0"});
}

TEST_CASE("a reading that was begun before the end says nothing about it") {
  Gpus g(1);
  g.take(1);
  const auto early = g.state.begin_reading();
  g.release(1);
  g.state.seen(early, g.readings);
  CHECK(g.take(2).empty());
  g.state.seen(0, g.readings);  // unasked, from whenever
  CHECK(g.take(2).empty());
  g.read();
  CHECK(g.take(2) == Names{"GPU-0"});
}

TEST_CASE("memory that stays held makes a GPU stuck, until it is free") {
  Gpus g(2);
  CHECK(g.take(1) == Names{"GPU-0"});
  g.readings[0].used_bytes = kIdleBytes + (3ULL << 30);
  g.readings[0].processes = {{815, 1}, {4711, 2}};
  g.release(1);
  g.read();
  g.tick(kTiming.gpu_release_timeout - 1ms);
  CHECK(g.state.take_notes().empty());
  g.tick(1ms);
  const auto notes = g.state.take_notes();
  REQUIRE(notes.size() == 1);
  CHECK(notes[0].kind == "gpu_stuck");
  CHECK(notes[0].text.find("3072 MiB") != std::string::npos);
  CHECK(notes[0].text.find("pids 815, 4711") != std::string::npos);
  CHECK(g.state_of(0) == wire::GpuState::kStuck);
  CHECK(g.state.amount() == kOneGpu);
  CHECK(g.state.describe().find("memory is still held") != std::string::npos);
  CHECK(g.take(2) == Names{"GPU-1"});
  CHECK(g.take(3).empty());
  CHECK(g.state.check(2 * kOneGpu).ok());  // it may come back
  g.readings[0] = gpus_of(1).readings[0];
  REQUIRE(g.state.reading_interval());
  g.read();
  REQUIRE(g.state.take_notes().size() == 1);
  CHECK(g.state.amount() == 2 * kOneGpu);
  CHECK(g.take(3) == Names{"GPU-0"});
}

TEST_CASE("a GPU that nobody can read is stuck, too, and says so") {
  Gpus g(1);
  g.take(1);
  g.release(1);
  g.tick(kTiming.gpu_release_timeout);
  const auto notes = g.state.take_notes();
  REQUIRE(notes.size() == 1);
  CHECK(notes[0].text.find("NVML does not answer") != std::string::npos);
}

TEST_CASE("an actor comes back to the GPUs it had") {
  Gpus g(4);
  CHECK(g.take(1) == Names{"GPU-0"});
  CHECK(g.take(2) == Names{"GPU-1"});
  g.release(1);
  g.release(2);
  g.read();
  CHECK(g.take(2, kOneGpu, {"GPU-1"}) == Names{"GPU-1"});
  CHECK(g.take(3) == Names{"GPU-0"});
  // It is somebody else's now.
  CHECK(g.take(1, kOneGpu, {"GPU-0"}) == Names{"GPU-2"});
  CHECK(g.take(4, kOneGpu / 2) == Names{"GPU-3"});
  g.release(2);
  g.read();
  CHECK(g.take(5, kOneGpu / 2, {"GPU-1"}) == Names{"GPU-1"});
}

TEST_CASE("memory that a job keeps on a GPU waits for the job's next process") {
  Gpus g(2);
  g.job_keeps = true;
  CHECK(g.take(1) == Names{"GPU-0"});
  g.readings[0].used_bytes = 90ULL << 30;
  g.readings[0].processes = {{4711, 1}};
  g.release(1);
  // Worth a moment: nobody knows yet that its process is not there any more.
  CHECK(g.take(1, kOneGpu, {"GPU-0"}).empty());
  g.readings[0].processes.clear();
  g.read();
  CHECK(g.take(2, kOneGpu, {}, kOtherGpuJob) == Names{"GPU-1"});
  CHECK(g.take(3, kOneGpu, {}, kOtherGpuJob).empty());
  // However long that takes.
  g.tick(kTiming.gpu_release_timeout);
  CHECK(g.state_of(0) == wire::GpuState::kReleasing);
  CHECK(g.take(1, kOneGpu, {"GPU-0"}) == Names{"GPU-0"});
  g.release(1);
  g.read();
  g.job_keeps = false;
  CHECK(g.take(1, kOneGpu, {"GPU-0"}).empty());
  g.tick(kTiming.gpu_release_timeout);
  CHECK(g.state_of(0) == wire::GpuState::kStuck);
}

TEST_CASE("amounts that cannot be had here, ever") {
  Gpus g(2);
  CHECK(g.state.check(kOneGpu / 2).ok());
  CHECK(g.state.check(2 * kOneGpu).ok());
  CHECK(g.state.check(kOneGpu * 3 / 2).code() == Code::kInvalidArgument);
  CHECK(g.state.check(3 * kOneGpu).code() == Code::kUnavailable);
  NodeGpus divided = gpus_of(3);
  for (auto& device : divided.devices) device.links.clear();
  divided.devices[1].parent_uuid = divided.devices[2].parent_uuid = "GPU-parent";
  Gpus m(divided, 3 * kOneGpu);
  CHECK(m.state.check(2 * kOneGpu).code() == Code::kFailedPrecondition);
  CHECK(m.state.check(kOneGpu).ok());
  CHECK(m.take(1) == Names{"GPU-0"});
  CHECK(m.take(2) == Names{"GPU-1"});
}

TEST_CASE("a lost GPU is nobody's, and counts while it is held") {
  Gpus g(2);
  g.take(1, kOneGpu / 4);
  CHECK(g.state.lose("GPU-0", "Xid 79") == std::vector{ActorId{3, 1}});
  CHECK(g.state.lose("GPU-0", "Xid 79").empty());  // once
  CHECK(g.state.amount() == kOneGpu + kOneGpu / 4);
  REQUIRE(g.state.take_notes().size() == 1);
  g.release(1);
  CHECK(g.state.amount() == kOneGpu);
  g.read();
  CHECK(g.take(2) == Names{"GPU-1"});
  CHECK(g.take(3, kOneGpu / 4).empty());
  CHECK(g.state.check(2 * kOneGpu).message().find("Xid 79") != std::string::npos);
  // Every instance of a GPU that is divided.
  NodeGpus divided = gpus_of(2);
  divided.devices[0].parent_uuid = divided.devices[1].parent_uuid = "GPU-parent";
  Gpus m(divided, 2 * kOneGpu);
  m.state.lose("GPU-parent", "Xid 79");
  CHECK(m.state.amount() == 0);
}

TEST_CASE("amounts without devices are given last, and are free at once") {
  Gpus g(gpus_of(1), kOneGpu * 5 / 2);
  CHECK(g.state.any_device());
  CHECK(g.take(1) == Names{"GPU-0"});
  CHECK(g.take(2) == Names{"amount"});
  CHECK(g.take(3).empty());
  CHECK(g.take(3, kOneGpu / 2) == Names{"amount"});
  g.release(2);
  CHECK(g.take(4) == Names{"amount"});
  CHECK(g.state.devices_of(ActorId{3, 4}).empty());
  Gpus both(gpus_of(1), 3 * kOneGpu);
  CHECK(both.take(1, 2 * kOneGpu) == Names{"GPU-0", "amount"});
  CHECK(both.take(2, 2 * kOneGpu).empty());
  CHECK(both.take(2) == Names{"amount"});
  CHECK(GpuDevices(NodeGpus{}, wire::kResourceUnit << 40).check(kOneGpu << 39).ok());
  const GpuDevices none(NodeGpus{}, 4 * kOneGpu);
  CHECK_FALSE(none.any_device());
  CHECK(none.amount() == 4 * kOneGpu);
  const GpuDevices fewer(gpus_of(4), 2 * kOneGpu);
  CHECK(fewer.status().size() == 2);
  // Of devices that no NVML reads, the end of the processes has to do.
  NodeGpus by_file = gpus_of(1);
  by_file.readings.clear();
  by_file.devices[0].uuid.clear();
  Gpus f(by_file, kOneGpu);
  CHECK(f.take(1) == Names{"0"});
  f.release(1);
  CHECK(f.take(2) == Names{"0"});
}

TEST_CASE("the next daemon knows who has which, and what was used before") {
  Gpus g(4);
  g.take(1);
  g.take(2);
  g.state.lose("GPU-2", "Xid 79");
  g.readings[0].used_bytes = g.readings[1].used_bytes = 50ULL << 30;
  g.release(2);
  g.read();
  const auto kept = g.state.changed();
  REQUIRE(kept);
  CHECK_FALSE(g.state.changed());
  // It reads what is used now, and takes up the rest.
  NodeGpus now = gpus_of(4);
  now.readings = g.readings;
  Gpus next(now, 4 * kOneGpu);
  next.state.adopt(Gpus::holder(1, kOneGpu), kGpuJob, {"GPU-0"});
  for (const auto& gpu : kept->gpus) next.state.adopt(gpu, next.clock.now());
  CHECK(next.state_of(0) == wire::GpuState::kHeld);
  CHECK(next.state_of(1) == wire::GpuState::kReleasing);
  CHECK(next.state_of(2) == wire::GpuState::kLost);
  next.read();
  CHECK(next.take(4) == Names{"GPU-3"});
  CHECK(next.take(3).empty());
  next.readings[1].used_bytes = kIdleBytes;
  next.read();
  CHECK(next.take(3) == Names{"GPU-1"});
  next.release(1);
  next.read();
  CHECK(next.state_of(0) == wire::GpuState::kReleasing);  // 50 GiB are more than there were
}

}  // namespace
}  // namespace troupe::scheduler
