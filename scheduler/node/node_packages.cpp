// What jobs bring along for nodes that lack it: which of it is here, which is needed here, and how
// the rest comes. The head says which nodes have a package; it is asked again and again, since they
// may be away for a moment. An actor whose package does not come ends with the reason.

#include <algorithm>

#include "scheduler/node/node_state.h"

namespace troupe::scheduler {
namespace {

constexpr int kFetchesMax = 5;
constexpr Duration kAskForPackageAgain = std::chrono::seconds(1);
// A node whose daemon is started again, or that is cut off for a moment, is back by then.
constexpr Duration kPackagePatience = std::chrono::seconds(30);

}  // namespace

void NodeState::say_packages() {
  if (!packages_.empty()) {
    send(wire::NodePackages{{packages_.begin(), packages_.end()}});
  }
  // A head that was away could not be asked.
  for (auto& [sha256, awaited] : awaited_packages_) {
    awaited.ask_at = now_;
    awaited.give_up_at = now_ + kPackagePatience;
  }
}

void NodeState::on(node_event::PackagesHere& event) {
  packages_ = {event.sha256s.begin(), event.sha256s.end()};
  send(wire::NodePackages{std::move(event.sha256s)});
  std::erase_if(awaited_packages_, [this](const auto& entry) {
    if (!packages_.contains(entry.first)) return false;
    for (const ActorId& id : waiting_for(entry.first)) {
      actors_.at(id).gpus_by = now_ + config_.gpu_wait;  // settle_gpus starts it
    }
    return true;
  });
}

void NodeState::on(node_event::PackageNotFetched& event) {
  const auto found = awaited_packages_.find(event.package.sha256);
  if (found == awaited_packages_.end()) return;
  AwaitedPackage& awaited = found->second;
  awaited.fetching = false;
  awaited.last = std::move(event.why);
  awaited.ask_at = now_ + kAskForPackageAgain;
  // (A fetch may have taken longer than the patience; and one that fails each time would go on for
  // ever.)
  if (++awaited.failures < kFetchesMax) {
    awaited.give_up_at = std::max(awaited.give_up_at, now_ + 2 * kAskForPackageAgain);
  } else {
    awaited.give_up_at = now_;
  }
}

void NodeState::from_head(wire::PackageSources& sources) {
  const auto found = awaited_packages_.find(sources.package.sha256);
  if (found == awaited_packages_.end() || found->second.fetching) return;
  AwaitedPackage& awaited = found->second;
  if (sources.nodes.empty()) {
    if (awaited.last.ok()) {
      awaited.last = Status(Code::kNotFound, "no node that is there has it");
    }
    return;
  }
  awaited.fetching = true;
  commands_.push_back(node_command::FetchPackage{awaited.package, std::move(sources.nodes)});
}

// Whether what the actor needs can be had here at all.
Status NodeState::check_package(const wire::ActorSpec& spec) const {
  if (spec.package.empty()) return {};
  TROUPE_RETURN_IF_ERROR(wire::check(spec.package));
  if (config_.without_packages.empty()) return {};
  return error(Code::kFailedPrecondition,
               "it needs what its job was shipped with, and this node keeps no packages: {}",
               config_.without_packages);
}

bool NodeState::awaits_package(const Actor& actor) {
  const wire::Package& package = actor.spec.package;
  if (package.empty() || packages_.contains(package.sha256)) return false;
  awaited_packages_.try_emplace(
      package.sha256, AwaitedPackage{package, false, now_, now_ + kPackagePatience, Status()});
  return true;
}

std::vector<ActorId> NodeState::waiting_for(const std::string& sha256) const {
  std::vector<ActorId> waiting;
  for (const auto& [host, id] : by_host_) {
    const Actor& actor = actors_.at(id);
    if (actor.phase == Phase::kQueued && actor.spec.package.sha256 == sha256) waiting.push_back(id);
  }
  return waiting;
}

// After everything else that an event leads to.
void NodeState::settle_packages() {
  std::set<std::string> needed;
  for (const auto& [id, actor] : actors_) {
    const bool over = actor.phase == Phase::kNone || actor.phase == Phase::kEnded;
    if (!over && !actor.spec.package.empty()) needed.insert(actor.spec.package.sha256);
  }
  if (needed != needed_packages_) {
    needed_packages_ = needed;
    commands_.push_back(node_command::NeedPackages{std::move(needed)});
  }
  std::vector<AwaitedPackage> given_up;
  std::erase_if(awaited_packages_, [&](const auto& entry) {
    const AwaitedPackage& awaited = entry.second;
    if (waiting_for(entry.first).empty()) return true;
    if (!registered_ || awaited.fetching || now_ < awaited.give_up_at) return false;
    given_up.push_back(awaited);
    return true;
  });
  for (const AwaitedPackage& awaited : given_up) give_up_package(awaited);
  if (!registered_) return;
  for (auto& [sha256, awaited] : awaited_packages_) {
    if (awaited.fetching || now_ < awaited.ask_at) continue;
    send(wire::FindPackage{0, awaited.package});
    awaited.ask_at = now_ + kAskForPackageAgain;
  }
}

void NodeState::give_up_package(const AwaitedPackage& awaited) {
  for (const ActorId& id : waiting_for(awaited.package.sha256)) {
    Actor& actor = actors_.at(id);
    if (actor.cause.ok()) {
      actor.cause = error(
          Code::kUnavailable,
          "node {} could not get {}, which its job was shipped with: {}. "
          "'troupe submit --ship' brings it again",
          name_, awaited.package.to_string(),
          awaited.last.ok() ? "the head did not say which nodes have it" : awaited.last.message());
    }
    gone(actor);
  }
}

}  // namespace troupe::scheduler
