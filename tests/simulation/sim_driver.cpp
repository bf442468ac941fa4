#include "sim_driver.h"

#include <algorithm>

namespace troupe::simulation {

using namespace scheduler;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

// What nobody has answered by then, though everything is whole, never will be.
constexpr Duration kAnswerWithin = seconds(5);
// A connection waits 10 s for its actor's next process, at most (NodeConfig::hand_over_timeout).
constexpr Duration kCallWithin = seconds(15);

bool is_over(const wire::ActorInfo& info) { return info.state == wire::ActorState::kDead; }
bool is_over(const wire::PlacementGroupInfo& info) {
  return info.state == wire::PlacementGroupState::kRemoved;
}

// Whether the head may have done what was asked, or may still do it.
bool is_unknown(const Status& status) { return status.code() == Code::kUnavailable; }

}  // namespace

SimDriver::SimDriver(Cluster& cluster, SchedulerResult& result, int number)
    : cluster_(cluster),
      world_(cluster.world()),
      result_(result),
      id_(ClientId::make(world_.random)),
      job_(JobId::make(world_.random)),
      name_(fmt::format("driver-{}", number)),
      client_(cluster, kOutside,
              wire::ClientHello{.client_id = id_, .job_id = job_, .name = name_, .kind = "driver"},
              options(), [this](Duration delay, std::function<void()> what) {
                world_.timeline.after(delay, std::move(what));
              }) {}

// Some give up waiting for a head that is away as long as a new one takes at times.
HeadClientOptions SimDriver::options() {
  HeadClientOptions options;
  options.attempt_timeout = seconds(1);
  if (world_.chance(2)) options.reconnect_timeout = seconds(1);
  return options;
}

void SimDriver::end() {
  if (std::exchange(ended_, true)) return;
  world_.note("{} ends", name_);
  client_.close();
  calls_.clear();
  result_.requests += client_.requests();
  result_.requests_repeated += client_.requests_repeated();
}

// --- requests ------------------------------------------------------------------------------------

void SimDriver::create(std::vector<wire::ActorSpec> specs, bool gang, bool no_wait) {
  wire::CreateActors message;
  message.gang = gang;
  message.no_wait = no_wait;
  std::vector<ActorId> ids;
  for (wire::ActorSpec& spec : specs) {
    spec.owner = id_;
    spec.job_id = job_;
    ids.push_back(spec.actor_id);
    names_[spec.actor_id] = spec.name;
  }
  message.specs = std::move(specs);
  client_.ask(std::move(message), [this, ids = std::move(ids)](const Answer& answer) {
    created(ids, answer_status(answer));
  });
}

void SimDriver::created(const std::vector<ActorId>& ids, const Status& status) {
  if (status.ok()) {
    result_.actors += static_cast<int>(ids.size());
    actors_.insert(actors_.end(), ids.begin(), ids.end());
  } else {
    world_.note("{} is refused: {}", name_, status.to_string());
    if (!is_unknown(status)) {
      for (const ActorId& id : ids) {
        const bool known = cluster_.head_up() && cluster_.head()->actors().contains(id);
        require(!known, "{} is refused actor {}, which the head knows: {}", name_, id.brief(),
                status.to_string());
      }
      return;
    }
  }
  for (const ActorId& id : ids) watch(id);
}

void SimDriver::create_group(wire::PlacementGroupSpec spec) {
  spec.owner = id_;
  spec.job_id = job_;
  client_.ask(wire::CreatePlacementGroup{0, spec},
              [this, spec](const Answer& answer) { group_created(spec, answer_status(answer)); });
}

void SimDriver::group_created(const wire::PlacementGroupSpec& spec, const Status& status) {
  if (!status.ok()) {
    world_.note("{} is refused: {}", name_, status.to_string());
    if (is_unknown(status)) return;
    const bool known = cluster_.head_up() && cluster_.head()->groups().contains(spec.group_id);
    return require(!known, "{} is refused group {}, which the head knows: {}", name_,
                   spec.group_id.brief(), status.to_string());
  }
  ++result_.groups;
  groups_.push_back(spec);
  usable_groups_.push_back(spec);
  watch(spec.group_id);
}

void SimDriver::forget_usable(GroupId group) {
  std::erase_if(usable_groups_, [&](const auto& spec) { return spec.group_id == group; });
}

void SimDriver::remove_group(GroupId group) {
  forget_usable(group);
  client_.ask(wire::RemovePlacementGroup{0, group, "it is not needed any more"}, {});
}

void SimDriver::kill(ActorId actor, bool allow_restart, std::int64_t grace_ms) {
  wire::KillActor message;
  message.actor_id = actor;
  message.allow_restart = allow_restart;
  message.grace_ms = grace_ms;
  client_.ask(std::move(message), {});
}

void SimDriver::list() { client_.ask(wire::ListActors{0, world_.chance(2)}, {}); }

void SimDriver::end_job() { client_.ask(wire::EndJob{0, job_, "its work is done"}, {}); }

// --- what it hears -------------------------------------------------------------------------------

void SimDriver::watch(ActorId actor, const std::string& name) {
  const auto on_actor = [this, actor, name](const troupe::Result<wire::ActorInfo>& info,
                                            bool last) {
    if (info.ok()) return updated(*info);
    if (!last) return;
    views_.erase(actor);
    // Nobody living has that name. By its id it is not found where it has been dead for so long
    // that the head has forgotten it.
    if (!name.empty()) watch(actor);
  };
  ActorView& view = views_[actor];
  view.watch = client_.watch(name.empty() ? actor : ActorId(), name, on_actor);
}

void SimDriver::watch_again(ActorId actor) {
  const auto view = views_.find(actor);
  if (view == views_.end() || is_over(view->second.info)) return;
  client_.unwatch(view->second.watch);
  watch(actor, names_[actor]);
}

void SimDriver::watch(GroupId group) {
  group_views_.try_emplace(group);
  client_.watch(group,
                [this, group](const troupe::Result<wire::PlacementGroupInfo>& info, bool last) {
                  if (info.ok()) return updated(*info);
                  if (last) group_views_.erase(group);
                });
}

void SimDriver::watch_nodes() {
  client_.watch_nodes([this](const wire::NodeInfo& node) { nodes_[node.node_id] = node.state; });
}

void SimDriver::updated(const wire::ActorInfo& info) {
  wire::ActorInfo& view = views_.at(info.actor_id).info;
  require(info.generation >= view.generation, "{} hears of generation {} of {} after generation {}",
          name_, info.generation, info.actor_id.brief(), view.generation);
  require(!is_over(view) || is_over(info), "{} hears that {} is {} after it was dead", name_,
          info.actor_id.brief(), wire::actor_state_name(info.state));
  view = info;
}

void SimDriver::updated(const wire::PlacementGroupInfo& info) {
  wire::PlacementGroupInfo& view = group_views_.at(info.group_id);
  require(info.generation >= view.generation,
          "{} hears of attempt {} to reserve group {} after attempt {}", name_, info.generation,
          info.group_id.brief(), view.generation);
  require(!is_over(view) || is_over(info), "{} hears of group {} after it was removed", name_,
          info.group_id.brief());
  view = info;
  if (is_over(info)) forget_usable(info.group_id);
}

std::string SimDriver::unheard(const HeadState& head) const {
  if (ended_) return {};
  for (const ActorId& id : actors_) {
    const auto actor = head.actors().find(id);
    if (actor == head.actors().end()) continue;
    const wire::ActorInfo& truth = actor->second.info;
    const auto view = views_.find(id);
    const bool knows = view != views_.end() && view->second.info.state == truth.state &&
                       view->second.info.generation == truth.generation &&
                       view->second.info.pid == truth.pid;
    if (!knows) return fmt::format("{} has not heard how {} is", name_, id.brief());
  }
  for (const auto& [id, view] : views_) {
    if (is_over(view.info) || head.actors().contains(id)) continue;
    return fmt::format("{} waits for the end of {}, which is over", name_, id.brief());
  }
  for (const wire::PlacementGroupSpec& spec : groups_) {
    const auto group = head.groups().find(spec.group_id);
    if (group == head.groups().end()) continue;
    const auto view = group_views_.find(spec.group_id);
    const bool knows = view != group_views_.end() &&
                       view->second.state == group->second.info.state &&
                       view->second.generation == group->second.info.generation;
    if (!knows)
      return fmt::format("{} has not heard how group {} is", name_, spec.group_id.brief());
  }
  for (const auto& [id, view] : group_views_) {
    if (is_over(view) || head.groups().contains(id)) continue;
    return fmt::format("{} waits for the end of group {}, which is over", name_, id.brief());
  }
  for (const auto& [id, node] : head.nodes()) {
    const auto view = nodes_.find(id);
    const bool is_dead = node.info.state == wire::NodeState::kDead;
    if (nodes_.empty() ||
        (view != nodes_.end() && (view->second == wire::NodeState::kDead) == is_dead))
      continue;
    return fmt::format("{} has not heard how node {} is", name_, node.info.name);
  }
  return {};
}

// --- calls ---------------------------------------------------------------------------------------

void SimDriver::call(ActorId actor) {
  const auto view = views_.find(actor);
  if (ended_ || view == views_.end()) return;
  if (view->second.info.state != wire::ActorState::kAlive) return;
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
  (void)cluster_.connect_actor(view->second.info.node_id, actor,
                               std::make_shared<CallConnection>(call, ended));
}

void SimDriver::call_over(const std::shared_ptr<CallRecord>& call, bool was_answered) {
  require(!std::exchange(call->over, true), "a call of {} ends twice", name_);
  call->answered = was_answered;
  ++(was_answered ? result_.calls_answered : result_.calls_failed);
}

std::string SimDriver::waits_for() const {
  if (ended_) return {};
  if (auto why = client_.waits_for(kAnswerWithin); !why.empty()) return why;
  for (const auto& call : calls_) {
    if (!call->over && world_.timeline.now() - call->began > kCallWithin) {
      return fmt::format("a call of {} has no end", name_);
    }
  }
  return {};
}

}  // namespace troupe::simulation
