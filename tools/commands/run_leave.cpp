#include "tools/commands/run_leave.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <thread>
#include <utility>

#include "train/trainer/controller.h"
#include "train/trainer/run_access.h"
#include "train/trainer/trainer_messages.h"
#include "troupe/cluster.h"

namespace troupe::tools {
namespace {

// How long it may take to tell a run that it is to save, in seconds.
constexpr double kTellTimeoutS = 10;
// A machine that leaves: how long the controller's answers may take, and the step under way.
constexpr Duration kLeaveAnswer = std::chrono::milliseconds(700);
constexpr int kUnansweredMax = 3;
constexpr auto kLeaveTimeout = std::chrono::minutes(15);
constexpr auto kLeaveLook = std::chrono::milliseconds(10);

struct FoundController {
  Cluster cluster;
  ActorHandle<train::TrainController> handle;
  std::vector<NodeId> nodes;  // of the run's trainers
  Deadline deadline;
};

// Of the training that runs there; nothing: there is none.
Result<std::optional<FoundController>> find_controller(CommandContext& context,
                                                       ClusterOptions options,
                                                       const std::string& tool) {
  if (!options.timeout_s) options.timeout_s = kTellTimeoutS;
  const auto found = TROUPE_TRY(connect_cluster(context, options, tool));
  const auto actors = TROUPE_TRY(found->head->actors(false, found->deadline));
  const auto controller = std::ranges::find_if(actors, [](const wire::ActorInfo& actor) {
    return actor.name.starts_with(train::kControllerPrefix);
  });
  if (controller == actors.end()) return std::optional<FoundController>();
  std::vector<NodeId> nodes;
  const std::string run = controller->name.substr(std::strlen(train::kControllerPrefix)) + "/";
  for (const wire::ActorInfo& actor : actors) {
    if (actor.namespace_name == controller->namespace_name && actor.name.starts_with(run))
      nodes.push_back(actor.node_id);
  }
  Cluster cluster = TROUPE_TRY(Cluster::connect({.host = found->place.address.host,
                                                 .port = found->place.address.port,
                                                 .token = found->place.token.token,
                                                 .job_name = tool,
                                                 .namespace_name = controller->namespace_name,
                                                 .timeout = found->deadline.remaining(),
                                                 .follow_output = false}));
  const auto handle = TROUPE_TRY(cluster.get_actor<train::TrainController>(controller->name));
  return std::optional(FoundController{std::move(cluster),
                                       handle.with({.despite_state_loss = true}), std::move(nodes),
                                       found->deadline});
}

}  // namespace

std::optional<int> machine_of(const wire::NodeInfo& node, int machines) {
  const auto label = node.labels.find(train::kNodeRankLabel);
  if (label == node.labels.end()) return std::nullopt;
  const int rank = std::atoi(label->second.c_str());
  return rank >= 0 && rank < machines ? std::optional(rank) : std::nullopt;
}

Status save_and_stop_run(CommandContext& context, const std::string& address) {
  auto run = TROUPE_TRY(find_controller(context, {.address = address}, "SIGTERM"));
  if (!run) return error(Code::kNotFound, "no run has begun there");
  return run->handle.call<&train::TrainController::save_and_stop>().get(run->deadline.remaining());
}

Result<Leaving> leave_run(CommandContext& context, const ClusterOptions& cluster,
                          const NodeId& self, const std::string& tool) {
  auto run = TROUPE_TRY(find_controller(context, cluster, tool));
  if (!run) return Leaving::kNoPart;
  const auto nodes = TROUPE_TRY(run->cluster.nodes());
  const auto own = std::ranges::find(nodes, self, &wire::NodeInfo::node_id);
  const auto machine =
      own == nodes.end() ? std::nullopt : machine_of(*own, std::numeric_limits<int>::max());
  if (!machine) return Leaving::kNoPart;
  // Asked again and again: a machine that is lost meanwhile may make this one needed.
  const auto controller = run->handle.with({.timeout = kLeaveAnswer, .despite_state_loss = true});
  if (!TROUPE_TRY(run->handle.call<&train::TrainController::changes_world>().get(
          run->deadline.remaining())))
    return std::ranges::find(run->nodes, self) != run->nodes.end() ? Leaving::kFixed
                                                                   : Leaving::kNoPart;
  const Deadline deadline = Deadline::after(kLeaveTimeout);
  for (int unanswered = 0;;) {
    const auto may =
        controller.call<&train::TrainController::machine_leaves>(*machine).get(kLeaveAnswer);
    if (may.ok() && !*may) return Leaving::kNeeded;
    const auto has =
        may.ok() ? controller.call<&train::TrainController::has_machine>(*machine).get(kLeaveAnswer)
                 : Result<bool>(may.status());
    if (has.ok() && !*has) return Leaving::kGone;
    unanswered = has.ok() ? 0 : unanswered + 1;
    // It was replaced, or the run has ended and its cluster with it.
    if (unanswered == kUnansweredMax) return has.status();
    if (deadline.passed())
      return error(Code::kDeadlineExceeded, "no step ended within {} s",
                   std::chrono::seconds(kLeaveTimeout).count());
    std::this_thread::sleep_for(kLeaveLook);
  }
}

}  // namespace troupe::tools
