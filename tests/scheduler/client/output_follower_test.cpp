// Who follows a job's output: a head and a node played by the test.

#include "scheduler/client/output_follower.h"

#include "tests/scheduler/support.h"

using namespace troupe;
using namespace troupe::scheduler;
using namespace std::chrono_literals;
using tests::Inbox;
using tests::on_loop;

namespace {

const NodeId kNodeId{7, 7};
const JobId kFollowedJob{3, 3};
const ActorId kTalker{4, 4};

// The target "node": keeps lines, and tells them to who asks.
class TalkingNode {
 public:
  TalkingNode() { listen(); }
  ~TalkingNode() { away(); }
  std::uint16_t port() const { return address_.port; }
  void listen() {
    on_loop(thread_.loop(), [this] {
      net::ListenOptions options;
      options.host = "127.0.0.1";
      options.port = address_.port;
      listener_ = net::listen(thread_.loop(), options, tests::kToken, random_, Logger::discard(),
                              [this](net::AcceptedSocket accepted) { accept(std::move(accepted)); })
                      .value();
      address_ = listener_->address();
      return 0;
    });
  }
  void away() {
    on_loop(thread_.loop(), [this] {
      listener_.reset();
      if (connection_) connection_->close();
      connection_.reset();
      return 0;
    });
  }
  void keep(std::uint64_t number, const std::string& text) {
    on_loop(thread_.loop(), [&] {
      kept_.push_back({kTalker, "talker", number, text, false});
      return 0;
    });
  }
  void forget() {
    on_loop(thread_.loop(), [this] {
      kept_.clear();
      return 0;
    });
  }
  void say(std::uint64_t number, const std::string& text, bool notice = false) {
    CHECK(try_to_say(number, text, notice));
  }
  // False where nobody listens any more.
  bool try_to_say(std::uint64_t number, const std::string& text, bool notice = false) {
    const wire::OutputLine line{kTalker, "talker", number, text, notice};
    return on_loop(thread_.loop(),
                   [&] { return connection_ && connection_->send(wire::encode(line)).ok(); });
  }
  std::atomic<bool> answers = true;
  Inbox<wire::FollowOutput> asked;

 private:
  void accept(net::AcceptedSocket accepted) {
    connection_ = net::make_connection(thread_.loop(), std::move(accepted.socket), accepted.peer);
    connection_->start(
        {.on_frame =
             [this](std::span<const std::byte> frame) {
               const auto message = wire::decode_control(frame);
               const auto& follow = get<wire::FollowOutput>(*message);
               if (follow.request_id == 1) {
                 for (const auto& line : kept_) {
                   (void)connection_->send(wire::encode(line));
                 }
               }
               if (answers) {
                 (void)connection_->send(wire::encode(wire::Reply{follow.request_id, {}}));
               }
               asked.put(follow);
             },
         .on_close = [](Status) {}});
  }
  SystemRandom random_;
  net::Address address_;
  std::vector<wire::OutputLine> kept_;
  std::shared_ptr<net::Connection> connection_;
  std::unique_ptr<net::Listener> listener_;
  net::LoopThread thread_{"talking-node"};  // ends first
};

struct FollowerFixture {
  TalkingNode node;
  std::atomic<wire::NodeState> state = wire::NodeState::kAlive;
  tests::FakeHead head{[this](const wire::ControlMessage& m) { return answer(m); }};
  net::LoopThread thread{"driver"};
  Inbox<std::string> heard;
  std::shared_ptr<HeadClient> client =
      HeadClient::connect(thread.loop(), head.address(), tests::kToken,
                          {.client_id = ClientId{1, 1}, .kind = "driver"}, tests::patience())
          .value();
  std::unique_ptr<OutputFollower> follower;

  wire::NodeInfo info() const {
    wire::NodeInfo made;
    made.node_id = kNodeId;
    made.endpoint = {"127.0.0.1", node.port(), ""};
    made.state = state;
    return made;
  }
  std::vector<wire::ControlMessage> answer(const wire::ControlMessage& message) {
    if (const auto* hello = get_if<wire::ClientHello>(&message)) {
      return {wire::Reply{hello->request_id, {}}};
    }
    if (const auto* watch = get_if<wire::WatchNodes>(&message)) {
      CHECK(watch->without_amounts);
      return {wire::Reply{watch->request_id, {}}, wire::NodeUpdate{info()}};
    }
    if (const auto* list = get_if<wire::ListNodes>(&message)) {
      return {wire::NodeList{list->request_id, {info()}}};
    }
    return {};
  }
  void follow(NodeId except = {}) {
    follower = std::make_unique<OutputFollower>(
        thread.loop(), client, tests::kToken,
        OutputFollowerOptions{.job_id = kFollowedJob,
                              .except = except,
                              .on_line = [this](const std::string& actor, std::string_view line) {
                                heard.put(actor + "|" + std::string(line));
                              }});
  }
  ~FollowerFixture() {
    if (follower) follower->close();
    client->close();
  }
};

}  // namespace

TEST_CASE("lines of a job come from its nodes, those from before and those that follow") {
  FollowerFixture f;
  f.node.keep(1, "before");
  f.follow();
  CHECK(f.heard.take() == "talker|before");
  CHECK(f.node.asked.take().job_id == kFollowedJob);
  f.node.say(2, "after");
  CHECK(f.heard.take() == "talker|after");
  f.node.say(9, "... 7 lines left out", true);
  CHECK(f.heard.take() == "talker|... 7 lines left out");
  f.node.say(10, "later");
  CHECK(f.heard.take() == "talker|later");
}

TEST_CASE("after a lost connection each line comes once, and what is lost is said") {
  FollowerFixture f;
  f.node.keep(1, "one");
  f.node.keep(2, "two");
  f.follow();
  CHECK(f.heard.take() == "talker|one");
  CHECK(f.heard.take() == "talker|two");
  f.node.away();
  f.node.keep(3, "three");
  f.node.listen();
  CHECK(f.heard.take() == "talker|three");
  f.node.away();
  f.node.forget();
  f.node.keep(8, "eight");
  f.node.listen();
  CHECK(f.heard.take().find("4 lines left out") != std::string::npos);
  CHECK(f.heard.take() == "talker|eight");
}

TEST_CASE("to catch up is to wait for the nodes' answers, for a time") {
  FollowerFixture f;
  f.follow();
  f.follower->catch_up(tests::kPatience);  // its first connection, too
  CHECK(f.node.asked.take().request_id == 1);
  f.node.say(1, "said before the answer");
  f.follower->catch_up(tests::kPatience);
  CHECK(
      f.heard.has([](const std::string& line) { return line == "talker|said before the answer"; }));
  f.node.answers = false;
  const auto before = std::chrono::steady_clock::now();
  f.follower->catch_up(50ms);
  CHECK(std::chrono::steady_clock::now() - before < 5s);
  // Nodes that are away are not waited for.
  f.node.away();
  f.follower->catch_up(tests::kPatience);
}

TEST_CASE("a node whose output comes another way, and a dead one, are left alone") {
  FollowerFixture f;
  f.node.keep(1, "here");
  f.follow(kNodeId);
  f.follower->catch_up(tests::kPatience);
  CHECK_FALSE(f.heard.has([](const std::string&) { return true; }));
  f.follower.reset();
  f.state = wire::NodeState::kDead;
  f.follow();
  f.follower->catch_up(tests::kPatience);
  CHECK_FALSE(f.heard.has([](const std::string&) { return true; }));
  f.state = wire::NodeState::kAlive;
  f.head.send(wire::NodeUpdate{f.info()});
  CHECK(f.heard.take() == "talker|here");
}

TEST_CASE("nothing comes after close") {
  FollowerFixture f;
  f.follow();
  f.follower->catch_up(tests::kPatience);
  f.follower->close();
  (void)f.node.try_to_say(1, "too late");  // it may have heard of the end
  f.follower->catch_up(10ms);
  CHECK_FALSE(f.heard.has([](const std::string&) { return true; }));
}
