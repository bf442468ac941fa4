// Jobs: programs that run on the cluster as drivers. A job's program stands among the actors, so
// that room, the line, explanations and the end of its process group are the actors' own; its end
// is the job's, and the end of everything in it.

#include <algorithm>

#include "runtime/base/sort_by.h"
#include "scheduler/control/head_state.h"
#include "scheduler/control/journal_bytes.h"

namespace troupe::scheduler {
namespace {

// Of a program and its arguments, what is remembered for people.
constexpr std::size_t kCommandShownBytesMax = 1024;

// "./train.sh '--name=a b'": as somebody would type it.
std::string command_line(const std::vector<std::string>& argv) {
  std::string text;
  for (const std::string& argument : argv) {
    if (!text.empty()) text += ' ';
    const bool plain =
        !argument.empty() && argument.find_first_of(" \t\n'\"\\$`*?|&;<>()#~") == std::string::npos;
    text += plain ? argument : "'" + argument + "'";
    if (text.size() <= kCommandShownBytesMax) continue;
    text.resize(kCommandShownBytesMax);
    return text + "...";
  }
  return text;
}

std::string title(const wire::JobInfo& job) {
  return fmt::format("job '{}' {}", job.name, job.job_id.brief());
}

}  // namespace

// --- asked for -----------------------------------------------------------------------------------

// What holds for every program, a job's or a client's.
Status HeadState::check_program(const wire::ActorSpec& spec) {
  if (!spec.is_program() || spec.program.argv.front().empty()) {
    return Status(Code::kInvalidArgument, "a job without a program");
  }
  if (!spec.program.working_directory.starts_with('/')) {
    return error(Code::kInvalidArgument, "the working directory '{}' of program {} is not absolute",
                 spec.program.working_directory, spec.program.argv.front());
  }
  std::size_t bytes = spec.program.working_directory.size();
  for (const std::string& argument : spec.program.argv) bytes += argument.size() + 1;
  for (const auto& [name, value] : spec.environment) bytes += name.size() + value.size() + 2;
  if (bytes > wire::kProgramBytesMax) {
    return error(Code::kInvalidArgument,
                 "the arguments and the environment of program {} are {} bytes; at most {} are "
                 "taken: put them into a file",
                 spec.program.argv.front(), bytes, wire::kProgramBytesMax);
  }
  return {};
}

// One that belongs to a client, as its actors do: it may stand in a placement group and a gang. Who
// runs several beside each other decides itself what the end of one means for the others.
Status HeadState::check_clients_program(const wire::ActorSpec& spec) {
  TROUPE_RETURN_IF_ERROR(check_program(spec));
  if (spec.detached) {
    return error(Code::kInvalidArgument,
                 "{} is a program that is to outlive its owner: submit it as a job", spec.type);
  }
  if (spec.restart.max_restarts != 0 || !spec.supervisor.empty() || spec.health.interval_ms != 0 ||
      spec.light_count != 0) {
    return error(Code::kUnsupported,
                 "{} is a program: it is started once, outside of supervisors, is not asked for "
                 "its health and holds no light actors",
                 spec.type);
  }
  return {};
}

Status HeadState::check_job(const wire::SubmitJob& message) const {
  const wire::ActorSpec& spec = message.driver;
  if (spec.job_id.empty() || jobs_.contains(spec.job_id)) {
    return error(Code::kInvalidArgument, "job id {} is empty or used twice",
                 spec.job_id.to_string());
  }
  TROUPE_RETURN_IF_ERROR(check_program(spec));
  if (spec.restart.max_restarts != 0 || !spec.placement_group.empty() || !spec.supervisor.empty() ||
      spec.health.interval_ms != 0) {
    return Status(Code::kUnsupported,
                  "a job's program is started once, outside of placement groups and supervisors, "
                  "and is not asked for its health");
  }
  if (jobs_.size() - ended_jobs_.size() >= config_.jobs_max) {
    return error(Code::kOverloaded, "the cluster has {} jobs that have not ended; its limit is {}",
                 jobs_.size() - ended_jobs_.size(), config_.jobs_max);
  }
  return check_new({spec}, false, false);
}

void HeadState::on(PeerId peer, wire::SubmitJob& message) {
  if (client_of(peer) == nullptr) {
    return reply(peer, message.request_id,
                 Status(Code::kFailedPrecondition, "only a client submits jobs"));
  }
  wire::ActorSpec& spec = message.driver;
  // The same request again, after a reconnection: it is done.
  const auto known = jobs_.find(spec.job_id);
  if (known != jobs_.end() && known->second.info.driver == spec.actor_id) {
    return reply(peer, message.request_id, {});
  }
  Status status = check_job(message);
  if (status.ok()) {
    wire::JobInfo info;
    info.name = message.name.empty() ? spec.type : message.name;
    info.command = command_line(spec.program.argv);
    status = check_room(kept_by(spec) + kept_by(info));
  }
  const bool good = status.ok();
  reply(peer, message.request_id, std::move(status));
  if (!good) return;
  JobRecord& job = jobs_[spec.job_id];
  job.info.job_id = spec.job_id;
  job.info.name = message.name.empty() ? spec.type : message.name;
  job.info.driver = spec.actor_id;
  job.info.command = command_line(spec.program.argv);
  job.info.priority = spec.priority;
  job.info.submitted_unix_us = now_.unix_us;
  kept_bytes_ += kept_by(job.info);
  changed(job);  // before its program, which a journal never has alone
  log_event("job_submitted", {}, spec.actor_id, 0,
            fmt::format("{} was submitted: {}", title(job.info), job.info.command));
  // It ends with its job, not with who asked for it.
  spec.owner = {};
  spec.owner_actor = {};
  spec.owner_generation = 0;
  spec.detached = true;
  const ActorId id = spec.actor_id;
  create(std::move(spec), 0);
  enqueue(actors_.at(id), next_order_++);
}

void HeadState::on(PeerId peer, wire::StopJob& message) {
  const auto found = jobs_.find(message.job_id);
  if (found == jobs_.end()) return reply(peer, message.request_id, no_such_job(message.job_id));
  JobRecord& job = found->second;
  reply(peer, message.request_id, {});
  if (job.info.ended()) return;
  if (!std::exchange(job.info.stopping, true)) {
    job.info.why = clipped(message.reason.empty() ? "it was stopped on request" : message.reason,
                           kLivingTextBytes);
    changed(job);
    log_event("job_stopping", job.info.node_id, job.info.driver, 0,
              fmt::format("{} is to stop: {}", title(job.info), job.info.why));
  }
  end_actor(actors_.at(job.info.driver), false, message.grace_ms, job.info.why);
}

Status HeadState::no_such_job(JobId id) const {
  for (const auto& [client_id, client] : clients_) {
    if (client.job_id != id || client.kind != "driver") continue;
    return error(Code::kFailedPrecondition,
                 "job {} is that of {}, which connected by itself and was not submitted: end that "
                 "process, and its actors end with it",
                 id.brief(), client.name);
  }
  return error(Code::kNotFound, "there is no job {}", id.to_string());
}

// --- what belongs to one -------------------------------------------------------------------------

// The job of something that `client` creates, and its priority where it has none of its own.
Status HeadState::join_job(const ClientRecord& client, JobId& job_id,
                           std::int32_t& priority) const {
  if (job_id.empty()) job_id = client.job_id;
  const auto found = jobs_.find(job_id);
  if (found == jobs_.end()) return {};
  if (priority == 0) priority = found->second.info.priority;
  return check_job_runs(job_id, client.kind);
}

// Detached actors outlive their job, and may go on: they are no drivers.
Status HeadState::check_job_runs(JobId job_id, const std::string& kind) const {
  const auto found = jobs_.find(job_id);
  if (found == jobs_.end() || !found->second.info.ended() || kind == "actor") return {};
  return error(Code::kFailedPrecondition,
               "{} has ended ({}): nothing joins it any more. Submit another one, or take "
               "TROUPE_JOB_ID out of the environment",
               title(found->second.info), wire::job_state_name(found->second.info.state));
}

void HeadState::end_job(JobId job_id, const std::string& reason) {
  std::vector<ActorId> actors;
  for (const auto& [id, actor] : actors_) {
    if (!actor.dead() && actor.spec.job_id == job_id && !outlives_job(actor)) actors.push_back(id);
  }
  std::vector<GroupId> groups;
  for (const auto& [id, group] : groups_) {
    if (!group.removed() && !group.spec.detached && group.spec.job_id == job_id) {
      groups.push_back(id);
    }
  }
  std::vector<SupervisorId> supervisors;
  for (const auto& [id, supervisor] : supervisors_) {
    const wire::SupervisorSpec& spec = supervisor.spec;
    const auto owner = actors_.find(spec.owner_actor);
    const bool stays = spec.detached || (owner != actors_.end() && outlives_job(owner->second));
    if (!supervisor.ended() && spec.job_id == job_id && !stays) supervisors.push_back(id);
  }
  end_supervisors(supervisors, reason);
  end_actors(actors, reason);
  remove_groups(groups, reason);
}

// --- its life ------------------------------------------------------------------------------------

void HeadState::changed(const JobRecord& job) { deltas_.push_back(JobKnown{job.info}); }

// What became of the programs that have changed.
void HeadState::settle_jobs() {
  while (!touched_jobs_.empty()) {
    const JobId id = *touched_jobs_.begin();
    touched_jobs_.erase(touched_jobs_.begin());
    const auto found = jobs_.find(id);
    if (found == jobs_.end() || found->second.info.ended()) continue;
    JobRecord& job = found->second;
    const ActorRecord& driver = actors_.at(job.info.driver);
    if (driver.dead()) {
      job_ended(job, driver);
    } else if (job.info.state == wire::JobState::kPending &&
               driver.info.state == wire::ActorState::kAlive) {
      job.info.state = wire::JobState::kRunning;
      job.info.started_unix_us = now_.unix_us;
      job.info.node_id = driver.info.node_id;
      changed(job);
      log_event("job_started", job.info.node_id, job.info.driver, driver.info.generation,
                fmt::format("{} runs as process {}", title(job.info), driver.info.pid));
    }
  }
}

void HeadState::job_ended(JobRecord& job, const ActorRecord& driver) {
  wire::JobInfo& info = job.info;
  const bool stopped = info.stopping || stopping();
  const bool succeeded = driver.exit && *driver.exit == wire::ExitStatus();
  info.state = stopped     ? wire::JobState::kStopped
               : succeeded ? wire::JobState::kSucceeded
                           : wire::JobState::kFailed;
  if (!driver.info.node_id.empty()) info.node_id = driver.info.node_id;
  info.exit = driver.exit;
  info.ended_unix_us = now_.unix_us;
  if (!info.stopping) {
    // "nightly 1a2b3c4d on node n ended: …" is its entry among the actors.
    info.why = succeeded ? std::string() : driver.info.death.message();
    const std::string entry = describe(driver);
    if (info.why.starts_with(entry)) info.why.replace(0, entry.size(), "its program");
  }
  const char* event = stopped ? "job_stopped" : succeeded ? "job_succeeded" : "job_failed";
  const std::string how = info.why.empty() ? "exit code 0" : info.why;
  log_event(event, info.node_id, info.driver, driver.info.generation,
            fmt::format("{} has ended: {}", title(info), how));
  changed(job);
  let_go(kept_by(info));
  remember(job);
  end_job(info.job_id,
          fmt::format("its {} has ended ({})", title(info), wire::job_state_name(info.state)));
}

void HeadState::forget_old_jobs() {
  while (ended_jobs_.too_many(config_.ended_jobs_max, config_.ended_bytes_max)) {
    const JobId oldest = ended_jobs_.oldest();
    ended_jobs_.erase(oldest);
    jobs_.erase(oldest);
    deltas_.push_back(JobForgotten{oldest});
  }
}

// --- a head that comes back ----------------------------------------------------------------------

void HeadState::replay_job(const wire::JobInfo& info) {
  JobRecord& job = jobs_[info.job_id];
  const bool ends = info.ended() && !job.info.ended();
  job.info = info;
  if (ends) remember(job);
}

// The journal may end in the middle of what was decided together.
void HeadState::resume_jobs() {
  std::vector<JobId> without_program;
  for (auto& [id, job] : jobs_) {
    if (job.info.ended()) {
      end_job(id, fmt::format("its {} has ended", title(job.info)));
      continue;
    }
    const auto driver = actors_.find(job.info.driver);
    const bool known = driver != actors_.end() && is_job_program(driver->second.spec) &&
                       driver->second.spec.job_id == id;
    if (known) {
      kept_bytes_ += kept_by(job.info);
      touched_jobs_.insert(id);
    } else {
      without_program.push_back(id);  // whoever submits it says so again
    }
  }
  for (const JobId& id : without_program) {
    jobs_.erase(id);
    deltas_.push_back(JobForgotten{id});
  }
  std::vector<ActorId> strays;
  for (const auto& [id, actor] : actors_) {
    if (actor.dead() || !is_job_program(actor.spec)) continue;
    const auto job = jobs_.find(actor.spec.job_id);
    if (job == jobs_.end() || job->second.info.ended()) strays.push_back(id);
  }
  end_actors(strays, "its job has ended");
}

// --- what others see -----------------------------------------------------------------------------

wire::JobInfo HeadState::visible(const JobRecord& job) const {
  wire::JobInfo info = job.info;
  const auto driver = actors_.find(info.driver);
  if (info.state == wire::JobState::kPending && driver != actors_.end()) {
    if (!info.stopping) info.why = why_pending(driver->second);
    info.node_id = driver->second.info.node_id;
  }
  return info;
}

// Those that were submitted, in that order, then drivers that connected by themselves.
void HeadState::on(PeerId peer, wire::ListJobs& message) {
  wire::JobList list{message.request_id, {}};
  std::map<JobId, std::uint32_t> alive;
  for (const auto& [id, actor] : actors_) {
    if (!actor.dead() && !is_job_program(actor.spec)) ++alive[actor.spec.job_id];
  }
  for (const auto& [id, job] : jobs_) {
    if (message.include_ended || !job.info.ended()) list.jobs.push_back(visible(job));
  }
  stable_sort_by(list.jobs, [](const auto& a, const auto& b) {
    return a.submitted_unix_us < b.submitted_unix_us;
  });
  std::set<JobId> others;
  for (const auto& [id, client] : clients_) {
    const bool outside = client.kind == "driver" && !client.job_id.empty();
    if (!outside || jobs_.contains(client.job_id) || !others.insert(client.job_id).second) continue;
    wire::JobInfo& info = list.jobs.emplace_back();
    info.job_id = client.job_id;
    info.name = client.name;
    info.state = wire::JobState::kRunning;
  }
  for (wire::JobInfo& info : list.jobs) info.actors_alive = alive[info.job_id];
  send(peer, std::move(list));
}

std::optional<std::string> HeadState::broken_job() const {
  std::size_t ended = 0;
  for (const auto& [id, job] : jobs_) {
    if (job.info.ended()) {
      ++ended;
      continue;
    }
    const auto driver = actors_.find(job.info.driver);
    if (driver == actors_.end() || driver->second.dead() || driver->second.spec.job_id != id ||
        !is_job_program(driver->second.spec)) {
      return fmt::format("{} goes on without its program", title(job.info));
    }
  }
  if (ended != ended_jobs_.size()) return "ended jobs are counted wrongly";
  for (const auto& [id, actor] : actors_) {
    if (actor.dead() || !is_job_program(actor.spec) || actor.stopping) continue;
    const auto job = jobs_.find(actor.spec.job_id);
    if (job == jobs_.end() || job->second.info.ended()) {
      return fmt::format("program {} runs without a job", id.brief());
    }
  }
  return std::nullopt;
}

}  // namespace troupe::scheduler
