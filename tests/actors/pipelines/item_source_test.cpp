// Items of pipelines in an actor's process: taken as calls, and known to the next process where the
// class is kExactlyOnce.

#include <doctest/doctest.h>

#include <chrono>
#include <deque>
#include <map>

#include "actors/call_server.h"
#include "runtime/net/event_loop.h"
#include "troupe/future.h"
#include "troupe/serialize.h"

namespace troupe::detail {
namespace {

using namespace std::chrono_literals;

constexpr MethodSignature kStageMethods[] = {{"other", 1}, {"add", 2}};
constexpr ActorId kStageActor{1, 2};
constexpr ClientId kPipeline{5, 6};

struct Items final : ItemSource {
  std::deque<std::uint64_t> offered;
  std::map<std::uint64_t, Result<wire::Bytes>> given;
  std::shared_ptr<Items> self() { return me.lock(); }
  std::weak_ptr<Items> me;

  bool readable() override { return !offered.empty(); }
  std::optional<QueuedCall> next() override {
    if (offered.empty()) return std::nullopt;
    QueuedCall call{.caller = kPipeline,
                    .sequence = offered.front(),
                    .method = 0,
                    .deadline = Deadline::after(60s),
                    .arguments = {},
                    .shared_arguments = {},
                    .ring = nullptr,
                    .items = self()};
    offered.pop_front();
    return call;
  }
  void give(std::uint64_t sequence, const Result<wire::Bytes>& result) override {
    given.emplace(sequence, result);
  }
  void keep(std::uint64_t, std::vector<std::shared_ptr<const void>>) override {}
  Duration spin_max() const override { return Duration::zero(); }
  Status send(wire::EncodedCall message, bool) override {
    const auto decoded = wire::decode_call(message.frame);
    REQUIRE(decoded.ok());
    if (const auto* reply = std::get_if<wire::CallReply>(&*decoded)) {
      give(reply->sequence, reply->status.ok() ? Result<wire::Bytes>(reply->result)
                                               : Result<wire::Bytes>(reply->status));
    }
    return {};
  }
  bool unread() const override { return false; }
  void end() override {}
};

// A process of the actor.
struct Process {
  net::LoopThread thread{"test"};
  std::shared_ptr<Mailbox> mailbox = std::make_shared<Mailbox>();
  std::shared_ptr<HostPageSegment> page = HostPageSegment::create().value();
  std::shared_ptr<CallServer> server = std::make_shared<CallServer>(
      thread.loop(), kStageActor, 7, ActorInterface{"Thing", kStageMethods}, mailbox, page);
  std::shared_ptr<Items> items = std::make_shared<Items>();

  Status bind(std::uint64_t hash = 2) {
    items->me = items;
    wire::Bind bind{.actor_id = kStageActor, .type = "Thing", .caller = kPipeline};
    bind.methods.push_back({"add", hash});
    return server->bind_items(items, bind);
  }
};

wire::Bytes one() { return encode_value(std::uint64_t{1}); }

TEST_CASE("an item that ran, and was saved, is not run again by the next process") {
  wire::Bytes saved;
  {
    Process first;
    REQUIRE(first.bind().ok());
    first.items->offered = {1, 2};
    const auto call = first.server->take();
    REQUIRE(call);
    CHECK(call->method == 1);  // as this program numbers it
    saved = first.server->answered(*call, one(), SavedAnswers::kAll);
    // It is killed here: before the result was given.
  }
  Process second;
  REQUIRE(second.server->restore_answered(saved).ok());
  REQUIRE(second.bind().ok());
  second.items->offered = {1, 2};
  CHECK(!second.server->take());
  REQUIRE(second.items->given.contains(1));
  CHECK(second.items->given.at(1).value() == one());
  // The next one runs.
  const auto call = second.server->take();
  REQUIRE(call);
  CHECK(call->sequence == 2);
  CHECK(second.server->open_calls() == 1);
  second.server->answer(*call, one());
  CHECK(second.items->given.contains(2));
  CHECK(second.server->open_calls() == 0);
}

TEST_CASE("a stage whose method is another one here is refused, and one that leaves is not asked") {
  Process process;
  const Status other = process.bind(/*hash=*/3);
  CHECK(other.code() == Code::kFailedPrecondition);
  CHECK(!process.server->connected());
  REQUIRE(process.bind().ok());
  CHECK(process.server->connected());
  process.items->offered = {1};
  CHECK(process.server->waiting());
  process.server->unbind_items(process.items, kPipeline);
  CHECK(!process.server->connected());
  CHECK(!process.server->waiting());
  REQUIRE(process.bind().ok());
  REQUIRE(process.server->take());
  // An actor that is being stopped says so of further ones.
  process.server->refuse_new(Status(Code::kActorDied, "it stops"));
  process.items->offered = {2};
  CHECK(!process.server->take());
  CHECK(process.items->given.at(2).status().code() == Code::kActorDied);
}

}  // namespace
}  // namespace troupe::detail
