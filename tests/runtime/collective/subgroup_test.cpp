// Communicators over some of the ranks, on the links of all.

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <optional>
#include <random>
#include <string>

#include "tests/runtime/collective/ranks.h"

namespace troupe::collective {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using tests::run_owners;
using tests::run_threads;

const std::vector<std::vector<int>> kTransports{{0, 0, 0, 0}, {0, 1, 2, 3}, {0, 0, 1, 1}};

std::unique_ptr<Communicator> group_of(Communicator& c, std::vector<int> ranks,
                                       std::string_view name = "part") {
  return c.subgroup(ranks, name).value();
}

// One step of a random program: which ranks, which operation, how much.
struct Step {
  std::vector<int> ranks;
  int operation;
  std::size_t count;
};

std::vector<Step> random_program(unsigned seed, int world_size, int steps) {
  std::mt19937 random(seed);
  std::vector<Step> program;
  for (int i = 0; i < steps; ++i) {
    Step step{{}, static_cast<int>(random() % 5), random() % (random() % 4 == 0 ? 60'000 : 300)};
    std::vector<int> ranks(static_cast<std::size_t>(world_size));
    std::iota(ranks.begin(), ranks.end(), 0);
    std::shuffle(ranks.begin(), ranks.end(), random);
    ranks.resize(1 + random() % ranks.size());
    step.ranks = ranks;
    program.push_back(std::move(step));
  }
  return program;
}

// Every rank brings `salt` and its world rank; sums of them are known.
bool step_holds(Communicator& g, const Step& step, int world_rank, int salt) {
  using Counts = std::vector<std::size_t>;
  const auto n = step.ranks.size(), me = static_cast<std::size_t>(g.rank());
  const int sum = std::accumulate(step.ranks.begin(), step.ranks.end(), 0) +
                  salt * static_cast<int>(step.ranks.size());
  const int root = salt % static_cast<int>(n);
  const auto all_are = [](std::span<const std::int32_t> values, int wanted) {
    return std::all_of(values.begin(), values.end(), [&](int value) { return value == wanted; });
  };
  std::vector<std::int32_t> data(step.count, world_rank + salt);
  switch (step.operation) {
    case 0:
      return g.all_reduce(std::span(data)).ok() && all_are(data, sum);
    case 1:
      return g.broadcast(std::span(data), root).ok() &&
             all_are(data, step.ranks[static_cast<std::size_t>(root)] + salt);
    case 2: {
      Counts counts(n, step.count);
      std::vector<std::int32_t> input(n * step.count, world_rank + salt);
      return g.reduce_scatter(std::span<const std::int32_t>(input), std::span(data), counts).ok() &&
             all_are(data, sum);
    }
    case 3: {
      Counts counts(n, 0);
      counts[static_cast<std::size_t>(root)] = step.count;
      const bool owner = counts[me] != 0;
      std::vector<std::int32_t> output(owner ? n * step.count : 0);
      bool holds =
          g.all_to_all(std::span<const std::int32_t>(data), std::span(output), counts).ok();
      for (std::size_t r = 0; owner && r < n; ++r)
        holds &=
            all_are(std::span(output).subspan(r * step.count, step.count), step.ranks[r] + salt);
      return holds;
    }
    default:
      return g.barrier().ok();
  }
}

TEST_CASE("operations of many groups interleave in any one order") {
  for (unsigned seed = 0; seed < 24; ++seed) {
    CAPTURE(seed);
    const auto& nodes = kTransports[seed % kTransports.size()];
    const auto program = random_program(seed, static_cast<int>(nodes.size()), 60);
    std::atomic<int> wrong{0};
    run_threads(nodes, [&](Communicator& c) {
      // Groups of equal ranks are the same group where the program meets them again.
      std::vector<std::pair<std::vector<int>, std::unique_ptr<Communicator>>> groups;
      for (std::size_t i = 0; i < program.size(); ++i) {
        const Step& step = program[i];
        if (std::count(step.ranks.begin(), step.ranks.end(), c.rank()) == 0) continue;
        auto known = std::find_if(groups.begin(), groups.end(),
                                  [&](const auto& group) { return group.first == step.ranks; });
        if (known == groups.end())
          known = groups.insert(groups.end(), {step.ranks, group_of(c, step.ranks)});
        wrong += !step_holds(*known->second, step, c.rank(), static_cast<int>(i));
      }
      wrong += !c.barrier().ok();
    });
    CHECK(wrong == 0);
  }
}

TEST_CASE("who waits in a later operation of all does not disturb a group") {
  for (const auto& nodes : kTransports) {
    run_threads(nodes, [&](Communicator& c) {
      std::vector<float> data(200'000, 1.0f);
      if (c.rank() < 2) {
        auto pair = group_of(c, {1, 0});
        for (int i = 0; i < 50; ++i) {
          std::vector<float> part(i % 2 == 0 ? 8 : 20'000, 1.0f);
          REQUIRE(pair->all_reduce(std::span(part)).ok());
          CHECK(part.back() == 2.0f);
        }
      }
      REQUIRE(c.all_reduce(std::span(data)).ok());
      CHECK(data.front() == 4.0f);
      CHECK(data.back() == 4.0f);
    });
  }
}

TEST_CASE("groups without a rank in common do not wait for each other") {
  for (const auto& nodes : kTransports) {
    std::atomic<int> done{0};
    run_threads(nodes, [&](Communicator& c) {
      const int first = c.rank() / 2 * 2;
      auto pair = group_of(c, {first, first + 1});
      const Deadline deadline = Deadline::after(seconds(10));
      if (first == 0)
        while (done < 2 && !deadline.passed()) std::this_thread::yield();
      for (int i = 0; i < 20; ++i) REQUIRE(pair->barrier().ok());
      if (first == 2) ++done;
      if (first == 0) CHECK(done == 2);
      CHECK(c.barrier().ok());
    });
  }
}

TEST_CASE("a lost rank ends what needs it, not a group without it") {
  for (const auto& nodes : kTransports) {
    std::atomic<bool> gone{false};
    std::atomic<int> named{0};
    run_owners(nodes, [&](std::unique_ptr<Communicator> c) {
      if (c->rank() == 3) {
        c.reset();
        gone = true;
        return;
      }
      while (!gone) std::this_thread::yield();
      auto rest = group_of(*c, {0, 1, 2});
      CHECK_FALSE(rest->lost_rank());
      std::vector<float> data(50'000, 1.0f);
      for (int i = 0; i < 20; ++i) REQUIRE(rest->all_reduce(std::span(data)).ok());
      const Status status = c->barrier();
      CHECK(status.code() == Code::kAborted);
      // Known without an operation, to groups that it is in.
      const std::optional<int> lost = c->lost_rank();
      CHECK(status.context("lost_rank") == std::to_string(lost.value_or(-1)));
      if (lost == 3) ++named;
      CHECK(rest->barrier().code() == Code::kAborted);
    });
    // Who notices it first leaves, too. Another machine's rank that had no processor meanwhile
    // finds both gone, and does not know who was first.
    CHECK(named >= (nodes.back() == 0 ? 3 : 1));
  }
}

TEST_CASE("an abort or failure of any ends all") {
  run_threads({0, 0}, [](Communicator& c) {
    auto pair = group_of(c, {1, 0});
    auto twin = group_of(c, {1, 0}, "twin");
    if (c.rank() == 0) twin->abort(Status(Code::kCancelled, "the test says so"));
    CHECK(pair->barrier().code() == Code::kAborted);
    CHECK(c.barrier().code() == Code::kAborted);
    CHECK(twin->barrier().code() == Code::kAborted);
  });
  std::atomic<bool> release{false};
  run_threads({0, 0, 0}, [&](Communicator& c) {
    if (c.rank() == 2) {
      while (!release) std::this_thread::yield();
      return;
    }
    if (c.rank() == 1) return;  // stays away: rank 0 waits for nobody else
    auto pair = group_of(c, {2, 0}, "row 1");
    std::vector<float> data(9, 1.0f);
    const Status status =
        pair->all_reduce(std::span(data), ReduceOp::kSum, Deadline::after(milliseconds(20)));
    CHECK(status.code() == Code::kDeadlineExceeded);
    CHECK(status.context("peer") == "2");
    CHECK(status.context("group") == "row 1");
    CHECK(c.barrier().code() == Code::kAborted);
    release = true;
  });
}

TEST_CASE("ranks in different groups are told which") {
  for (const auto& nodes : {std::vector<int>{0, 0}, std::vector<int>{0, 1}}) {
    for (int what = 0; what < 3; ++what) {
      std::atomic<int> named{0};
      run_threads(nodes, [&](Communicator& c) {
        auto rows = group_of(c, {0, 1}, "rows");
        // The same words twice are two groups.
        auto columns = group_of(c, {0, 1}, what == 2 ? "rows" : "columns");
        std::vector<float> data(100, 1.0f);
        Communicator& mine = c.rank() == 0 ? *rows : what == 0 ? c : *columns;
        const Status status = mine.all_reduce(std::span(data));
        CHECK((status.code() == Code::kProtocol || status.code() == Code::kAborted));
        if (status.code() != Code::kProtocol) return;
        ++named;
        CHECK(status.message().find("'rows'") != std::string::npos);
        if (what == 0) CHECK(status.message().find("'test'") != std::string::npos);
        if (what == 1) CHECK(status.message().find("'columns'") != std::string::npos);
      });
      CHECK(named >= 1);
    }
  }
}

TEST_CASE("a group that cannot be is refused, with the reason") {
  run_threads({0, 0, 0}, [](Communicator& c) {
    const auto refusal = [&](std::vector<int> ranks, std::string_view name = "part") {
      const Status status = c.subgroup(ranks, name).status();
      CHECK(status.code() == Code::kInvalidArgument);
      return std::string(status.message());
    };
    CHECK(refusal({}).find("is not in it") != std::string::npos);
    CHECK(refusal({(c.rank() + 1) % 3}).find("is not in it") != std::string::npos);
    CHECK(refusal({0, 1, 2, 3}).find("no rank 3") != std::string::npos);
    CHECK(refusal({-1, c.rank()}).find("no rank -1") != std::string::npos);
    CHECK(refusal({c.rank(), c.rank()}).find("twice") != std::string::npos);
    CHECK(refusal({0, 1, 2}, std::string(64, 'x')).find("63 characters") != std::string::npos);
    CHECK(c.barrier().ok());
  });
}

TEST_CASE("a group outlives the communicator it came from") {
  run_owners({0, 0, 1}, [](std::unique_ptr<Communicator> c) {
    auto all = group_of(*c, {2, 1, 0});
    auto inner = group_of(*all, {0, 1, 2});
    c.reset();
    all.reset();
    std::int32_t sum = 1 << inner->rank();
    CHECK(inner->all_reduce(std::span(&sum, 1)).ok());
    CHECK(sum == 7);
  });
}

TEST_CASE("each group counts its own") {
  run_threads({0, 0, 0, 0}, [](Communicator& c) {
    const int first = c.rank() / 2 * 2;
    auto pair = group_of(c, {first, first + 1});
    const std::vector<std::size_t> counts{1000, 0};
    const auto r = static_cast<std::size_t>(pair->rank());
    std::vector<float> input(1000, 1.0f), output(2 * counts[r]);
    REQUIRE(pair->all_to_all(std::span<const float>(input), std::span(output), counts).ok());
    REQUIRE(
        pair->gather(std::span<const float>(input).first(counts[r]), std::span(input), counts, 1)
            .ok());
    const Counters mine = pair->counters();
    const auto& exchange = mine[static_cast<std::size_t>(Operation::kAllToAll)];
    CHECK(exchange.calls == 1);
    CHECK(exchange.algorithm_bytes_sent == (r == 0 ? 0 : 4000));
    CHECK(exchange.wire_bytes_sent == (r == 0 ? 64 : 64 + 4032));
    const auto& gathered = mine[static_cast<std::size_t>(Operation::kGather)];
    CHECK(gathered.algorithm_bytes_sent == (r == 0 ? 4000 : 0));
    for (const OperationCounters& counter : c.counters()) CHECK(counter.calls == 0);
    CHECK(c.barrier().ok());
    CHECK(pair->counters()[static_cast<std::size_t>(Operation::kBarrier)].calls == 0);
  });
}

TEST_CASE("counts and buffers that disagree are refused before anything is sent") {
  run_threads({0, 0}, [](Communicator& c) {
    const std::vector<std::size_t> counts{3, 2};
    std::vector<float> five(5), odd(7);
    const std::span<const float> input(five);
    CHECK(c.all_to_all(input, std::span(odd), counts).code() == Code::kInvalidArgument);
    CHECK(c.all_to_all(input, std::span(odd).first(2), counts).code() == Code::kInvalidArgument);
    CHECK(c.gather(input, std::span(five), counts, 0).code() == Code::kInvalidArgument);
    CHECK(c.gather(input.first(counts[static_cast<std::size_t>(c.rank())]), std::span(five), counts,
                   2)
              .code() == Code::kInvalidArgument);
    CHECK(c.barrier().ok());
  });
}

}  // namespace
}  // namespace troupe::collective
