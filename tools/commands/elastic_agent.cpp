#include "tools/commands/elastic_agent.h"

#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <future>

#include "runtime/base/limits.h"
#include "runtime/base/suggest.h"
#include "runtime/net/free_port.h"
#include "runtime/process/child_program.h"
#include "scheduler/client/cluster_record.h"
#include "scheduler/policy/program_kind.h"
#include "scheduler/policy/resources.h"
#include "tools/commands/repeated_signals.h"
#include "tools/commands/signals.h"
#include "tools/launchers/invocation.h"
#include "tools/ranks/standby.h"
#include "troupe/unique_fd.h"

namespace troupe::tools {
namespace {

constexpr Duration kTakenTimeout = std::chrono::seconds(30);
constexpr Duration kCatchUpTime = std::chrono::seconds(30);
// Where nobody waits for the lines: before there are any, and where a signal ends the run.
constexpr Duration kCatchUpSoonTime = std::chrono::seconds(2);
// Beyond the grace, for the kernel and the messages.
constexpr Duration kBeyondGrace = std::chrono::seconds(10);
constexpr Duration kBackoffFirst = std::chrono::seconds(1);
constexpr Duration kBackoffMax = std::chrono::seconds(30);
// An attempt that lasted so long is no sign of a failure that comes again at once.
constexpr Duration kLongAttempt = std::chrono::seconds(10);
constexpr std::size_t kLastErrorLines = 20;
constexpr std::size_t kErrorFileBytesMax = 16u << 20;
// Where nobody of ours can ask the machine for a free port: below the kernels' own range.
constexpr std::uint16_t kPortsBegin = 20000;
constexpr std::uint16_t kPortsCount = 10000;

// The part of this environment that ranks on other machines get: as deepspeed's launcher exports
// it, with what finds the interpreter and its packages.
std::map<std::string, std::string> exported(char** environment) {
  constexpr std::array kNames{"PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH",
                              "OMP_NUM_THREADS"};
  constexpr std::array kPrefixes{"PYTHON", "NCCL",   "GLOO",  "TORCH", "HF_",        "UCX",
                                 "MV2",    "MLFLOW", "WANDB", "CUDA",  "ACCELERATE", "FSDP"};
  std::map<std::string, std::string> found;
  for (char** entry = environment; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string_view name = text.substr(0, equals);
    const bool named = std::find(kNames.begin(), kNames.end(), name) != kNames.end();
    const bool prefixed = std::any_of(kPrefixes.begin(), kPrefixes.end(),
                                      [&](const char* prefix) { return name.starts_with(prefix); });
    // A credential stays where it is.
    const bool secret =
        name.find("TOKEN") != std::string_view::npos || name.find("KEY") != std::string_view::npos;
    if ((named || prefixed) && !secret) found.emplace(name, text.substr(equals + 1));
  }
  return found;
}

std::string last_lines(const std::string& text, std::size_t count) {
  std::size_t begin = text.size();
  for (std::size_t lines = 0; begin > 0; --begin) {
    if (text[begin - 1] == '\n' && begin != text.size() && ++lines == count) break;
  }
  return text.substr(begin);
}

bool ends_run(int signal) {
  return signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT;
}

std::int64_t unix_s() { return SystemClock().unix_time_us() / 1'000'000; }

}  // namespace

ElasticAgent::ElasticAgent(CommandContext& context, Console& console, RunMachines& machines,
                           const RunOptions& options, std::string log_dir)
    : context_(context),
      console_(console),
      machines_(machines),
      options_(options),
      log_dir_(std::move(log_dir)) {
  for (const std::string& word : options.program) {
    if (word.ends_with(".py")) script_name_ = word;
  }
  if (script_name_.empty()) script_name_ = options.program.front();
  machines_.head().watch_nodes([this](const wire::NodeInfo&) {
    const std::lock_guard lock(mutex_);
    nodes_changed_ = true;
    changed_.notify_all();
  });
  follower_ = std::make_unique<scheduler::OutputFollower>(
      machines_.loop(), machines_.shared_head(), machines_.token(),
      scheduler::OutputFollowerOptions{
          .job_id = machines_.job_id(),
          .actor_id = {},
          .except = {},
          .on_line = nullptr,
          .on_output = [this](const wire::OutputLine& line) { on_line(line); }});
}

ElasticAgent::~ElasticAgent() {
  // No callback comes afterwards.
  machines_.head().close();
  if (follower_) follower_->close();
}

void ElasticAgent::on_signal(int signal) {
  if (!ends_run(signal)) return machines_.signal_here(signal);
  bool first = false;
  {
    const std::lock_guard lock(mutex_);
    if (end_signal_ == 0) end_signal_ = signal;
    first = ++end_signals_ == 1;
    changed_.notify_all();
  }
  if (!first) return;
  say(fmt::format("{}: the ranks are being ended, within {} s; again to kill them",
                  signal == SIGINT ? "interrupted" : signal_name(signal),
                  std::chrono::duration_cast<std::chrono::seconds>(options_.stop_grace).count()));
}

int ElasticAgent::end_signal() {
  const std::lock_guard lock(mutex_);
  return end_signal_;
}

void ElasticAgent::say(const std::string& line) {
  console_.write("", true, "troupe run: " + line + "\n");
}

// --- what the ranks do ---------------------------------------------------------------------------

void ElasticAgent::on_line(const wire::OutputLine& line) {
  const std::lock_guard lock(mutex_);
  if (const auto found = ranks_.find(line.actor_id); found != ranks_.end())
    return show(*found->second, line);
  // It was woken for the attempt that is being prepared.
  if (const auto standby = standbys_.find(line.actor_id);
      standby != standbys_.end() && standby->second.taken)
    standby->second.early.push_back(line);
}

void ElasticAgent::show(Rank& rank, const wire::OutputLine& line) {
  if (line.error_stream && !line.notice && !line.is_part()) rank.errors.append(line.text);
  const int local = rank.place.local_rank;
  // A machine that joined this run by itself shows its own ranks.
  if (!rank.machine.here && !machines_.running_cluster() && !options_.starts_hosts) return;
  const auto& wanted = options_.console_ranks;
  if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), local) == wanted.end()) return;
  const auto chosen = [&](const Streams& streams) {
    return line.error_stream ? streams.err : streams.out;
  };
  const bool teed = chosen(options_.tee.of(local));
  if (!teed && !line.notice && chosen(options_.redirects.of(local))) return;
  bool& open = rank.open_line[line.error_stream ? 1 : 0];
  const bool begins =
      !std::exchange(open, line.end == wire::LineEnd::kOpen || line.end == wire::LineEnd::kNone);
  console_.write(rank.id.to_string(), line.error_stream,
                 (teed && begins ? rank.prefix : std::string()) + line.new_text());
  console_end_.show(line);
}

void ElasticAgent::on_actor(ActorId id, const Result<wire::ActorInfo>& info) {
  const std::lock_guard lock(mutex_);
  if (const auto standby = standbys_.find(id); standby != standbys_.end()) {
    if (info.ok() && info->pid != 0) standby->second.pid = info->pid;
    if (info.ok() && info->state == wire::ActorState::kDead) {
      standby->second.ended = true;
      standby->second.death = info->death;
    }
    return;
  }
  const auto found = ranks_.find(id);
  if (found == ranks_.end() || found->second->ended) return;
  Rank& rank = *found->second;
  if (!info.ok()) {
    // The head is away: the watch goes on.
    const Code code = info.status().code();
    if (code == Code::kUnavailable || code == Code::kUnauthenticated) return;
    return rank_ended(rank, info.status());
  }
  if (info->pid != 0) rank.pid = info->pid;
  if (info->state == wire::ActorState::kDead) rank_ended(rank, info->death);
}

void ElasticAgent::rank_ended(Rank& rank, const Status& death) {
  rank.ended = true;
  const auto number = [&](const char* key) -> std::optional<int> {
    const auto text = death.context(key);
    return text ? std::optional(std::atoi(std::string(*text).c_str())) : std::nullopt;
  };
  const auto exit_code = number(scheduler::kExitCodeContext);
  const auto exit_signal = number(scheduler::kExitSignalContext);
  const auto reason = [&](const char* key) {
    return std::string(death.context(key).value_or(std::string_view()));
  };
  const std::string not_started = reason(scheduler::kNotStartedContext);
  std::string why = not_started.empty() ? reason(scheduler::kNodeLostContext) : not_started;
  if (why.empty()) why = death.message();
  // One that was told to end is no failure, unless it had ended by itself before it heard.
  rank.failed = exit_code != 0 && (!stopping_ || exit_code || exit_signal);
  if (rank.failed) {
    rank.failure = {.rank = rank.place.rank,
                    .local_rank = rank.place.local_rank,
                    .host = rank.machine.name,
                    .pid = rank.pid,
                    .exit_code = exit_code.value_or(exit_signal ? 0 : 1),
                    .signal = exit_signal.value_or(0),
                    .unix_s = unix_s(),
                    .error_file = {},
                    .traceback = {},
                    .death = exit_code || exit_signal ? std::string() : why,
                    .started = not_started.empty(),
                    .last_lines = {}};
    failed_order_.push_back(rank.id);
  }
  changed_.notify_all();
}

bool ElasticAgent::all_ended() const {
  return std::all_of(ranks_.begin(), ranks_.end(),
                     [](const auto& entry) { return entry.second->ended; });
}

// --- an attempt ----------------------------------------------------------------------------------

Result<std::vector<wire::ActorSpec>> ElasticAgent::prepare(
    const std::vector<RunMachine>& machines) {
  World world;
  world.size = 0;
  for (const RunMachine& machine : machines) world.size += machine.processes;
  world.nodes = static_cast<int>(machines.size());
  world.restart_count = restarts_;
  const RunMachine& first = machines.front();
  world.master_addr = machines.size() == 1 && first.here ? "127.0.0.1" : first.host;
  // With several machines the head has the port that was named.
  const auto told_port = machines_.one_machine() ? options_.head_port : std::nullopt;
  world.master_port =
      told_port    ? *told_port
      : first.here ? TROUPE_TRY(net::free_port())
                   : static_cast<std::uint16_t>(kPortsBegin + context_.random.below(kPortsCount));
  const std::string attempt = join_path(log_dir_, fmt::format("attempt_{}", attempts_));
  std::error_code ec;
  const std::string directory = std::filesystem::current_path(ec).string();
  if (ec) return error(Code::kFailedPrecondition, "the working directory: {}", ec.message());
  const auto others = machines_.running_cluster() || options_.starts_hosts
                          ? exported(environ)
                          : std::map<std::string, std::string>();

  std::vector<wire::ActorSpec> specs;
  std::map<ActorId, std::unique_ptr<Rank>> ranks;
  example_.reset();
  ranks_here_ = 0;
  int next_rank = 0;
  for (std::size_t node = 0; node < machines.size(); ++node) {
    const RunMachine& machine = machines[node];
    for (int local = 0; local < machine.processes; ++local) {
      auto rank = std::make_unique<Rank>();
      rank->place = {.rank = next_rank++,
                     .local_rank = local,
                     .group_rank = static_cast<int>(node),
                     .local_world_size = machine.processes};
      rank->machine = machine;
      rank->id = ActorId::make(context_.random);
      rank->prefix = line_prefix(options_, rank->place, context_.environment);
      const std::string base =
          machines.size() == 1 ? attempt : join_path(attempt, fmt::format("node_{}", node));
      const std::string folder = join_path(base, std::to_string(local));
      if (machine.here) {
        TROUPE_RETURN_IF_ERROR(context_.files.create_directories(folder));
        rank->error_file = join_path(folder, "error.json");
      }
      wire::ActorSpec& spec = specs.emplace_back();
      spec.actor_id = rank->id;
      spec.job_id = machines_.job_id();
      spec.type = script_name_.substr(script_name_.rfind('/') + 1);
      spec.rank = rank->place.rank;
      spec.program.argv = rank_words(options_, local);
      spec.program.working_directory = directory;
      spec.environment = others;
      for (auto& [name, value] :
           rank_environment(options_, world, rank->place, rank->error_file, context_.environment)) {
        spec.environment[name] = value;
      }
      const Streams kept{.out = options_.redirects.of(local).out || options_.tee.of(local).out,
                         .err = options_.redirects.of(local).err || options_.tee.of(local).err};
      if (kept.out) spec.program.stdout_path = join_path(folder, "stdout.log");
      if (kept.err) spec.program.stderr_path = join_path(folder, "stderr.log");
      if (machine.bundle_index >= 0) {
        spec.placement_group = machines_.group();
        spec.bundle_index = machine.bundle_index;
        spec.resources[std::string(scheduler::kCpu)] = wire::kResourceUnit;
      } else {
        spec.node_affinity = machine.node_id;
      }
      if (machine.here) {
        ++ranks_here_;
        // One that stands by writes to the console, whatever its place will be.
        if (!kept.out && !kept.err) {
          example_ = spec;
          if (take_standby(*rank, spec)) specs.pop_back();
        }
      }
      const ActorId id = rank->id;
      ranks.emplace(id, std::move(rank));
    }
  }
  const std::lock_guard lock(mutex_);
  failed_order_.clear();
  ranks_ = std::move(ranks);
  for (auto entry = standbys_.begin(); entry != standbys_.end();) {
    const auto rank = ranks_.find(entry->first);
    if (rank != ranks_.end()) {
      for (const auto& line : entry->second.early) show(*rank->second, line);
    }
    if (rank != ranks_.end() && entry->second.ended) rank_ended(*rank->second, entry->second.death);
    entry = rank != ranks_.end() ? standbys_.erase(entry) : std::next(entry);
  }
  stopping_ = false;
  return specs;
}

Status ElasticAgent::start(const std::vector<RunMachine>& machines) {
  auto specs = TROUPE_TRY(prepare(machines));
  std::vector<ActorId> ids;
  for (const auto& spec : specs) ids.push_back(spec.actor_id);
  if (ids.empty()) return {};  // all of them stood by
  auto created = std::make_shared<std::promise<Status>>();
  auto answer = created->get_future();
  machines_.head().create_actors(std::move(specs), true, false, [created](Status status) {
    created->set_value(std::move(status));
  });
  if (answer.wait_for(kTakenTimeout) != std::future_status::ready) {
    return Status(Code::kDeadlineExceeded, "the head did not take the ranks");
  }
  TROUPE_RETURN_IF_ERROR(answer.get());
  for (const ActorId& id : ids) {
    watches_.push_back(machines_.head().watch_actor(
        id, {}, [this, id](const Result<wire::ActorInfo>& info) { on_actor(id, info); }));
  }
  return {};
}

// Whether a machine has come that the ranks could use besides theirs.
bool ElasticAgent::nodes_grew(const std::vector<RunMachine>& machines) {
  if (options_.rendezvous != Rendezvous::kDynamic ||
      machines.size() >= static_cast<std::size_t>(options_.nodes_max)) {
    return false;
  }
  const auto present = machines_.present();
  return present.ok() && present->size() > machines.size();
}

ElasticAgent::Outcome ElasticAgent::watch(const std::vector<RunMachine>& machines) {
  std::unique_lock lock(mutex_);
  bool standbys_due = true;
  const auto something = [&] {
    return end_signal_ != 0 || nodes_changed_ || !failed_order_.empty() || all_ended();
  };
  Deadline quiet = Deadline::after(options_.standby_after);
  for (;;) {
    if (!standbys_due) {
      changed_.wait(lock, something);
    } else if (!changed_.wait_until(lock, quiet.time(), something)) {
      standbys_due = false;
      lock.unlock();
      start_standbys();
      lock.lock();
      continue;
    }
    if (!failed_order_.empty()) return Outcome::kFailed;
    if (all_ended()) return Outcome::kSucceeded;
    if (end_signal_ != 0) return Outcome::kSignalled;
    nodes_changed_ = false;
    lock.unlock();
    const bool grew = nodes_grew(machines);
    lock.lock();
    if (grew) return Outcome::kNodesChanged;
  }
}

void ElasticAgent::stop_ranks(int signal) {
  const auto kill_all = [&](Duration grace) {
    std::vector<ActorId> living;
    {
      const std::lock_guard lock(mutex_);
      for (const auto& [id, rank] : ranks_) {
        if (!rank->ended) living.push_back(id);
      }
    }
    const auto grace_ms = std::chrono::duration_cast<std::chrono::milliseconds>(grace).count();
    for (const ActorId& id : living) {
      machines_.head().kill_actor(id, false, grace_ms, "its run ends, or begins again",
                                  [](const Status&) {});
    }
  };
  // Other signals than SIGTERM are known to the ranks' machine alone.
  const bool here_first = signal != 0 && signal != SIGTERM;
  if (here_first) machines_.signal_here(signal);
  std::unique_lock lock(mutex_);
  stopping_ = true;
  const int signals_before = end_signals_;
  const auto over = [&] { return all_ended() || end_signals_ > std::max(1, signals_before); };
  if (here_first) changed_.wait_for(lock, options_.stop_grace, over);
  if (!all_ended()) {
    const bool hurry = here_first || end_signals_ > std::max(1, signals_before);
    lock.unlock();
    kill_all(hurry ? Duration::zero() : options_.stop_grace);
    lock.lock();
    changed_.wait_for(lock, options_.stop_grace + kBeyondGrace, over);
    if (!all_ended()) {
      lock.unlock();
      kill_all(Duration::zero());
      lock.lock();
      changed_.wait_for(lock, kBeyondGrace, [&] { return all_ended(); });
    }
  }
  lock.unlock();
  for (const auto watch : std::exchange(watches_, {})) machines_.head().unwatch(watch);
}

// --- interpreters that stand by ------------------------------------------------------------------

void ElasticAgent::start_standbys() {
  if (!options_.standbys || restarts_ >= options_.max_restarts || !example_) return;
  std::size_t alive = 0;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(standbys_, [](const auto& entry) { return entry.second.ended; });
    alive = standbys_.size();
  }
  std::vector<wire::ActorSpec> specs;
  for (; alive < static_cast<std::size_t>(ranks_here_); ++alive) {
    wire::ActorSpec spec = *example_;
    spec.actor_id = ActorId::make(context_.random);
    spec.rank = -1;
    const std::string pipe = join_path(log_dir_, fmt::format("standby_{}", spec.actor_id.brief()));
    auto words = standby_words(spec.program.argv, pipe);
    if (!words || ::mkfifo(pipe.c_str(), 0600) != 0) return;  // a restart takes longer, and works
    spec.program.argv = std::move(*words);
    {
      const std::lock_guard lock(mutex_);
      standbys_[spec.actor_id] = {.pipe = pipe};
    }
    machines_.head().watch_actor(
        spec.actor_id, {},
        [this, id = spec.actor_id](const Result<wire::ActorInfo>& info) { on_actor(id, info); });
    specs.push_back(std::move(spec));
  }
  if (!specs.empty()) {
    machines_.head().create_actors(std::move(specs), false, false, [](const Status&) {});
  }
}

bool ElasticAgent::take_standby(Rank& rank, const wire::ActorSpec& spec) {
  for (;;) {
    ActorId id;
    Standby standby;
    {
      const std::lock_guard lock(mutex_);
      const auto found = std::find_if(standbys_.begin(), standbys_.end(), [](const auto& entry) {
        return !entry.second.ended && !entry.second.taken && entry.second.pid != 0;
      });
      if (found == standbys_.end()) return false;
      found->second.taken = true;
      id = found->first;
      standby = found->second;
    }
    if (wake_standby(standby.pipe, spec.program.argv, spec.environment).ok()) {
      rank.id = id;
      rank.pid = standby.pid;
      return true;
    }
    machines_.head().kill_actor(id, false, 0, "it does not answer", [](const Status&) {});
  }
}

Result<ElasticAgent::Outcome> ElasticAgent::attempt() {
  const auto machines = TROUPE_TRY(machines_.gather([this] { return end_signal() != 0; }));
  // The nodes know who listens before there is anything to hear.
  follower_->catch_up(kCatchUpSoonTime);
  {
    const std::lock_guard lock(mutex_);
    nodes_changed_ = true;  // what comes from here on is looked at
  }
  TROUPE_RETURN_IF_ERROR(start(machines));
  const Outcome outcome = watch(machines);
  ++attempts_;
  stop_ranks(outcome == Outcome::kSignalled ? end_signal() : 0);
  return outcome;
}

// --- a run ---------------------------------------------------------------------------------------

// Waits until the ranks' output has been shown: before the run ends, or its failure is explained.
void ElasticAgent::catch_up() {
  if (follower_->catch_up(kCatchUpTime)) return;
  say(fmt::format("the ranks' last output was not shown within {} s, and is left out",
                  std::chrono::duration_cast<std::chrono::seconds>(kCatchUpTime).count()));
}

std::vector<FailedRank> ElasticAgent::failures() {
  catch_up();
  const std::lock_guard lock(mutex_);
  std::vector<FailedRank> failed;
  for (const ActorId& id : failed_order_) {
    const Rank& rank = *ranks_.at(id);
    FailedRank failure = rank.failure;
    failure.pid = rank.pid;
    failure.last_lines = last_lines(rank.errors.text(), kLastErrorLines);
    if (console_end_.holds(id, failure.last_lines)) failure.last_lines.clear();
    if (!rank.error_file.empty()) {
      const auto text = context_.files.read(rank.error_file, kErrorFileBytesMax);
      if (const auto recorded = text.ok() ? parse_error_file(*text) : std::nullopt) {
        failure.error_file = rank.error_file;
        failure.traceback = recorded->message;
        failure.unix_s = recorded->timestamp_s.value_or(failure.unix_s);
      }
    }
    failed.push_back(std::move(failure));
  }
  return failed;
}

Result<int> ElasticAgent::run() {
  const SystemClock clock;
  Duration pause{};
  for (;;) {
    const TimePoint began = clock.now();
    auto outcome = attempt();
    if (!outcome.ok() && end_signal() != 0) outcome = Outcome::kSignalled;
    if (!outcome.ok()) return outcome.status();
    if (*outcome == Outcome::kSucceeded) {
      catch_up();
      return 0;
    }
    if (*outcome == Outcome::kSignalled) {
      follower_->catch_up(kCatchUpSoonTime);
      return 128 + end_signal();
    }
    if (*outcome == Outcome::kNodesChanged) {
      say("a node has come: all ranks begin again");
      continue;
    }
    const auto failed = failures();
    const FailedRank& root = failed[root_cause(failed)];
    const auto none_ran = start_failure(failed);
    const std::string how =
        none_ran ? *none_ran + did_you_mean(options_.program.front(), launcher_names())
        : root.death.empty()
            ? fmt::format(
                  "rank {} on {} failed (exitcode: {}) local_rank: {} (pid: {}) of binary: {}",
                  root.rank, root.host, root.shown_exit_code(), root.local_rank, root.pid,
                  options_.program.front())
            : fmt::format("rank {} was lost: {}", root.rank, root.death);
    if (restarts_ >= options_.max_restarts || end_signal() != 0) {
      say(how);
      if (!none_ran) console_.write("", true, failure_report(script_name_, failed));
      tell_parent(root);
      if (!options_.ends_with_ranks_code) return 1;
      return root.signal != 0 ? 128 + root.signal : std::max(1, root.exit_code);
    }
    ++restarts_;
    const bool at_once = clock.now() - began < kLongAttempt;
    pause = !at_once || restarts_ == 1  ? Duration::zero()
            : pause == Duration::zero() ? kBackoffFirst
                                        : std::min(2 * pause, kBackoffMax);
    say(fmt::format(
        "{}; restart {} of {}{}", how, restarts_, options_.max_restarts,
        pause == Duration::zero()
            ? std::string()
            : fmt::format(" in {} s",
                          std::chrono::duration_cast<std::chrono::seconds>(pause).count())));
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, pause, [&] { return end_signal_ != 0; });
    if (end_signal_ != 0) return 128 + end_signal_;
  }
}

// Where this launcher is itself a rank of another one, the root cause is that one's to show.
void ElasticAgent::tell_parent(const FailedRank& root) {
  const auto path = context_.environment.get("TORCHELASTIC_ERROR_FILE");
  if (!path || path->empty() || root.error_file.empty()) return;
  const auto text = context_.files.read(root.error_file, kErrorFileBytesMax);
  if (text.ok()) (void)write_file_atomically(context_.files, *path, *text);
}

// --- from options to an exit code ----------------------------------------------------------------

namespace {

// The folder of a run's logs, which goes with it unless somebody asked for it.
class LogFolder {
 public:
  static Result<LogFolder> make(CommandContext& context, const RunOptions& options) {
    LogFolder folder;
    folder.kept_ = !options.log_dir.empty() || options.redirects.any() || options.tee.any();
    std::error_code ec;
    std::string parent = options.log_dir.empty()
                             ? std::filesystem::temp_directory_path(ec).string()
                             : std::filesystem::absolute(options.log_dir, ec).string();
    if (ec) return error(Code::kFailedPrecondition, "log_dir: {}", ec.message());
    if (std::filesystem::exists(parent, ec) && !std::filesystem::is_directory(parent, ec)) {
      return error(Code::kInvalidArgument, "log_dir: {} is a file", options.log_dir);
    }
    TROUPE_RETURN_IF_ERROR(context.files.create_directories(parent));
    // A run's id may hold anything; a folder's name no slash.
    std::string name = options.run_id;
    std::replace(name.begin(), name.end(), '/', '_');
    folder.path_ = TROUPE_TRY(process::make_folder(parent, name + "_"));
    return folder;
  }
  LogFolder(LogFolder&& other) noexcept
      : path_(std::exchange(other.path_, {})), kept_(other.kept_) {}
  ~LogFolder() {
    std::error_code ec;
    if (!kept_ && !path_.empty()) std::filesystem::remove_all(path_, ec);
  }
  const std::string& path() const { return path_; }

 private:
  LogFolder() = default;
  std::string path_;
  bool kept_ = false;
};

// `taken`, where it is given: the endpoint of a dynamic rendezvous has a listener already.
Result<int> lead(CommandContext& context, const RunOptions& options,
                 const std::optional<std::string>& address, bool* taken) {
  const auto folder = TROUPE_TRY(LogFolder::make(context, options));
  Console console(console_streams(context));
  CommandContext shown = with_streams(context, console.out(), console.err());
  std::mutex mutex;
  ElasticAgent* agent = nullptr;
  int early = 0;
  Result<int> code = 1;
  const auto on_signal = [&](int signal) {
    if (ends_run(signal)) console.hurry();
    const std::lock_guard lock(mutex);
    if (agent != nullptr) return agent->on_signal(signal);
    early = signal;
  };
  const auto work = [&]() -> Status {
    auto opened = RunMachines::open(shown, options, address);
    if (taken != nullptr && options.rendezvous == Rendezvous::kDynamic) {
      *taken = opened.status().code() == Code::kAlreadyExists;
    }
    const auto machines = TROUPE_TRY(std::move(opened));
    {
      ElasticAgent running(shown, console, *machines, options, folder.path());
      {
        const std::lock_guard lock(mutex);
        agent = &running;
        if (early != 0) running.on_signal(early);
      }
      code = running.run();
      machines->end(code.ok() ? *code : 1);
      const std::lock_guard lock(mutex);
      agent = nullptr;
    }
    return code.status();
  };
  const Status status =
      with_signals(on_signal, work, shown, {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2});
  console.drain();
  TROUPE_RETURN_IF_ERROR(status);
  return code;
}

}  // namespace

Result<int> run_ranks(CommandContext& context, const RunOptions& options,
                      const std::optional<std::string>& address) {
  if (options.program.empty()) return Status(Code::kInvalidArgument, "no program to run");
  if (address) return lead(context, options, address, nullptr);
  if (!TROUPE_TRY(is_head_machine(context, options))) return join_run(context, options);
  // Agents of one machine may be told of the same endpoint, as several machines are: the one that
  // listens first leads.
  bool taken = false;
  auto code = lead(context, options, std::nullopt, &taken);
  if (!taken) return code;
  context.err << fmt::format(
      "troupe run: port {} of this machine is taken: joining the run there\n",
      options.head_port.value_or(0));
  auto joined = join_run(context, options);
  if (joined.ok() || joined.status().code() == Code::kDeadlineExceeded) return joined;
  return joined.status().prefixed(
      "no run takes this agent in there: if the port is another program's, choose another one in "
      "--rdzv-endpoint");
}

}  // namespace troupe::tools
