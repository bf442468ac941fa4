#include "tools/commands/events.h"

#include <algorithm>
#include <memory>

#include "runtime/base/clock.h"
#include "tools/commands/cluster_options.h"
#include "tools/commands/describe.h"
#include "tools/commands/table.h"

namespace troupe::tools {
namespace {

constexpr std::uint32_t kEventsPerRequest = 1000;

// The last `last` events (0: all) after sequence number `after`, in order.
Result<std::vector<wire::EventRecord>> read_events(scheduler::HeadClient& head, std::uint64_t after,
                                                   std::uint64_t last, Deadline deadline) {
  std::vector<wire::EventRecord> events;
  for (;;) {
    auto page = TROUPE_TRY(head.events(after, kEventsPerRequest, deadline));
    if (page.empty()) break;
    after = page.back().sequence;
    const bool more = page.size() == kEventsPerRequest;
    std::move(page.begin(), page.end(), std::back_inserter(events));
    if (!more) break;
  }
  if (last > 0 && events.size() > last) {
    events.erase(events.begin(), events.end() - static_cast<std::ptrdiff_t>(last));
  }
  return events;
}

struct EventFlags {
  ClusterOptions cluster;
  std::uint64_t after = 0;
  std::uint64_t last = 0;
};

Status list_events(CommandContext& context, const EventFlags& flags) {
  const auto cluster = TROUPE_TRY(connect_cluster(context, flags.cluster, "troupe events"));
  const auto events =
      TROUPE_TRY(read_events(*cluster->head, flags.after, flags.last, cluster->deadline));
  if (flags.cluster.json) {
    json::Array list;
    for (const auto& event : events) list.push_back(to_json(event));
    context.out << json::write(json::Object{{"events", std::move(list)}}) << "\n";
    return {};
  }
  if (events.empty()) {
    context.out << "No events.\n";
    return {};
  }
  const NodeNames names(TROUPE_TRY(cluster->head->nodes(cluster->deadline)));
  Table table({"NUMBER", "TIME", "EVENT", "NODE", "ACTOR", "TEXT"});
  for (const auto& event : events) {
    table.add({std::to_string(event.sequence), format_unix_time_us(event.unix_time_us), event.kind,
               names.of(event.node_id), event.actor_id.empty() ? "" : event.actor_id.brief(),
               event.text});
  }
  table.print(context.out);
  return {};
}

}  // namespace

void add_events_command(CLI::App& app, CommandContext& context) {
  auto flags = std::make_shared<EventFlags>();
  Command command(app, context, "events", "What happened in the cluster, oldest first.");
  declare_cluster_options(command, flags->cluster);
  command.option("--after", flags->after, "NUMBER", "only those after this one")
      .option("--last", flags->last, "COUNT", "only the last ones")
      .example("troupe events")
      .example("troupe events --last 20")
      .example("troupe events --after 117 --json")
      .run([flags, &context] { return list_events(context, *flags); });
}

}  // namespace troupe::tools
