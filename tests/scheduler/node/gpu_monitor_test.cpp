// The thread that reads GPUs and hears of their errors, and a node's daemon with GPUs.

#include "scheduler/node/gpu_monitor.h"

#include <doctest/doctest.h>

#include <future>

#include "scheduler/client/ask_node.h"
#include "scheduler/node/node_daemon.h"
#include "tests/scheduler/node/fake_head.h"
#include "tests/scheduler/node/fake_nvml.h"
#include "tests/support/fake_sysfs.h"
#include "tests/support/test_data.h"

namespace troupe::scheduler::tests {
namespace {

using namespace std::chrono_literals;

constexpr auto kGpuPatience = 20s;

TEST_CASE("the GPUs are read when asked, and their errors are heard") {
  FakeNvml fake;
  fake.gpus = {FakeNvml::gpu(0), FakeNvml::gpu(1)};
  bool listens = true;
  SUBCASE("by a driver that reports errors") {}
  SUBCASE("by one that does not") { listens = false; }
  nvml::Table table = fake.table();
  if (!listens) table.event_set_create = nullptr;
  const auto nvml = Nvml::open(table).value();
  troupe::tests::FakeSysfs files;
  (void)nvml->devices(files).value();
  net::LoopThread thread{"gpus"};
  std::promise<std::vector<GpuReading>> read;
  std::promise<GpuFault> failed, failed_later;
  std::promise<Status> trouble;
  std::unique_ptr<GpuMonitor> monitor;
  on_loop(thread.loop(), [&] {
    monitor = std::make_unique<GpuMonitor>(
        thread.loop(), nvml, std::vector{FakeNvml::uuid(0), FakeNvml::uuid(1)},
        GpuMonitor::Handlers{
            .on_readings =
                [&](std::uint64_t number, std::vector<GpuReading> readings) {
                  if (number == 3) read.set_value(std::move(readings));
                },
            .on_fault =
                [&, heard = 0](GpuFault fault) mutable {
                  (++heard == 1 ? failed : failed_later).set_value(std::move(fault));
                },
            .on_trouble = [&](const Status& why) { trouble.set_value(why); }});
    monitor->read(3);
  });
  auto readings = read.get_future();
  REQUIRE(readings.wait_for(kGpuPatience) == std::future_status::ready);
  const auto got = readings.get();
  REQUIRE(got.size() == 2);
  CHECK(got[1].uuid == FakeNvml::uuid(1));
  CHECK(got[1].used_bytes == 600ULL << 20);
  if (listens) {
    fake.report(1, nvml::kEventXid, 48);
    auto fault = failed.get_future();
    REQUIRE(fault.wait_for(kGpuPatience) == std::future_status::ready);
    CHECK(fault.get().uuid == FakeNvml::uuid(1));
    {
      std::lock_guard lock(fake.mutex);
      fake.gpus[1].answer = nvml::kGpuIsLost;
    }
    fake.report(0, nvml::kEventXid, 63);
    auto later = failed_later.get_future();
    REQUIRE(later.wait_for(kGpuPatience) == std::future_status::ready);
    CHECK(later.get().uuid == FakeNvml::uuid(0));
  } else {
    auto why = trouble.get_future();
    REQUIRE(why.wait_for(kGpuPatience) == std::future_status::ready);
    CHECK(why.get().code() == Code::kUnsupported);
  }
  on_loop(thread.loop(), [&] { monitor.reset(); });
}

TEST_CASE("a daemon with GPUs: who sees which, who waits, what is told of them") {
  FakeNvml fake;
  fake.gpus = {FakeNvml::gpu(0), FakeNvml::gpu(1)};
  const net::Token token(32, std::byte{9});
  FakeHead head(token, {});
  net::LoopThread thread{"node"};
  std::unique_ptr<NodeDaemon> node;
  NodeOptions options;
  options.name = "test";
  options.head = {"127.0.0.1", head.port(), {}};
  options.token = token;
  options.resources = {{"CPU", 4 * wire::kResourceUnit}, {"GPU", 2 * wire::kResourceUnit}};
  options.log_sink = [](LogLevel, std::string_view) {};
  std::promise<std::string> sees;
  bool seen = false;
  options.on_output = [&](const wire::OutputLine& line) {
    if (line.text == "sees " + FakeNvml::uuid(0) + "," + FakeNvml::uuid(1)) {
      if (!std::exchange(seen, true)) sees.set_value(line.text);
    }
  };
  options.nvml = Nvml::open(fake.table()).value();
  troupe::tests::FakeSysfs files;
  options.gpus.devices = options.nvml->devices(files).value().devices;
  for (const auto& device : options.gpus.devices) {
    options.gpus.readings.push_back(options.nvml->read(device.uuid));
  }
  on_loop(thread.loop(), [&] {
    auto started = NodeDaemon::start(thread.loop(), options);
    REQUIRE(started.ok());
    node = std::move(*started);
  });
  options.nvml.reset();
  const auto registered = head.next<wire::RegisterNode>();
  REQUIRE(registered);
  CHECK(registered->node.total.at("GPU") == 2 * wire::kResourceUnit);

  SystemRandom random;
  const auto actor = [&](std::int64_t gpus) {
    wire::StartActor start;
    start.generation = 1;
    start.spec.actor_id = ActorId::make(random);
    start.spec.type = "Visible";
    start.spec.name = "sees";
    start.spec.resources["GPU"] = gpus;
    start.spec.image.path = troupe::tests::bin_dir() + "/test_scheduler_node_host";
    head.send(start);
    return start.spec.actor_id;
  };
  const auto gpus = [&] {
    auto answer = ask_node(thread.loop(), {"127.0.0.1", node->info().endpoint.port, {}}, token,
                           wire::ReadGpus{5}, Deadline::after(kGpuPatience));
    REQUIRE(answer.ok());
    auto list = get<wire::GpuList>(*answer);
    CHECK(list.request_id == 5);
    return list.gpus;
  };
  const ActorId first = actor(2 * wire::kResourceUnit);
  REQUIRE(head.next<wire::ActorStarted>());
  CHECK(sees.get_future().wait_for(kGpuPatience) == std::future_status::ready);
  auto status = gpus();
  REQUIRE(status.size() == 2);
  CHECK(status[0].device.uuid == FakeNvml::uuid(0));
  CHECK(status[0].state == wire::GpuState::kHeld);
  REQUIRE(status[1].holders.size() == 1);
  CHECK(status[1].holders[0].actor_id == first);
  {
    std::lock_guard lock(fake.mutex);
    fake.gpus[1].used = 70ULL << 30;
  }
  head.send(wire::StopActor{first, 1});
  REQUIRE(head.next<wire::ActorExited>());
  const ActorId second = actor(2 * wire::kResourceUnit);
  status = gpus();
  CHECK(status[1].state == wire::GpuState::kReleasing);
  {
    std::lock_guard lock(fake.mutex);
    fake.gpus[1].used = 600ULL << 20;
  }
  const auto started = head.next<wire::ActorStarted>();
  REQUIRE(started);
  CHECK(started->actor_id == second);
  // It is lost, and its actor with it.
  fake.report(0, nvml::kEventXid, 79);
  const auto exited = head.next<wire::ActorExited>();
  REQUIRE(exited);
  CHECK(exited->actor_id == second);
  CHECK(exited->cause.message().find("Xid 79") != std::string::npos);
  CHECK(gpus()[0].state == wire::GpuState::kLost);
  on_loop(thread.loop(), [&] { node.reset(); });
  CHECK(fake.shutdowns == 1);
}

}  // namespace
}  // namespace troupe::scheduler::tests
