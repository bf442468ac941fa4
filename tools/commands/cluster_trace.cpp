#include "tools/commands/cluster_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "scheduler/control/event_kinds.h"
#include "tools/commands/describe.h"

namespace troupe::tools {
namespace {

constexpr int kHeadProcess = 1;
// The thread of a process that is no actor's: the head's events, a node's own life.
constexpr int kOwnThread = 0;

class ClusterTrace {
 public:
  ClusterTrace(const std::vector<wire::NodeInfo>& nodes, const std::vector<wire::ActorInfo>& actors,
               std::int64_t begin_us, std::int64_t now_us)
      : names_(nodes), begin_us_(begin_us), now_us_(now_us) {
    for (const auto& actor : actors) actors_.emplace(actor.actor_id, &actor);
    trace_.name_process(kHeadProcess, "head");
    trace_.name_thread({kHeadProcess, kOwnThread}, "events");
  }

  void take(const wire::EventRecord& event);
  void show_the_rest(const std::vector<wire::NodeInfo>& nodes,
                     const std::vector<wire::ActorInfo>& actors);
  void show_tasks(const std::vector<wire::ClientWork>& work);
  void show_moves(const MovesOfNode& of);
  json::Value finish();

 private:
  // What an actor or a node is doing.
  struct Doing {
    std::string name;
    std::string category;
    TraceEvents::Track track;
    std::int64_t since_us = 0;
    std::uint64_t generation = 0;
  };

  int process_of(const NodeId& id);
  TraceEvents::Track new_track(int process, const std::string& name);
  TraceEvents::Track track_of(const ActorId& id, const NodeId& node);
  std::string label_of(const ActorId& id) const;
  void on_actor(const wire::EventRecord& event);
  void on_node(const wire::EventRecord& event);
  void begin(const ActorId& id, Doing doing);
  void end(const ActorId& id, std::int64_t time_us, const std::string& why, bool goes_on = false);
  void end_node(const NodeId& id, std::int64_t time_us, const std::string& why,
                bool goes_on = false);

  const NodeNames names_;
  const std::int64_t begin_us_;
  const std::int64_t now_us_;
  TraceEvents trace_;
  std::map<ActorId, const wire::ActorInfo*> actors_;
  std::map<NodeId, int> processes_;
  std::map<ActorId, int> threads_;
  int more_tracks_ = 0;  // that are no actor's
  std::set<std::pair<int, int>> named_;
  std::map<ActorId, Doing> doing_;
  std::set<ActorId> seen_;
  std::map<NodeId, std::int64_t> up_since_;
  std::set<NodeId> seen_nodes_;
};

int ClusterTrace::process_of(const NodeId& id) {
  const auto [entry, added] =
      processes_.emplace(id, kHeadProcess + 1 + static_cast<int>(processes_.size()));
  if (added) {
    trace_.name_process(entry->second, fmt::format("node {}", names_.of(id)));
    trace_.name_thread({entry->second, kOwnThread}, "node");
  }
  return entry->second;
}

std::string ClusterTrace::label_of(const ActorId& id) const {
  const auto actor = actors_.find(id);
  if (actor == actors_.end()) return fmt::format("actor {}", id.brief());
  const std::string name = display_name(*actor->second);
  return actor->second->name.empty() ? fmt::format("{} {}", name, id.brief()) : name;
}

TraceEvents::Track ClusterTrace::track_of(const ActorId& id, const NodeId& node) {
  const int thread = threads_.emplace(id, 1 + static_cast<int>(threads_.size())).first->second;
  const TraceEvents::Track track{node.empty() ? kHeadProcess : process_of(node), thread};
  if (named_.emplace(track.process, track.thread).second) trace_.name_thread(track, label_of(id));
  return track;
}

// Below those of actors.
TraceEvents::Track ClusterTrace::new_track(int process, const std::string& name) {
  constexpr int kAboveActors = 1'000'000;
  const TraceEvents::Track track{process, kAboveActors + more_tracks_++};
  trace_.name_thread(track, name);
  return track;
}

// A worker has one after the other; one that waited there behind another begins with that one's
// end.
void ClusterTrace::show_tasks(const std::vector<wire::ClientWork>& work) {
  struct Task {
    const wire::TaskSpan* span;
    const wire::ClientWork* owner;
  };
  std::map<ActorId, std::vector<Task>> of_workers;
  for (const auto& client : work) {
    for (const auto& tasks : client.work.tasks) {
      for (const auto& span : tasks.last) of_workers[span.worker].push_back({&span, &client});
    }
  }
  for (auto& [worker, tasks] : of_workers) {
    std::sort(tasks.begin(), tasks.end(), [](const Task& a, const Task& b) {
      return a.span->end_unix_us < b.span->end_unix_us;
    });
    const auto actor = actors_.find(worker);
    const bool placed = actor != actors_.end() && !actor->second->node_id.empty();
    const auto track = new_track(placed ? process_of(actor->second->node_id) : kHeadProcess,
                                 fmt::format("tasks of {}", label_of(worker)));
    std::int64_t before = 0;
    for (const auto& [span, owner] : tasks) {
      json::Object args{{"submitted_by", owner->name}, {"worker", worker.to_string()}};
      if (span->failed) args["failed"] = true;
      trace_.span(track, span->name, "task", std::max(before, span->begin_unix_us),
                  span->end_unix_us, std::move(args));
      before = span->end_unix_us;
    }
  }
}

// Several at a time stand beside each other.
void ClusterTrace::show_moves(const MovesOfNode& of) {
  struct Lane {
    TraceEvents::Track track;
    std::int64_t end_us;
  };
  std::vector<Lane> lanes;
  std::vector<const wire::StoreMove*> moves;
  for (const auto& move : of.moves) moves.push_back(&move);
  std::sort(moves.begin(), moves.end(),
            [](const auto* a, const auto* b) { return a->begin_unix_us < b->begin_unix_us; });
  for (const auto* move : moves) {
    auto lane = std::find_if(lanes.begin(), lanes.end(),
                             [&](const Lane& one) { return one.end_us <= move->begin_unix_us; });
    if (lane == lanes.end()) {
      lane = lanes.insert(lanes.end(), {new_track(process_of(of.node_id), "objects"), 0});
    }
    lane->end_us = std::max(move->begin_unix_us, move->end_unix_us);
    json::Object args{{"bytes", move->bytes}};
    std::string name = move->kind == wire::StoreMoveKind::kSpilled ? "to disk" : "from disk";
    if (move->kind == wire::StoreMoveKind::kFetched) {
      name = fmt::format("from {}", names_.of(move->from));
      args["object_id"] = move->object_id.to_string();
    }
    if (move->failed) args["failed"] = true;
    trace_.span(lane->track, name, "objects", move->begin_unix_us, lane->end_us, std::move(args));
  }
}

void ClusterTrace::begin(const ActorId& id, Doing doing) { doing_[id] = std::move(doing); }

void ClusterTrace::end(const ActorId& id, std::int64_t time_us, const std::string& why,
                       bool goes_on) {
  const auto found = doing_.find(id);
  if (found == doing_.end()) return;
  const Doing& doing = found->second;
  json::Object args{{"actor_id", id.to_string()}};
  if (doing.generation > 0) args["generation"] = doing.generation;
  if (!why.empty()) args["end"] = why;
  if (goes_on) args["goes_on"] = true;
  trace_.span(doing.track, doing.name, doing.category, doing.since_us, time_us, std::move(args));
  doing_.erase(found);
}

void ClusterTrace::end_node(const NodeId& id, std::int64_t time_us, const std::string& why,
                            bool goes_on) {
  const auto up = up_since_.find(id);
  const std::int64_t since = up == up_since_.end() ? begin_us_ : up->second;
  json::Object args{{"node_id", id.to_string()}};
  if (!why.empty()) args["end"] = why;
  if (goes_on) args["goes_on"] = true;
  trace_.span({process_of(id), kOwnThread}, "member of the cluster", "node", since, time_us,
              std::move(args));
  if (up != up_since_.end()) up_since_.erase(up);
}

void ClusterTrace::on_actor(const wire::EventRecord& event) {
  const ActorId& id = event.actor_id;
  const bool first = seen_.insert(id).second;
  const std::int64_t time = event.unix_time_us;
  const bool ran = event.kind == "actor_restarting" || event.kind == "actor_died";
  if (first && ran && event.generation > 0) {
    // Its beginning is older than the events that the head still has.
    begin(id, {fmt::format("generation {}", event.generation), "actor", track_of(id, event.node_id),
               begin_us_, event.generation});
  }
  end(id, time, ran ? event.text : "");
  const auto track = track_of(id, event.node_id);
  if (event.kind == "actor_created") {
    begin(id, {"waits for resources", "pending", track, time, 0});
  } else if (event.kind == "actor_starting") {
    begin(id, {"starts", "start", track, time, event.generation});
  } else if (event.kind == "actor_alive") {
    begin(id,
          {fmt::format("generation {}", event.generation), "actor", track, time, event.generation});
  } else if (event.kind == "actor_restarting") {
    trace_.instant(track, "process ended", "death", time, {{"why", event.text}});
    begin(id, {"waits for its next process", "restart", track, time, event.generation});
  } else if (event.kind == "actor_died") {
    trace_.instant(track, "ended for good", "death", time, {{"why", event.text}});
  } else {
    trace_.instant(track, event.kind, "event", time, {{"text", event.text}});
  }
}

void ClusterTrace::on_node(const wire::EventRecord& event) {
  const NodeId& id = event.node_id;
  seen_nodes_.insert(id);
  const TraceEvents::Track track{process_of(id), kOwnThread};
  trace_.instant(track, event.kind, "node", event.unix_time_us, {{"text", event.text}});
  if (event.kind == "node_joined") {
    up_since_.emplace(id, event.unix_time_us);
  } else if (event.kind == "node_left" || event.kind == "node_died") {
    end_node(id, event.unix_time_us, event.text);
  } else if (!up_since_.contains(id)) {
    up_since_.emplace(id, begin_us_);  // it joined before the events that are left
  }
}

void ClusterTrace::take(const wire::EventRecord& event) {
  if (!event.actor_id.empty()) return on_actor(event);
  if (!event.node_id.empty()) return on_node(event);
  const auto severity = scheduler::severity_of(event.kind);
  trace_.instant({kHeadProcess, kOwnThread}, event.kind, "cluster", event.unix_time_us,
                 {{"text", event.text}, {"severity", scheduler::severity_name(severity)}},
                 severity != scheduler::Severity::kInfo);
}

void ClusterTrace::show_the_rest(const std::vector<wire::NodeInfo>& nodes,
                                 const std::vector<wire::ActorInfo>& actors) {
  for (const auto& actor : actors) {
    const bool runs = actor.state == wire::ActorState::kAlive;
    if (!runs || seen_.contains(actor.actor_id)) continue;
    begin(actor.actor_id, {fmt::format("generation {}", actor.generation), "actor",
                           track_of(actor.actor_id, actor.node_id), begin_us_, actor.generation});
  }
  for (const auto& node : nodes) {
    if (node.state == wire::NodeState::kDead || seen_nodes_.contains(node.node_id)) continue;
    up_since_.emplace(node.node_id, begin_us_);
  }
}

json::Value ClusterTrace::finish() {
  while (!doing_.empty()) end(doing_.begin()->first, now_us_, "", true);
  while (!up_since_.empty()) end_node(up_since_.begin()->first, now_us_, "", true);
  return trace_.finish(
      {{"source", "troupe timeline"}, {"nodes", processes_.size()}, {"actors", threads_.size()}});
}

}  // namespace

json::Value cluster_trace(const std::vector<wire::EventRecord>& events,
                          const std::vector<wire::NodeInfo>& nodes,
                          const std::vector<wire::ActorInfo>& actors, std::int64_t now_unix_us,
                          const std::vector<wire::ClientWork>& work,
                          const std::vector<MovesOfNode>& moves) {
  const std::int64_t begin = events.empty() ? now_unix_us : events.front().unix_time_us;
  ClusterTrace trace(nodes, actors, begin, std::max(begin, now_unix_us));
  for (const auto& event : events) trace.take(event);
  trace.show_the_rest(nodes, actors);
  trace.show_tasks(work);
  for (const auto& of : moves) trace.show_moves(of);
  return trace.finish();
}

}  // namespace troupe::tools
