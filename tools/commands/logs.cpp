#include "tools/commands/logs.h"

#include <algorithm>
#include <future>
#include <memory>
#include <utility>
#include <variant>

#include "runtime/base/json.h"
#include "runtime/wire/control_messages.h"
#include "scheduler/client/ask_node.h"
#include "scheduler/client/output_follower.h"
#include "tools/commands/cluster_options.h"
#include "tools/commands/describe.h"
#include "tools/commands/job_end.h"

namespace troupe::tools {
namespace {

constexpr std::size_t kIdPrefixMin = 2;
constexpr Duration kLastLinesTime = std::chrono::seconds(2);

struct LogFlags {
  ClusterOptions cluster;
  std::string whose;
  std::uint64_t bytes = limits::kLogTailBytes;
  bool follow = false;
};

struct LogSource {
  wire::Endpoint endpoint;
  std::string node;   // name
  ActorId actor_id;   // empty: the node's daemon
  std::string title;  // "actor trainer-0 (1a2b3c4d)"
};

// Of an actor, or (empty) the daemon of the node that keeps its output.
Result<LogSource> source_on(const wire::NodeInfo& node, ActorId actor_id, std::string title) {
  if (node.state == wire::NodeState::kDead) {
    return error(Code::kUnavailable,
                 "the output of {} was kept by node {}, which is dead: it cannot be read from here "
                 "any more. How it ended: troupe why, troupe events",
                 title, node.name);
  }
  return LogSource{node.endpoint, node.name, actor_id, std::move(title)};
}

Result<LogSource> source_of(const wire::NodeInfo& node) {
  return source_on(node, {}, fmt::format("node {} ({})", node.name, node.node_id.brief()));
}

Result<LogSource> source_of(const wire::ActorInfo& actor,
                            const std::vector<wire::NodeInfo>& nodes) {
  for (const auto& node : nodes) {
    if (node.node_id != actor.node_id) continue;
    return source_on(node, actor.actor_id,
                     fmt::format("actor {} ({})", display_name(actor), actor.actor_id.brief()));
  }
  return error(Code::kNotFound, "actor {} ({}) runs on no node: it is {}, so it has no output",
               display_name(actor), actor.actor_id.brief(), wire::actor_state_name(actor.state));
}

// Living ones go before dead ones of the same name.
template <typename T>
void prefer_living(std::vector<const T*>& found, decltype(T::state) dead) {
  const auto is_dead = [dead](const T* one) { return one->state == dead; };
  if (std::ranges::all_of(found, is_dead)) return;
  std::erase_if(found, is_dead);
}

// The actor or node that `word` names.
Result<LogSource> find_source(const std::string& word, const std::vector<wire::NodeInfo>& nodes,
                              const std::vector<wire::ActorInfo>& actors) {
  std::vector<const wire::ActorInfo*> found_actors;
  for (const auto& actor : actors) {
    if (is_meant(word, actor.name, actor.actor_id.to_string(), kIdPrefixMin))
      found_actors.push_back(&actor);
  }
  std::vector<const wire::NodeInfo*> found_nodes;
  for (const auto& node : nodes) {
    if (is_meant(word, node.name, node.node_id.to_string(), kIdPrefixMin))
      found_nodes.push_back(&node);
  }
  prefer_living(found_actors, wire::ActorState::kDead);
  prefer_living(found_nodes, wire::NodeState::kDead);
  if (found_actors.size() + found_nodes.size() > 1) {
    std::string list;
    for (const auto* a : found_actors) list += fmt::format(" actor {},", a->actor_id.to_string());
    for (const auto* n : found_nodes) list += fmt::format(" node {},", n->node_id.to_string());
    list.pop_back();
    return error(Code::kInvalidArgument, "'{}' means several:{}; give more of an id", word, list);
  }
  if (!found_nodes.empty()) return source_of(*found_nodes.front());
  if (!found_actors.empty()) return source_of(*found_actors.front(), nodes);
  return error(
      Code::kNotFound,
      "there is no job, actor or node '{}': 'troupe jobs --all', 'troupe actors --all' and "
      "'troupe nodes' list them",
      word);
}

// What a job's program writes.
Result<LogSource> job_source(ClusterConnection& cluster, const std::string& word,
                             const std::vector<wire::NodeInfo>& nodes) {
  const auto job = TROUPE_TRY(find_job(cluster, word));
  if (job.driver.empty()) {
    return error(Code::kFailedPrecondition,
                 "job {} is that of {}, which connected by itself: its output is where it was "
                 "started; 'troupe actors' lists its actors",
                 job.job_id.brief(), job.name);
  }
  for (const auto& node : nodes) {
    if (node.node_id != job.node_id) continue;
    return source_on(node, job.driver, fmt::format("job {} ({})", job.name, job.job_id.brief()));
  }
  return error(Code::kFailedPrecondition, "job {} ({}) has no output: it is {}{}", job.name,
               job.job_id.brief(), wire::job_state_name(job.state),
               job.why.empty() ? "" : ", " + job.why);
}

// Asks the node itself, on its own port.
Result<std::string> read_logs(ClusterConnection& cluster, const LogSource& source,
                              std::uint64_t bytes) {
  const auto where = fmt::format("node {}", source.node);
  auto answer = scheduler::ask_node(
      cluster.thread->loop(), {source.endpoint.host, source.endpoint.port, {}},
      cluster.place.token.token, wire::ReadLogs{1, source.actor_id, bytes}, cluster.deadline);
  if (!answer.ok()) return answer.status().prefixed(where);
  auto* text = get_if<wire::LogText>(&*answer);
  if (text == nullptr) return error(Code::kProtocol, "{}: the answer is no log text", where);
  if (!text->status.ok()) return text->status.prefixed(where);
  return std::move(text->text);
}

// The actor's lines as it writes them, from whichever node it runs on, until it ends for good.
Status follow_actor(CommandContext& context, const LogFlags& flags, ClusterConnection& cluster,
                    const LogSource& source) {
  if (source.actor_id.empty()) {
    return error(
        Code::kInvalidArgument,
        "--follow follows an actor, and {} is a node: 'troupe logs {}' shows its last lines",
        flags.whose, flags.whose);
  }
  auto ended = std::make_shared<std::promise<Status>>();
  auto end = ended->get_future();
  scheduler::OutputFollower follower(
      cluster.thread->loop(), cluster.head, cluster.place.token.token,
      {.actor_id = source.actor_id,
       .on_line = [&](const std::string& actor, std::string_view line) {
         if (flags.cluster.json) {
           context.out << json::write(json::Object{{"actor", actor}, {"line", line}});
         } else {
           context.out << line;
         }
         context.out << std::endl;
       }});
  const auto watch = cluster.head->watch_actor(
      source.actor_id, "", [ended, told = false](Result<wire::ActorInfo> actor) mutable {
        const bool dead = actor.ok() && actor->state == wire::ActorState::kDead;
        if ((actor.ok() && !dead) || std::exchange(told, true)) return;
        ended->set_value(actor.ok() ? Status() : actor.status());
      });
  const Status status = end.get();
  cluster.head->unwatch(watch);
  follower.catch_up(kLastLinesTime);
  return status;
}

Status show_logs(CommandContext& context, const LogFlags& flags) {
  if (flags.bytes == 0) return Status(Code::kInvalidArgument, "--bytes is 0: give at least 1");
  const auto cluster = TROUPE_TRY(connect_cluster(context, flags.cluster, "troupe logs"));
  const auto nodes = TROUPE_TRY(cluster->head->nodes(cluster->deadline));
  const auto actors = TROUPE_TRY(cluster->head->actors(true, cluster->deadline));
  auto found = find_source(flags.whose, nodes, actors);
  if (found.status().code() == Code::kNotFound) {
    auto job = job_source(*cluster, flags.whose, nodes);
    if (job.ok() || job.status().code() != Code::kNotFound) found = std::move(job);
  }
  const auto source = TROUPE_TRY(std::move(found));
  if (flags.follow) return follow_actor(context, flags, *cluster, source);
  const auto text = TROUPE_TRY(read_logs(*cluster, source, flags.bytes));
  if (flags.cluster.json) {
    context.out << json::write(json::Object{
                       {"node", source.node},
                       {"actor_id", source.actor_id.empty() ? "" : source.actor_id.to_string()},
                       {"text", text}})
                << "\n";
    return {};
  }
  if (text.empty()) context.err << fmt::format("{} has written nothing\n", source.title);
  context.out << text;
  if (!text.empty() && !text.ends_with('\n')) context.out << "\n";
  return {};
}

}  // namespace

void add_logs_command(CLI::App& app, CommandContext& context) {
  auto flags = std::make_shared<LogFlags>();
  Command command(app, context, "logs",
                  "Prints the last output of a job, an actor, or a node's daemon.");
  command.argument("whose", flags->whose,
                   "name or id of a job, an actor or a node, or the first digits of an id");
  declare_cluster_options(command, flags->cluster);
  command
      .option("--bytes", flags->bytes, "N",
              "at most the last N bytes (default 65536, all that is kept)")
      .flag("--follow", flags->follow,
            "go on printing what an actor writes, until it ends or Ctrl-C")
      .example("troupe logs trainer-0")
      .example("troupe logs trainer-0 --follow")
      .example("troupe logs 1a2b3c4d --bytes 2000")
      .run([flags, &context] { return show_logs(context, *flags); });
}

}  // namespace troupe::tools
