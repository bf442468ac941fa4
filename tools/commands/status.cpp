#include "tools/commands/status.h"

#include <algorithm>
#include <array>
#include <memory>

#include "scheduler/client/jobs.h"
#include "scheduler/policy/resources.h"
#include "tools/commands/cluster_options.h"
#include "tools/commands/describe.h"
#include "tools/commands/table.h"
#include "tools/commands/work_words.h"

namespace troupe::tools {
namespace {

// Everything but dead actors, of which there may be many.
constexpr std::array kStates = {wire::ActorState::kAlive, wire::ActorState::kStarting,
                                wire::ActorState::kRestarting, wire::ActorState::kPending,
                                wire::ActorState::kDead};

struct Picture {
  std::vector<wire::NodeInfo> nodes;
  std::vector<wire::ActorInfo> actors;
  std::vector<wire::ClientWork> work;
  std::vector<wire::JobInfo> jobs;  // that have not ended
  wire::Resources total;
  wire::Resources used;
  std::size_t alive_nodes = 0;
  std::size_t jobs_in(wire::JobState state) const {
    return static_cast<std::size_t>(std::ranges::count(jobs, state, &wire::JobInfo::state));
  }
  std::size_t count(wire::ActorState state) const {
    return static_cast<std::size_t>(std::count_if(
        actors.begin(), actors.end(), [state](const auto& a) { return a.state == state; }));
  }
};

Result<Picture> take_picture(ClusterConnection& cluster) {
  Picture picture{.nodes = TROUPE_TRY(cluster.head->nodes(cluster.deadline)),
                  .actors = TROUPE_TRY(cluster.head->actors(true, cluster.deadline)),
                  .work = TROUPE_TRY(cluster.head->work(cluster.deadline)),
                  .jobs = TROUPE_TRY(scheduler::list_jobs(*cluster.head, false, cluster.deadline))};
  for (const auto& node : picture.nodes) {
    if (node.state == wire::NodeState::kDead) continue;
    ++picture.alive_nodes;
    scheduler::add(picture.total, node.total);
    scheduler::add(picture.used, in_use(node));
  }
  return picture;
}

void print_json(CommandContext& context, const ClusterPlace& place, const Picture& picture) {
  json::Object actors;
  for (const auto state : kStates) {
    actors[wire::actor_state_name(state)] = picture.count(state);
  }
  wire::WorkTotals work;
  for (const auto& client : picture.work) work.add(client.work);
  json::Object tasks{{"running", work.tasks_running}, {"waiting", work.tasks_waiting}};
  json::Object pipelines{{"running", work.pipelines}, {"held_up", work.pipelines_held_up}};
  context.out << json::write(json::Object{
                     {"address", place.address.host},
                     {"port", place.address.port},
                     {"nodes", json::Object{{"alive", picture.alive_nodes},
                                            {"dead", picture.nodes.size() - picture.alive_nodes}}},
                     {"resources", json::Object{{"total", to_json(picture.total)},
                                                {"used", to_json(picture.used)}}},
                     {"jobs", json::Object{{"running", picture.jobs_in(wire::JobState::kRunning)},
                                           {"pending", picture.jobs_in(wire::JobState::kPending)}}},
                     {"actors", std::move(actors)},
                     {"tasks", std::move(tasks)},
                     {"pipelines", std::move(pipelines)}})
              << "\n";
}

void print_pending(CommandContext& context, const Picture& picture) {
  constexpr std::size_t kShown = 5;
  std::size_t shown = 0;
  for (const auto& actor : picture.actors) {
    if (actor.state != wire::ActorState::kPending || shown == kShown) continue;
    ++shown;
    context.out << fmt::format("  {} waits: {}\n", printable(display_name(actor)),
                               printable(actor.pending_why));
  }
  const std::size_t all = picture.count(wire::ActorState::kPending);
  if (all > shown) {
    context.out << fmt::format("  and {} more ('troupe actors' shows them)\n", all - shown);
  }
}

Status show_status(CommandContext& context, const ClusterOptions& options) {
  const auto cluster = TROUPE_TRY(connect_cluster(context, options, "troupe status"));
  const auto picture = TROUPE_TRY(take_picture(*cluster));
  const auto& place = cluster->place;
  if (options.json) {
    print_json(context, place, picture);
    return {};
  }
  const std::string address = scheduler::format_address(place.address.host, place.address.port);
  context.out << fmt::format("Head       {} (from {})\n", address, place.source);
  const std::size_t dead = picture.nodes.size() - picture.alive_nodes;
  context.out << fmt::format("Nodes      {} alive{}\n", picture.alive_nodes,
                             dead > 0 ? fmt::format(", {} dead", dead) : "");
  for (const auto& [name, total] : picture.total) {
    context.out << fmt::format("{:<10} {} in use\n", printable(name),
                               format_use(name, scheduler::amount_of(picture.used, name), total));
  }
  const std::size_t running = picture.jobs_in(wire::JobState::kRunning),
                    pending = picture.jobs_in(wire::JobState::kPending);
  if (running + pending > 0) {
    context.out << fmt::format("Jobs       {} running{}\n", running,
                               pending > 0 ? fmt::format(", {} pending", pending) : "");
  }
  std::string states;
  for (const auto state : kStates) {
    if (const auto count = picture.count(state); count > 0) {
      states +=
          fmt::format("{}{} {}", states.empty() ? "" : ", ", count, wire::actor_state_name(state));
    }
  }
  context.out << fmt::format("Actors     {}\n", states.empty() ? "none" : states);
  print_pending(context, picture);
  context.out << summary_of_work(picture.work);
  if (picture.alive_nodes == 0) {
    context.out << fmt::format("To add a node: troupe worker --address {}\n", address);
  }
  return {};
}

}  // namespace

void add_status_command(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<ClusterOptions>();
  Command command(app, context, "status", "Summarizes a cluster in a few lines.");
  declare_cluster_options(command, *options);
  command.example("troupe status")
      .example("troupe status --address 10.0.0.2:6379 --json")
      .run([options, &context] { return show_status(context, *options); });
}

}  // namespace troupe::tools
