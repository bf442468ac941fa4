// Pipelines over real processes: order, failures, room, and the death of stages.

#include "troupe/pipeline.h"

#include <doctest/doctest.h>

#include <atomic>
#include <deque>
#include <fstream>
#include <future>
#include <thread>

#include "tests/actors/pipelines/stage_actors.h"
#include "tests/support/test_data.h"
#include "troupe/chaos.h"
#include "troupe/cluster.h"

namespace troupe::tests {
namespace {

using namespace std::chrono_literals;

struct PipelineCluster {
  Cluster cluster =
      Cluster::start_embedded({.num_cpus = 4,
                               .on_output = [](const std::string&, std::string_view) {},
                               .program = bin_dir() + "/test_actors_pipelines_host"})
          .value();
  TemporaryDirectory folder;
  template <typename T>
  ActorHandle<T> actor(int max_restarts = 0) {
    return cluster.spawn<T>({.num_cpus = 0, .max_restarts = max_restarts}).value();
  }
  template <typename T>
  std::vector<ActorHandle<T>> actors(int count, int max_restarts = 0) {
    std::vector<ActorHandle<T>> all;
    for (int i = 0; i < count; ++i) all.push_back(actor<T>(max_restarts));
    return all;
  }
};

TEST_CASE_FIXTURE(PipelineCluster, "a chain with actors that take turns gives results in order") {
  PipelineBuilder<int> plan(cluster);
  const auto adder = actor<Adder>();
  auto pipeline = plan.stage<&Square::square>("square", actors<Square>(2))
                      .stage<&Adder::add>("add", adder)
                      .build({.in_flight = 4})
                      .value();
  std::vector<Future<std::int64_t>> results;
  for (int i = 0; i < 200; ++i) results.push_back(pipeline.push(i).value());
  std::int64_t sum = 0;
  for (int i = 0; i < 200; ++i) {
    sum += std::int64_t{i} * i;
    CHECK(results[static_cast<std::size_t>(i)].get(20s).value() == sum);
  }
  // A result is counted right after its future has it.
  const Deadline patience = Deadline::after(20s);
  PipelineStatus status = pipeline.status();
  while (status.delivered < 200 && !patience.passed()) status = pipeline.status();
  CHECK(status.pushed == 200);
  CHECK(status.delivered == 200);
  CHECK(status.stages[0].bound == 2);
  CHECK(pipeline.close(20s).ok());
  CHECK(pipeline.push(1).status().code() == Code::kCancelled);
  // The actors stay.
  CHECK(adder.call<&Adder::sum>().get(20s).value() == sum);
}

TEST_CASE_FIXTURE(PipelineCluster, "branches come together; asynchronous methods are stages, too") {
  PipelineBuilder<int> plan(cluster);
  const auto one = actor<Square>();
  auto pipeline =
      plan.join<&Square::join>("join", actor<Square>(), plan.stage<&Square::square>("square", one),
                               plan.stage<&Square::text>("text", one))
          .build()
          .value();
  CHECK(pipeline.push(12).value().get(20s).value() == "12^2=144");
  CHECK(pipeline.push(3).value().get(20s).value() == "3^2=9");
  PipelineBuilder<int> other(cluster);
  auto later = other.stage<&Square::later>("later", one).build().value();
  CHECK(later.push(3).value().get(20s).value() == 4);
  // What nobody waits for comes all the same.
  std::promise<std::int64_t> came;
  const auto done =
      later.push(5).value().then([&](Result<std::int64_t> n) { came.set_value(n.value()); });
  auto future = came.get_future();
  REQUIRE(future.wait_for(20s) == std::future_status::ready);
  CHECK(future.get() == 6);
}

TEST_CASE_FIXTURE(PipelineCluster, "large items are read in place; too large ones say so") {
  PipelineBuilder<std::uint64_t> plan(cluster);
  auto pipeline = plan.stage<&Blob::make>("make", actor<Blob>())
                      .stage<&Blob::count>("count", actor<Blob>())
                      .build({.in_flight = 2, .item_bytes_max = 4u << 20})
                      .value();
  CHECK(pipeline.push(3u << 20).value().get(20s).value() == 3u << 20);
  const Status large = pipeline.push(5u << 20).value().get(20s).status();
  CHECK(large.code() == Code::kResourceExhausted);
  CHECK(large.message().find("item_bytes_max") != std::string::npos);
  CHECK(pipeline.push(0).value().get(20s).value() == 0);
}

TEST_CASE_FIXTURE(PipelineCluster, "an item that fails goes no further, and others go on") {
  PipelineBuilder<int> plan(cluster);
  const auto adder = actor<Adder>();
  auto pipeline = plan.stage<&Square::odd_fails>("odd", actor<Square>())
                      .stage<&Adder::add>("add", adder)
                      .build()
                      .value();
  auto bad = pipeline.push(7).value();
  CHECK(pipeline.push(8).value().get(20s).value() == 8);
  const Status why = bad.get(20s).status();
  CHECK(why.code() == Code::kActorError);
  CHECK(why.to_string().find("odd") != std::string::npos);
  CHECK(adder.call<&Adder::sum>().get(20s).value() == 8);
}

TEST_CASE_FIXTURE(PipelineCluster, "what cannot be is refused when it is built, by name") {
  PipelineBuilder<int> plan(cluster);
  const auto square = actor<Square>();
  const auto first = plan.stage<&Square::text>("text", square);
  const auto second = plan.stage<&Square::square>("square", square);
  const Status untaken = second.build().status();
  CHECK(untaken.code() == Code::kInvalidArgument);
  CHECK(untaken.message().find("'text'") != std::string::npos);
  PipelineBuilder<int> other(cluster);
  const Status foreign = other.join<&Square::join>("join", square, second, first).build().status();
  CHECK(foreign.message().find("'join'") != std::string::npos);
  PipelineBuilder<int> empty(cluster);
  CHECK(empty.stage<&Square::text>("none", ActorHandle<Square>()).build().status().code() ==
        Code::kFailedPrecondition);
  PipelineBuilder<int> light(cluster);
  const auto shared = cluster.spawn<Square>({.isolation = Isolation::kShared}).value();
  CHECK(light.stage<&Square::text>("light", shared).build().status().code() == Code::kUnsupported);
  PipelineBuilder<int> late(cluster);
  const auto waits = cluster.spawn<Square>({.num_cpus = 1000, .awaits_nodes = true}).value();
  const Status unbound =
      late.stage<&Square::text>("waits", waits).build({.build_timeout = 100ms}).status();
  CHECK(unbound.code() == Code::kDeadlineExceeded);
  CHECK(unbound.message().find("'waits'") != std::string::npos);
  CHECK((Pipeline<int, int>().push(1).status().code() == Code::kFailedPrecondition));
}

TEST_CASE_FIXTURE(PipelineCluster, "a full pipeline takes no more until there is room") {
  PipelineBuilder<std::string> plan(cluster);
  auto pipeline =
      plan.stage<&Square::when_there>("wait", actor<Square>()).build({.in_flight = 2}).value();
  const std::string gate = folder.file("gate");
  auto first = pipeline.push(gate).value();
  auto second = pipeline.push(gate).value();
  const Status full = pipeline.push(gate, 1ms).status();
  CHECK(full.code() == Code::kOverloaded);
  CHECK(full.message().find("'wait' has 2") != std::string::npos);
  CHECK(first.get(1ms).status().message().find("'wait'") != std::string::npos);
  CHECK(pipeline.close(1ms).code() == Code::kDeadlineExceeded);
  CHECK(second.get(20s).status().code() == Code::kCancelled);
  std::ofstream(gate) << "x";
}

TEST_CASE_FIXTURE(PipelineCluster,
                  "stages are killed at random: nothing is lost, order is kept, sums are right") {
  PipelineBuilder<int> plan(cluster);
  const auto squares = actors<Square>(2, -1);
  const auto adder = actor<Adder>(-1);
  const auto last = actor<Square>(-1);
  auto texts = plan.stage<&Square::text>("text", actors<Square>(1, -1));
  auto sums = plan.stage<&Square::square>("square", squares).stage<&Adder::add>("add", adder);
  auto pipeline =
      plan.join<&Square::join>("join", last, sums, texts).build({.in_flight = 8}).value();
  RandomKiller squares_die(cluster, squares, {.seed = 3, .strikes_max = 4, .pause = 20ms});
  RandomKiller adder_dies(cluster, std::vector{adder},
                          {.seed = 5, .strikes_max = 5, .pause = 30ms});
  RandomKiller last_dies(cluster, std::vector{last}, {.seed = 7, .strikes_max = 3, .pause = 40ms});
  std::atomic<bool> over{false};
  std::thread waiter([&] {
    for (RandomKiller* killer : {&squares_die, &adder_dies, &last_dies}) {
      CHECK(killer->finish(Deadline::after(60s)).value().strikes.size() >= 3);
    }
    over = true;
  });
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
  int pushed = 0;
  while ((!over || pushed < 500) && bad == 0) {
    if (open.size() == 8) take();
    open.emplace_back(pushed % 100, pipeline.push(pushed % 100, 60s).value());
    ++pushed;
  }
  while (!open.empty()) take();
  waiter.join();
  CHECK(bad == 0);
  CHECK(adder.with({.retry = true}).call<&Adder::sum>().get(60s).value() == sum);
}

TEST_CASE_FIXTURE(PipelineCluster, "a stage that is dead for good ends the pipeline, by name") {
  PipelineBuilder<int> plan(cluster);
  auto pipeline = plan.stage<&Square::crash>("fragile", actor<Square>()).build().value();
  const Status why = pipeline.push(1).value().get(20s).status();
  CHECK(why.code() == Code::kActorDied);
  CHECK(why.message().find("'fragile'") != std::string::npos);
  CHECK(pipeline.push(1).status().code() == Code::kActorDied);
  CHECK(pipeline.status().trouble.code() == Code::kActorDied);
}

TEST_CASE_FIXTURE(PipelineCluster, "an item that kills its stage is given up, and others go on") {
  PipelineBuilder<int> plan(cluster);
  auto pipeline = plan.stage<&Square::crash_at_13>("fragile", actors<Square>(2, -1))
                      .build({.item_tries = 2})
                      .value();
  std::vector<Future<std::int64_t>> results;
  for (int n = 0; n < 40; ++n) results.push_back(pipeline.push(n, 60s).value());
  for (int n = 0; n < 40; ++n) {
    const auto result = results[static_cast<std::size_t>(n)].get(60s);
    if (n != 13) {
      CHECK(result.value() == n);
      continue;
    }
    CHECK(result.status().code() == Code::kActorDied);
    CHECK(result.status().to_string().find("fragile") != std::string::npos);
    CHECK(result.status().message().find("2 processes") != std::string::npos);
  }
}

TEST_CASE_FIXTURE(PipelineCluster, "objects that a stage has passed on outlive its process") {
  const auto maker = actor<Maker>(1);
  const auto taker = actor<Taker>();
  PipelineBuilder<int> plan(cluster);
  auto pipeline = plan.stage<&Maker::make>("make", maker)
                      .stage<&Taker::last>("take", taker)
                      .build({.in_flight = 8})
                      .value();
  CHECK(pipeline.push(7).value().get(20s).value() == 7);
  const std::string gate = folder.file("gate");
  auto busy = taker.call<&Taker::wait_for>(gate);
  std::vector<Future<int>> results;
  for (int n = 0; n < 8; ++n) results.push_back(pipeline.push(n).value());
  const auto becomes = [&](auto is_so) {
    for (const Deadline patience = Deadline::after(20s); !patience.passed();) {
      if (is_so(pipeline.status().stages[0])) return true;
      std::this_thread::sleep_for(1ms);
    }
    return false;
  };
  REQUIRE(becomes([](const auto& make) { return make.waiting == 0; }));
  CHECK_FALSE(maker.call<&Maker::die>().get(20s).ok());
  REQUIRE(becomes([](const auto& make) { return make.respawns == 1 && make.bound == 1; }));
  std::ofstream(gate) << "x";
  for (int n = 0; n < 8; ++n) CHECK(results[static_cast<std::size_t>(n)].get(20s).value() == n);
  CHECK(busy.get(20s).ok());
  // Nor does the pipeline keep them.
  const Deadline patience = Deadline::after(20s);
  while (cluster.object_store().value().objects > 0 && !patience.passed()) {
    std::this_thread::sleep_for(1ms);
  }
  CHECK(cluster.object_store().value().objects == 0);
}

TEST_CASE_FIXTURE(PipelineCluster, "a pipeline that goes, or whose cluster goes, ends its items") {
  PipelineBuilder<std::string> plan(cluster);
  const std::string gate = folder.file("gate");
  const auto wait = plan.stage<&Square::when_there>("wait", actor<Square>());
  auto gone = wait.build().value();
  auto item = gone.push(gate).value();
  gone = Pipeline<std::string, std::int64_t>();
  CHECK(item.get(20s).status().code() == Code::kCancelled);
  std::ofstream(gate) << "x";
  auto again = wait.build().value();
  CHECK(again.push(gate).value().get(20s).value() == 1);
  auto open = again.push(folder.file("never")).value();
  cluster.close();
  CHECK(!open.get(20s).ok());
  CHECK(!again.push(gate).ok());
}

}  // namespace
}  // namespace troupe::tests
