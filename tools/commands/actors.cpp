#include "tools/commands/actors.h"

#include <memory>

#include "scheduler/policy/resources.h"
#include "tools/commands/cluster_options.h"
#include "tools/commands/describe.h"
#include "tools/commands/table.h"

namespace troupe::tools {
namespace {

// Why it is not (or was not) alive, in one line.
std::string reason_of(const wire::ActorInfo& actor) {
  if (!actor.pending_why.empty()) return actor.pending_why;
  if (actor.death.ok()) return {};
  const std::string& message = actor.death.message();
  return message.substr(0, message.find('\n'));
}

Status list_actors(CommandContext& context, const ClusterOptions& options, bool all) {
  const auto cluster = TROUPE_TRY(connect_cluster(context, options, "troupe actors"));
  const auto actors = TROUPE_TRY(cluster->head->actors(all, cluster->deadline));
  if (options.json) {
    json::Array list;
    for (const auto& actor : actors) list.push_back(to_json(actor));
    context.out << json::write(json::Object{{"actors", std::move(list)}}) << "\n";
    return {};
  }
  if (actors.empty()) {
    context.out << (all ? "No actors.\n"
                        : "No living actors; --all shows those that ended, too.\n");
    return {};
  }
  const NodeNames names(TROUPE_TRY(cluster->head->nodes(cluster->deadline)));
  const auto groups = TROUPE_TRY(cluster->head->groups(true, cluster->deadline));
  const auto supervisors = TROUPE_TRY(cluster->head->supervisors(true, cluster->deadline));
  Table table({"NAME", "NAMESPACE", "ID", "TYPE", "STATE", "GENERATION", "RESTARTS", "NODE", "PID",
               "RANK", "RESOURCES", "GROUP", "OWNER", "SUPERVISOR", "WHY"});
  for (const auto& actor : actors) {
    const std::string owner = actor.detached ? "(detached)" : actor.owner_name;
    table.add({display_name(actor), namespace_label(actor.namespace_name), actor.actor_id.brief(),
               type_name(actor), std::string(wire::actor_state_name(actor.state)),
               std::to_string(actor.generation), std::to_string(actor.restarts),
               names.of(actor.node_id), actor.pid > 0 ? std::to_string(actor.pid) : "",
               actor.rank >= 0 ? std::to_string(actor.rank) : "",
               scheduler::format_resources(actor.resources), bundle_name(actor, groups), owner,
               supervisor_name(actor, supervisors), reason_of(actor)});
  }
  table.print(context.out);
  return {};
}

}  // namespace

void add_actors_command(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<ClusterOptions>();
  auto all = std::make_shared<bool>(false);
  Command command(app, context, "actors", "Lists the actors and where they run.");
  declare_cluster_options(command, *options);
  command.flag("--all", *all, "list those that have ended, too")
      .example("troupe actors")
      .example("troupe actors --all --json")
      .run([options, all, &context] { return list_actors(context, *options, *all); });
}

}  // namespace troupe::tools
