#include "actors/state_copy.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "troupe/spawn.h"

namespace troupe::detail {
namespace {

// A companion that does not answer for so long is given up: its node may be lost.
constexpr auto kCopyTimeout = std::chrono::seconds(3);
// With a byte a nanosecond more, as over a slow network.
constexpr auto kCopyTimePerMiB = std::chrono::milliseconds(20);
// How long a new one may take to start before another node is tried.
constexpr auto kCopyStartTimeout = std::chrono::seconds(3);
// On so many nodes, of which some may be lost and nobody knows it yet.
constexpr int kNodesTried = 3;
// How often another node is looked for where there was none.
constexpr auto kLookAgain = std::chrono::seconds(2);
constexpr const char* kRackLabel = "rack";

Duration time_for(const SavedState& state) {
  const auto mib = static_cast<int>((state.bytes.size() + state.answered.size()) >> 20);
  return kCopyTimeout + mib * kCopyTimePerMiB;
}

std::string rack_of(const std::map<std::string, std::string>& labels) {
  const auto found = labels.find(kRackLabel);
  return found == labels.end() ? "" : found->second;
}

}  // namespace

// --- the companion ------------------------------------------------------------------------------

StateCopy::StateCopy(ActorContext& context) : node_(context.node_id().to_string()) {}

Status StateCopy::keep(const CopiedState& state) {
  if (state.generation < least_generation_)
    return error(Code::kFailedPrecondition, "generation {} of the actor began with this copy",
                 least_generation_);
  least_generation_ = state.generation;
  const bool same = state.generation == kept_.generation;
  // A call that came late, and was sent again.
  if (same && state.number <= kept_.number) return {};
  wire::Bytes answered;
  if (state.answered_since) {
    if (!same || state.number != kept_.number + 1)
      return error(Code::kDataLoss, "this copy holds save {} of generation {}, not the one before",
                   kept_.number, kept_.generation);
    answered = std::move(kept_.answered);
  }
  answered.insert(answered.end(), state.answered.begin(), state.answered.end());
  kept_ = state;
  kept_.answered = std::move(answered);
  kept_.answered_since = false;
  kept_.node = node_;
  return {};
}

Result<CopiedState> StateCopy::hand_over(std::uint64_t generation) {
  if (generation < least_generation_)
    return error(Code::kFailedPrecondition, "generation {} of the actor began with this copy",
                 least_generation_);
  least_generation_ = generation;
  return kept_;
}

// --- the actor ----------------------------------------------------------------------------------

StateCopier::StateCopier(std::shared_ptr<ActorClient> client, Self self, Logger log,
                         std::function<void()> again)
    : client_(std::move(client)),
      self_(std::move(self)),
      log_(std::move(log)),
      again_(std::move(again)) {}

std::string StateCopier::name() const { return "state-copy/" + self_.id.to_string(); }

// The companion of the process before, from now on this one's alone, and what it holds. It is ended
// where it is on this node, which actor and copy would be lost with.
Result<std::optional<CopiedState>> StateCopier::take_companion() {
  looked_for_ = true;
  auto found = find<StateCopy>(
      client_, name(), {.namespace_name = self_.namespace_name, .timeout = kControlTimeout});
  if (found.status().code() == Code::kNotFound) return std::optional<CopiedState>();
  companion_ = TROUPE_TRY(std::move(found));
  auto kept = companion_->with({.timeout = kControlTimeout, .retry = true})
                  .call<&StateCopy::hand_over>(self_.generation)
                  .get(kControlTimeout);
  if (kept.status().code() == Code::kActorDied) {
    companion_.reset();
    return std::optional<CopiedState>();
  }
  CopiedState state = TROUPE_TRY(std::move(kept));
  if (state.node == self_.node_id.to_string())
    TROUPE_RETURN_IF_ERROR(end("its actor runs on its node"));
  else
    watch_companion();
  return std::optional(std::move(state));
}

Result<std::optional<SavedState>> StateCopier::take() {
  auto kept = TROUPE_TRY(take_companion());
  if (!kept || kept->generation == 0) return std::optional<SavedState>();
  log_.info("goes on with the copy of its state that node {} kept",
            NodeId::parse(kept->node).value_or(NodeId()).brief());
  return std::optional(SavedState{.version = kept->version,
                                  .type_hash = kept->type_hash,
                                  .bytes = std::move(kept->bytes),
                                  .answered = std::move(kept->answered)});
}

Status StateCopier::give(const SavedState& state, Duration timeout) {
  return companion_->with({.timeout = timeout, .inherit = false})
      .call<&StateCopy::keep>(CopiedState{.generation = self_.generation,
                                          .number = ++saves_,
                                          .version = state.version,
                                          .type_hash = state.type_hash,
                                          .bytes = state.bytes,
                                          .answered = state.answered,
                                          .answered_since = state.answered_since,
                                          .node = {}})
      .get(timeout);
}

Status StateCopier::keep(const SavedState& saved, const std::function<SavedState()>& all) {
  std::vector<NodeId> tried;
  SavedState whole;
  const SavedState* state = &saved;
  Duration timeout = time_for(saved);
  for (;;) {
    if (!companion_) {
      if (std::ssize(tried) >= kNodesTried) return {};  // the next save tries again
      TROUPE_RETURN_IF_ERROR(begin(tried));
      if (!companion_) return {};
      if (state->answered_since) {
        whole = all();
        state = &whole;
      }
      timeout = kCopyStartTimeout + time_for(*state);
    }
    const Status kept = give(*state, timeout);
    // kFailedPrecondition: this process has a successor.
    if (kept.ok() || kept.code() == Code::kFailedPrecondition) return kept;
    log_.warning("the copy of its state is given up: {}", kept.to_string());
    TROUPE_RETURN_IF_ERROR(end("it did not keep what its actor saved: " + kept.message()));
  }
}

// Another machine, another rack where that is known; the first in the order of ids behind its own.
Result<std::optional<NodeId>> StateCopier::choose_node(std::span<const NodeId> but) const {
  auto nodes = TROUPE_TRY(client_->nodes(Deadline::after(kControlTimeout)));
  std::erase_if(nodes, [&](const wire::NodeInfo& node) {
    return node.state != wire::NodeState::kAlive || node.node_id == self_.node_id ||
           std::ranges::find(but, node.node_id) != but.end();
  });
  if (nodes.empty()) return std::optional<NodeId>();
  const auto rank = [&](const wire::NodeInfo& node) {
    const std::string rack = rack_of(node.labels);
    const bool same_rack = !rack.empty() && rack == self_.rack;
    return std::tuple(same_rack, node.node_id < self_.node_id, node.node_id);
  };
  const auto best = std::ranges::min_element(
      nodes, [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
  return std::optional(best->node_id);
}

Status StateCopier::begin(std::vector<NodeId>& tried) {
  if (!looked_for_) {
    if (const auto kept = take_companion(); !kept.ok()) {
      if (!companion_) return kept.status();
      TROUPE_RETURN_IF_ERROR(end("it did not answer its actor: " + kept.status().message()));
    }
    if (companion_) return {};
  }
  if (std::chrono::steady_clock::now() < look_again_at_) return {};
  const auto node = TROUPE_TRY(choose_node(tried));
  if (!node) {
    look_again_at_ = std::chrono::steady_clock::now() + kLookAgain;
    if (!tried.empty()) return {};
    if (!std::exchange(told_alone_, true))
      log_.warning("its state has no copy: there is no other node (ActorOptions::replicas)");
    return {};
  }
  tried.push_back(*node);
  auto companion = spawn<StateCopy>(client_, {.name = name(),
                                              .num_cpus = 0,
                                              .node_affinity = *node,
                                              .owner = Owner::kActor,
                                              .namespace_name = self_.namespace_name});
  if (!companion.ok()) return companion.status();
  companion_ = std::move(*companion);
  told_alone_ = false;
  watch_companion();
  return {};
}

void StateCopier::watch_companion() {
  watch_ = watch(client_, *companion_, [again = again_](const wire::ActorInfo& info) {
    if (info.state == wire::ActorState::kDead) again();
  });
}

// With grace the head answers at once; it does not name it to anybody any more.
Status StateCopier::end(const std::string& why) {
  watch_.stop();
  const auto companion = std::exchange(companion_, std::nullopt);
  const Status ended =
      client_->kill(companion->id(), false, 1, why, Deadline::after(kControlTimeout));
  return ended.code() == Code::kNotFound ? Status() : ended;
}

}  // namespace troupe::detail
