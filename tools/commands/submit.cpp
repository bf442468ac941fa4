#include "tools/commands/submit.h"

#include <atomic>
#include <cmath>
#include <filesystem>
#include <limits>
#include <memory>
#include <set>

#include "runtime/base/json.h"
#include "scheduler/client/jobs.h"
#include "scheduler/client/output_follower.h"
#include "scheduler/client/send_package.h"
#include "scheduler/policy/labels.h"
#include "scheduler/policy/resources.h"
#include "tools/commands/cluster_options.h"
#include "tools/commands/describe.h"
#include "tools/commands/job_end.h"
#include "tools/commands/ship.h"
#include "tools/commands/signals.h"
#include "tools/commands/table.h"

namespace troupe::tools {
namespace {

// A job's node says these; what a job is to have of its own must not hide them.
const std::set<std::string, std::less<>> kNodesVariables{"TROUPE_ADDRESS", "TROUPE_TOKEN_FILE",
                                                         "TROUPE_INSECURE", "TROUPE_JOB_ID"};
// How long a job may wait before it is said what for.
constexpr Duration kWaitTold = std::chrono::seconds(1);
constexpr Duration kForever = std::chrono::hours(24 * 365);
constexpr Duration kLastOutputTime = std::chrono::seconds(2);
constexpr Duration kAnswerTimeout = std::chrono::seconds(10);
// How long a node may take for a piece of a package, or to unpack it.
constexpr Duration kSendPatience = std::chrono::seconds(60);
// Nodes that are tried, one after the other, until one takes the package.
constexpr std::size_t kNodesTriedMax = 3;

struct SubmitFlags {
  ClusterOptions cluster;
  std::vector<std::string> program;
  std::string name;
  std::vector<std::string> environment;
  std::optional<std::string> working_directory;
  std::string num_cpus = "0";
  std::string num_gpus = "0";
  std::string memory = "0";
  std::vector<std::string> resources;
  std::vector<std::string> labels;
  std::optional<std::string> node;
  std::optional<double> priority;
  std::optional<double> grace_s;
  bool no_wait = false;
  bool ship = false;
  std::vector<std::string> excluded;
  std::optional<std::string> ship_limit;
};

// --- what is asked for ---------------------------------------------------------------------------

Result<wire::Resources> resources_of(const SubmitFlags& flags) {
  wire::Resources resources;
  const auto take = [&](std::string_view name, const std::string& text, const char* option) {
    const auto amount = scheduler::parse_amount(name, text);
    if (!amount.ok()) return amount.status().prefixed(option);
    if (*amount > 0) resources[std::string(name)] = *amount;
    return Status();
  };
  TROUPE_RETURN_IF_ERROR(take(scheduler::kCpu, flags.num_cpus, "--num-cpus"));
  TROUPE_RETURN_IF_ERROR(take(scheduler::kGpu, flags.num_gpus, "--num-gpus"));
  TROUPE_RETURN_IF_ERROR(take(scheduler::kMemory, flags.memory, "--memory"));
  for (const auto& text : flags.resources) {
    const auto parsed = scheduler::parse_resource(text);
    if (!parsed.ok()) return parsed.status().prefixed("--resources");
    resources[parsed->first] = parsed->second;
  }
  return resources;
}

Result<std::pair<std::string, std::string>> key_value(const std::string& text, const char* option,
                                                      const char* example) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    return error(Code::kInvalidArgument, "{}: '{}' is not KEY=VALUE, such as {}", option, text,
                 example);
  }
  return std::pair(text.substr(0, equals), text.substr(equals + 1));
}

Result<std::map<std::string, std::string>> environment_of(const SubmitFlags& flags,
                                                          const wire::Resources& resources) {
  std::map<std::string, std::string> environment;
  for (const auto& text : flags.environment) {
    auto [name, value] = TROUPE_TRY(key_value(text, "--env", "SEED=7"));
    if (kNodesVariables.contains(name)) {
      return error(Code::kInvalidArgument,
                   "--env: {} is what the node tells the program of its cluster", name);
    }
    environment[std::move(name)] = std::move(value);
  }
  TROUPE_RETURN_IF_ERROR(scheduler::check_gpus(resources, environment));
  return environment;
}

Result<std::int32_t> priority_of(const SubmitFlags& flags) {
  const double priority = flags.priority.value_or(0);
  constexpr double kMost = std::numeric_limits<std::int32_t>::max();
  if (!std::isfinite(priority) || std::trunc(priority) != priority || std::abs(priority) > kMost) {
    return error(Code::kInvalidArgument, "--priority is {}: it is a whole number", priority);
  }
  return static_cast<std::int32_t>(priority);
}

// As the program would be run here, where nothing else is said.
Result<std::string> working_directory_of(const SubmitFlags& flags) {
  std::error_code ec;
  const auto path = flags.working_directory
                        ? std::filesystem::absolute(*flags.working_directory, ec)
                        : std::filesystem::current_path(ec);
  if (ec) return error(Code::kFailedPrecondition, "the working directory: {}", ec.message());
  return path.string();
}

Result<std::uint64_t> ship_limit_of(const SubmitFlags& flags) {
  const auto amount =
      scheduler::parse_amount(scheduler::kMemory, flags.ship_limit.value_or("512Mi"));
  if (!amount.ok()) return amount.status().prefixed("--ship-limit");
  return static_cast<std::uint64_t>(*amount / wire::kResourceUnit);
}

Result<NodeId> node_named(ClusterConnection& cluster, const std::string& word) {
  std::vector<NodeId> found;
  for (const auto& node : TROUPE_TRY(cluster.head->nodes(cluster.deadline))) {
    if (node.state == wire::NodeState::kDead) continue;
    if (is_meant(word, node.name, node.node_id.to_string())) found.push_back(node.node_id);
  }
  if (found.size() == 1) return found.front();
  return error(found.empty() ? Code::kNotFound : Code::kInvalidArgument,
               "--node: {} '{}'; 'troupe nodes' lists them",
               found.empty() ? "there is no node" : "several nodes are meant by", word);
}

// What can be said without the cluster.
Result<wire::ActorSpec> driver_of(CommandContext& context, const SubmitFlags& flags) {
  if (flags.program.empty()) {
    return Status(Code::kInvalidArgument,
                  "no program: troupe submit [options] -- PROGRAM [ARGUMENTS]");
  }
  if (!flags.ship && (!flags.excluded.empty() || flags.ship_limit)) {
    return Status(Code::kInvalidArgument,
                  "--exclude and --ship-limit say what --ship sends, and need it");
  }
  wire::ActorSpec spec;
  spec.actor_id = ActorId::make(context.random);
  spec.job_id = JobId::make(context.random);
  spec.program.argv = flags.program;
  spec.program.working_directory = TROUPE_TRY(working_directory_of(flags));
  const std::string& program = flags.program.front();
  spec.type = flags.name.empty() ? program.substr(program.rfind('/') + 1) : flags.name;
  spec.resources = TROUPE_TRY(resources_of(flags));
  spec.environment = TROUPE_TRY(environment_of(flags, spec.resources));
  spec.priority = TROUPE_TRY(priority_of(flags));
  std::map<std::string, std::string> labels;
  for (const auto& text : flags.labels) {
    labels.insert(TROUPE_TRY(key_value(text, "--labels", "zone=b")));
  }
  auto selector = scheduler::parse_label_selector(labels);
  if (!selector.ok()) return selector.status().prefixed("--labels");
  spec.label_selector = std::move(*selector);
  return spec;
}

// --- while it runs -------------------------------------------------------------------------------

// One job that was submitted, followed to its end.
class Submission {
 public:
  Submission(CommandContext& context, const SubmitFlags& flags)
      : context_(context), flags_(flags) {}

  Status run();
  // The first one asks the job to stop, the second leaves it to itself. Any thread.
  void on_signal();

 private:
  Status interrupted();
  Status pack(wire::ActorSpec& spec);
  Result<std::vector<wire::NodeInfo>> nodes_to_send_to(const wire::ActorSpec& spec);
  Status send(const wire::ActorSpec& spec);
  Status submit(wire::ActorSpec spec);
  Status follow(wire::ActorSpec spec);
  Status conclude();
  void ask_to_stop();
  void show(std::string_view line);

  CommandContext& context_;
  const SubmitFlags& flags_;
  Duration grace_{};
  std::unique_ptr<ClusterConnection> cluster_;
  Shipment shipment_;
  wire::JobInfo job_;
  std::unique_ptr<JobEnd> end_;
  std::atomic<JobEnd*> followed_{nullptr};
  std::atomic<int> signals_{0};
};

Status Submission::run() {
  grace_ = TROUPE_TRY(grace_option(flags_.grace_s));
  auto spec = TROUPE_TRY(driver_of(context_, flags_));
  if (flags_.ship) {
    const Status packed = pack(spec);
    if (packed.code() == Code::kCancelled) return interrupted();
    TROUPE_RETURN_IF_ERROR(packed);
  }
  cluster_ = TROUPE_TRY(connect_cluster(context_, flags_.cluster, "troupe submit"));
  if (flags_.node) spec.node_affinity = TROUPE_TRY(node_named(*cluster_, *flags_.node));
  if (flags_.ship) {
    const Status sent = send(spec);
    if (sent.code() == Code::kCancelled) return interrupted();
    TROUPE_RETURN_IF_ERROR(sent);
  }
  job_.job_id = spec.job_id;
  job_.name = spec.type;
  job_.driver = spec.actor_id;
  job_.priority = spec.priority;
  if (!flags_.no_wait) return follow(std::move(spec));
  TROUPE_RETURN_IF_ERROR(submit(std::move(spec)));
  if (flags_.cluster.json) {
    context_.out << json::write(to_json(job_)) << std::endl;
  } else {
    context_.out << job_.job_id.to_string() << std::endl;
  }
  return {};
}

// The signal's exit code says what happened.
Status Submission::interrupted() {
  context_.err << "interrupted: nothing was submitted\n" << std::flush;
  return {};
}

// --- what is shipped -----------------------------------------------------------------------------

Status Submission::pack(wire::ActorSpec& spec) {
  shipment_ = TROUPE_TRY(pack_shipment(context_,
                                       {.folder = spec.program.working_directory,
                                        .argv = flags_.program,
                                        .excluded = flags_.excluded,
                                        .bytes_max = TROUPE_TRY(ship_limit_of(flags_))},
                                       [this] { return signals_ == 0; }));
  spec.package = shipment_.package;
  spec.program.argv = shipment_.argv;
  spec.program.working_directory.clear();  // the package's
  return {};
}

// Those that have it first, then the one that it is for, then any.
Result<std::vector<wire::NodeInfo>> Submission::nodes_to_send_to(const wire::ActorSpec& spec) {
  auto nodes = TROUPE_TRY(cluster_->head->nodes(cluster_->deadline));
  const auto have =
      TROUPE_TRY(scheduler::find_package(*cluster_->head, spec.package, cluster_->deadline));
  std::erase_if(nodes, [](const auto& node) { return node.state != wire::NodeState::kAlive; });
  const auto rank = [&](const wire::NodeInfo& node) {
    if (std::find(have.begin(), have.end(), node.endpoint) != have.end()) return 0;
    return node.node_id == spec.node_affinity ? 1 : 2;
  };
  std::stable_sort(nodes.begin(), nodes.end(),
                   [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
  if (nodes.empty()) {
    return Status(Code::kFailedPrecondition,
                  "the cluster has no node that could take what is to be shipped: start one with "
                  "'troupe worker'");
  }
  nodes.resize(std::min(nodes.size(), kNodesTriedMax));
  return nodes;
}

Status Submission::send(const wire::ActorSpec& spec) {
  const Duration head_timeout = cluster_->deadline.remaining();
  const std::string what =
      fmt::format("{} with {} files", spec.package.to_string(), shipment_.file_count);
  std::string failures;
  Status last;
  for (const auto& node : TROUPE_TRY(nodes_to_send_to(spec))) {
    last = scheduler::send_package(
        cluster_->thread->loop(), {node.endpoint.host, node.endpoint.port, {}},
        cluster_->place.token.token, spec.package, shipment_.file->bytes(), kSendPatience,
        [this] { return signals_ == 0; });
    cluster_->deadline = Deadline::after(head_timeout);
    if (last.code() == Code::kCancelled) return last;
    const bool was_there = last.code() == Code::kAlreadyExists;
    if (last.ok() || was_there) {
      context_.err << fmt::format("{} {} node {}{}\n", what, was_there ? "is on" : "was sent to",
                                  printable(node.name),
                                  was_there ? " already: nothing was sent" : "")
                   << std::flush;
      return {};
    }
    failures += (failures.empty() ? "" : "; ") + last.message();
  }
  return error(last.code(), "no node took {}: {}", what, failures);
}

// --- the job -------------------------------------------------------------------------------------

Status Submission::submit(wire::ActorSpec spec) {
  TROUPE_RETURN_IF_ERROR(
      scheduler::submit_job(*cluster_->head, flags_.name, std::move(spec), cluster_->deadline));
  const std::string id = job_.job_id.brief();
  context_.err << fmt::format("job {} ({}) was submitted; 'troupe logs {}', 'troupe stop {}'\n",
                              printable(job_.name), id, id, id)
               << std::flush;
  return {};
}

void Submission::show(std::string_view line) {
  if (flags_.cluster.json) {
    context_.out << json::write(json::Object{{"job_id", job_.job_id.to_string()}, {"line", line}});
  } else {
    context_.out << line;
  }
  context_.out << std::endl;
}

Status Submission::follow(wire::ActorSpec spec) {
  scheduler::OutputFollower follower(
      cluster_->thread->loop(), cluster_->head, cluster_->place.token.token,
      {.actor_id = job_.driver,
       .on_line = [this](const std::string&, std::string_view line) { show(line); }});
  // The nodes know who listens before there is anything to hear.
  follower.catch_up(kLastOutputTime);
  TROUPE_RETURN_IF_ERROR(submit(std::move(spec)));
  end_ = std::make_unique<JobEnd>(*cluster_->head, job_);
  followed_ = end_.get();
  if (signals_ > 0) ask_to_stop();  // it came before there was anything to stop
  if (!end_->wait(Deadline::after(kWaitTold))) {
    const std::string why = end_->pending_why();
    if (!why.empty()) {
      context_.err << fmt::format("job {} waits: {}\n", job_.job_id.brief(), printable(why))
                   << std::flush;
    }
  }
  const bool over = end_->wait(Deadline::after(kForever));
  followed_ = nullptr;
  follower.catch_up(kLastOutputTime);
  follower.close();
  if (over) return conclude();
  context_.err << fmt::format("job {} is left to itself; 'troupe jobs' shows what becomes of it\n",
                              job_.job_id.brief());
  return {};
}

// The program's exit code is this command's.
Status Submission::conclude() {
  if (!end_->status().ok()) {
    return end_->status().prefixed(
        fmt::format("job {} goes on, but nobody can say how it ends", job_.job_id.brief()));
  }
  const auto job = TROUPE_TRY(end_->info(Deadline::after(kAnswerTimeout)));
  if (flags_.cluster.json) context_.out << json::write(to_json(job)) << std::endl;
  if (job.exit) {
    context_.exit_code = job.exit->signal != 0 ? 128 + job.exit->signal : job.exit->exit_code;
  }
  if (job.state == wire::JobState::kSucceeded) return {};
  const std::string how =
      fmt::format("job {} has {}: {}", job.job_id.brief(),
                  job.state == wire::JobState::kStopped ? "stopped" : "failed", how_it_ended(job));
  if (!job.exit) return Status(Code::kActorDied, how);
  context_.err << in_short(how) << "\n";
  return {};
}

void Submission::on_signal() {
  JobEnd* const end = followed_;
  const int count = ++signals_;
  if (end == nullptr) return;
  if (count > 1) return end->give_up();
  ask_to_stop();
}

void Submission::ask_to_stop() {
  context_.err << fmt::format("stopping job {}; again to leave it to itself\n", job_.job_id.brief())
               << std::flush;
  cluster_->head->request(
      wire::StopJob{
          .job_id = job_.job_id,
          .grace_ms = std::chrono::duration_cast<std::chrono::milliseconds>(grace_).count(),
          .reason = "'troupe submit' was interrupted"},
      [](const Result<wire::ControlMessage>&) {});
}

Status submit(CommandContext& context, const SubmitFlags& flags) {
  Submission submission(context, flags);
  return with_signals([&](int) { submission.on_signal(); }, [&] { return submission.run(); },
                      context);
}

}  // namespace

void add_submit_command(CLI::App& app, CommandContext& context) {
  auto flags = std::make_shared<SubmitFlags>();
  Command command(app, context, "submit", "Runs a program on a cluster, as a job.");
  declare_cluster_options(command, flags->cluster);
  command.option("--name", flags->name, "NAME", "the job's name (default: the program's)")
      .repeated("--env", flags->environment, "KEY=VALUE",
                "a variable of the program's environment, besides the node's; several times")
      .option(
          "--working-dir", flags->working_directory, "DIR",
          "the directory in which the program runs, on its node; with --ship, here, and sent along "
          "(default: the current one)")
      .flag("--ship", flags->ship,
            "send the program, its libraries and the working directory to the nodes that need them")
      .repeated("--exclude", flags->excluded, "PATTERN",
                "with --ship, files and folders that are left out, besides .git: names, or paths "
                "in the working directory, with wildcards; several times")
      .option("--ship-limit", flags->ship_limit, "BYTES",
              "with --ship, how much is sent at most, also as 2Gi (default 512Mi)")
      .option("--num-cpus", flags->num_cpus, "N", "CPUs that the program itself needs (default 0)")
      .option("--num-gpus", flags->num_gpus, "N", "GPUs that the program itself needs (default 0)")
      .option("--memory", flags->memory, "BYTES",
              "memory that the program itself needs, also as 8Gi or 500M (default 0)")
      .option("--resources", flags->resources, "K=V,...",
              "other resources that it needs: ssd=1 (default: none)")
      .option("--labels", flags->labels, "K=V,...",
              "run only on a node with these labels (default: on any)")
      .option("--node", flags->node, "NAME|ID", "run on this node (default: on any with room)")
      .option("--priority", flags->priority, "N",
              "the job's priority while it waits for room, and that of its actors and placement "
              "groups without one of their own; larger ones go first (default 0)")
      .option("--grace", flags->grace_s, "SECONDS",
              "how long the program may take to end after Ctrl-C (default 10)")
      .flag("--no-wait", flags->no_wait,
            "print the job's id and return as soon as the head has accepted it")
      .rest("program", flags->program, "the program, and its arguments, behind '--'")
      .example("troupe submit -- ./train.sh --epochs 3")
      .example("troupe submit --name nightly --env SEED=7 --no-wait -- python3 driver.py")
      .example("troupe submit --ship --exclude build -- ./build/my_app --steps 10")
      .example("troupe submit --num-cpus 2 --priority 5 -- troupe train x.yaml")
      .note(
          "PROGRAM and its ARGUMENTS stand behind '--'. The program must be on the node, unless "
          "--ship brings it:\nthen it runs on any node, and so do its actors, in a copy of the "
          "working directory that nobody but\nroot may write to. The program finds the cluster in "
          "its environment (TROUPE_ADDRESS,\nTROUPE_TOKEN_FILE, TROUPE_JOB_ID): "
          "'troupe train' uses it, and\nCluster::connect() without arguments. Its output comes "
          "here, its exit code is this command's\n(128 + the signal, where one ended it). Its "
          "actors, placement groups and kept memory end with it.\nCtrl-C asks it to stop "
          "(SIGTERM to its process group, SIGKILL after --grace); a second one leaves\nit to "
          "itself. It goes on when this command is killed.")
      .run([flags, &context] { return submit(context, *flags); });
}

}  // namespace troupe::tools
