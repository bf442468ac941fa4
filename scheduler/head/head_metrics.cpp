#include "scheduler/head/head_metrics.h"

#include <algorithm>
#include <set>
#include <type_traits>
#include <utility>

#include "scheduler/control/event_kinds.h"
#include "scheduler/policy/resources.h"

namespace troupe::scheduler {
namespace {

// "Heartbeat", from what the compiler calls the type.
template <typename Message>
std::string_view name_of_type() {
  std::string_view name = __PRETTY_FUNCTION__;
  name = name.substr(name.find("Message = ") + 10);
  name = name.substr(0, name.find_first_of(";]"));
  return name.substr(name.rfind(':') + 1);
}

template <std::size_t... I>
std::array<std::string_view, kMessageTypes> message_names(std::index_sequence<I...>) {
  return {name_of_type<std::variant_alternative_t<I, wire::ControlMessage>>()...};
}

// "SIGKILL" of "killed by signal 9 (SIGKILL)"; the number where it has no name.
std::string signal_name(const wire::ExitStatus& exit) {
  const std::string text = exit.to_string();
  const auto open = text.find('(');
  const auto close = text.rfind(')');
  if (open == std::string::npos || close == std::string::npos || close < open) {
    return std::to_string(exit.signal);
  }
  return text.substr(open + 1, close - open - 1);
}

const char* node_state(const NodeRecord& node) {
  if (node.info.state == wire::NodeState::kDead) return "dead";
  if (node.peer == 0) return "disconnected";
  return node.info.state == wire::NodeState::kDraining ? "draining" : "alive";
}

double units(std::int64_t amount) {
  return static_cast<double>(amount) / static_cast<double>(wire::kResourceUnit);
}

}  // namespace

// --- counting ------------------------------------------------------------------------------------

void HeadMetrics::begin(const HeadState& state, TimePoint now) {
  for (const auto& [id, actor] : state.actors()) {
    if (actor.queue_order != 0) waiting_since_.emplace(id, now);
  }
}

void HeadMetrics::received(const wire::ControlMessage& message, std::size_t bytes,
                           const HeadState& state) {
  ++figures_.received[message.index()];
  figures_.received_bytes += bytes;
  if (const auto* beat = get_if<wire::Heartbeat>(&message)) {
    if (beat->usage && state.nodes().contains(beat->node_id)) {
      usage_[beat->node_id] = *beat->usage;
    }
  } else if (const auto* gone = get_if<wire::ActorExited>(&message)) {
    exited(*gone, state);
  }
}

// Only what is believed of a present process; a second report is none.
void HeadMetrics::exited(const wire::ActorExited& exited, const HeadState& state) {
  const auto found = state.actors().find(exited.actor_id);
  if (found == state.actors().end()) return;
  const ActorRecord& actor = found->second;
  if (!actor.has_process() || actor.info.generation != exited.generation) return;
  std::string cause;
  std::string signal;
  if (exited.constructor_failed) {
    cause = "constructor_failed";
  } else if (actor.stopping) {
    cause = "stopped";
  } else if (exited.cause.code() == Code::kAborted) {
    cause = "ended_by_node";
  } else if (!exited.cause.ok()) {
    cause = "start_failed";
  } else if (exited.exit.signal != 0) {
    cause = "signal";
    signal = signal_name(exited.exit);
  } else {
    cause = exited.exit.exit_code == 0 ? "exit_success" : "exit_failure";
  }
  ++figures_.exits[{cause, signal}];
}

void HeadMetrics::sent(const wire::ControlMessage& message, std::size_t bytes) {
  ++figures_.sent[message.index()];
  figures_.sent_bytes += bytes;
}

// From the asking, or the end of a back-off, until it has a place.
void HeadMetrics::waits(const ActorChanged& changed, TimePoint now) {
  const ActorId& id = changed.info.actor_id;
  if (changed.queue_order != 0) {
    waiting_since_.emplace(id, now);
    return;
  }
  const auto since = waiting_since_.find(id);
  if (since == waiting_since_.end()) return;
  if (changed.info.state != wire::ActorState::kDead) {
    figures_.pending_wait.observe(seconds(now - since->second));
  }
  waiting_since_.erase(since);
}

void HeadMetrics::decided(std::span<const Delta> deltas, Duration took, TimePoint now) {
  figures_.decision_seconds.observe(seconds(took));
  std::set<NodeId> died;
  for (const Delta& delta : deltas) {
    if (const auto* logged = get_if<EventLogged>(&delta)) {
      ++figures_.events[logged->event.kind];
      const std::string& kind = logged->event.kind;
      if (kind == "node_died") died.insert(logged->event.node_id);
      const bool restarts = kind == "actor_restarting";
      if (restarts) ++figures_.restarts;
      // A node's death is decided together with what it means for its actors.
      if ((restarts || kind == "actor_died") && died.contains(logged->event.node_id)) {
        ++figures_.exits[{"node_lost", ""}];
      }
    } else if (const auto* created = get_if<ActorCreated>(&delta)) {
      waiting_since_.emplace(created->spec.actor_id, now);
    } else if (const auto* changed = get_if<ActorChanged>(&delta)) {
      waits(*changed, now);
    } else if (const auto* forgotten = get_if<NodeForgotten>(&delta)) {
      usage_.erase(forgotten->node_id);
    } else if (const auto* gone = get_if<ActorForgotten>(&delta)) {
      waiting_since_.erase(gone->actor_id);
    }
  }
}

void HeadMetrics::journal(bool rewrite, bool ok, Duration took) {
  figures_.journal_seconds.observe(seconds(took));
  figures_.journal_failing = !ok;
  if (!ok) {
    ++figures_.journal_failures;
  } else if (rewrite) {
    ++figures_.journal_rewrites;
  } else {
    ++figures_.journal_syncs;
  }
}

HeadFigures HeadMetrics::figures(const HeadState& state, std::uint64_t connections,
                                 std::uint64_t journal_bytes, TimePoint now) const {
  HeadFigures figures = figures_;
  figures.connections = connections;
  figures.journal_bytes = journal_bytes;
  figures.kept_bytes = state.kept_bytes();
  figures.kept_bytes_max = state.config().kept_bytes_max;
  for (const char* name : {"alive", "draining", "disconnected", "dead"}) {
    figures.nodes_by_state[name] = 0;
  }
  for (const auto& [id, node] : state.nodes()) {
    ++figures.nodes_by_state[node_state(node)];
    if (node.info.state == wire::NodeState::kDead) continue;
    HeadFigures::Node entry;
    entry.name = node.info.name;
    entry.connected = node.peer != 0;
    entry.heartbeat_age_s = seconds(std::max(now - node.last_heard, Duration::zero()));
    entry.total = entry.leased = node.info.total;
    subtract(entry.leased, node.info.available);
    if (const auto usage = usage_.find(id); usage != usage_.end()) entry.usage = usage->second;
    figures.nodes.push_back(std::move(entry));
  }
  for (const auto actor_state :
       {wire::ActorState::kPending, wire::ActorState::kStarting, wire::ActorState::kAlive,
        wire::ActorState::kRestarting, wire::ActorState::kDead}) {
    figures.actors_by_state[std::string(wire::actor_state_name(actor_state))] = 0;
  }
  std::set<std::uint64_t> requests;
  for (const auto& [id, actor] : state.actors()) {
    ++figures.actors_by_state[std::string(wire::actor_state_name(actor.info.state))];
    if (actor.queue_order == 0) continue;
    ++figures.pending_actors;
    requests.insert(actor.queue_order);
  }
  figures.pending_requests = requests.size();
  figures.work_done = state.work_done();
  for (const auto& [id, client] : state.clients()) {
    if (client.peer != 0) figures.work.add(client.work);
  }
  for (const auto& [id, since] : waiting_since_) {
    figures.pending_oldest_s = std::max(figures.pending_oldest_s, seconds(now - since));
  }
  return figures;
}

// --- the page ------------------------------------------------------------------------------------

namespace {

void write_counts(PrometheusText& text, std::string_view label, const HeadFigures::Counts& counts) {
  for (const auto& [name, count] : counts) {
    text.sample({{label, name}}, static_cast<double>(count));
  }
}

void write_messages(PrometheusText& text, const std::array<std::uint64_t, kMessageTypes>& counts) {
  static const auto kNames = message_names(std::make_index_sequence<kMessageTypes>());
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] == 0) continue;
    text.sample({{"type", std::string(kNames[i])}}, static_cast<double>(counts[i]));
  }
}

void write_resources(PrometheusText& text, const HeadFigures& figures) {
  wire::Resources total;
  wire::Resources leased;
  for (const auto& node : figures.nodes) {
    if (!node.connected) continue;
    add(total, node.total);
    add(leased, node.leased);
  }
  text.gauge("troupe_resource_capacity",
             "What the connected nodes offer, by resource; memory in bytes.");
  for (const auto& [name, amount] : total) text.sample({{"resource", name}}, units(amount));
  text.gauge("troupe_resource_leased", "What of it actors hold.");
  for (const auto& [name, amount] : total) {
    text.sample({{"resource", name}}, units(amount_of(leased, name)));
  }
}

void write_nodes(PrometheusText& text, const HeadFigures& figures) {
  text.gauge("troupe_nodes", "Nodes by state.");
  write_counts(text, "state", figures.nodes_by_state);
  write_resources(text, figures);
  const auto each = [&](auto&& value) {
    for (const auto& node : figures.nodes) value(node);
  };
  text.gauge("troupe_node_up", "Whether a node that is not dead is connected.");
  each([&](const auto& n) { text.sample({{"node", n.name}}, n.connected ? 1 : 0); });
  text.gauge("troupe_node_heartbeat_age_seconds", "How long ago the head heard of the node.");
  each([&](const auto& n) { text.sample({{"node", n.name}}, n.heartbeat_age_s); });
  text.gauge("troupe_node_resource_capacity", "What the node offers; memory in bytes.");
  each([&](const auto& n) {
    for (const auto& [name, amount] : n.total) {
      text.sample({{"node", n.name}, {"resource", name}}, units(amount));
    }
  });
  text.gauge("troupe_node_resource_leased", "What of it actors hold.");
  each([&](const auto& n) {
    for (const auto& [name, amount] : n.total) {
      text.sample({{"node", n.name}, {"resource", name}}, units(amount_of(n.leased, name)));
    }
  });
  const auto usage = [&](auto&& value) {
    each([&](const auto& n) {
      if (n.usage) text.sample({{"node", n.name}}, value(*n.usage));
    });
  };
  text.counter("troupe_node_cpu_busy_seconds_total",
               "What all CPUs of the node's machine have worked since it was booted.");
  usage([](const wire::NodeUsage& u) { return static_cast<double>(u.cpu_busy_us) * 1e-6; });
  text.gauge("troupe_node_memory_used_bytes",
             "Memory of the node's machine, or of its control group, that is in use.");
  usage([](const wire::NodeUsage& u) { return static_cast<double>(u.memory_used_bytes); });
  text.gauge("troupe_node_memory_size_bytes", "How much there is of it.");
  usage([](const wire::NodeUsage& u) { return static_cast<double>(u.memory_total_bytes); });
  text.gauge("troupe_node_actor_processes", "Processes of actors on the node.");
  usage([](const wire::NodeUsage& u) { return static_cast<double>(u.processes); });
}

void write_actors(PrometheusText& text, const HeadFigures& figures) {
  text.gauge("troupe_actors", "Actors by state; of the dead only the last ones are remembered.");
  write_counts(text, "state", figures.actors_by_state);
  text.counter("troupe_actor_restarts_total", "Processes of actors that are replaced by new ones.");
  text.sample(static_cast<double>(figures.restarts));
  text.counter("troupe_actor_exits_total",
               "Ends of actors' processes by cause, with the signal where that was it.");
  for (const auto& [cause, count] : figures.exits) {
    text.sample({{"cause", cause.first}, {"signal", cause.second}}, static_cast<double>(count));
  }
  text.gauge("troupe_pending_actors", "Actors that wait for resources.");
  text.sample(static_cast<double>(figures.pending_actors));
  text.gauge("troupe_pending_requests", "Requests that wait: gangs, and actors asked for alone.");
  text.sample(static_cast<double>(figures.pending_requests));
  text.gauge("troupe_pending_oldest_seconds", "How long the one that waits longest has waited.");
  text.sample(figures.pending_oldest_s);
  text.histogram("troupe_pending_wait_seconds", "How long actors waited for resources.",
                 figures.pending_wait);
  text.counter("troupe_events_total", "Events by kind, as 'troupe events' shows them.");
  for (const auto& [kind, count] : figures.events) {
    text.sample({{"kind", kind}, {"severity", std::string(severity_name(severity_of(kind)))}},
                static_cast<double>(count));
  }
}

// As drivers and actors say of themselves, up to a second late.
void write_work(PrometheusText& text, const HeadFigures& figures) {
  const auto gauge = [&](const char* name, const char* help, std::uint64_t value) {
    text.gauge(name, help);
    text.sample(static_cast<double>(value));
  };
  const auto counter = [&](const char* name, const char* help, std::uint64_t value) {
    text.counter(name, help);
    text.sample(static_cast<double>(value));
  };
  text.gauge("troupe_tasks", "Tasks that were submitted and have not ended.");
  text.sample({{"state", "waiting"}}, static_cast<double>(figures.work.tasks_waiting));
  text.sample({{"state", "running"}}, static_cast<double>(figures.work.tasks_running));
  text.gauge("troupe_task_workers", "Workers of tasks: those that run, and those asked for.");
  text.sample({{"state", "running"}}, static_cast<double>(figures.work.task_workers));
  text.sample({{"state", "awaited"}}, static_cast<double>(figures.work.task_workers_awaited));
  counter("troupe_tasks_done_total", "Tasks that have ended, however.", figures.work_done.tasks);
  counter("troupe_tasks_failed_total", "Of them those that failed or were cancelled.",
          figures.work_done.tasks_failed);
  counter("troupe_tasks_run_again_total", "Times that a task was run again as its worker died.",
          figures.work_done.tasks_again);
  gauge("troupe_pool_calls_waiting", "Calls that wait for a member of a pool.",
        figures.work.pool_calls_waiting);
  gauge("troupe_pipelines", "Pipelines that run.", figures.work.pipelines);
  gauge("troupe_pipelines_held_up", "Those that are full, since a stage is slower than the others.",
        figures.work.pipelines_held_up);
  gauge("troupe_pipeline_items", "Items under way in pipelines.", figures.work.pipeline_items);
  counter("troupe_pipeline_items_done_total", "Items that have come out of pipelines.",
          figures.work_done.pipeline_items);
}

// Under the names that every Prometheus client library gives them.
void write_process(PrometheusText& text, const ProcessFigures& process) {
  text.counter("process_cpu_seconds_total", "CPU time of the head's process.");
  text.sample(process.cpu_s);
  text.gauge("process_resident_memory_bytes", "Memory of the head's process.");
  text.sample(static_cast<double>(process.resident_bytes));
  text.gauge("process_start_time_seconds", "When the head's process started, since 1970.");
  text.sample(process.start_unix_s);
}

void write_head(PrometheusText& text, const HeadFigures& figures) {
  text.gauge("troupe_build_info", "The head's version; always 1.");
  text.sample({{"version", figures.version}}, 1);
  text.gauge("troupe_head_connections", "Control connections: nodes, drivers, actors, tools.");
  text.sample(static_cast<double>(figures.connections));
  text.counter("troupe_messages_received_total", "Messages to the head by type.");
  write_messages(text, figures.received);
  text.counter("troupe_messages_sent_total", "Messages of the head by type.");
  write_messages(text, figures.sent);
  text.counter("troupe_message_received_bytes_total", "Bytes of the messages to the head.");
  text.sample(static_cast<double>(figures.received_bytes));
  text.counter("troupe_message_sent_bytes_total", "Bytes of the messages of the head.");
  text.sample(static_cast<double>(figures.sent_bytes));
  text.gauge("troupe_journal_bytes", "Size of the head's journal.");
  text.sample(static_cast<double>(figures.journal_bytes));
  text.gauge("troupe_journal_kept_bytes",
             "What living actors, placement groups, supervisors and jobs take of the journal.");
  text.sample(static_cast<double>(figures.kept_bytes));
  text.gauge("troupe_journal_kept_bytes_max",
             "What they may take: beyond it new ones are refused.");
  text.sample(static_cast<double>(figures.kept_bytes_max));
  text.counter("troupe_journal_syncs_total", "Appends to the journal that were made durable.");
  text.sample(static_cast<double>(figures.journal_syncs));
  text.counter("troupe_journal_rewrites_total", "Times the journal was written anew as a whole.");
  text.sample(static_cast<double>(figures.journal_rewrites));
  text.counter("troupe_journal_failures_total", "Times the journal could not be written.");
  text.sample(static_cast<double>(figures.journal_failures));
  text.gauge("troupe_journal_failing", "1 while the journal cannot be written.");
  text.sample(figures.journal_failing ? 1 : 0);
  text.histogram("troupe_journal_write_seconds", "How long a write and its sync took.",
                 figures.journal_seconds);
  text.histogram("troupe_head_decision_seconds", "How long the head took to decide on an event.",
                 figures.decision_seconds);
  text.histogram("troupe_head_loop_lag_seconds",
                 "How long work that was ready waited for the head's loop.", figures.loop_lag);
}

}  // namespace

std::string prometheus_page(const HeadFigures& figures, const ProcessFigures& process) {
  PrometheusText text;
  write_process(text, process);
  write_head(text, figures);
  write_nodes(text, figures);
  write_actors(text, figures);
  write_work(text, figures);
  return text.take();
}

}  // namespace troupe::scheduler
