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

WatchId SimHeadClient::watch(ActorId actor, const std::string& name, OnActor on_actor) {
  watches_[next_watch_] = {std::move(on_actor)};
  session_.watch(next_watch_, actor, {{}, name}, world_.timeline.now());
  run();
  return next_watch_++;
}

WatchId SimHeadClient::watch(GroupId group, OnGroup on_group) {
  watches_[next_watch_] = {std::move(on_group)};
  session_.watch(next_watch_, group, {}, world_.timeline.now());
  run();
  return next_watch_++;
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

namespace {

std::uint64_t generation_of(const wire::ControlMessage& update) {
  const auto* actor = get_if<wire::ActorUpdate>(&update);
  return actor != nullptr ? actor->actor.generation
                          : get<wire::PlacementGroupUpdate>(update).group.generation;
}

}  // namespace

// Of an actor or a group, now and then an update of an earlier generation arrives once more.
void SimHeadClient::received(const wire::ControlMessage& message) {
  const TimePoint now = world_.timeline.now();
  const auto* actor = get_if<wire::ActorUpdate>(&message);
  const auto* group = get_if<wire::PlacementGroupUpdate>(&message);
  if (const std::uint64_t id = wire::request_id_of(message).value_or(0); id != 0) {
    require(answered_.insert(id).second, "the head answers request {} of {} twice", id, name_);
  }
  session_.received(message, now);
  run();
  if ((actor == nullptr && group == nullptr) || session_.closed()) return;
  const auto key = actor != nullptr
                       ? std::pair(actor->actor.actor_id.high, actor->actor.actor_id.low)
                       : std::pair(group->group.group_id.high, group->group.group_id.low);
  const auto before = last_updates_.find(key);
  if (before == last_updates_.end()) {
    last_updates_.emplace(key, message);
  } else if (generation_of(before->second) < generation_of(message)) {
    const wire::ControlMessage late = std::exchange(before->second, message);
    if (!world_.chance(3)) return;
    session_.received(late, now);
    run();
  }
}

template <typename Told>
void SimHeadClient::tell_watch(WatchId watch, const Told& told, bool last) {
  const auto found = watches_.find(watch);
  require(found != watches_.end(), "{} hears of watch {}, which has ended", name_, watch);
  if constexpr (!std::is_same_v<Told, Status>) {
    require(told.generation >= found->second.generation,
            "{} hears of generation {} of {} after generation {}", name_, told.generation,
            watched_id(told).brief(), found->second.generation);
    found->second.generation = told.generation;
  }
  const auto tell = found->second.tell;
  if (last) watches_.erase(found);
  std::visit(
      [&](const auto& on_change) {
        if constexpr (std::is_invocable_v<decltype(on_change), const Told&, bool>) {
          on_change(told, last);
        }
      },
      tell);
}

template <typename Info>
void SimHeadClient::carry_out(head_command::Update<Info>& command) {
  for (const WatchId watch : command.watches) tell_watch(watch, command.info, command.last);
}

void SimHeadClient::carry_out(head_command::WatchFailed& command) {
  tell_watch(command.watch, command.why, command.last);
}

void SimHeadClient::carry_out(head_command::NodeUpdate& command) {
  if (on_node_) on_node_(command.node);
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
