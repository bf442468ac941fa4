// The figures of a head, counted beside its state machine, and the page they make.

#include <doctest/doctest.h>

#include "scheduler/control/event_kinds.h"
#include "scheduler/head/head_metrics.h"
#include "tests/scheduler/head/prometheus_check.h"

using namespace troupe;
using namespace troupe::scheduler;
using namespace std::chrono_literals;
using tests::PrometheusPage;

namespace {

std::string faults_of(const PrometheusPage& page) {
  std::string text;
  for (const auto& fault : page.faults()) text += fault + "\n";
  return text;
}

// A head without sockets: messages go in, figures come out.
class CountedHead {
 public:
  CountedHead() : metrics_("0.1.0") {}
  void say(PeerId peer, wire::ControlMessage message) {
    metrics_.received(message, 100, state_);
    apply(MessageArrived{peer, std::move(message)});
  }
  void close(PeerId peer) { apply(PeerClosed{peer}); }
  void tick() { apply(Tick{}); }
  void pass(Duration time) { now_ += time; }
  // The same, while this node is heard.
  void pass_with(PeerId peer, std::uint64_t number, Duration time) {
    for (Duration passed{}; passed < time; passed += 1s) {
      pass(1s);
      say(peer, wire::Heartbeat{NodeId{9, number}, 1});
    }
  }
  void apply(Event event) {
    const auto outcome = state_.apply(std::move(event), {now_, 1'700'000'000'000'000});
    metrics_.decided(outcome.deltas, 20us, now_);
    for (const auto& command : outcome.commands) {
      if (const auto* sent = get_if<SendMessage>(&command)) metrics_.sent(sent->message, 50);
    }
  }
  PrometheusPage page() {
    PrometheusPage page(
        prometheus_page(metrics_.figures(state_, 3, 4096, now_), {1.5, 30 << 20, 1.7e9}));
    CHECK_MESSAGE(page.faults().empty(), faults_of(page));
    return page;
  }
  HeadMetrics& metrics() { return metrics_; }

  void node(PeerId peer, std::uint64_t number, const std::string& name = "node") {
    wire::RegisterNode message;
    message.request_id = 1;
    message.node.node_id = NodeId{9, number};
    message.node.name = name;
    message.node.total = {{"CPU", 2 * wire::kResourceUnit}, {"memory", 1000 * wire::kResourceUnit}};
    say(peer, std::move(message));
  }
  void client(PeerId peer) {
    say(peer, wire::ClientHello{.request_id = 1,
                                .client_id = ClientId{1, peer},
                                .job_id = JobId{1, 1},
                                .kind = "driver"});
  }
  void create(PeerId peer, std::vector<std::uint64_t> numbers, std::int64_t cpus = 1,
              bool gang = false, int restarts = 0) {
    wire::CreateActors message{.request_id = 2};
    for (const std::uint64_t number : numbers) {
      wire::ActorSpec spec;
      spec.actor_id = ActorId{5, number};
      spec.type = "Counter";
      spec.resources = {{"CPU", cpus * wire::kResourceUnit}};
      spec.restart.max_restarts = restarts;
      message.specs.push_back(std::move(spec));
    }
    message.gang = gang;
    say(peer, std::move(message));
  }
  void ready(PeerId node, std::uint64_t number, std::uint64_t generation = 1) {
    say(node, wire::ActorStarted{ActorId{5, number}, generation, 4711});
    say(node, wire::ActorReady{ActorId{5, number}, generation});
  }
  void exit(PeerId node, std::uint64_t number, wire::ExitStatus exit,
            std::uint64_t generation = 1) {
    say(node, wire::ActorExited{ActorId{5, number}, generation, exit});
  }

 private:
  TimePoint now_{1000s};
  HeadState state_;
  HeadMetrics metrics_;
};

}  // namespace

TEST_CASE("the check of these tests sees what is wrong with a page") {
  const char* kGood = "# HELP a_total A.\n# TYPE a_total counter\na_total{x=\"y\\n\"} 1\n";
  CHECK(PrometheusPage(kGood).faults().empty());
  for (const char* bad :
       {"a_total 1\n", "# HELP a A.\n# TYPE a counter\na 1\n",
        "# TYPE a_total counter\na_total 1\n", "# HELP a A.\n# TYPE a gauge\na 1\na 1\n",
        "# HELP a A.\n# TYPE a gauge\nb 1\n", "# HELP a A.\n# TYPE a gauge\na{x=1} 1\n",
        "# HELP a A.\n# TYPE a gauge\na x\n", "# HELP a A.\n# TYPE a gauge\na 1",
        "# HELP a A.\n# TYPE a gauge\na{1=\"\"} 1\n", "# HELP a_ms A.\n# TYPE a_ms gauge\na_ms 1\n",
        "# HELP a A.\n# TYPE a gauge\na{x=\"\\t\"} 1\n",
        "# HELP a A.\n# TYPE a histogram\na_bucket{le=\"1\"} 1\na_sum 1\na_count 1\n",
        "# HELP a A.\n# TYPE a histogram\na_bucket{le=\"1\"} 2\na_bucket{le=\"+Inf\"} 1\na_sum "
        "1\na_count 1\n"}) {
    CHECK_MESSAGE(!PrometheusPage(bad).faults().empty(), bad);
  }
}

TEST_CASE("an empty head's page is well-formed") {
  CountedHead head;
  const auto page = head.page();
  CHECK(page.value("troupe_nodes{state=\"alive\"}") == 0);
  CHECK(page.value("troupe_actors{state=\"alive\"}") == 0);
  CHECK(page.value("troupe_build_info{version=\"0.1.0\"}") == 1);
  CHECK(page.value("troupe_journal_bytes") == 4096);
  CHECK(page.value("process_cpu_seconds_total") == 1.5);
  CHECK(page.families().size() > 30);
}

TEST_CASE("labels are escaped") {
  PrometheusText text;
  text.gauge("troupe_x", "A \\ and\na line.");
  text.sample({{"a", "quote \" backslash \\ line \n"}, {"b", ""}}, 0.25);
  const std::string page = text.take();
  CHECK(page ==
        "# HELP troupe_x A \\\\ and\\na line.\n# TYPE troupe_x gauge\n"
        "troupe_x{a=\"quote \\\" backslash \\\\ line \\n\"} 0.25\n");
  CHECK(PrometheusPage(page).faults().empty());
}

TEST_CASE("a histogram counts what lies at and below each bound") {
  SecondsHistogram values(short_bounds());
  for (const double seconds : {1e-5, 1.1e-5, 0.5, 100.0}) values.observe(seconds);
  PrometheusText text;
  text.histogram("troupe_x_seconds", "X.", values);
  const PrometheusPage page(text.take());
  CHECK(page.faults().empty());
  CHECK(page.value("troupe_x_seconds_bucket{le=\"1e-05\"}") == 1);
  CHECK(page.value("troupe_x_seconds_bucket{le=\"2.5e-05\"}") == 2);
  CHECK(page.value("troupe_x_seconds_bucket{le=\"10\"}") == 3);
  CHECK(page.value("troupe_x_seconds_bucket{le=\"+Inf\"}") == 4);
}

TEST_CASE("nodes, resources and actors are counted as they come and go") {
  CountedHead head;
  head.node(1, 1, "alpha");
  head.node(2, 2, "beta");
  head.client(3);
  head.create(3, {1, 2, 3});
  head.ready(1, 1);
  auto page = head.page();
  CHECK(page.value("troupe_nodes{state=\"alive\"}") == 2);
  CHECK(page.value("troupe_resource_capacity{resource=\"CPU\"}") == 4);
  CHECK(page.value("troupe_resource_leased{resource=\"CPU\"}") == 3);
  CHECK(page.value("troupe_resource_capacity{resource=\"memory\"}") == 2000);
  CHECK(page.value("troupe_actors{state=\"starting\"}") == 2);
  CHECK(page.value("troupe_actors{state=\"alive\"}") == 1);
  CHECK(page.value("troupe_node_up{node=\"alpha\"}") == 1);
  CHECK(page.value("troupe_messages_received_total{type=\"RegisterNode\"}") == 2);
  CHECK(page.value("troupe_messages_sent_total{type=\"StartActor\"}") == 3);
  CHECK(page.value("troupe_message_received_bytes_total") == 600);
  CHECK(page.value("troupe_events_total{kind=\"node_joined\",severity=\"info\"}") == 2);

  head.pass(1500ms);
  wire::Heartbeat beat{NodeId{9, 1}, 1, wire::NodeUsage{2'500'000, 1024, 4096, 7}};
  head.say(1, beat);
  head.pass(500ms);
  page = head.page();
  CHECK(page.value("troupe_node_heartbeat_age_seconds{node=\"alpha\"}") == 0.5);
  CHECK(page.value("troupe_node_heartbeat_age_seconds{node=\"beta\"}") == 2);
  CHECK(page.value("troupe_node_cpu_busy_seconds_total{node=\"alpha\"}") == 2.5);
  CHECK(page.value("troupe_node_memory_used_bytes{node=\"alpha\"}") == 1024);
  CHECK(page.value("troupe_node_actor_processes{node=\"alpha\"}") == 7);
  CHECK_FALSE(page.value("troupe_node_actor_processes{node=\"beta\"}"));

  head.close(2);
  page = head.page();
  CHECK(page.value("troupe_nodes{state=\"disconnected\"}") == 1);
  CHECK(page.value("troupe_node_up{node=\"beta\"}") == 0);
  CHECK(page.value("troupe_resource_capacity{resource=\"CPU\"}") == 2);
  head.pass_with(1, 1, 10s);
  page = head.page();
  CHECK(page.value("troupe_nodes{state=\"dead\"}") == 1);
  CHECK_FALSE(page.value("troupe_node_up{node=\"beta\"}"));
  CHECK(page.value("troupe_events_total{kind=\"node_died\",severity=\"error\"}").value_or(0) >= 1);
  CHECK(page.value("troupe_actor_exits_total{cause=\"node_lost\"}").value_or(0) >= 1);
}

TEST_CASE("who waits, and how long") {
  CountedHead head;
  head.node(1, 1);
  head.client(2);
  head.create(2, {1, 2}, 1, true);  // fills the node
  head.pass(1s);
  head.create(2, {3, 4}, 1, true);
  head.create(2, {5}, 2);
  head.pass_with(1, 1, 30s);
  auto page = head.page();
  CHECK(page.value("troupe_pending_actors") == 3);
  CHECK(page.value("troupe_pending_requests") == 2);
  CHECK(page.value("troupe_pending_oldest_seconds") == 30);
  CHECK(page.value("troupe_pending_wait_seconds_count") == 2);  // those that waited not at all
  head.ready(1, 1);
  head.ready(1, 2);
  head.exit(1, 1, {});
  head.exit(1, 2, {});
  page = head.page();
  CHECK(page.value("troupe_pending_actors") == 1);
  CHECK(page.value("troupe_pending_wait_seconds_count") == 4);
  CHECK(page.value("troupe_pending_wait_seconds_bucket{le=\"10\"}") == 2);
  CHECK(page.value("troupe_pending_wait_seconds_bucket{le=\"30\"}") == 4);
}

TEST_CASE("tasks, pools and pipelines, as clients say") {
  CountedHead head;
  head.client(2);
  head.client(3);
  wire::Work work;
  work.tasks.push_back({.waiting = 12, .running = 4, .done = 100, .failed = 3, .workers = 4});
  work.groups.push_back({.type = "Cell", .is_pool = true, .calls_waiting = 5});
  work.pipelines.push_back({.pushed = 40,
                            .delivered = 32,
                            .in_flight_max = 8,
                            .stages = {{.name = "slow", .waiting = 8}}});
  work.items_done = 32;
  head.say(2, wire::ReportWork{1, work});
  head.say(3, wire::ReportWork{1, work});
  work.tasks[0].done = 110;
  head.say(3, wire::ReportWork{2, work});
  auto page = head.page();
  CHECK(page.value("troupe_tasks{state=\"waiting\"}") == 24);
  CHECK(page.value("troupe_tasks{state=\"running\"}") == 8);
  CHECK(page.value("troupe_task_workers{state=\"running\"}") == 8);
  CHECK(page.value("troupe_tasks_done_total") == 210);
  CHECK(page.value("troupe_tasks_failed_total") == 6);
  CHECK(page.value("troupe_pool_calls_waiting") == 10);
  CHECK(page.value("troupe_pipelines_held_up") == 2);
  CHECK(page.value("troupe_pipeline_items") == 16);
  CHECK(page.value("troupe_pipeline_items_done_total") == 64);
  head.close(3);
  page = head.page();
  CHECK(page.value("troupe_tasks{state=\"waiting\"}") == 12);
  CHECK(page.value("troupe_tasks_done_total") == 210);
}

TEST_CASE("ends of processes by cause, and restarts") {
  CountedHead head;
  head.node(1, 1);
  head.client(2);
  head.create(2, {1}, 1, false, 5);
  head.ready(1, 1);
  head.exit(1, 1, {.exit_code = 0, .signal = 9});
  head.exit(1, 1, {.exit_code = 0, .signal = 9});  // said twice
  head.create(2, {2}, 0);
  head.ready(1, 2);
  head.exit(1, 2, {.exit_code = 3});
  head.create(2, {3}, 0);
  head.ready(1, 3);
  head.exit(1, 3, {});
  head.create(2, {4}, 0);
  head.say(1, wire::ActorExited{
                  ActorId{5, 4}, 1, {.exit_code = 1}, true, Status(Code::kActorError, "no")});
  head.create(2, {5}, 0);
  head.say(1, wire::ActorExited{ActorId{5, 5}, 1, {}, false, Status(Code::kNotFound, "no image")});
  head.create(2, {6}, 0);
  head.ready(1, 6);
  head.say(2, wire::KillActor{.request_id = 9, .actor_id = ActorId{5, 6}});
  head.exit(1, 6, {.signal = 9});
  const auto page = head.page();
  CHECK(page.value("troupe_actor_exits_total{cause=\"signal\",signal=\"SIGKILL\"}") == 1);
  CHECK(page.value("troupe_actor_exits_total{cause=\"exit_failure\"}") == 1);
  CHECK(page.value("troupe_actor_exits_total{cause=\"exit_success\"}") == 1);
  CHECK(page.value("troupe_actor_exits_total{cause=\"constructor_failed\"}") == 1);
  CHECK(page.value("troupe_actor_exits_total{cause=\"start_failed\"}") == 1);
  CHECK(page.value("troupe_actor_exits_total{cause=\"stopped\"}") == 1);
  CHECK(page.value("troupe_actor_restarts_total") == 1);
}

TEST_CASE("the journal's writes and failures") {
  CountedHead head;
  head.metrics().journal(true, true, 2ms);
  head.metrics().journal(false, true, 1ms);
  head.metrics().journal(false, false, 1ms);
  auto page = head.page();
  CHECK(page.value("troupe_journal_rewrites_total") == 1);
  CHECK(page.value("troupe_journal_syncs_total") == 1);
  CHECK(page.value("troupe_journal_failures_total") == 1);
  CHECK(page.value("troupe_journal_failing") == 1);
  CHECK(page.value("troupe_journal_write_seconds_count") == 3);
  head.metrics().journal(true, true, 1ms);
  CHECK(head.page().value("troupe_journal_failing") == 0);
}

TEST_CASE("a cluster of a thousand nodes has a page of a bounded size") {
  CountedHead head;
  for (std::uint64_t i = 1; i <= 1000; ++i) head.node(i, i);
  const auto figures = head.metrics().figures(HeadState(), 0, 0, {});
  CHECK(figures.nodes.empty());
  CHECK(head.page().value("troupe_nodes{state=\"alive\"}") == 1000);
}

// (That the head logs no other kinds: tests/scheduler/control/world.cpp.)
TEST_CASE("kinds of events have a meaning and a gravity") {
  for (const char* kind : {"daemon_restarted", "keeper_lost", "journal_failed"}) {
    CHECK(is_event_kind(kind));
  }
  CHECK(severity_of("journal_failed") == Severity::kError);
  CHECK(severity_of("what a later version adds") == Severity::kInfo);
}
