// The head over real sockets: clients through HeadClient, nodes played by the test.

#include "scheduler/head/head_daemon.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <future>

#include "scheduler/client/head_client.h"
#include "tests/scheduler/head/prometheus_check.h"
#include "tests/scheduler/support.h"
#include "tests/support/faulty_file_system.h"

using namespace troupe;
using namespace troupe::scheduler;
using namespace std::chrono_literals;
using tests::Answer;
using tests::Inbox;
using tests::on_loop;

namespace {

const std::string kPath = "/journal";

// A node that does what it is told without processes: what it starts is ready at once.
class Node {
 public:
  Node(net::EventLoop& loop, const net::Address& head, std::uint64_t number,
       std::vector<wire::RunningActor> running = {})
      : loop_(loop), node_id_{0x40, number} {
    auto socket = net::connect_blocking(head, "head", tests::kToken, tests::patience());
    REQUIRE_MESSAGE(socket.ok(), socket.status().to_string());
    on_loop(loop_, [&] {
      connection_ = net::make_connection(loop_, std::move(*socket), "head");
      connection_->start({.on_frame = [this](std::span<const std::byte> frame) { received(frame); },
                          .on_close = [this](Status) { closed.put(true); }});
      wire::RegisterNode message;
      message.request_id = 1;
      message.node.node_id = node_id_;
      message.node.name = "node";
      message.node.endpoint = {"127.0.0.1", 7000, ""};
      message.node.total = {{"CPU", 4 * wire::kResourceUnit}};
      message.running = std::move(running);
      return connection_->send(wire::encode(message)).ok();
    });
    registered = replies.take();
  }
  ~Node() { vanish(); }
  // As if its process were killed.
  void vanish() {
    on_loop(loop_, [this] {
      if (connection_) connection_->close();
      connection_.reset();
      return 0;
    });
  }
  void send(const wire::ControlMessage& message) {
    on_loop(loop_, [&] { return connection_->send(wire::encode(message)).ok(); });
  }

  Inbox<wire::RegisterNodeReply> replies;
  Inbox<wire::Heartbeat> echoes;
  Inbox<wire::StartActor> starts;
  Inbox<wire::StopActor> stops;
  Inbox<bool> closed;
  wire::RegisterNodeReply registered;

 private:
  void received(std::span<const std::byte> frame) {
    auto message = wire::decode_control(frame).value();
    if (auto* reply = get_if<wire::RegisterNodeReply>(&message)) {
      replies.put(std::move(*reply));
    } else if (auto* echo = get_if<wire::Heartbeat>(&message)) {
      echoes.put(std::move(*echo));
    } else if (auto* start = get_if<wire::StartActor>(&message)) {
      say(wire::ActorStarted{start->spec.actor_id, start->generation, 4711});
      say(wire::ActorReady{start->spec.actor_id, start->generation});
      starts.put(std::move(*start));
    } else if (auto* stop = get_if<wire::StopActor>(&message)) {
      say(wire::ActorExited{
          .actor_id = stop->actor_id, .generation = stop->generation, .exit = {0, 9}});
      stops.put(std::move(*stop));
    } else if (holds_alternative<wire::ShutdownNode>(message)) {
      wire::NodeUpdate left;
      left.node.node_id = node_id_;
      left.node.state = wire::NodeState::kDead;
      say(left);
    }
  }
  void say(const wire::ControlMessage& message) {
    static_cast<void>(connection_->send(wire::encode(message)));
  }

  net::EventLoop& loop_;
  const NodeId node_id_;
  std::shared_ptr<net::Connection> connection_;
};

// A disk that stands still when it is told to, for whoever writes the journal.
class HeldDisk {
 public:
  void hold() {
    const std::lock_guard lock(mutex_);
    held_ = true;
  }
  void go_on() {
    const std::lock_guard lock(mutex_);
    held_ = false;
    changed_.notify_all();
  }
  // Until a write waits for it.
  void await_write() {
    std::unique_lock lock(mutex_);
    REQUIRE(changed_.wait_for(lock, tests::kPatience, [this] { return waiting_; }));
  }
  void write() {
    std::unique_lock lock(mutex_);
    ++writes_;
    waiting_ = held_;
    changed_.notify_all();
    changed_.wait_for(lock, tests::kPatience, [this] { return !held_; });
    waiting_ = false;
  }
  int writes() {
    const std::lock_guard lock(mutex_);
    return writes_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool held_ = false;
  bool waiting_ = false;
  int writes_ = 0;
};

class JournalOnDisk final : public Journal {
 public:
  JournalOnDisk(HeldDisk& disk, FileSystem& files) : disk_(disk), file_(files, kPath) {}
  Status replay(const std::function<Status(Delta)>& take) override { return file_.replay(take); }
  Status append(std::span<const Delta> deltas) override {
    disk_.write();
    return file_.append(deltas);
  }
  Status rewrite(std::span<const Delta> snapshot) override {
    disk_.write();
    return file_.rewrite(snapshot);
  }
  bool can_append() const override { return file_.can_append(); }
  bool wants_rewrite(std::uint64_t more_bytes) const override {
    return file_.wants_rewrite(more_bytes);
  }
  std::uint64_t size_bytes() const override { return file_.size_bytes(); }
  std::string damage() const override { return file_.damage(); }

 private:
  HeldDisk& disk_;
  FileJournal file_;
};

struct Fixture {
  tests::FaultyFileSystem files;
  HeldDisk disk;
  SystemRandom random;
  HeadOptions options{.token = tests::kToken};
  Inbox<std::string> ended;
  std::unique_ptr<JournalOnDisk> journal;
  std::unique_ptr<HeadDaemon> head;
  net::LoopThread clients{"clients"};
  net::LoopThread thread{"head"};  // ends first

  Fixture() {
    options.config.owner_grace = 150ms;
    options.config.disconnect_grace = 150ms;
    options.config.keeper_hold = options.config.node_attempt_timeout = 100ms;
    options.config.rejoin_grace = 5s;
    options.config.client_attempt_timeout = 3s;
    options.config.heartbeats = false;
    REQUIRE(start().ok());
    options.port = address().port;  // a restarted head is where it was
  }
  ~Fixture() { stop(); }

  Status start() {
    return on_loop(thread.loop(), [this] {
      journal = std::make_unique<JournalOnDisk>(disk, files);
      auto made = HeadDaemon::start(thread.loop(), options, *journal, random, Logger::discard(),
                                    [this](std::string reason) { ended.put(std::move(reason)); });
      if (!made.ok()) return made.status();
      head = std::move(*made);
      return Status();
    });
  }
  // As kill -9 would: nothing is said to anybody.
  void stop() {
    on_loop(thread.loop(), [this] {
      head.reset();
      return 0;
    });
  }
  net::Address address() {
    return on_loop(thread.loop(), [this] { return head->address(); });
  }
  std::shared_ptr<HeadClient> client(std::uint64_t number = 1) {
    const wire::ClientHello hello{.client_id = ClientId{0xc1, number},
                                  .job_id = JobId{0x10, number},
                                  .name = "driver " + std::to_string(number),
                                  .kind = "driver"};
    auto made =
        HeadClient::connect(clients.loop(), address(), tests::kToken, hello, tests::patience());
    REQUIRE_MESSAGE(made.ok(), made.status().to_string());
    return *made;
  }
};

wire::ActorSpec spec(std::uint64_t number, std::int64_t cpus = 1) {
  wire::ActorSpec made;
  made.actor_id = ActorId{0xac, number};
  made.type = "Counter";
  made.resources = {{"CPU", cpus * wire::kResourceUnit}};
  return made;
}

Status create(HeadClient& client, std::vector<wire::ActorSpec> specs, bool gang = false) {
  Answer answer;
  client.create_actors(std::move(specs), gang, false, answer.callback());
  return answer.get();
}

// What a watch tells, to be waited for.
struct Watch {
  std::shared_ptr<Inbox<Result<wire::ActorInfo>>> updates =
      std::make_shared<Inbox<Result<wire::ActorInfo>>>();
  Watch(HeadClient& client, std::uint64_t number) {
    client.watch_actor(ActorId{0xac, number}, "",
                       [u = updates](Result<wire::ActorInfo> info) { u->put(std::move(info)); });
  }
  wire::ActorInfo until(wire::ActorState state) {
    return *updates->take([&](const auto& u) { return u.ok() && u->state == state; });
  }
};

}  // namespace

TEST_CASE("an answer that fits into no message is answered with that") {
  Fixture f;
  f.stop();
  f.options.connections.frame_bytes_max = 20'000;
  REQUIRE(f.start().ok());
  const auto client = f.client();
  for (std::uint64_t n = 1; n <= 30; ++n) {
    Answer created;
    wire::ActorSpec spec;
    spec.actor_id = ActorId{0xac, n};
    spec.type = "Counter";
    spec.name = std::to_string(n) + std::string(1'000, 'n');
    client->create_actors({spec}, false, false, created.callback());
    REQUIRE(created.get().ok());
  }
  const Status refused = client->actors(true, tests::patience()).status();
  CHECK(refused.code() == Code::kResourceExhausted);
  CHECK_MESSAGE(refused.message().find("above the limit of 20000") != std::string::npos,
                refused.to_string());
  CHECK(client->nodes(tests::patience()).ok());
}

TEST_CASE("actors are created, watched, listed and killed") {
  Fixture f;
  Node node(f.clients.loop(), f.address(), 1);
  CHECK(node.registered.status.ok());
  CHECK(node.registered.name == "node");
  const auto client = f.client();
  CHECK(create(*client, {spec(1), spec(2)}, true).ok());
  Watch watch(*client, 1);
  const auto alive = watch.until(wire::ActorState::kAlive);
  CHECK(alive.pid == 4711);
  CHECK(alive.node_id == NodeId{0x40, 1});
  CHECK(alive.endpoint.port == 7000);

  // Asked again, as after a reconnection: done already.
  CHECK(create(*client, {spec(1), spec(2)}, true).ok());
  const auto nodes = client->nodes(tests::patience()).value();
  REQUIRE(nodes.size() == 1);
  CHECK(nodes[0].available.at("CPU") == 2 * wire::kResourceUnit);
  CHECK(client->actors(true, tests::patience()).value().size() == 2);

  Answer killed;
  client->kill_actor(ActorId{0xac, 1}, false, 0, "not needed", killed.callback());
  CHECK(killed.get().ok());
  const auto dead = watch.until(wire::ActorState::kDead);
  CHECK(dead.death.code() == Code::kActorDied);
  CHECK(dead.death.message().find("not needed") != std::string::npos);
  CHECK(client->actors(false, tests::patience()).value().size() == 1);
  CHECK(client->actors(true, tests::patience()).value().size() == 2);

  Answer stranger;
  client->kill_actor(ActorId{1, 1}, false, 0, "", stranger.callback());
  CHECK(stranger.get().code() == Code::kNotFound);
  CHECK(create(*client, {spec(9, 100)}).code() == Code::kResourceExhausted);
}

TEST_CASE("events come in order, from where one asks") {
  Fixture f;
  Node node(f.clients.loop(), f.address(), 1);
  const auto client = f.client();
  REQUIRE(create(*client, {spec(1)}).ok());
  Watch(*client, 1).until(wire::ActorState::kAlive);
  const auto events = client->events(0, 100, tests::patience()).value();
  std::string kinds;
  for (const auto& event : events) kinds += event.kind + " ";
  CHECK(kinds == "node_joined actor_created actor_starting actor_alive ");
  const auto later = client->events(events[1].sequence, 1, tests::patience()).value();
  REQUIRE(later.size() == 1);
  CHECK(later[0] == events[2]);
}

TEST_CASE("a node that vanishes takes its actors with it") {
  Fixture f;
  Node node(f.clients.loop(), f.address(), 1);
  const auto client = f.client();
  REQUIRE(create(*client, {spec(1)}).ok());
  Watch watch(*client, 1);
  watch.until(wire::ActorState::kAlive);
  node.vanish();
  const auto dead = watch.until(wire::ActorState::kDead);
  CHECK(dead.death.message().find("node") != std::string::npos);
}

TEST_CASE("a head that comes back knows its actors; nodes and clients come back to it") {
  Fixture f;
  auto node = std::make_unique<Node>(f.clients.loop(), f.address(), 1);
  const auto client = f.client();
  REQUIRE(create(*client, {spec(1)}).ok());
  Watch watch(*client, 1);
  watch.until(wire::ActorState::kAlive);
  const auto start = node->starts.take();
  f.stop();
  node->closed.take();
  REQUIRE(f.start().ok());
  // A node that comes back says what runs on it, and keeps it.
  const wire::RunningActor running{start.spec, start.generation, 4711, true};
  node = std::make_unique<Node>(f.clients.loop(), f.address(), 1, std::vector{running});
  CHECK(node->registered.status.ok());
  CHECK(node->registered.stop.empty());
  // The client came back by itself.
  const auto actors = client->actors(true, tests::patience()).value();
  REQUIRE(actors.size() == 1);
  CHECK(actors[0].state == wire::ActorState::kAlive);
  CHECK(actors[0].generation == 1);
  CHECK_FALSE(node->starts.has([](const auto&) { return true; }));
  // And its watch was renewed.
  Answer killed;
  client->kill_actor(ActorId{0xac, 1}, false, 0, "enough", killed.callback());
  CHECK(killed.get().ok());
  watch.until(wire::ActorState::kDead);
  const auto events = client->events(0, 100, tests::patience()).value();
  CHECK(std::any_of(events.begin(), events.end(),
                    [](const auto& event) { return event.kind == "head_restarted"; }));
}

TEST_CASE("a restarted head has nodes stop what was killed meanwhile") {
  Fixture f;
  auto node = std::make_unique<Node>(f.clients.loop(), f.address(), 1);
  wire::RunningActor stale{spec(77), 3, 99, true};
  stale.spec.type = "Forgotten";
  f.stop();
  node->closed.take();
  REQUIRE(f.start().ok());
  node = std::make_unique<Node>(f.clients.loop(), f.address(), 1, std::vector{stale});
  REQUIRE(node->registered.stop.size() == 1);
  CHECK(node->registered.stop[0] == std::pair(ActorId{0xac, 77}, std::uint64_t{3}));
}

TEST_CASE("a client that vanishes ends its actors after its grace; detached ones stay") {
  Fixture f;
  Node node(f.clients.loop(), f.address(), 1);
  auto mortal = f.client(1);
  const auto observer = f.client(2);
  auto detached = spec(2);
  detached.detached = true;
  REQUIRE(create(*mortal, {spec(1), detached}).ok());
  Watch watch(*observer, 1);
  watch.until(wire::ActorState::kAlive);
  mortal->close();
  CHECK(node.stops.take().actor_id == ActorId{0xac, 1});
  const auto dead = watch.until(wire::ActorState::kDead);
  CHECK(dead.death.message().find("driver 1") != std::string::npos);
  const auto left = observer->actors(false, tests::patience()).value();
  REQUIRE(left.size() == 1);
  CHECK(left[0].actor_id == ActorId{0xac, 2});
}

TEST_CASE("a client that comes back within its grace keeps its actors") {
  Fixture f;
  f.stop();
  f.options.config.owner_grace = 60s;
  REQUIRE(f.start().ok());
  Node node(f.clients.loop(), f.address(), 1);
  auto client = f.client(1);
  REQUIRE(create(*client, {spec(1)}).ok());
  client->close();
  client = f.client(1);
  Watch(*client, 1).until(wire::ActorState::kAlive);
  CHECK_FALSE(node.stops.has([](const auto&) { return true; }));
}

TEST_CASE("who does not say who it is, or speaks no message, is closed") {
  Fixture f;
  const auto talk = [&](const wire::Bytes& frame) {
    Inbox<wire::ControlMessage> answers;
    Inbox<bool> closed;
    auto socket = net::connect_blocking(f.address(), "head", tests::kToken, tests::patience());
    auto connection = net::make_connection(f.clients.loop(), std::move(*socket), "head");
    on_loop(f.clients.loop(), [&] {
      connection->start({.on_frame =
                             [&](std::span<const std::byte> answer) {
                               answers.put(wire::decode_control(answer).value());
                             },
                         .on_close = [&](Status) { closed.put(true); }});
      return connection->send(frame).ok();
    });
    closed.take();
    return answers.take_within(0ms, [](const auto&) { return true; });
  };
  const auto refused = talk(wire::encode(wire::ListNodes{.request_id = 8}));
  REQUIRE(refused);
  REQUIRE(holds_alternative<wire::Reply>(*refused));
  CHECK(get<wire::Reply>(*refused).request_id == 8);
  CHECK(get<wire::Reply>(*refused).status.code() == Code::kFailedPrecondition);
  CHECK_FALSE(talk(wire::encode(wire::Heartbeat{NodeId{1, 1}, 1})));
  CHECK_FALSE(talk(wire::Bytes(100, std::byte{0x7f})));
  CHECK(net::connect_blocking(f.address(), "node", tests::kToken, tests::patience())
            .status()
            .code() == Code::kNotFound);
  // The head is well.
  CHECK(f.client()->nodes(tests::patience()).ok());
}

TEST_CASE("stopping the cluster stops nodes, then the head") {
  Fixture f;
  Node node(f.clients.loop(), f.address(), 1);
  const auto client = f.client();
  REQUIRE(create(*client, {spec(1)}).ok());
  Watch watch(*client, 1);
  watch.until(wire::ActorState::kAlive);
  CHECK(client->stop("the day is over", tests::patience()).ok());
  CHECK(f.ended.take() == "the day is over");
  CHECK(create(*client, {spec(5)}).code() == Code::kFailedPrecondition);
}

// What is encrypted leaves by the loop, which whoever runs a head stops when it has ended.
TEST_CASE("who stops the cluster over TLS has its answer before the head has ended") {
  const net::Token token(std::vector<std::byte>(32, std::byte{0x5a}), net::Security::kTlsAlways);
  tests::FaultyFileSystem files;
  SystemRandom random;
  FileJournal journal(files, kPath);
  Inbox<bool> answers, ended;
  std::unique_ptr<HeadDaemon> head;
  net::LoopThread clients("clients");
  net::LoopThread thread("head");
  REQUIRE(on_loop(thread.loop(), [&] {
            auto made = HeadDaemon::start(thread.loop(), HeadOptions{.token = token}, journal,
                                          random, Logger::discard(), [&](const std::string&) {
                                            const auto said =
                                                answers.take_within(2s, [](bool) { return true; });
                                            ended.put(said.value_or(false));
                                          });
            if (made.ok()) head = std::move(*made);
            return made.status();
          }).ok());
  const auto address = on_loop(thread.loop(), [&] { return head->address(); });
  const wire::ClientHello hello{
      .client_id = ClientId{0xc1, 1}, .job_id = JobId{0x10, 1}, .name = "tool", .kind = "tool"};
  auto client = HeadClient::connect(clients.loop(), address, token, hello, tests::patience());
  REQUIRE_MESSAGE(client.ok(), client.status().to_string());
  (*client)->stop_cluster("the day is over", [&](const Status& said) { answers.put(said.ok()); });
  CHECK(ended.take());
  on_loop(thread.loop(), [&] {
    head.reset();
    return 0;
  });
}

std::vector<std::string> event_kinds(HeadClient& client) {
  std::vector<std::string> kinds;
  const auto events = client.events(0, 1000, tests::patience()).value();
  for (const auto& event : events) kinds.push_back(event.kind);
  return kinds;
}

// Until an event of this kind is there.
bool has_event(HeadClient& client, const std::string& kind) {
  for (const auto by = tests::patience(); !by.passed(); ::poll(nullptr, 0, 5)) {
    const auto kinds = event_kinds(client);
    if (std::find(kinds.begin(), kinds.end(), kind) != kinds.end()) return true;
  }
  return false;
}

TEST_CASE("a head whose journal cannot be written goes on, and keeps all when it can again") {
  Fixture f;
  f.stop();
  f.options.journal_retry = 0s;
  REQUIRE(f.start().ok());
  Node node(f.clients.loop(), f.address(), 1);
  const auto client = f.client();
  const auto set_space = [&](std::uint64_t bytes) {
    on_loop(f.thread.loop(), [&] {
      f.files.set_space_bytes(bytes);
      return 0;
    });
  };
  REQUIRE(create(*client, {spec(1)}).ok());
  set_space(0);
  CHECK(create(*client, {spec(2)}).ok());
  Watch(*client, 2).until(wire::ActorState::kAlive);
  CHECK(client->actors(true, tests::patience()).value().size() == 2);
  set_space(1 << 20);
  CHECK(create(*client, {spec(3)}).ok());
  CHECK(has_event(*client, "journal_written"));
  // What was decided while nothing could be kept is kept too.
  f.stop();
  REQUIRE(f.start().ok());
  CHECK(f.client(2)->actors(true, tests::patience()).value().size() == 3);
}

TEST_CASE("a full disk is an event, once, and its end another one, however quiet the cluster is") {
  Fixture f;
  f.stop();
  f.options.journal_retry = 100ms;
  REQUIRE(f.start().ok());
  const auto client = f.client();
  const auto set_space = [&](std::uint64_t bytes) {
    on_loop(f.thread.loop(), [&] {
      f.files.set_space_bytes(bytes);
      return 0;
    });
  };
  const auto count = [&](const std::string& kind) {
    const auto kinds = event_kinds(*client);
    return std::count(kinds.begin(), kinds.end(), kind);
  };
  const auto until = [&](const std::string& kind) {
    const auto by = tests::patience();
    while (count(kind) == 0 && !by.passed()) ::poll(nullptr, 0, 5);
    return count(kind) == 1;
  };
  set_space(0);
  Node node(f.clients.loop(), f.address(), 1);
  CHECK(until("journal_failed"));
  const auto events = client->events(0, 1000, tests::patience()).value();
  const auto failed = std::find_if(events.begin(), events.end(),
                                   [](const auto& e) { return e.kind == "journal_failed"; });
  CHECK(failed->text.find(kPath) != std::string::npos);
  // It is tried again without anything happening, and not said again.
  ::poll(nullptr, 0, 350);
  CHECK(count("journal_failed") == 1);
  CHECK(count("journal_written") == 0);
  set_space(1 << 20);
  CHECK(until("journal_written"));
  f.stop();
  REQUIRE(f.start().ok());
  const auto later = f.client(2);
  const auto kinds = event_kinds(*later);
  CHECK(std::count(kinds.begin(), kinds.end(), "journal_failed") == 1);
  CHECK(std::count(kinds.begin(), kinds.end(), "journal_written") == 1);
}

TEST_CASE("a head comes back on a full disk, and says that it cannot keep what follows") {
  Fixture f;
  {
    Node node(f.clients.loop(), f.address(), 1);
    REQUIRE(create(*f.client(), {spec(1)}).ok());
  }
  f.stop();
  f.files.set_space_bytes(0);
  REQUIRE(f.start().ok());
  const auto client = f.client(2);
  CHECK(client->actors(true, tests::patience()).value().size() == 1);
  const auto kinds = event_kinds(*client);
  CHECK(std::count(kinds.begin(), kinds.end(), "journal_failed") == 1);
}

TEST_CASE("while the disk stands still heartbeats are answered, decisions in their order later") {
  Fixture f;
  Node node(f.clients.loop(), f.address(), 1);
  const auto client = f.client(1);
  const auto other = f.client(2);
  Answer first, second, third;
  f.disk.hold();
  client->create_actors({spec(1)}, false, false, first.callback());
  f.disk.await_write();
  const int writes = f.disk.writes();
  for (std::uint64_t sequence = 1; sequence <= 3; ++sequence) {
    node.send(wire::Heartbeat{NodeId{0x40, 1}, sequence});
    CHECK(node.echoes.take().sequence == sequence);
  }
  other->create_actors({spec(2)}, false, false, second.callback());
  client->kill_actor(ActorId{0xac, 1}, false, 0, "", third.callback());
  on_loop(f.clients.loop(), [] { return 0; });
  node.send(wire::Heartbeat{NodeId{0x40, 1}, 4});
  CHECK(node.echoes.take().sequence == 4);
  // They are decided, and nobody has heard of it.
  while (on_loop(f.thread.loop(), [&] { return f.head->state().actors().size(); }) < 2) {
  }
  CHECK_FALSE(first.arrived());
  CHECK_FALSE(second.arrived());
  CHECK_FALSE(node.starts.has([](const auto&) { return true; }));
  f.disk.go_on();
  CHECK(first.get().ok());
  CHECK(second.get().ok());
  CHECK(third.get().ok());
  CHECK(node.starts.take().spec.actor_id == ActorId{0xac, 1});
  CHECK(node.starts.take().spec.actor_id == ActorId{0xac, 2});
  CHECK(node.stops.take().actor_id == ActorId{0xac, 1});
  // What gathered was one write, and what the node said to it some more.
  CHECK(f.disk.writes() > writes);
  f.stop();
  REQUIRE(f.start().ok());
  CHECK(f.client(3)->actors(true, tests::patience()).value().size() == 2);
}

// Clients that wait for their introduction give the connection up, and their actors' grace begins.
TEST_CASE("while the disk stands still clients are let in") {
  Fixture f;
  const auto client = f.client(1);
  Answer created;
  f.disk.hold();
  client->create_actors({spec(1)}, false, false, created.callback());
  f.disk.await_write();
  const auto second = f.client(2);
  CHECK_FALSE(created.arrived());
  f.disk.go_on();
  CHECK(created.get().ok());
  CHECK(second->actors(false, tests::patience()).value().size() == 1);
}

TEST_CASE("a disk that does not come back in time fails the journal; it is whole when it does") {
  Fixture f;
  f.stop();
  f.options.config.journal_stall = 100ms;
  f.options.journal_retry = 50ms;
  REQUIRE(f.start().ok());
  const auto client = f.client();
  f.disk.hold();
  CHECK(create(*client, {spec(1)}).ok());
  CHECK(has_event(*client, "journal_failed"));
  const auto events = client->events(0, 1000, tests::patience()).value();
  CHECK(std::any_of(events.begin(), events.end(), [](const auto& e) {
    return e.text.find("the disk has not answered for 100 ms") != std::string::npos;
  }));
  CHECK(create(*client, {spec(2)}).ok());
  f.disk.go_on();
  CHECK(has_event(*client, "journal_written"));
  CHECK(create(*client, {spec(3)}).ok());
  f.stop();
  REQUIRE(f.start().ok());
  CHECK(f.client(2)->actors(true, tests::patience()).value().size() == 3);
}

TEST_CASE("a head that comes back listens before it has written, and goes on with its file") {
  Fixture f;
  constexpr int kCount = 6;
  {
    const auto client = f.client();
    for (int i = 1; i <= kCount; ++i) {
      auto large = spec(i);
      large.constructor_arguments.resize(900u << 10);
      REQUIRE(create(*client, {large}).ok());
    }
  }
  f.stop();
  f.disk.hold();
  REQUIRE(f.start().ok());
  CHECK(net::connect_blocking(f.address(), "head", tests::kToken, tests::patience()).ok());
  f.disk.go_on();
  const auto client = f.client(2);
  CHECK(client->actors(true, tests::patience()).value().size() == kCount);
  CHECK(create(*client, {spec(kCount + 1)}).ok());
  f.stop();
  REQUIRE(f.start().ok());
  CHECK(f.client(3)->actors(true, tests::patience()).value().size() == kCount + 1);
}

TEST_CASE("a head ends, and answers who asked for it, although its disk stands still") {
  Fixture f;
  const auto client = f.client();
  f.disk.hold();
  CHECK(client->stop("the day is over", tests::patience()).ok());
  CHECK(f.ended.take() == "the day is over");
  f.disk.go_on();
}

TEST_CASE("a head may go, and its peers too, while a write is under way") {
  Fixture f;
  auto node = std::make_unique<Node>(f.clients.loop(), f.address(), 1);
  auto client = f.client(1);
  Answer never;
  f.disk.hold();
  client->create_actors({spec(1)}, false, false, never.callback());
  f.disk.await_write();
  client->close();
  node.reset();
  // Both have been heard to close before their answers leave.
  const auto connected = [&] {
    return on_loop(f.thread.loop(), [&] { return f.head->state().nodes().begin()->second.peer; });
  };
  while (connected() != 0) {
  }
  auto stopped = std::async(std::launch::async, [&] { f.stop(); });
  f.disk.go_on();
  stopped.get();
  REQUIRE(f.start().ok());
  CHECK(f.client(2)->actors(true, tests::patience()).value().size() == 1);
}

// What Prometheus gets, as curl would ask for it.
std::string scrape(const net::Address& at, const std::string& path = "/metrics") {
  const UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(at.port);
  ::inet_pton(AF_INET, at.host.c_str(), &address.sin_addr);
  REQUIRE(::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  const std::string request =
      "GET " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
  REQUIRE(::send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(request.size()));
  std::string answer;
  char bytes[4096];
  for (ssize_t count; (count = ::recv(socket.get(), bytes, sizeof bytes, 0)) > 0;) {
    answer.append(bytes, static_cast<std::size_t>(count));
  }
  return answer;
}

TEST_CASE("a head's metrics are read over HTTP, and its loop may be busy meanwhile") {
  Fixture f;
  f.stop();
  f.options.metrics = HttpServerOptions();
  f.options.metrics->request_timeout = 300ms;
  f.options.version = "1.2.3";
  REQUIRE(f.start().ok());
  const auto at = on_loop(f.thread.loop(), [&] { return f.head->metrics_address(); });
  REQUIRE(at);
  Node node(f.clients.loop(), f.address(), 1);
  const auto client = f.client();
  REQUIRE(create(*client, {spec(1)}).ok());
  Watch(*client, 1).until(wire::ActorState::kAlive);
  const std::string answer = scrape(*at);
  CHECK(answer.starts_with("HTTP/1.1 200 OK"));
  CHECK(answer.find("Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n") !=
        std::string::npos);
  const auto body = answer.find("\r\n\r\n");
  REQUIRE(body != std::string::npos);
  const tests::PrometheusPage page(std::string_view(answer).substr(body + 4));
  for (const auto& fault : page.faults()) CHECK_MESSAGE(false, fault);
  CHECK(page.value("troupe_actors{state=\"alive\"}") == 1);
  CHECK(page.value("troupe_build_info{version=\"1.2.3\"}") == 1);
  CHECK(page.value("troupe_resource_leased{resource=\"CPU\"}") == 1);
  CHECK(page.value("troupe_journal_bytes").value_or(0) > 0);
  CHECK(page.value("troupe_journal_syncs_total").value_or(0) > 0);
  CHECK(page.value("process_resident_memory_bytes").value_or(0) > 1e6);
  CHECK(page.value("process_start_time_seconds").value_or(0) > 1.6e9);
  CHECK(scrape(*at, "/").find("/metrics") != std::string::npos);
  CHECK(scrape(*at, "/secret").starts_with("HTTP/1.1 404"));
  // A loop that is stuck is said to be, in time.
  std::promise<void> go_on;
  f.thread.loop().post([wait = go_on.get_future().share()] { wait.wait(); });
  CHECK(scrape(*at).starts_with("HTTP/1.1 503"));
  go_on.set_value();
  CHECK(scrape(*at).starts_with("HTTP/1.1 200"));
}

TEST_CASE("a taken port for the metrics is an error, unless another one will do") {
  Fixture f;
  Fixture other;
  other.stop();
  other.options.metrics = HttpServerOptions{.port = f.address().port};
  CHECK(other.start().code() == Code::kAlreadyExists);
  other.options.metrics_port_is_wish = true;
  REQUIRE(other.start().ok());
  const auto at = on_loop(other.thread.loop(), [&] { return other.head->metrics_address(); });
  CHECK(at->port != f.address().port);
  CHECK(scrape(*at).starts_with("HTTP/1.1 200"));
}

TEST_CASE("a head does not start with a journal that is none") {
  Fixture f;
  f.stop();
  f.files.set_content(kPath, "this is a shopping list");
  const Status status = f.start();
  CHECK(status.code() == Code::kDataLoss);
  CHECK(status.message().find(kPath) != std::string::npos);
}

TEST_CASE("a head whose journal ends in a damaged record says so, and goes on") {
  Fixture f;
  REQUIRE(create(*f.client(), {spec(1)}).ok());
  f.stop();
  std::string content = f.files.read(kPath, 1 << 20).value();
  content.back() = static_cast<char>(content.back() ^ 1);
  f.files.set_content(kPath, content);
  REQUIRE(f.start().ok());
  CHECK(has_event(*f.client(), "journal_damaged"));
}

TEST_CASE("a head does not start with times that contradict each other") {
  Fixture f;
  f.stop();
  f.options.config.keeper_hold = f.options.config.disconnect_grace;
  const Status refused = f.start();
  CHECK(refused.code() == Code::kInvalidArgument);
  CHECK(refused.message().find("keeper_hold (150 ms) is to be less than disconnect_grace "
                               "(150 ms)") != std::string::npos);
}

TEST_CASE("a head does not start at a port that is taken") {
  Fixture f;
  MemoryJournal journal;
  const Status status = on_loop(f.thread.loop(), [&] {
    return HeadDaemon::start(f.thread.loop(), f.options, journal, f.random, Logger::discard(), {})
        .status();
  });
  CHECK(status.code() == Code::kAlreadyExists);
}
