// A saved state that goes from one node to another, over real sockets.

#include "scheduler/node/state_fetcher.h"

#include <doctest/doctest.h>

#include <cstring>

#include "runtime/memory/segment.h"
#include "scheduler/node/node_service.h"
#include "tests/scheduler/support.h"

namespace troupe::scheduler::tests {
namespace {

using namespace std::chrono_literals;
using namespace troupe::tests;

const ActorId kActor{4, 4};

// A node that keeps a state, and nothing else.
struct Keeper {
  net::LoopThread thread{"keeper"};
  SystemRandom random;
  Result<int> state = error(Code::kNotFound, "it keeps nothing");
  int pieces = 0;
  // The connections end when this many pieces were read, once. 0: never.
  int breaks_after = 0;
  net::Address address;
  std::unique_ptr<net::Listener> listener;
  std::unique_ptr<NodeService> service;

  void open() {
    on_loop(thread.loop(), [this] {
      make_service();
      net::ListenOptions options;
      options.host = "127.0.0.1";
      options.port = address.port;
      listener = net::listen(thread.loop(), options, kToken, random, Logger::discard(),
                             [this](net::AcceptedSocket accepted) {
                               service->serve(std::move(accepted.socket), accepted.peer);
                             })
                     .value();
      address = listener->address();
      return 0;
    });
  }
  void make_service() {
    service = std::make_unique<NodeService>(
        thread.loop(),
        NodeService::Sources{.logs = {},
                             .segment = {},
                             .saved_state = [this](ActorId id) -> Result<int> {
                               CHECK(id == kActor);
                               return state;
                             },
                             .on_state_read =
                                 [this] {
                                   if (++pieces != breaks_after) return;
                                   thread.loop().post([this] { make_service(); });
                                 },
                             .kept_output = {},
                             .gpus = {},
                             .drain_output = {}},
        8 << 20);
  }
  ~Keeper() {
    on_loop(thread.loop(), [this] {
      listener.reset();
      service.reset();
      return 0;
    });
  }
};

struct Fetch {
  net::LoopThread thread{"fetcher"};
  Inbox<std::shared_ptr<Result<UniqueFd>>> done;
  std::unique_ptr<StateFetcher> fetcher;

  explicit Fetch(const net::Address& from) {
    on_loop(thread.loop(), [&] {
      fetcher = std::make_unique<StateFetcher>(
          thread.loop(), from, kToken, kActor, [this](Result<UniqueFd> state) {
            done.put(std::make_shared<Result<UniqueFd>>(std::move(state)));
          });
      return 0;
    });
  }
  ~Fetch() {
    on_loop(thread.loop(), [this] {
      fetcher.reset();
      return 0;
    });
  }
};

memory::Segment state_of(std::size_t bytes) {
  auto segment = memory::Segment::create("test", bytes).value();
  for (std::size_t i = 0; i < bytes; ++i) segment.data()[i] = static_cast<std::byte>(i * 7 / 5);
  return segment;
}

TEST_CASE("a state of many pieces comes over byte for byte, also when the connection breaks") {
  const memory::Segment state = state_of((3u << 20) + 4096);
  Keeper keeper;
  keeper.state = state.fd();
  SUBCASE("at once") {}
  SUBCASE("the connection breaks in the middle") { keeper.breaks_after = 20; }
  keeper.open();
  Fetch fetch(keeper.address);
  const auto fetched = fetch.done.take();
  REQUIRE_MESSAGE(fetched->ok(), fetched->status().to_string());
  // Sealed, as what a process saves here is.
  const auto copy =
      memory::Segment::adopt(std::move(**fetched), state.size(), memory::Access::kReadOnly);
  REQUIRE(copy.ok());
  CHECK(std::memcmp(copy->data(), state.data(), state.size()) == 0);
}

TEST_CASE("a node that keeps nothing of the actor says so at once") {
  Keeper keeper;
  keeper.open();
  Fetch fetch(keeper.address);
  CHECK(fetch.done.take()->status().code() == Code::kNotFound);
}

TEST_CASE("a node that is not ready yet, or away for a moment, is asked again") {
  const memory::Segment state = state_of(10'000);
  Keeper keeper;
  keeper.open();
  SUBCASE("the actor's process is ending still") {
    on_loop(keeper.thread.loop(), [&] {
      keeper.state = error(Code::kUnavailable, "it has a process");
      keeper.thread.loop().call_after(50ms, [&] { keeper.state = state.fd(); });
      return 0;
    });
  }
  SUBCASE("its daemon is replaced") {
    on_loop(keeper.thread.loop(), [&] {
      keeper.listener.reset();
      keeper.state = state.fd();
      return 0;
    });
  }
  Fetch fetch(keeper.address);
  if (!on_loop(keeper.thread.loop(), [&] { return keeper.listener != nullptr; })) keeper.open();
  const auto fetched = fetch.done.take();
  CHECK_MESSAGE(fetched->ok(), fetched->status().to_string());
}

}  // namespace
}  // namespace troupe::scheduler::tests
