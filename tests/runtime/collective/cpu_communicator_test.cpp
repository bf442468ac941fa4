#include "runtime/collective/cpu_communicator.h"

#include <doctest/doctest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <latch>
#include <numeric>
#include <thread>
#include <tuple>

#include "runtime/base/near_socket.h"
#include "runtime/memory/segment.h"
#include "tests/runtime/collective/conformance.h"
#include "tests/runtime/collective/killed_rank.h"
#include "tests/runtime/collective/ranks.h"
#include "tests/support/no_threads.h"

namespace troupe::collective {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using tests::options_for;
using tests::run_threads;

tests::RunRanks on_nodes(std::function<int(int rank)> node_of) {
  return [node_of](int world_size, const std::function<void(Communicator&)>& body) {
    std::vector<int> nodes;
    for (int r = 0; r < world_size; ++r) nodes.push_back(node_of(r));
    run_threads(nodes, body);
  };
}

TEST_CASE("a communicator for whose peers there is no watching thread is an error") {
  auto links = make_local_links({0, 0}).value();
  std::vector<Status> made(2);
  std::vector<std::thread> ranks;
  std::latch begin(1);
  for (std::size_t r = 0; r < made.size(); ++r) {
    ranks.emplace_back([&, r] {
      begin.wait();
      made[r] =
          make_cpu_communicator(options_for(static_cast<int>(r), 2), std::move(links[r])).status();
    });
  }
  {
    const troupe::tests::NoThreads none;
    begin.count_down();
    for (auto& rank : ranks) rank.join();
  }
  for (const Status& status : made) CHECK(status.code() == Code::kResourceExhausted);
}

TEST_CASE("shared memory: all operations, bit for bit") {
  for (int world = 1; world <= 5; ++world)
    tests::check_conformance(on_nodes([](int) { return 0; }), world);
}
TEST_CASE("TCP: all operations, the same bits") {
  for (int world = 2; world <= 5; ++world)
    tests::check_conformance(on_nodes([](int rank) { return rank; }), world);
}
TEST_CASE("two nodes: all operations, the same bits") {
  for (int world = 3; world <= 5; ++world)
    tests::check_conformance(on_nodes([](int rank) { return rank / 2; }), world);
}

// A TCP connection whose ends have different addresses, as between machines.
std::pair<UniqueFd, UniqueFd> distant_pair() {
  UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  UniqueFd connecting(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto loopback = [](std::uint32_t last) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(0x7f000000 | last);
    return address;
  };
  sockaddr_in here = loopback(1), there = loopback(2);
  socklen_t length = sizeof here;
  const auto generic = [](sockaddr_in& address) { return reinterpret_cast<sockaddr*>(&address); };
  REQUIRE(::bind(listener.get(), generic(here), length) == 0);
  REQUIRE(::listen(listener.get(), 1) == 0);
  REQUIRE(::getsockname(listener.get(), generic(here), &length) == 0);
  REQUIRE(::bind(connecting.get(), generic(there), length) == 0);
  REQUIRE(::connect(connecting.get(), generic(here), length) == 0);
  UniqueFd accepted(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  REQUIRE(accepted.valid());
  CHECK_FALSE(within_machine(accepted.get()));
  CHECK_FALSE(within_machine(connecting.get()));
  return {std::move(connecting), std::move(accepted)};
}

// The middle rank is near one and far from the other, so both kinds of links meet in an operation.
TEST_CASE("TCP between machines: all operations, the same bits") {
  for (int world = 2; world <= 3; ++world) {
    const auto far = [](int world_size, const std::function<void(Communicator&)>& body) {
      std::vector<int> nodes(static_cast<std::size_t>(world_size));
      std::iota(nodes.begin(), nodes.end(), 0);
      auto links = make_local_links(nodes).value();
      if (world_size > 2) CHECK(within_machine(links[1][1].stream.fd()));
      std::tie(links[0][0].stream, links[1][0].stream) = distant_pair();
      std::vector<std::thread> threads;
      for (std::size_t r = 0; r < nodes.size(); ++r) {
        threads.emplace_back([&, r] {
          auto c = make_cpu_communicator(options_for(static_cast<int>(r), world_size),
                                         std::move(links[r]));
          if (c.ok()) {
            body(**c);
          } else {
            FAIL_CHECK(c.status().to_string());
          }
        });
      }
      for (auto& thread : threads) thread.join();
    };
    tests::check_conformance(far, world);
  }
}

// Many times what may be under way, in shards as unequal as they come: nobody waits for ever.
TEST_CASE("TCP: large operations with unequal shards end") {
  constexpr std::size_t kCount = 3'000'000;
  run_threads({0, 1, 2}, [&](Communicator& c) {
    for (const auto& counts : {std::vector<std::size_t>{kCount - 2, 1, 1},
                               std::vector<std::size_t>{0, 20'000, kCount - 20'000},
                               std::vector<std::size_t>{0, kCount, 0}}) {
      std::vector<float> data(kCount, 1.0f);
      const auto rank = static_cast<std::size_t>(c.rank());
      const std::size_t begin = std::accumulate(counts.begin(), counts.begin() + c.rank(), 0ul);
      const auto shard = std::span(data).subspan(begin, counts[rank]);
      REQUIRE(c.reduce_scatter(std::span<const float>(data), shard, counts).ok());
      CHECK(std::all_of(shard.begin(), shard.end(), [](float x) { return x == 3.0f; }));
      REQUIRE(c.all_gather(std::span<const float>(shard), std::span(data), counts).ok());
      CHECK(std::all_of(data.begin(), data.end(), [](float x) { return x == 3.0f; }));
      std::vector<float> received(3 * counts[rank]);
      REQUIRE(c.all_to_all(std::span<const float>(data), std::span(received), counts).ok());
      REQUIRE(c.all_reduce(std::span(data)).ok());
      CHECK(std::all_of(data.begin(), data.end(), [](float x) { return x == 9.0f; }));
    }
  });
}

TEST_CASE("counted bytes are the formula's") {
  run_threads({0, 0, 0, 0}, [](Communicator& c) {
    std::vector<float> data(1 << 16, 1.0f);
    const std::uint64_t size = data.size() * sizeof(float);
    REQUIRE(c.all_reduce(std::span(data)).ok());
    const auto counter = c.counters()[static_cast<std::size_t>(Operation::kAllReduce)];
    CHECK(counter.calls == 1);
    CHECK(counter.algorithm_bytes_sent == 2 * 3 * size / 4);
    CHECK(counter.wire_bytes_sent == 2 * 3 * size / 4 + 3 * 64);
    CHECK(counter.wire_bytes_received == counter.wire_bytes_sent);
  });
}

TEST_CASE("a deadline that passes names who is missing, and ends the communicator") {
  for (const auto& nodes : {std::vector<int>{0, 0, 0}, std::vector<int>{0, 1, 2}}) {
    std::atomic<bool> release{false};
    run_threads(nodes, [&](Communicator& c) {
      std::vector<float> data(10'000, 1.0f);
      if (c.rank() == 2) {
        while (!release) std::this_thread::yield();
        return;
      }
      const Status status =
          c.all_reduce(std::span(data), ReduceOp::kSum, Deadline::after(milliseconds(50)));
      if (c.rank() == 0) {
        CHECK((status.code() == Code::kDeadlineExceeded || status.code() == Code::kAborted));
        if (status.code() == Code::kDeadlineExceeded)
          CHECK(status.message().find("2") != std::string::npos);
        CHECK(status.context("operation") == "all_reduce");
        CHECK(c.barrier().code() == Code::kAborted);
        release = true;
      }
    });
  }
}

TEST_CASE("an abort from another thread ends a wait at once, on all ranks") {
  for (const auto& nodes : {std::vector<int>{0, 0}, std::vector<int>{0, 1}}) {
    const TimePoint start = SystemClock().now();
    run_threads(nodes, [](Communicator& c) {
      std::vector<float> data(100'000, 1.0f);
      if (c.rank() == 1) {
        c.abort(Status(Code::kCancelled, "the test says so"));
        CHECK(c.barrier().code() == Code::kAborted);
        return;
      }
      CHECK(c.all_reduce(std::span(data)).code() == Code::kAborted);
    });
    run_threads({0, 0}, [](Communicator& c) {
      if (c.rank() == 1) {
        std::thread other([&] { c.abort(Status(Code::kCancelled, "the test says so")); });
        const Status status = c.barrier();
        other.join();
        if (!status.ok()) CHECK(status.code() == Code::kAborted);
      } else {
        while (c.barrier().ok()) {
        }
      }
    });
    CHECK(SystemClock().now() - start < seconds(5));
  }
}

TEST_CASE("ranks in different operations are told, not hung") {
  run_threads({0, 0}, [](Communicator& c) {
    std::vector<float> data(c.rank() == 0 ? 10 : 11);
    const Status status = c.all_reduce(std::span(data));
    CHECK((status.code() == Code::kProtocol || status.code() == Code::kAborted));
  });
}

TEST_CASE("another generation, name or rank is refused, both named") {
  for (int what = 0; what < 3; ++what) {
    auto links = make_local_links({0, what == 1 ? 1 : 0}).value();
    std::thread other([&] {
      CommunicatorOptions stale = options_for(1, 2);
      if (what == 0) stale.generation = 6;
      if (what == 1) stale.name = "other";
      if (what == 2) stale.world_size = 2, stale.rank = 0, links[1][0].rank = 1;
      CHECK_FALSE(make_cpu_communicator(stale, std::move(links[1])).ok());
    });
    const Status status = make_cpu_communicator(options_for(0, 2), std::move(links[0])).status();
    other.join();
    CHECK((status.code() == Code::kFailedPrecondition || status.code() == Code::kUnavailable));
    if (what == 0 && status.code() == Code::kFailedPrecondition)
      CHECK(status.message().find("generation 6") != std::string::npos);
  }
}

void check_kill(const std::vector<int>& nodes) {
  tests::check_killed_rank(nodes, [](Communicator& c, std::atomic<int>& rounds) {
    std::vector<float> data(100'000, 1.0f);
    Status status;
    while ((status = c.all_reduce(std::span(data))).ok()) rounds.fetch_add(1);
    return status;
  });
}

TEST_CASE("a killed rank is named by all others within a second") {
  check_kill({0, 0, 0});
  check_kill({0, 1, 2});
  check_kill({0, 0, 1, 1});
}

}  // namespace
}  // namespace troupe::collective
