#include "tools/commands/events.h"

#include <algorithm>
#include <memory>

#include "runtime/base/clock.h"
#include "scheduler/control/event_kinds.h"
#include "tools/commands/cluster_options.h"
#include "tools/commands/describe.h"
#include "tools/commands/table.h"

namespace troupe::tools {
namespace {

constexpr std::uint32_t kEventsPerRequest = 1000;
// Without a starting point the head gives the newest ones: as many as it may ever keep.
constexpr std::uint32_t kEventsAtOnce = 100'000;

struct EventFlags {
  ClusterOptions cluster;
  std::uint64_t after = 0;
  std::uint64_t last = 0;
  std::string severity = "info";
};

// "info", "warning", "error": at least so grave.
Result<scheduler::Severity> least_severity(const std::string& name) {
  for (const auto severity :
       {scheduler::Severity::kInfo, scheduler::Severity::kWarning, scheduler::Severity::kError}) {
    if (name == scheduler::severity_name(severity)) return severity;
  }
  return error(Code::kInvalidArgument, "--severity: '{}' is none of info, warning, error", name);
}

// Every kind there is, for --help.
std::string list_of_kinds() {
  std::string text = "Kinds of events:";
  for (const auto& kind : scheduler::kEventKinds) {
    text += fmt::format("\n  {:<18} {:<8} {}", kind.name, scheduler::severity_name(kind.severity),
                        kind.meaning);
  }
  return text;
}

Status list_events(CommandContext& context, const EventFlags& flags) {
  const auto severity = TROUPE_TRY(least_severity(flags.severity));
  const auto cluster = TROUPE_TRY(connect_cluster(context, flags.cluster, "troupe events"));
  auto events = TROUPE_TRY(read_events(*cluster->head, flags.after, cluster->deadline));
  std::erase_if(events, [severity](const wire::EventRecord& event) {
    return scheduler::severity_of(event.kind) < severity;
  });
  if (flags.last > 0 && events.size() > flags.last) {
    events.erase(events.begin(), events.end() - static_cast<std::ptrdiff_t>(flags.last));
  }
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
  Table table({"NUMBER", "TIME", "SEVERITY", "EVENT", "NODE", "ACTOR", "TEXT"});
  for (const auto& event : events) {
    table.add({std::to_string(event.sequence), format_unix_time_us(event.unix_time_us),
               std::string(scheduler::severity_name(scheduler::severity_of(event.kind))),
               event.kind, names.of(event.node_id),
               event.actor_id.empty() ? "" : event.actor_id.brief(), event.text});
  }
  table.print(context.out);
  return {};
}

}  // namespace

Result<std::vector<wire::EventRecord>> read_events(scheduler::HeadClient& head, std::uint64_t after,
                                                   Deadline deadline) {
  std::vector<wire::EventRecord> events;
  for (;;) {
    const std::uint32_t wanted = after == 0 ? kEventsAtOnce : kEventsPerRequest;
    auto page = TROUPE_TRY(head.events(after, wanted, deadline));
    if (page.empty()) break;
    after = page.back().sequence;
    const bool more = page.size() == wanted;
    std::move(page.begin(), page.end(), std::back_inserter(events));
    if (!more) break;
  }
  return events;
}

void add_events_command(CLI::App& app, CommandContext& context) {
  auto flags = std::make_shared<EventFlags>();
  Command command(app, context, "events", "Lists what happened in a cluster, oldest first.");
  declare_cluster_options(command, flags->cluster);
  command
      .option("--after", flags->after, "NUMBER",
              "only events with a larger number (default 0: all that the head keeps)")
      .option("--last", flags->last, "COUNT", "only the last COUNT of them (default: all)")
      .option("--severity", flags->severity, "LEVEL",
              "only events of this severity or a higher one: info (default), warning, error")
      .example("troupe events")
      .example("troupe events --last 20")
      .example("troupe events --severity warning")
      .example("troupe events --after 117 --json")
      .note(list_of_kinds())
      .run([flags, &context] { return list_events(context, *flags); });
}

}  // namespace troupe::tools
