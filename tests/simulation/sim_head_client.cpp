#include "sim_head_client.h"

#include "runtime/wire/request_id.h"

namespace troupe::simulation {

using namespace scheduler;
using std::chrono::milliseconds;

SimHeadClient::SimHeadClient(Cluster& cluster, int node, wire::ClientHello hello,
                             const HeadClientOptions& options, After after)
    : cluster_(cluster),
      world_(cluster.world()),
      node_(node),
      name_(hello.name),
      options_(options),
      after_(std::move(after)),
      session_(std::move(hello), "the head", options) {}

// --- what its user wants -------------------------------------------------------------------------

void SimHeadClient::ask(wire::ControlMessage message, OnAnswer done) {
  if (session_.closed()) return;
  const TimePoint now = world_.timeline.now();
  ++requests_;
  const HeadRequestId id = session_.ask(std::move(message), now);
  const bool is_new = unanswered_.try_emplace(id, Request{std::move(done), now}).second;
  require(is_new, "{} gives number {} to two requests", name_, id);
  if (!away_since_ && !session_.introduced()) begin_absence();
  if (away_since_) expect_answers();
  run();
}

namespace {

// What a watch is told, by the member of the message that tells it.
template <typename Message, typename Info, typename OnInfo>
auto as_info(OnInfo tell, Info Message::*member) {
  return [tell = std::move(tell), member](const troupe::Result<wire::ControlMessage>& told,
                                          bool last) {
    if (!told.ok()) return tell(told.status(), last);
    tell(get<Message>(*told).*member, last);
  };
}

}  // namespace

WatchId SimHeadClient::begin_watch(WatchedId id, const std::string& name, OnChange tell) {
  watches_[next_watch_] = {std::move(tell)};
  session_.watch(next_watch_, id, {{}, name}, world_.timeline.now());
  run();
  return next_watch_++;
}

WatchId SimHeadClient::watch(ActorId actor, const std::string& name, OnActor on_actor) {
  return begin_watch(actor, name, as_info(std::move(on_actor), &wire::ActorUpdate::actor));
}

WatchId SimHeadClient::watch(GroupId group, OnGroup on_group) {
  return begin_watch(group, {}, as_info(std::move(on_group), &wire::PlacementGroupUpdate::group));
}

void SimHeadClient::unwatch(WatchId watch) {
  watches_.erase(watch);
  session_.unwatch(watch, world_.timeline.now());
  run();
}

void SimHeadClient::watch_nodes(std::function<void(const wire::NodeInfo&)> on_node) {
  on_node_ = std::move(on_node);
  session_.watch_nodes(world_.timeline.now());
  run();
}

void SimHeadClient::close() {
  session_.close();
  run();
  unanswered_.clear();
  watches_.clear();
}

// --- what the session wants done -----------------------------------------------------------------

void SimHeadClient::run() {
  if (std::exchange(running_, true)) return;
  while (auto command = session_.next()) {
    visit([this](auto& what) { carry_out(what); }, *command);
  }
  running_ = false;
  arm();
}

void SimHeadClient::arm() {
  const auto due = session_.next_deadline();
  if (due == armed_for_) return;
  armed_for_ = due;
  if (!due) return;
  const TimePoint now = world_.timeline.now();
  require(*due >= now, "a deadline of {} has passed", name_);
  after_(*due - now, [this, at = *due] {
    if (armed_for_ != at) return;
    armed_for_.reset();
    session_.tick(world_.timeline.now());
    run();
  });
}

void SimHeadClient::carry_out(head_command::Connect&) {
  after_(world_.delay(), [this, attempt = ++links_] {
    if (attempt == links_) connect();
  });
}

void SimHeadClient::connect() {
  last_sent_ = 0;
  answered_.clear();
  link_ = cluster_.connect(
      node_,
      [this, attempt = links_](const wire::ControlMessage& message) {
        after_(Duration::zero(), [this, attempt, message] {
          if (attempt == links_) received(message);
        });
      },
      [this, attempt = links_] {
        after_(Duration::zero(), [this, attempt] {
          if (attempt == links_) lose(Status(Code::kUnavailable, "the connection has ended"));
        });
      });
  // Where the head stands still, a connection may be made that nobody answers.
  if (link_ || (cluster_.head_frozen() && world_.chance(2))) {
    session_.connected(world_.timeline.now());
    run();
  } else {
    lose(Status(Code::kUnavailable, "the head is not there"));
  }
}

void SimHeadClient::lose(const Status& why) {
  ++links_;
  link_ = nullptr;
  if (session_.introduced()) begin_absence();
  session_.disconnected(why, world_.timeline.now());
  run();
}

void SimHeadClient::break_connection() {
  if (!link_) return;
  world_.note("the connection of {} breaks", name_);
  cluster_.close_from_far(LinkPtr(link_), world_.chance(2));
  lose(Status(Code::kUnavailable, "the connection broke"));
}

void SimHeadClient::carry_out(head_command::Disconnect&) {
  ++links_;
  if (link_) cluster_.close_from_far(std::exchange(link_, nullptr), world_.chance(2));
}

void SimHeadClient::carry_out(head_command::Send& command) {
  if (world_.chance(200)) {
    // Too much waits on the connection.
    session_.sent(Status(Code::kOverloaded, "the connection is full"), world_.timeline.now());
    after_(world_.between(1, 20), [this, attempt = links_] {
      if (attempt != links_) return;
      session_.drained();
      run();
    });
    return;
  }
  auto message = wire::decode_control(command.frame);
  require(message.ok(), "{} says what is no message: {}", name_, message.status().to_string());
  check_sent(*message, command.frame);
  cluster_.send_to_head(link_, std::move(*message));
  session_.sent({}, world_.timeline.now());
}

void SimHeadClient::carry_out(head_command::Attempted& command) {
  if (!command.status.ok()) return;
  away_since_.reset();
  there_since_ = world_.timeline.now();
}

void SimHeadClient::carry_out(head_command::Answer& command) {
  const auto request = unanswered_.extract(command.request);
  require(!request.empty(), "request {} of {} is answered twice", command.request, name_);
  if (request.mapped().done) request.mapped().done(command.answer);
}

// --- what it hears -------------------------------------------------------------------------------

// Of an actor or a group, now and then an update of an earlier generation arrives once more.
void SimHeadClient::received(const wire::ControlMessage& message) {
  if (const std::uint64_t id = wire::request_id_of(message).value_or(0); id != 0) {
    require(answered_.insert(id).second, "the head answers request {} of {} twice", id, name_);
  }
  const TimePoint now = world_.timeline.now();
  session_.received(message, now);
  run();
  const auto state = watched_state(message);
  if (!state || session_.closed()) return;
  const auto [before, is_first] = last_updates_.try_emplace(state->id, message);
  if (is_first || watched_state(before->second)->generation >= state->generation) return;
  const wire::ControlMessage late = std::exchange(before->second, message);
  if (!world_.chance(3)) return;
  session_.received(late, now);
  run();
}

void SimHeadClient::tell_watch(WatchId watch, const troupe::Result<wire::ControlMessage>& told,
                               bool last) {
  const auto found = watches_.find(watch);
  require(found != watches_.end(), "{} hears of watch {}, which has ended", name_, watch);
  if (told.ok()) {
    const std::uint64_t generation = watched_state(*told)->generation;
    require(generation >= found->second.generation,
            "watch {} of {} is told of generation {} after generation {}", watch, name_, generation,
            found->second.generation);
    found->second.generation = generation;
  }
  const OnChange tell = found->second.tell;
  if (last) watches_.erase(found);
  tell(told, last);
}

void SimHeadClient::carry_out(head_command::Update& command) {
  const auto* node = get_if<wire::NodeUpdate>(&command.update);
  if (node != nullptr && on_node_) on_node_(node->node);
  for (const WatchId watch : command.watches) tell_watch(watch, command.update, command.last);
}

void SimHeadClient::carry_out(head_command::WatchFailed& command) {
  tell_watch(command.watch, command.why, command.last);
}

// --- what must hold ------------------------------------------------------------------------------

void SimHeadClient::begin_absence() {
  away_since_ = world_.timeline.now();
  expect_answers();
}

// What waits now is answered when the head has been away for as long as it may be.
void SimHeadClient::expect_answers() {
  const TimePoint now = world_.timeline.now();
  after_(options_.reconnect_timeout + milliseconds(1), [this, now, since = away_since_] {
    if (away_since_ != since || session_.closed()) return;
    for (const auto& [id, request] : unanswered_) {
      require(request.asked > now, "request {} of {} waits for a head that stays away", id, name_);
    }
  });
}

// Requests keep their order on each connection, and a number is one request's.
void SimHeadClient::check_sent(const wire::ControlMessage& message, const wire::Bytes& frame) {
  const HeadRequestId id = wire::request_id_of(message).value_or(0);
  if (!holds_alternative<wire::ClientHello>(message)) {
    require(id > last_sent_, "{} says request {} after request {}", name_, id, last_sent_);
    last_sent_ = id;
  }
  const std::uint64_t hash = xxh3_64(frame);
  const auto [known, is_new] = frames_.try_emplace(id, hash);
  require(known->second == hash, "{} gives number {} to two requests", name_, id);
  if (!is_new) ++repeated_;
}

std::string SimHeadClient::waits_for(Duration within) const {
  if (session_.closed()) return {};
  if (!session_.introduced()) return name_ + " has no connection";
  const TimePoint now = world_.timeline.now();
  for (const auto& [id, request] : unanswered_) {
    if (now - std::max(request.asked, there_since_) > within) {
      return fmt::format("request {} of {} has no answer", id, name_);
    }
  }
  return {};
}

}  // namespace troupe::simulation
