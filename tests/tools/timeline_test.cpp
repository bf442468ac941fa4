// Traces of clusters and runs: what a viewer of Chrome's trace events needs to hold.

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "tests/tools/troupe_program.h"
#include "tools/commands/cluster_trace.h"
#include "tools/commands/run_trace.h"

namespace troupe::tests {
namespace {

using std::string;
using tools::cluster_trace;
using tools::run_trace;

// The format's rules: phases, times, and spans of one track that lie apart or within each other.
void check_trace(const json::Value& trace) {
  REQUIRE(trace.is_object());
  const auto* events = json::find(trace, "traceEvents");
  REQUIRE(events != nullptr);
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<std::pair<double, double>>> spans;
  std::set<std::int64_t> processes;
  std::set<std::int64_t> named;
  for (const auto& event : events->as_array()) {
    const string phase = json::find_string(event, "ph").value_or("");
    const auto name = json::find_string(event, "name");
    REQUIRE(name);
    const auto pid = json::find_integer(event, "pid");
    REQUIRE(pid);
    if (phase == "M") {
      if (*name == "process_name") CHECK(named.insert(*pid).second);
      continue;
    }
    processes.insert(*pid);
    const auto time = json::find_number(event, "ts");
    REQUIRE(time);
    CHECK(*time >= 0);
    if (phase == "X") {
      const auto length = json::find_number(event, "dur");
      REQUIRE(length);
      CHECK(*length >= 0);
      spans[{*pid, json::find_integer(event, "tid").value()}].emplace_back(*time, *time + *length);
    } else if (phase == "i") {
      const string scope = json::find_string(event, "s").value_or("");
      CHECK((scope == "g" || scope == "p" || scope == "t"));
    } else {
      CHECK(phase == "C");
    }
  }
  for (const auto pid : processes) CHECK(named.contains(pid));
  for (auto& [track, list] : spans) {
    std::sort(list.begin(), list.end(), [](const auto& a, const auto& b) {
      return a.first != b.first ? a.first < b.first : a.second > b.second;
    });
    std::vector<double> open;
    for (const auto& [begin, end] : list) {
      while (!open.empty() && open.back() <= begin) open.pop_back();
      if (!open.empty()) CHECK(end <= open.back());
      open.push_back(end);
    }
  }
}

std::vector<json::Value> events_named(const json::Value& trace, const string& name,
                                      const string& phase = "X") {
  std::vector<json::Value> found;
  for (const auto& event : json::find(trace, "traceEvents")->as_array()) {
    if (json::find_string(event, "name") == name && json::find_string(event, "ph") == phase) {
      found.push_back(event);
    }
  }
  return found;
}

std::int64_t number(const json::Value& event, const char* key) {
  return json::find_integer(event, key).value_or(-1);
}

const NodeId kNode{1, 1};
const ActorId kActor{2, 2};

struct History {
  std::vector<wire::EventRecord> events;
  History& add(std::int64_t at_us, const string& kind, NodeId node = {}, ActorId actor = {},
               std::uint64_t generation = 0) {
    events.push_back({events.size() + 1, at_us, kind, node, actor, generation, kind + " text"});
    return *this;
  }
};

TEST_CASE("an actor's life: it waits, starts, lives, is down, lives again, ends") {
  History history;
  history.add(1000, "node_joined", kNode)
      .add(2000, "actor_created", {}, kActor)
      .add(3000, "actor_starting", kNode, kActor, 1)
      .add(3500, "actor_alive", kNode, kActor, 1)
      .add(9000, "actor_restarting", kNode, kActor, 1)
      .add(9100, "actor_starting", kNode, kActor, 2)
      .add(9200, "actor_alive", kNode, kActor, 2)
      .add(9900, "actor_died", kNode, kActor, 2)
      .add(9950, "head_restarted");
  wire::NodeInfo node;
  node.node_id = kNode;
  node.name = "alpha";
  wire::ActorInfo actor;
  actor.actor_id = kActor;
  actor.name = "counter";
  actor.state = wire::ActorState::kDead;
  const auto trace = cluster_trace(history.events, {node}, {actor}, 20'000);
  check_trace(trace);
  const auto waits = events_named(trace, "waits for resources");
  REQUIRE(waits.size() == 1);
  CHECK(number(waits[0], "ts") == 2000);
  CHECK(number(waits[0], "dur") == 1000);
  const auto first = events_named(trace, "generation 1");
  REQUIRE(first.size() == 1);
  CHECK(number(first[0], "ts") == 3500);
  CHECK(number(first[0], "dur") == 5500);
  CHECK(json::find_string(*json::find(first[0], "args"), "end") == "actor_restarting text");
  CHECK(number(events_named(trace, "generation 2").at(0), "dur") == 700);
  CHECK(number(events_named(trace, "waits for its next process").at(0), "dur") == 100);
  CHECK(events_named(trace, "starts").size() == 2);
  CHECK(events_named(trace, "ended for good", "i").size() == 1);
  // The node is still there.
  const auto member = events_named(trace, "member of the cluster");
  REQUIRE(member.size() == 1);
  CHECK(number(member[0], "ts") + number(member[0], "dur") == 20'000);
  CHECK(json::find_bool(*json::find(member[0], "args"), "goes_on") == true);
  const auto restarted = events_named(trace, "head_restarted", "i");
  REQUIRE(restarted.size() == 1);
  CHECK(json::find_string(restarted[0], "s") == "g");
  const string text = json::write(trace);
  CHECK(text.find("node alpha") != string::npos);
  CHECK(text.find("\"counter\"") != string::npos);
}

TEST_CASE("where the oldest events are gone, lives begin with what is left") {
  History history;
  history.add(5000, "actor_restarting", kNode, kActor, 3).add(6000, "node_died", kNode);
  wire::ActorInfo other;
  other.actor_id = ActorId{3, 3};
  other.node_id = NodeId{1, 9};
  other.type = "Old";
  other.state = wire::ActorState::kAlive;
  other.generation = 7;
  wire::NodeInfo old;
  old.node_id = NodeId{1, 9};
  old.name = "old";
  const auto trace = cluster_trace(history.events, {old}, {other}, 7000);
  check_trace(trace);
  CHECK(number(events_named(trace, "generation 3").at(0), "ts") == 5000);
  CHECK(number(events_named(trace, "generation 7").at(0), "dur") == 2000);
  CHECK(events_named(trace, "member of the cluster").size() == 2);
}

TEST_CASE("tasks stand with their workers, moved objects with their nodes, none over another") {
  wire::NodeInfo node;
  node.node_id = kNode;
  node.name = "alpha";
  wire::ActorInfo worker;
  worker.actor_id = kActor;
  worker.type = "TaskWorker";
  worker.node_id = kNode;
  worker.state = wire::ActorState::kAlive;
  wire::ClientWork driver;
  driver.name = "sort";
  driver.work.tasks.resize(2);
  driver.work.tasks[0].last = {{"part", kActor, 1000, 4000, false},
                               {"part", kActor, 1200, 9000, true}};
  driver.work.tasks[1].last = {{"late", ActorId{9, 9}, 2000, 3000, false}};
  using Kind = wire::StoreMoveKind;
  const tools::MovesOfNode moves{
      kNode,
      {{Kind::kFetched, 100, 1000, 3000, NodeId{1, 9}, ObjectId{4, 4}, false},
       {Kind::kSpilled, 200, 2000, 5000, {}, {}, false},
       {Kind::kRestored, 300, 3000, 3500, {}, {}, true}}};
  const auto trace = cluster_trace({}, {node}, {worker}, 20'000, {driver}, {moves});
  check_trace(trace);
  const auto parts = events_named(trace, "part");
  REQUIRE(parts.size() == 2);
  CHECK(number(parts[1], "ts") == 4000);
  CHECK(number(parts[1], "dur") == 5000);
  CHECK(json::find_bool(*json::find(parts[1], "args"), "failed") == true);
  CHECK(json::find_string(*json::find(parts[0], "args"), "submitted_by") == "sort");
  CHECK(number(parts[0], "pid") == number(events_named(trace, "to disk").at(0), "pid"));
  CHECK(events_named(trace, "late").size() == 1);  // its worker is forgotten
  const auto fetched = events_named(trace, "from " + NodeId{1, 9}.brief());
  REQUIRE(fetched.size() == 1);
  CHECK(number(fetched[0], "tid") == number(events_named(trace, "from disk").at(0), "tid"));
  CHECK(number(fetched[0], "tid") != number(events_named(trace, "to disk").at(0), "tid"));
}

TEST_CASE("a cluster without events is an empty trace") {
  const auto trace = cluster_trace({}, {}, {}, 1000);
  check_trace(trace);
}

train::StepRecord step(std::int64_t number, double seconds) {
  train::StepRecord record;
  record.step = number;
  record.loss = 8.0 / static_cast<double>(number);
  record.tokens = 100;
  record.seconds.forward = seconds / 2;
  record.seconds.backward = seconds / 2;
  return record;
}

train::RunEvent event(const string& kind, std::int64_t step, std::int64_t at_us) {
  train::RunEvent made;
  made.event = kind;
  made.step = step;
  made.unix_time_us = at_us;
  return made;
}

TEST_CASE("a run's steps stand where its events say, its recoveries with their parts") {
  std::vector<train::StepRecord> steps;
  for (int i = 1; i <= 6; ++i) steps.push_back(step(i, 1.0));
  steps[4].loss = std::numeric_limits<double>::quiet_NaN();
  auto death = event(train::events::kDeath, 3, 10'000'000);
  death.rank = 1;
  death.cause = "killed by signal 9 (SIGKILL)";
  auto recovered = event(train::events::kRecovered, 4, 14'000'000);
  recovered.recovery_ms = 3500;
  recovered.detected_after_ms = 100;
  recovered.respawn_ms = 400;
  recovered.attach_ms = 500;
  recovered.reform_ms = 500;
  recovered.first_step_ms = 2000;
  recovered.lost_steps = 0;
  const auto trace =
      run_trace("run-1", {event(train::events::kStart, -1, 1'000'000), death, recovered}, steps);
  check_trace(trace);
  // Three before the death, back to back up to it; the fourth ended with the recovery.
  CHECK(number(events_named(trace, "step 1").at(0), "ts") == 7'000'000);
  CHECK(number(events_named(trace, "step 3").at(0), "ts") == 9'000'000);
  CHECK(number(events_named(trace, "step 4").at(0), "ts") == 13'000'000);
  CHECK(number(events_named(trace, "step 5").at(0), "ts") == 14'000'000);
  CHECK(number(events_named(trace, "step 6").at(0), "ts") == 15'000'000);
  CHECK(json::find_string(*json::find(events_named(trace, "step 5").at(0), "args"), "loss") ==
        "nan");
  CHECK(events_named(trace, "forward").size() == 6);
  CHECK(events_named(trace, "loss", "C").size() == 5);
  const auto recovery = events_named(trace, "recovery to generation 0");
  REQUIRE(recovery.size() == 1);
  CHECK(number(recovery[0], "ts") == 10'500'000);
  CHECK(number(recovery[0], "dur") == 3'500'000);
  CHECK(number(events_named(trace, "first step").at(0), "ts") == 12'000'000);
  CHECK(events_named(trace, "death", "i").size() == 1);
  CHECK(json::find_integer(*json::find(trace, "otherData"), "steps_without_times") == 0);
}

TEST_CASE("steps without events begin at zero, steps without times are counted") {
  auto without = step(3, 0);
  const auto trace = run_trace("x", {}, {step(1, 0.5), step(2, 0.5), without});
  check_trace(trace);
  CHECK(number(events_named(trace, "step 2").at(0), "ts") == 500'000);
  CHECK(json::find_integer(*json::find(trace, "otherData"), "steps_without_times") == 1);
}

TEST_CASE("the command: a cluster to standard output and to a file, a run's directory, errors") {
  const TroupeHome home;
  auto head = start_head(home, {"--address", "127.0.0.1", "--with-worker", "--num-cpus", "2"});
  REQUIRE(home.eventually({"status"}, R"("alive":1)"));
  const auto shown = home.run({"timeline"});
  CHECK(shown.exit_code == 0);
  const auto trace = json::parse(shown.out, "trace").value();
  check_trace(trace);
  CHECK(events_named(trace, "member of the cluster").size() == 1);
  const auto written = home.run_json({"timeline", "--output", home.file("trace.json")});
  PosixFileSystem files;
  const auto text = files.read(home.file("trace.json"), 1 << 20).value();
  check_trace(json::parse(text, "trace").value());
  CHECK(json::find_string(written, "file") == home.file("trace.json"));
  CHECK(home.run({"stop"}).exit_code == 0);

  REQUIRE(files.create_directories(home.file("run")).ok());
  CHECK(home.run({"timeline", home.file("run")}).exit_code == 3);
  auto steps = files.create(home.file("run/steps.jsonl")).value();
  REQUIRE(steps->append(train::step_line(step(1, 0.25)) + "\n").ok());
  const auto run = home.run({"timeline", home.file("run")});
  CHECK_MESSAGE(run.exit_code == 0, run.err);
  CHECK(events_named(json::parse(run.out, "trace").value(), "step 1").size() == 1);
  CHECK(home.run({"timeline", "run-unknown"}).exit_code == 3);
}

}  // namespace
}  // namespace troupe::tests
