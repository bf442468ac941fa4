#include "tools/commands/groups.h"

#include <memory>

#include "scheduler/policy/resources.h"
#include "tools/commands/cluster_options.h"
#include "tools/commands/describe.h"
#include "tools/commands/table.h"

namespace troupe::tools {
namespace {

constexpr std::size_t kBundlesShown = 4;

// "0: CPU 2 on n1, 1: CPU 2 on n2, and 6 more"
std::string bundles_of(const wire::PlacementGroupInfo& group, const NodeNames& names) {
  const bool placed = group.state == wire::PlacementGroupState::kCreated ||
                      group.state == wire::PlacementGroupState::kPreparing;
  std::string text;
  for (std::size_t i = 0; i < group.bundles.size() && i < kBundlesShown; ++i) {
    const wire::BundleInfo& bundle = group.bundles[i];
    text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", i,
                        scheduler::format_resources(bundle.resources));
    if (placed) text += " on " + names.of(bundle.node_id);
  }
  if (group.bundles.size() > kBundlesShown) {
    text += fmt::format(", and {} more", group.bundles.size() - kBundlesShown);
  }
  return text;
}

Status list_groups(CommandContext& context, const ClusterOptions& options, bool all) {
  const auto cluster = TROUPE_TRY(connect_cluster(context, options, "troupe groups"));
  const auto groups = TROUPE_TRY(cluster->head->groups(all, cluster->deadline));
  if (options.json) {
    json::Array list;
    for (const auto& group : groups) list.push_back(to_json(group));
    context.out << json::write(json::Object{{"groups", std::move(list)}}) << "\n";
    return {};
  }
  if (groups.empty()) {
    context.out << (all ? "No placement groups.\n"
                        : "No placement groups; --all shows those that were removed, too.\n");
    return {};
  }
  const NodeNames names(TROUPE_TRY(cluster->head->nodes(cluster->deadline)));
  Table table({"NAME", "ID", "STATE", "STRATEGY", "PRIORITY", "BUNDLES", "WHY"});
  for (const auto& group : groups) {
    table.add({group.name, group.group_id.brief(),
               std::string(wire::placement_group_state_name(group.state)),
               std::string(wire::placement_strategy_name(group.strategy)),
               std::to_string(group.priority), bundles_of(group, names), group.why});
  }
  table.print(context.out);
  return {};
}

}  // namespace

void add_groups_command(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<ClusterOptions>();
  auto all = std::make_shared<bool>(false);
  Command command(app, context, "groups",
                  "Lists the placement groups and where their bundles are.");
  declare_cluster_options(command, *options);
  command.flag("--all", *all, "list those that were removed, too")
      .example("troupe groups")
      .example("troupe groups --all --json")
      .run([options, all, &context] { return list_groups(context, *options, *all); });
}

}  // namespace troupe::tools
