// Who gets which GPU, and when, seen from the node's state.

#include <doctest/doctest.h>

#include "scheduler/node/gpu_faults.h"
#include "tests/scheduler/node/node_driver.h"

namespace troupe::scheduler::tests {
namespace {

using namespace std::chrono_literals;

constexpr std::int64_t kGpuUnit = wire::kResourceUnit;

struct GpuDriver : NodeDriver {
  std::vector<GpuReading> readings;

  explicit GpuDriver(std::size_t count, std::int64_t amount = 0) {
    for (std::size_t i = 0; i < count; ++i) {
      wire::GpuDevice device;
      device.index = static_cast<std::uint32_t>(i);
      device.uuid = "GPU-" + std::to_string(i);
      device.memory_total_bytes = 80ULL << 30;
      config.gpus.devices.push_back(device);
      GpuReading reading;
      reading.uuid = device.uuid;
      readings.push_back(reading);
    }
    config.gpus.readings = readings;
    config.node.total["GPU"] = amount > 0 ? amount : static_cast<std::int64_t>(count) * kGpuUnit;
    std::destroy_at(&state);
    std::construct_at(&state, config, clock.now());
  }
  wire::StartActor start_of(std::uint64_t n, std::int64_t amount,
                            std::uint64_t generation = 1) const {
    auto start = start_message(n, generation);
    start.spec.name = "trainer-" + std::to_string(n);
    start.spec.resources["GPU"] = amount;
    return start;
  }
  void ask(std::uint64_t n, std::int64_t amount, std::uint64_t generation = 1) {
    apply(node_event::FromHead{start_of(n, amount, generation)});
  }
  // What the process that is spawned now is told to see; nothing: none is spawned.
  std::optional<std::string> sees() const {
    const auto* spawn = did<node_command::SpawnHost>();
    if (spawn == nullptr) return std::nullopt;
    const auto& environment = spawn->spec.environment;
    const auto visible = environment.find("CUDA_VISIBLE_DEVICES");
    if (visible == environment.end()) return "everything";
    const auto order = environment.find("CUDA_DEVICE_ORDER");
    if (order != environment.end()) CHECK(order->second == "PCI_BUS_ID");
    CHECK(visible->second.starts_with("GPU-") == (order != environment.end()));
    return visible->second;
  }
  HostId run_on(std::uint64_t n, std::int64_t amount, const std::string& devices,
                std::uint64_t generation = 1) {
    ask(n, amount, generation);
    CHECK(sees() == devices);
    return spawned();
  }
  bool reads() const { return did<node_command::ReadGpus>() != nullptr; }
  void answer() {
    const auto* read = did<node_command::ReadGpus>();
    REQUIRE(read);
    apply(node_event::GpusRead{read->number, readings});
  }
  void reads_again() {
    advance(*state.next_deadline() - clock.now());
    answer();
  }
};

TEST_CASE("a process sees its GPUs and no others") {
  GpuDriver d(3);
  d.join();
  d.run_on(1, 2 * kGpuUnit, "GPU-0,GPU-1");
  d.run_on(2, kGpuUnit / 2, "GPU-2");
  d.run_on(3, kGpuUnit / 2, "GPU-2");
  d.run_on(4, 0, "");
  // Unless its environment says which.
  auto start = d.start_of(5, 0);
  start.spec.environment["CUDA_VISIBLE_DEVICES"] = "1";
  d.apply(node_event::FromHead{start});
  CHECK(d.sees() == "1");
  d.spawned();
  const auto gpus = d.state.gpus();
  REQUIRE(gpus.size() == 3);
  CHECK(gpus[2].holders.size() == 2);
  CHECK(gpus[2].holders[0].label == "trainer-2");
  // The one that a head creates again has the spec it was asked for.
  CHECK_FALSE(d.told<wire::HostStart>()->spec.environment.contains("CUDA_DEVICE_ORDER"));
}

TEST_CASE("processes are told which GPUs theirs cannot reach") {
  GpuDriver d(3);
  d.config.gpus.without_peer_access = {{"GPU-0", "GPU-2"}, {"GPU-2", "GPU-0"}};
  d.restart();
  d.join();
  const auto told = [&]() -> std::optional<std::string> {
    const auto& environment = d.did<node_command::SpawnHost>()->spec.environment;
    const auto found = environment.find("TROUPE_GPUS_WITHOUT_PEER_ACCESS");
    if (found == environment.end()) return std::nullopt;
    return found->second;
  };
  d.ask(1, kGpuUnit);
  CHECK(told() == "GPU-2");
  d.ask(2, kGpuUnit);
  CHECK_FALSE(told());
  auto start = d.start_of(3, 0);
  start.spec.environment["CUDA_VISIBLE_DEVICES"] = "GPU-2";
  d.apply(node_event::FromHead{start});
  CHECK(told() == "GPU-0");
}

TEST_CASE("who sees a GPU and holds nothing of it is not waited for") {
  GpuDriver d(1);
  d.join();
  const HostId trainer = d.run_on(1, kGpuUnit, "GPU-0");
  d.apply(node_event::FromHost{trainer, wire::HostKeepSegment{"arena", false}, d.fd()});
  auto start = d.start_of(2, 0);
  start.spec.environment["CUDA_VISIBLE_DEVICES"] = "GPU-0";
  d.apply(node_event::FromHead{start});
  d.spawned();
  const std::int64_t spare_pid = d.said<wire::ActorStarted>()->pid;
  auto holders = d.state.gpus()[0].holders;
  REQUIRE(holders.size() == 2);
  CHECK(holders[1].label == "trainer-2");
  CHECK(holders[1].share == 0);
  // The trainer dies; the memory that the job keeps is the spare's now.
  d.readings[0].used_bytes = 40ULL << 30;
  d.readings[0].processes = {{spare_pid, 30ULL << 30}, {4711, 1}};
  SUBCASE("") {}
  SUBCASE("also after the daemon's restart") {
    d.restart();
    d.join();
  }
  SUBCASE("also where the driver counts its processes otherwise") {
    d.readings[0].processes[0].pid = 815;
  }
  d.end(trainer);
  REQUIRE(d.reads());
  d.answer();
  d.ask(1, kGpuUnit, 2);
  CHECK_FALSE(d.sees());
  d.readings[0].processes.pop_back();
  for (int i = 0; i < 10 && !d.sees(); ++i) {
    if (d.reads()) {
      d.answer();
    } else {
      d.advance(*d.state.next_deadline() - d.clock.now());
    }
  }
  CHECK(d.sees() == "GPU-0");
  CHECK(d.state.gpus()[0].state == wire::GpuState::kHeld);
  CHECK(d.clock.now() < TimePoint() + kTiming.gpu_release_timeout);
}

TEST_CASE("where amounts stand for no device nobody is told what to see") {
  GpuDriver d(0, 2 * kGpuUnit);
  d.join();
  const HostId one = d.run_on(1, kGpuUnit, "everything");
  d.run_on(2, 0, "everything");
  d.end(one);
  CHECK_FALSE(d.reads());
  d.run_on(3, kGpuUnit, "everything");
}

TEST_CASE("an exit is reported at once; the next one waits for the memory") {
  GpuDriver d(1);
  d.join();
  const HostId one = d.run_on(1, kGpuUnit, "GPU-0");
  d.readings[0].used_bytes = 40ULL << 30;
  d.end(one);
  CHECK(d.did<node_command::ReportExit>());
  CHECK(d.reads());
  const NodeCommand first_read = *d.did<node_command::ReadGpus>();
  d.ask(2, kGpuUnit);
  CHECK_FALSE(d.sees());
  CHECK_FALSE(d.reads());  // one question at a time
  // It is there, for the head and for its callers.
  CHECK(d.state.process_count() == 1);
  d.apply(node_event::ConnectionArrived{ActorId{1, 2}, d.fd(), {}});
  d.apply(node_event::GpusRead{get<node_command::ReadGpus>(first_read).number, d.readings});
  CHECK_FALSE(d.sees());
  d.readings[0].used_bytes = 0;
  d.reads_again();
  CHECK(d.sees() == "GPU-0");
  d.spawned();
  CHECK(d.told<wire::HostConnection>());
}

TEST_CASE("a restarted actor gets the GPU it had") {
  GpuDriver d(2);
  d.join();
  const HostId one = d.run_on(1, kGpuUnit, "GPU-0");
  const HostId two = d.run_on(2, kGpuUnit, "GPU-1");
  d.end(one);
  d.answer();
  d.end(two);
  d.answer();
  d.run_on(2, kGpuUnit, "GPU-1", 2);
  d.run_on(1, kGpuUnit, "GPU-0", 2);
}

TEST_CASE("one whose job keeps memory gets its own GPU, though others are free") {
  GpuDriver d(2);
  d.join();
  const HostId one = d.run_on(1, kGpuUnit, "GPU-0");
  d.apply(node_event::FromHost{one, wire::HostKeepSegment{"arena", false}, d.fd()});
  d.readings[0].used_bytes = 40ULL << 30;
  d.end(one);
  const NodeCommand read = *d.did<node_command::ReadGpus>();
  d.ask(1, kGpuUnit, 2);
  CHECK_FALSE(d.sees());
  d.apply(node_event::GpusRead{get<node_command::ReadGpus>(read).number, d.readings});
  CHECK(d.sees() == "GPU-0");
}

TEST_CASE("one that waits can be stopped, and gives up in time") {
  GpuDriver d(1);
  d.join();
  const HostId one = d.run_on(1, kGpuUnit, "GPU-0");
  d.readings[0].used_bytes = 40ULL << 30;
  d.readings[0].processes = {{4711, 1}};
  d.end(one);
  d.answer();
  d.ask(2, kGpuUnit);
  SUBCASE("stopped") {
    d.apply(node_event::FromHead{wire::StopActor{ActorId{1, 2}, 1}});
    const auto* report = d.did<node_command::ReportExit>();
    REQUIRE(report);
    CHECK(report->exited.actor_id == ActorId{1, 2});
    CHECK(report->log == 0);
    CHECK(d.state.process_count() == 0);
  }
  SUBCASE("for too long") {
    for (int i = 0; i < 10'000 && !d.did<node_command::ReportExit>(); ++i) {
      if (d.reads()) d.answer();
      if (d.did<node_command::ReportExit>()) break;
      d.advance(*d.state.next_deadline() - d.clock.now());
    }
    const auto* report = d.did<node_command::ReportExit>();
    REQUIRE(report);
    CHECK(report->exited.cause.code() == Code::kResourceExhausted);
    CHECK(report->exited.cause.message().find("pids 4711") != std::string::npos);
    CHECK(d.clock.now() - TimePoint() >= NodeConfig().gpu_wait);
  }
  SUBCASE("the node ends") {
    d.apply(node_event::ShutDown{"over"});
    CHECK(d.did<node_command::ReportExit>());
    CHECK(d.did<node_command::EndNode>());
  }
  SUBCASE("the head comes back") {
    d.apply(node_event::HeadDown{error(Code::kUnavailable, "x")});
    d.advance(100ms);
    d.apply(node_event::HeadUp{});
    REQUIRE(d.said<wire::RegisterNode>());
    REQUIRE(d.said<wire::RegisterNode>()->running.size() == 1);
    CHECK(d.said<wire::RegisterNode>()->running[0].pid == 0);
  }
}

TEST_CASE("what a node can never give is refused at once") {
  GpuDriver d(2);
  d.join();
  d.ask(1, kGpuUnit * 3 / 2);
  const auto* report = d.did<node_command::ReportExit>();
  REQUIRE(report);
  CHECK(report->exited.cause.code() == Code::kInvalidArgument);
  CHECK(report->exited.cause.message().find("1.5 GPUs") != std::string::npos);
  d.ask(2, 3 * kGpuUnit);
  CHECK(d.did<node_command::ReportExit>()->exited.cause.code() == Code::kUnavailable);
}

TEST_CASE("a GPU that is stuck is no room for the head until it is free") {
  GpuDriver d(2);
  d.join();
  const HostId one = d.run_on(1, kGpuUnit, "GPU-0");
  d.readings[0].used_bytes = 40ULL << 30;
  d.end(one);
  bool noted = false;
  std::int64_t total = 2 * kGpuUnit;
  const auto look = [&] {
    for (const auto& command : d.last) {
      const auto* said = get_if<node_command::SendHead>(&command);
      if (said == nullptr) continue;
      if (const auto* update = get_if<wire::NodeUpdate>(&said->message)) {
        total = update->node.total.at("GPU");
      }
      if (const auto* note = get_if<wire::NodeNote>(&said->message)) {
        noted |= note->kind == "gpu_stuck";
      }
    }
  };
  for (int i = 0; i < 1000 && !noted; ++i) {
    if (d.reads()) d.answer();
    look();
    if (!noted) d.advance(*d.state.next_deadline() - d.clock.now());
    look();
  }
  CHECK(noted);
  CHECK(total == kGpuUnit);
  d.readings[0].used_bytes = 0;
  if (!d.reads()) d.advance(*d.state.next_deadline() - d.clock.now());
  d.answer();
  look();
  CHECK(total == 2 * kGpuUnit);
  CHECK(d.state.gpus()[0].state == wire::GpuState::kFree);
}

TEST_CASE("the next daemon knows which GPUs are whose, and which are not free") {
  GpuDriver d(3);
  d.join();
  const HostId one = d.run_on(1, kGpuUnit, "GPU-0");
  const HostId two = d.run_on(2, kGpuUnit, "GPU-1");
  d.readings[0].used_bytes = d.readings[1].used_bytes = 40ULL << 30;
  d.end(two);
  d.config.gpus.readings = d.readings;  // what a daemon reads that starts now
  d.restart();
  d.join();
  CHECK(d.state.gpus()[0].state == wire::GpuState::kHeld);
  CHECK(d.state.gpus()[0].holders[0].actor_id == ActorId{1, 1});
  CHECK(d.state.gpus()[1].state == wire::GpuState::kReleasing);
  CHECK(d.state.gpus()[2].state == wire::GpuState::kFree);
  // It asks by itself.
  d.advance(1ms);
  d.end(one);
  d.ask(3, 3 * kGpuUnit);
  CHECK_FALSE(d.sees());
  for (auto& reading : d.readings) reading.used_bytes = 0;
  for (int i = 0; i < 10 && !d.sees(); ++i) {
    if (d.reads()) {
      d.answer();
    } else {
      // A question from before the end is open.
      d.apply(node_event::GpusRead{1, d.readings});
      if (!d.sees()) d.advance(*d.state.next_deadline() - d.clock.now());
    }
  }
  CHECK(d.sees() == "GPU-0,GPU-1,GPU-2");
}

TEST_CASE("a lost GPU takes its actors with it, and the head hears of it first") {
  GpuDriver d(2);
  d.join();
  const HostId one = d.run_on(1, kGpuUnit, "GPU-0");
  const HostId two = d.run_on(2, kGpuUnit, "GPU-1");
  d.apply(node_event::GpuFailed{{"GPU-0", 79}});
  CHECK(d.being_killed == std::set{one});
  REQUIRE(d.said<wire::NodeNote>());
  CHECK(d.said<wire::NodeNote>()->kind == "gpu_lost");
  CHECK(d.said<wire::NodeNote>()->text.find("Xid 79") != std::string::npos);
  CHECK_FALSE(d.said<wire::NodeUpdate>());  // it is held still
  d.end(one);
  std::vector<std::string> order;
  for (const auto& command : d.last) {
    if (const auto* said = get_if<node_command::SendHead>(&command)) {
      if (const auto* update = get_if<wire::NodeUpdate>(&said->message)) {
        CHECK(update->node.total.at("GPU") == kGpuUnit);
        order.push_back("update");
      }
    } else if (const auto* report = get_if<node_command::ReportExit>(&command)) {
      CHECK(report->exited.cause.code() == Code::kUnavailable);
      CHECK(report->exited.cause.message().find("GPU-0") != std::string::npos);
      CHECK(report->exited.cause.message().find("fallen off the bus") != std::string::npos);
      order.push_back("exit");
    }
  }
  CHECK(order == std::vector<std::string>{"update", "exit"});
  CHECK_FALSE(d.reads());
  d.ask(1, kGpuUnit, 2);  // the other one is held
  CHECK_FALSE(d.sees());
  d.end(two);
  d.answer();
  CHECK(d.sees() == "GPU-1");
  // A head that comes back hears what is left.
  d.apply(node_event::HeadDown{error(Code::kUnavailable, "x")});
  d.advance(100ms);
  d.apply(node_event::HeadUp{});
  CHECK(d.said<wire::RegisterNode>()->node.total.at("GPU") == kGpuUnit);
}

TEST_CASE("a GPU that NVML calls lost is lost; a program's errors are the program's") {
  GpuDriver d(2);
  d.join();
  const HostId one = d.run_on(1, kGpuUnit, "GPU-0");
  d.apply(node_event::GpuFailed{{"GPU-0", 31}});
  CHECK(d.being_killed.empty());
  REQUIRE(d.said<wire::NodeNote>());
  CHECK(d.said<wire::NodeNote>()->kind == "gpu_process_error");
  d.apply(node_event::GpuFailed{{"GPU-0", 63}});
  CHECK(d.said<wire::NodeNote>()->kind == "gpu_notice");
  CHECK(d.state.gpus()[0].state == wire::GpuState::kHeld);
  d.readings[0].lost = true;
  d.readings[0].status = error(Code::kFailedPrecondition, "NVML says 'GPU is lost'");
  d.apply(node_event::GpusRead{0, d.readings});
  CHECK(d.being_killed == std::set{one});
  CHECK(d.state.gpus()[0].state == wire::GpuState::kLost);
}

TEST_CASE("Xids: whose fault, and what they mean") {
  const auto blame = [](std::optional<std::uint64_t> xid) {
    return meaning_of(GpuFault{"GPU-0", xid}).blame;
  };
  for (const std::uint64_t xid : {13, 31, 43, 45, 68, 69, 94}) {
    CHECK(blame(xid) == GpuBlame::kProcess);
  }
  for (const std::uint64_t xid : {48, 62, 64, 74, 79, 95, 119, 4711, 999}) {
    CHECK(blame(xid) == GpuBlame::kDevice);
  }
  CHECK(blame(std::nullopt) == GpuBlame::kDevice);
  CHECK(describe(GpuFault{"GPU-0", 79}).starts_with("Xid 79: the GPU has fallen off the bus"));
  CHECK(describe(GpuFault{"GPU-0", std::nullopt}).starts_with("double-bit ECC error"));
  CHECK(describe(GpuFault{"GPU-0", 4711}).find("catalogue") != std::string::npos);
}

}  // namespace
}  // namespace troupe::scheduler::tests
