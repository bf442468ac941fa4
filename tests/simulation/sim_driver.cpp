#include "sim_driver.h"

#include <algorithm>

#include "runtime/wire/request_id.h"

namespace troupe::simulation {

using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

constexpr Duration kRetryFirst = milliseconds(50);
constexpr Duration kRetryMost = seconds(1);
// What nobody has answered by then, though everything is whole, never will be.
constexpr Duration kAnswerWithin = seconds(5);
// A connection waits 10 s for its actor's next process, at most (NodeConfig::hand_over_timeout).
constexpr Duration kCallWithin = seconds(15);

}  // namespace

SimDriver::SimDriver(Cluster& cluster, SchedulerResult& result, int number)
    : cluster_(cluster),
      world_(cluster.world()),
      result_(result),
      id_(ClientId::make(world_.random)),
      job_(JobId::make(world_.random)),
      name_(fmt::format("driver-{}", number)),
      back_off_(kRetryFirst) {}

// --- the connection ------------------------------------------------------------------------------

void SimDriver::connect() {
  world_.timeline.after(world_.delay(), [this, attempt = ++links_] {
    if (ended_ || attempt != links_) return;
    link_ = cluster_.connect(
        kOutside,
        [this, attempt](const wire::ControlMessage& message) {
          if (attempt == links_) received(message);
        },
        [this, attempt] {
          if (attempt == links_) lost();
        });
    if (!link_) return lost();
    connected();
  });
}

void SimDriver::connected() {
  wire::ClientHello hello;
  hello.request_id = hello_ = next_request_++;
  hello.client_id = id_;
  hello.job_id = job_;
  hello.name = name_;
  hello.kind = "driver";
  hello.reconnect = reconnects_;
  cluster_.send_to_head(link_, hello);
}

void SimDriver::lost() {
  if (ended_) return;
  link_ = nullptr;
  introduced_ = false;
  if (!away_since_) away_since_ = world_.timeline.now();
  world_.timeline.after(back_off_, [this, attempt = ++links_] {
    if (!ended_ && attempt == links_) connect();
  });
  back_off_ = std::min(2 * back_off_, kRetryMost);
}

void SimDriver::break_connection() {
  if (!link_ || ended_) return;
  world_.note("the connection of {} breaks", name_);
  cluster_.close_from_far(LinkPtr(link_), world_.chance(2));
  lost();
}

void SimDriver::end() {
  if (std::exchange(ended_, true)) return;
  world_.note("{} ends", name_);
  if (link_) cluster_.close_from_far(LinkPtr(std::exchange(link_, nullptr)), world_.chance(2));
  requests_.clear();
  calls_.clear();
}

// --- requests ------------------------------------------------------------------------------------

void SimDriver::ask(wire::ControlMessage message, std::function<void(const Status&)> done) {
  if (ended_) return;
  const std::uint64_t id = next_request_++;
  wire::set_request_id(message, id);
  ++result_.requests;
  const TimePoint now = world_.timeline.now();
  auto& request = requests_[id] = {std::move(message), std::move(done), now, introduced_};
  if (introduced_) cluster_.send_to_head(link_, request.message);
}

void SimDriver::received(const wire::ControlMessage& message) {
  if (const auto* update = get_if<wire::ActorUpdate>(&message)) return updated(update->actor);
  if (const auto* update = get_if<wire::PlacementGroupUpdate>(&message)) {
    return updated(update->group);
  }
  const std::uint64_t id = wire::request_id_of(message).value_or(0);
  if (id == 0) return;
  const auto* reply = get_if<wire::Reply>(&message);
  if (id != hello_) return answered(id, reply != nullptr ? reply->status : Status());
  require(reply != nullptr && reply->status.ok() && !introduced_, "{} is not taken in", name_);
  introduced_ = reconnects_ = true;
  back_off_ = kRetryFirst;
  away_since_.reset();
  // The head may have done them: then its answers were lost.
  for (auto& [number, request] : requests_) {
    request.asked = world_.timeline.now();
    result_.requests_repeated += request.was_sent ? 1 : 0;
    request.was_sent = true;
    cluster_.send_to_head(link_, request.message);
  }
  for (const auto& [actor, view] : views_) watch(actor);
  for (const auto& [group, view] : group_views_) watch(group);
}

void SimDriver::answered(std::uint64_t request_id, const Status& status) {
  const auto found = requests_.find(request_id);
  require(found != requests_.end(), "request {} of {} is answered twice", request_id, name_);
  const auto done = std::move(found->second.done);
  requests_.erase(found);
  if (done) done(status);
}

void SimDriver::create(std::vector<wire::ActorSpec> specs, bool gang, bool no_wait) {
  wire::CreateActors message;
  message.gang = gang;
  message.no_wait = no_wait;
  std::vector<ActorId> ids;
  for (wire::ActorSpec& spec : specs) {
    spec.owner = id_;
    spec.job_id = job_;
    ids.push_back(spec.actor_id);
  }
  message.specs = std::move(specs);
  ask(std::move(message), [this, ids = std::move(ids)](const Status& status) {
    if (!status.ok()) {
      world_.note("{} is refused: {}", name_, status.to_string());
      for (const ActorId& id : ids) {
        const bool known = cluster_.head_up() && cluster_.head()->actors().contains(id);
        require(!known, "{} is refused actor {}, which the head knows: {}", name_, id.brief(),
                status.to_string());
      }
      return;
    }
    result_.actors += static_cast<int>(ids.size());
    for (const ActorId& id : ids) {
      actors_.push_back(id);
      watch(id);
    }
  });
}

void SimDriver::watch(ActorId actor) {
  wire::WatchActor message;
  message.actor_id = actor;
  views_.try_emplace(actor);
  ask(std::move(message), [this, actor](const Status& status) {
    // Dead for so long that the head has forgotten it.
    if (!status.ok()) views_.erase(actor);
  });
}

void SimDriver::create_group(wire::PlacementGroupSpec spec) {
  spec.owner = id_;
  spec.job_id = job_;
  ask(wire::CreatePlacementGroup{0, spec}, [this, spec](const Status& status) {
    if (!status.ok()) {
      world_.note("{} is refused: {}", name_, status.to_string());
      const bool known = cluster_.head_up() && cluster_.head()->groups().contains(spec.group_id);
      return require(!known, "{} is refused group {}, which the head knows: {}", name_,
                     spec.group_id.brief(), status.to_string());
    }
    ++result_.groups;
    groups_.push_back(spec);
    usable_groups_.push_back(spec);
    watch(spec.group_id);
  });
}

void SimDriver::watch(GroupId group) {
  wire::WatchPlacementGroup message;
  message.group_id = group;
  group_views_.try_emplace(group);
  ask(std::move(message), [this, group](const Status& status) {
    if (!status.ok()) group_views_.erase(group);
  });
}

void SimDriver::forget_usable(GroupId group) {
  std::erase_if(usable_groups_, [&](const auto& spec) { return spec.group_id == group; });
}

void SimDriver::remove_group(GroupId group) {
  forget_usable(group);
  ask(wire::RemovePlacementGroup{0, group, "it is not needed any more"}, {});
}

void SimDriver::kill(ActorId actor, bool allow_restart, std::int64_t grace_ms) {
  wire::KillActor message;
  message.actor_id = actor;
  message.allow_restart = allow_restart;
  message.grace_ms = grace_ms;
  ask(std::move(message), {});
}

void SimDriver::list() { ask(wire::ListActors{0, world_.chance(2)}, {}); }

void SimDriver::end_job() { ask(wire::EndJob{0, job_, "its work is done"}, {}); }

// --- what it hears -------------------------------------------------------------------------------

void SimDriver::updated(const wire::ActorInfo& info) {
  const auto found = views_.find(info.actor_id);
  if (found == views_.end()) return;
  wire::ActorInfo& view = found->second;
  require(info.generation >= view.generation, "{} hears of generation {} of {} after generation {}",
          name_, info.generation, info.actor_id.brief(), view.generation);
  require(view.state != wire::ActorState::kDead || info.state == wire::ActorState::kDead,
          "{} hears that {} is {} after it was dead", name_, info.actor_id.brief(),
          wire::actor_state_name(info.state));
  view = info;
}

void SimDriver::updated(const wire::PlacementGroupInfo& info) {
  const auto found = group_views_.find(info.group_id);
  if (found == group_views_.end()) return;
  wire::PlacementGroupInfo& view = found->second;
  require(info.generation >= view.generation,
          "{} hears of attempt {} to reserve group {} after attempt {}", name_, info.generation,
          info.group_id.brief(), view.generation);
  require(view.state != wire::PlacementGroupState::kRemoved ||
              info.state == wire::PlacementGroupState::kRemoved,
          "{} hears of group {} after it was removed", name_, info.group_id.brief());
  view = info;
  if (info.state == wire::PlacementGroupState::kRemoved) forget_usable(info.group_id);
}

bool SimDriver::knows(const wire::PlacementGroupInfo& truth) const {
  const auto view = group_views_.find(truth.group_id);
  return view != group_views_.end() && view->second.state == truth.state &&
         view->second.generation == truth.generation;
}

bool SimDriver::knows(const wire::ActorInfo& truth) const {
  const auto view = views_.find(truth.actor_id);
  return view != views_.end() && view->second.state == truth.state &&
         view->second.generation == truth.generation && view->second.pid == truth.pid;
}

// --- calls ---------------------------------------------------------------------------------------

void SimDriver::call(ActorId actor) {
  const auto view = views_.find(actor);
  if (ended_ || view == views_.end() || view->second.state != wire::ActorState::kAlive) return;
  const auto call = std::make_shared<CallRecord>();
  call->began = world_.timeline.now();
  std::erase_if(calls_, [](const auto& other) { return other->over; });
  calls_.push_back(call);
  const auto ended = [this, weak = std::weak_ptr(call)](bool was_answered) {
    // It takes a moment to get here; nobody may be there any more.
    world_.timeline.after(world_.delay(), [this, weak, was_answered] {
      if (const auto same = weak.lock()) call_over(same, was_answered);
    });
  };
  // Where it is refused the connection ends, and that is the answer.
  (void)cluster_.connect_actor(view->second.node_id, actor,
                               std::make_shared<CallConnection>(call, ended));
}

void SimDriver::call_over(const std::shared_ptr<CallRecord>& call, bool was_answered) {
  require(!std::exchange(call->over, true), "a call of {} ends twice", name_);
  call->answered = was_answered;
  ++(was_answered ? result_.calls_answered : result_.calls_failed);
}

std::string SimDriver::waits_for() const {
  if (ended_) return {};
  if (!introduced_) return name_ + " has no connection";
  const TimePoint now = world_.timeline.now();
  for (const auto& [id, request] : requests_) {
    if (now - request.asked > kAnswerWithin) {
      return fmt::format("request {} of {} has no answer", id, name_);
    }
  }
  for (const auto& call : calls_) {
    if (!call->over && now - call->began > kCallWithin) {
      return fmt::format("a call of {} has no end", name_);
    }
  }
  return {};
}

}  // namespace troupe::simulation
