// Pipelines whose stages are on several nodes.

#include <doctest/doctest.h>
#include <unistd.h>

#include <csignal>
#include <deque>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/net/event_loop.h"
#include "runtime/net/fault_proxy.h"
#include "runtime/net/parse_address.h"
#include "runtime/net/token.h"
#include "tests/actors/pipelines/stage_actors.h"
#include "tests/support/test_data.h"
#include "troupe/chaos.h"
#include "troupe/chaos_cluster.h"
#include "troupe/cluster.h"
#include "troupe/pipeline.h"

namespace troupe::tests {
namespace {

using namespace std::chrono_literals;

struct PipelineNodes {
  std::unique_ptr<ChaosCluster> nodes =
      ChaosCluster::start({.nodes = 2, .cpus_per_node = 2}, Deadline::after(60s)).value();
  Cluster driver = nodes->connect({.program = bin_dir() + "/test_actors_pipelines_host"}).value();
  template <typename T>
  ActorHandle<T> on(int node) {
    return driver.spawn<T>({.num_cpus = 0, .max_restarts = -1, .label_selector = on_node(node)})
        .value();
  }
};

TEST_CASE_FIXTURE(PipelineNodes, "items go to stages on other nodes, and come back in order") {
  PipelineBuilder<int> plan(driver);
  const auto adder = on<Adder>(1);
  auto texts = plan.stage<&Square::text>("text", on<Square>(0));
  // Turns are taken by actors here and there.
  auto sums = plan.stage<&Square::square>("square", std::vector{on<Square>(0), on<Square>(1)})
                  .stage<&Adder::add>("add", adder);
  auto pipeline =
      plan.join<&Square::join>("join", on<Square>(1), sums, texts).build({.in_flight = 8}).value();
  RandomKiller adder_dies(driver, std::vector{adder}, {.seed = 5, .strikes_max = 3, .pause = 30ms});
  std::deque<std::pair<int, Future<std::string>>> open;
  std::int64_t sum = 0;
  int bad = 0;
  const auto take = [&] {
    auto [n, future] = std::move(open.front());
    open.pop_front();
    sum += std::int64_t{n} * n;
    const auto result = future.get(60s);
    const std::string expected = std::to_string(n) + "^2=" + std::to_string(sum);
    if (result.ok() && *result == expected) return;
    ++bad;
    MESSAGE(expected, " ", result.ok() ? *result : result.status().to_string());
  };
  for (int pushed = 0; pushed < 600 && bad == 0; ++pushed) {
    if (open.size() == 8) take();
    open.emplace_back(pushed % 100, pipeline.push(pushed % 100, 60s).value());
  }
  while (!open.empty()) take();
  CHECK(bad == 0);
  CHECK(adder_dies.finish(Deadline::after(60s)).ok());
  CHECK(adder.with({.retry = true}).call<&Adder::sum>().get(60s).value() == sum);
}

// Each item counts once in what its stage keeps, whatever was in hand or on its way.
TEST_CASE_FIXTURE(PipelineNodes, "connections that break lose no item, and repeat none") {
  PipelineBuilder<int> plan(driver);
  const auto near = on<Tally>(0), far = on<Tally>(1);
  auto pipeline = plan.stage<&Tally::add>("near", near)
                      .stage<&Tally::pass>("far", far)
                      .build({.in_flight = 8})
                      .value();
  std::deque<Future<std::int64_t>> open;
  std::int64_t sum = 0;
  int taken = 0, bad = 0;
  const auto take = [&] {
    sum += taken++ % 10;
    const auto result = open.front().get(60s);
    open.pop_front();
    if (result.ok() && *result == sum) return;
    ++bad;
    MESSAGE(sum, " ", result.ok() ? std::to_string(*result) : result.status().to_string());
  };
  for (int pushed = 0; pushed < 400 && bad == 0; ++pushed) {
    if (open.size() == 8) take();
    if (pushed % 50 == 49) nodes->cut(pushed % 100 == 49 ? 1 : -1);
    open.push_back(pipeline.push(pushed % 10, 60s).value());
  }
  while (!open.empty()) take();
  CHECK(bad == 0);
  CHECK(far.with({.retry = true}).call<&Tally::count>().get(60s).value() == 400);
}

TEST_CASE_FIXTURE(PipelineNodes,
                  "an item that is in hand when its line is cut is given over the next one") {
  TemporaryDirectory folder;
  const std::string gate = folder.file("gate");
  const auto far = on<Tally>(1);
  PipelineBuilder<std::string> plan(driver);
  auto pipeline = plan.stage<&Tally::wait_for>("wait", far).build({.in_flight = 2}).value();
  auto in_hand = pipeline.push(gate, 60s).value();
  auto behind = pipeline.push(gate, 60s).value();
  const Deadline patience = Deadline::after(20s);
  while (::access((gate + ".begun").c_str(), F_OK) != 0 && !patience.passed()) {
    std::this_thread::sleep_for(1ms);
  }
  REQUIRE_FALSE(patience.passed());
  nodes->cut(1);
  const auto bound = [&] { return pipeline.status().stages[0].bound == 1; };
  while (bound() && !patience.passed()) std::this_thread::sleep_for(1ms);
  while (!bound() && !patience.passed()) std::this_thread::sleep_for(1ms);
  CHECK_FALSE(patience.passed());
  std::ofstream(gate) << "x";
  CHECK(in_hand.get(60s).value() == 1);
  CHECK(behind.get(60s).value() == 2);
}

TEST_CASE_FIXTURE(PipelineNodes, "a connection that stays broken ends the pipeline, as it says") {
  TemporaryDirectory folder;
  const std::string gate = folder.file("gate");
  const auto far = on<Tally>(1);
  PipelineBuilder<std::string> plan(driver);
  auto stage = plan.stage<&Tally::wait_for>("wait", far);
  CHECK(stage.build({.reconnect_timeout = 0ms}).status().code() == Code::kInvalidArgument);
  CHECK(stage.build({.reconnect_timeout = 601s}).status().code() == Code::kInvalidArgument);
  CHECK(stage.build({.reconnect_timeout = std::chrono::milliseconds::max()}).status().code() ==
        Code::kInvalidArgument);
  auto pipeline = stage.build({.in_flight = 2, .reconnect_timeout = 200ms}).value();
  auto in_hand = pipeline.push(gate, 60s).value();
  nodes->stall(1);  // new connections come to nothing
  nodes->cut(1);
  const auto result = in_hand.get(60s);
  CHECK(result.status().code() == Code::kUnavailable);
  CHECK_MESSAGE(result.status().message().find("reconnect_timeout") != std::string::npos,
                result.status().to_string());
  nodes->mend(1);
  std::ofstream(gate) << "x";
  CHECK(far.with({.retry = true}).call<&Tally::count>().get(60s).ok());
}

TEST_CASE_FIXTURE(PipelineNodes, "an actor that is started anew has the time that this takes") {
  const auto far = driver
                       .spawn<Adder>({.num_cpus = 0,
                                      .max_restarts = -1,
                                      .backoff_initial = 600ms,
                                      .backoff_max = 600ms,
                                      .label_selector = on_node(1)})
                       .value();
  PipelineBuilder<std::int64_t> plan(driver);
  auto pipeline = plan.stage<&Adder::add>("add", far)
                      .build({.in_flight = 4, .reconnect_timeout = 100ms})
                      .value();
  CHECK(pipeline.push(1, 60s).value().get(60s).value() == 1);
  for (int i = 0; i < 2; ++i) {  // the first one is started anew at once
    ::kill(far.with({.retry = true}).call<&Adder::pid>().get(60s).value(), SIGKILL);
    const auto result = pipeline.push(1, 60s).value().get(60s);
    CHECK_MESSAGE(result.ok(), result.status().to_string());
  }
  // And where it cannot be reached when it is there again, the pipeline ends.
  const int pid = far.with({.retry = true}).call<&Adder::pid>().get(60s).value();
  nodes->stall(1);
  ::kill(pid, SIGKILL);
  nodes->cut(1);
  const auto result = pipeline.push(1, 60s).value().get(60s);
  CHECK_MESSAGE(result.status().code() == Code::kUnavailable, result.status().to_string());
  nodes->mend(1);
}

// A driver to which the head's news come late: by a proxy of its own.
struct LateNews : PipelineNodes {
  net::LoopThread loop{"late news"};
  std::unique_ptr<net::FaultProxy> proxy;
  void in_loop(const std::function<void()>& work) {
    std::promise<void> done;
    loop.loop().post([&] {
      work();
      done.set_value();
    });
    done.get_future().wait();
  }
  Cluster connect() {
    const auto head = net::parse_address(nodes->address(), "the head").value();
    in_loop([&] { proxy = net::make_fault_proxy(loop.loop(), {.target = head}).value(); });
    PosixFileSystem files;
    return Cluster::connect(
               {.host = proxy->address().host,
                .port = proxy->address().port,
                .token = net::read_token_file(files, nodes->home() + "/.troupe/token").value(),
                .program = bin_dir() + "/test_actors_pipelines_host"})
        .value();
  }
};

TEST_CASE_FIXTURE(LateNews, "a stage's next process may be met before the head tells of it") {
  Cluster late = connect();
  const auto far =
      late.spawn<Adder>({.num_cpus = 0, .max_restarts = -1, .label_selector = on_node(1)}).value();
  PipelineBuilder<std::int64_t> plan(late);
  auto pipeline = plan.stage<&Adder::add>("add", far).build({.in_flight = 4}).value();
  std::int64_t sum = 0;
  for (int n = 1; n <= 4; ++n) {
    const int pid = far.with({.retry = true}).call<&Adder::pid>().get(60s).value();
    in_loop([&] { proxy->set_both({.delay = 100ms}); });
    ::kill(pid, SIGKILL);
    sum += n;
    const auto result = pipeline.push(n, 60s).value().get(60s);
    CHECK_MESSAGE((result.ok() && *result == sum), result.status().to_string());
    in_loop([&] { proxy->set_both({}); });
  }
  CHECK(pipeline.status().stages[0].respawns == 4);
  late.close();
  in_loop([&] { proxy.reset(); });
}

TEST_CASE_FIXTURE(PipelineNodes, "objects that a stage there has passed on outlive its process") {
  const auto maker = on<Maker>(1);
  const auto taker = on<Taker>(0);
  PipelineBuilder<int> plan(driver);
  auto pipeline = plan.stage<&Maker::make>("make", maker)
                      .stage<&Taker::last>("take", taker)
                      .build({.in_flight = 4})
                      .value();
  CHECK(pipeline.push(7).value().get(20s).value() == 7);
  TemporaryDirectory folder;
  const std::string gate = folder.file("gate");
  auto busy = taker.call<&Taker::wait_for>(gate);
  std::vector<Future<int>> results;
  for (int n = 0; n < 4; ++n) results.push_back(pipeline.push(n).value());
  const Deadline patience = Deadline::after(20s);
  const auto make = [&] { return pipeline.status().stages[0]; };
  while (make().waiting > 0 && !patience.passed()) std::this_thread::sleep_for(1ms);
  REQUIRE(make().waiting == 0);
  CHECK_FALSE(maker.call<&Maker::die>().get(20s).ok());
  while (make().respawns == 0 && !patience.passed()) std::this_thread::sleep_for(1ms);
  std::ofstream(gate) << "x";
  for (int n = 0; n < 4; ++n) CHECK(results[static_cast<std::size_t>(n)].get(20s).value() == n);
  CHECK(busy.get(20s).ok());
}

TEST_CASE_FIXTURE(PipelineNodes, "errors, large items and refusals pass between nodes") {
  PipelineBuilder<int> plan(driver);
  auto odd = plan.stage<&Square::odd_fails>("even", on<Square>(0))
                 .stage<&Adder::add>("add", on<Adder>(1))
                 .build()
                 .value();
  auto even = odd.push(2).value();
  const Status failed = odd.push(3).value().get(20s).status();
  CHECK(failed.message().find("it is odd") != std::string::npos);
  CHECK(failed.to_string().find("even") != std::string::npos);
  CHECK(even.get(20s).value() == 2);

  PipelineBuilder<int> alone(driver);
  auto fragile =
      alone.stage<&Square::crash_at_13>("fragile", on<Square>(1)).build({.item_tries = 2}).value();
  auto poison = fragile.push(13).value();
  auto good = fragile.push(14).value();
  CHECK(poison.get(60s).status().code() == Code::kActorDied);
  CHECK(good.get(60s).value() == 14);

  PipelineBuilder<std::uint64_t> sizes(driver);
  auto blobs = sizes.stage<&Blob::make>("make", on<Blob>(0))
                   .stage<&Blob::count>("count", on<Blob>(1))
                   .build({.in_flight = 4, .item_bytes_max = std::uint64_t{4} << 20})
                   .value();
  CHECK(blobs.push(std::uint64_t{3} << 20).value().get(60s).value() == std::uint64_t{3} << 20);
  const Status large = blobs.push(std::uint64_t{5} << 20).value().get(60s).status();
  CHECK(large.code() == Code::kResourceExhausted);
}

}  // namespace
}  // namespace troupe::tests
