#include "scheduler/client/head_client.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <optional>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/process_stamp.h"
#include "runtime/net/connection.h"

namespace troupe::scheduler {
namespace {

// An attempt outlasts the deadline of who waits for it, so that it is the deadline that ends the
// wait and says so.
constexpr Duration kBeyondDeadline = std::chrono::seconds(1);

}  // namespace

// The session with its socket, its timer and its callbacks. All members but the constant ones and
// `closing` are the loop thread's.
struct HeadClient::State : std::enable_shared_from_this<HeadClient::State> {
  State(net::EventLoop& l, net::Address a, net::Token t, const wire::ClientHello& hello,
        const HeadClientOptions& options)
      : loop(l),
        address(std::move(a)),
        token(std::move(t)),
        session(hello, address.to_string(), options) {}

  bool is_over() const { return process.is_forked() || closing; }
  TimePoint now() const { return loop.clock().now(); }
  // On the loop's thread, unless the client is closed: `tell` says something to the session.
  template <typename Tell>
  void post(Tell tell);
  // Does what the session wants done.
  void run();
  void arm();
  void end();

  void carry_out(head_command::Connect& command);
  void carry_out(head_command::Disconnect& command);
  void carry_out(head_command::Send& command);
  void carry_out(head_command::Attempted& command);
  void carry_out(head_command::Answer& command);
  void carry_out(head_command::Update& command);
  void carry_out(head_command::WatchFailed& command);
  void connected(ByteStream socket);
  void received(std::span<const std::byte> frame);
  void tell_watch(WatchId watch, const Result<wire::ControlMessage>& told, bool last);

  net::EventLoop& loop;
  const net::Address address;
  const net::Token token;
  const ProcessStamp process;
  std::atomic<bool> closing{false};  // close() was called; any thread

  HeadSession session;
  bool running = false;
  std::shared_ptr<net::Connection> connection;
  std::optional<TimePoint> armed_for;
  net::TimerId timer = 0;

  OnStatus on_attempt;  // of connect(), which waits for it
  std::map<HeadRequestId, OnAnswer> answers;
  std::map<WatchId, OnAnswer> watches;
  std::vector<OnNode> on_nodes;
  OnActorState on_actor_state;
};

template <typename Tell>
void HeadClient::State::post(Tell tell) {
  if (is_over()) return;
  loop.post([self = shared_from_this(), tell = std::move(tell)]() mutable {
    if (self->session.closed()) return;
    tell(*self);
    self->run();
  });
}

// A callback may close the client: then nothing but the connection's end is left to do.
void HeadClient::State::run() {
  if (std::exchange(running, true)) return;
  const auto self = shared_from_this();
  while (auto command = session.next()) {
    visit([this](auto& what) { carry_out(what); }, *command);
  }
  running = false;
  arm();
  if (!session.closed()) return;
  // What they hold is let go of, too.
  on_attempt = nullptr;
  answers.clear();
  watches.clear();
  on_nodes.clear();
  on_actor_state = nullptr;
}

void HeadClient::State::arm() {
  const auto due = session.next_deadline();
  if (due == armed_for) return;
  if (armed_for) loop.cancel(timer);
  armed_for = due;
  if (!due) return;
  timer = loop.call_after(std::max(*due - now(), Duration::zero()), [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self) return;
    self->armed_for.reset();
    self->session.tick(self->now());
    self->run();
  });
}

void HeadClient::State::end() {
  session.close();
  run();
}

// --- what the session wants done -----------------------------------------------------------------

void HeadClient::State::carry_out(head_command::Connect& command) {
  net::connect(loop, address, "head", token, Deadline::after(command.timeout, loop.clock()),
               [self = shared_from_this()](Result<ByteStream> socket) {
                 if (self->session.closed()) return;
                 if (socket.ok()) {
                   self->connected(std::move(*socket));
                 } else {
                   self->session.disconnected(socket.status(), self->now());
                 }
                 self->run();
               });
}

void HeadClient::State::connected(ByteStream socket) {
  connection = net::make_connection(loop, std::move(socket), address.to_string());
  const auto told = [weak = weak_from_this()](auto tell) {
    return [weak, tell](auto&&... what) {
      const auto self = weak.lock();
      if (!self) return;
      tell(*self, what...);
      self->run();
    };
  };
  connection->start({.on_frame = told([](State& self, std::span<const std::byte> frame) {
                       self.received(frame);
                     }),
                     .on_close = told([](State& self, const Status& why) {
                       self.connection.reset();
                       self.session.disconnected(why, self.now());
                     }),
                     .on_drained = told([](State& self) { self.session.drained(); })});
  session.connected(now());
}

void HeadClient::State::received(std::span<const std::byte> frame) {
  auto message = wire::decode_control(frame);
  if (message.ok()) return session.received(std::move(*message), now());
  connection->close();
  connection.reset();
  session.disconnected(message.status(), now());
}

void HeadClient::State::carry_out(head_command::Disconnect&) {
  if (auto ended = std::exchange(connection, nullptr)) ended->close();
}

void HeadClient::State::carry_out(head_command::Send& command) {
  session.sent(connection->send(std::move(command.frame)), now());
}

void HeadClient::State::carry_out(head_command::Attempted& command) {
  if (const auto told = std::exchange(on_attempt, nullptr)) told(std::move(command.status));
}

void HeadClient::State::carry_out(head_command::Answer& command) {
  auto done = answers.extract(command.request);
  done.mapped()(std::move(command.answer));
}

void HeadClient::State::tell_watch(WatchId watch, const Result<wire::ControlMessage>& told,
                                   bool last) {
  const auto found = watches.find(watch);
  if (found == watches.end() || session.closed()) return;
  const OnAnswer on_change = found->second;
  if (last) watches.erase(found);
  on_change(told);
}

void HeadClient::State::carry_out(head_command::Update& command) {
  const auto* actor = get_if<wire::ActorUpdate>(&command.update);
  if (actor != nullptr && on_actor_state) on_actor_state(actor->actor);
  if (const auto* changed = get_if<wire::NodeUpdate>(&command.update)) {
    for (const auto& on_node : on_nodes) {
      if (!session.closed()) on_node(changed->node);
    }
  }
  const Result<wire::ControlMessage> told = std::move(command.update);
  for (const WatchId watch : command.watches) tell_watch(watch, told, command.last);
}

void HeadClient::State::carry_out(head_command::WatchFailed& command) {
  tell_watch(command.watch, command.why, command.last);
}

// --- the client ----------------------------------------------------------------------------------

HeadClient::HeadClient(std::shared_ptr<State> state) : state_(std::move(state)) {}
HeadClient::~HeadClient() {
  if (state_->process.is_forked()) {
    keep_forked(new std::shared_ptr<State>(state_));
  } else {
    close();
  }
}

std::shared_ptr<HeadClient> HeadClient::make(net::EventLoop& loop, const net::Address& address,
                                             const net::Token& token,
                                             const wire::ClientHello& hello,
                                             const HeadClientOptions& options) {
  return std::shared_ptr<HeadClient>(
      new HeadClient(std::make_shared<State>(loop, address, token, hello, options)));
}

Result<std::shared_ptr<HeadClient>> HeadClient::connect(
    net::EventLoop& loop, const net::Address& address, const net::Token& token,
    const wire::ClientHello& hello, Deadline deadline, const HeadClientOptions& options) {
  TROUPE_CHECK(!loop.in_loop_thread(), "HeadClient::connect would wait for its own thread");
  auto client = make(loop, address, token, hello, options);
  auto promise = std::make_shared<std::promise<Status>>();
  auto answer = promise->get_future();
  // The only attempt waits as long as its caller does: a head that stands still answers later, and
  // then all that wait at its door.
  const Duration timeout =
      std::max<Duration>(deadline.remaining() + kBeyondDeadline, options.attempt_timeout);
  client->state_->post([promise, timeout](State& state) {
    state.on_attempt = [promise](Status status) { promise->set_value(std::move(status)); };
    state.session.connect(timeout, state.now());
  });
  if (answer.wait_until(deadline.time()) != std::future_status::ready) {
    return error(Code::kDeadlineExceeded, "the head at {} did not answer in time",
                 address.to_string());
  }
  TROUPE_RETURN_IF_ERROR(answer.get());
  return client;
}

void HeadClient::close() {
  // The loop need not be there any more when it is said again.
  if (state_->process.is_forked() || state_->closing.exchange(true)) return;
  if (state_->loop.in_loop_thread()) return state_->end();
  // Waits until the loop has let go, so that no callback comes afterwards.
  auto done = std::make_shared<std::promise<void>>();
  auto ended = done->get_future();
  state_->loop.post([state = state_, done] {
    state->end();
    done->set_value();
  });
  ended.wait_for(std::chrono::seconds(10));
}

void HeadClient::request(const std::shared_ptr<State>& to, wire::ControlMessage message,
                         OnAnswer done) {
  if (to->process.is_forked()) return done(ProcessStamp::forked_error());
  to->post([message = std::move(message), done = std::move(done)](State& state) mutable {
    state.answers.emplace(state.session.ask(std::move(message), state.now()), std::move(done));
  });
}

void HeadClient::ask(wire::ControlMessage message, OnStatus done) {
  request(std::move(message),
          [done = std::move(done)](const auto& answer) { done(answer_status(answer)); });
}

void HeadClient::get_or_create_actor(wire::ActorSpec spec, OnCreated done) {
  request(wire::CreateActors{.specs = {std::move(spec)}, .get_if_exists = true},
          [done = std::move(done)](const Result<wire::ControlMessage>& answer) {
            const Status status = answer_status(answer);
            if (!status.ok()) return done(status);
            done(get<wire::Reply>(*answer).actor_id);
          });
}

// Every watch goes through here. Numbers are given here, so that the caller has its own before the
// first callback.
WatchId HeadClient::watch(WatchedId id, WatchedName name, OnAnswer on_change) {
  static std::atomic<WatchId> next{1};
  const WatchId watch = next++;
  if (state_->process.is_forked()) {
    on_change(ProcessStamp::forked_error());
    return watch;
  }
  state_->post(
      [watch, id, name = std::move(name), on_change = std::move(on_change)](State& state) mutable {
        state.watches.emplace(watch, std::move(on_change));
        state.session.watch(watch, id, std::move(name), state.now());
      });
  return watch;
}

void HeadClient::unwatch(WatchId watch) {
  state_->post([watch](State& state) {
    state.watches.erase(watch);
    state.session.unwatch(watch, state.now());
  });
}

void HeadClient::follow_actors(OnActorState on_state) {
  state_->post([on_state = std::move(on_state)](State& state) mutable {
    state.on_actor_state = std::move(on_state);
  });
}

void HeadClient::report_work(wire::Work work) {
  if (state_->process.is_forked()) return;
  state_->post([work = std::move(work)](State& state) mutable {
    state.session.report(std::move(work), state.now());
  });
}

void HeadClient::lend_cpus(ActorId actor_id, std::uint64_t generation, bool back) {
  if (state_->process.is_forked()) return;
  state_->post([lends = wire::LendCpus{0, actor_id, generation, back}](State& state) {
    state.session.lend(lends, state.now());
  });
}

void HeadClient::watch_nodes(OnNode on_node) {
  state_->post([on_node = std::move(on_node)](State& state) mutable {
    state.on_nodes.push_back(std::move(on_node));
    state.session.watch_nodes(state.now());
  });
}

}  // namespace troupe::scheduler
