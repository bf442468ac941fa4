#include "scheduler/control/jobs.h"

#include <algorithm>

#include "scheduler/control/journal_bytes.h"
#include "scheduler/policy/program_kind.h"

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

// What holds for every program, a job's or a client's.
Status check_program(const wire::ActorSpec& spec) {
  if (!spec.is_program() || spec.program.argv.front().empty()) {
    return Status(Code::kInvalidArgument, "a job without a program");
  }
  const bool shipped = !spec.package.empty() && spec.program.working_directory.empty();
  if (!shipped && !spec.program.working_directory.starts_with('/')) {
    return error(Code::kInvalidArgument, "the working directory '{}' of program {} is not absolute",
                 spec.program.working_directory, spec.program.argv.front());
  }
  std::size_t bytes = spec.program.working_directory.size();
  for (const std::string& argument : spec.program.argv) bytes += argument.size() + 1;
  for (const auto& [name, value] : spec.environment) bytes += name.size() + value.size() + 2;
  if (bytes > wire::kProgramBytesMax) {
    return error(Code::kInvalidArgument,
                 "the arguments and the environment of program {} are {} "
                 "bytes; at most {} are "
                 "taken: put them into a file",
                 spec.program.argv.front(), bytes, wire::kProgramBytesMax);
  }
  return {};
}

}  // namespace

Status Jobs::join(const ClientRecord& client, JobId& job_id, std::int32_t& priority) const {
  if (job_id.empty()) job_id = client.job_id;
  const JobRecord* job = find(job_id);
  if (job == nullptr) return {};
  if (priority == 0) priority = job->info.priority;
  return check_runs(job_id, client.kind);
}

// Detached actors outlive their job, and may go on: they are no drivers.
Status Jobs::check_runs(JobId job_id, const std::string& kind_of_client) const {
  const JobRecord* job = find(job_id);
  if (job == nullptr || !job->ended() || kind_of_client == "actor") return {};
  return error(Code::kFailedPrecondition,
               "{} has ended ({}): nothing joins it any more. Submit another "
               "one, or take "
               "TROUPE_JOB_ID out of the environment",
               describe(*job), wire::job_state_name(job->info.state));
}

Status Jobs::check_clients_program(const wire::ActorSpec& spec) {
  TROUPE_RETURN_IF_ERROR(check_program(spec));
  if (spec.detached) {
    return error(Code::kInvalidArgument,
                 "{} is a program that is to outlive its owner: submit it as a job", spec.type);
  }
  if (spec.restart.max_restarts != 0 || !spec.supervisor.empty() || spec.health.interval_ms != 0 ||
      spec.light_count != 0) {
    return error(Code::kUnsupported,
                 "{} is a program: it is started once, outside of supervisors, "
                 "is not asked for "
                 "its health and holds no light actors",
                 spec.type);
  }
  return {};
}

Status Jobs::check_new(const wire::ActorSpec& spec) const {
  if (spec.job_id.empty() || contains(spec.job_id)) {
    return error(Code::kInvalidArgument, "job id {} is empty or used twice",
                 spec.job_id.to_string());
  }
  TROUPE_RETURN_IF_ERROR(check_program(spec));
  if (spec.restart.max_restarts != 0 || !spec.placement_group.empty() || !spec.supervisor.empty() ||
      spec.health.interval_ms != 0) {
    return Status(Code::kUnsupported,
                  "a job's program is started once, outside of placement "
                  "groups and supervisors, "
                  "and is not asked for its health");
  }
  if (room_.living().jobs >= context_.config().jobs_max) {
    return error(Code::kOverloaded, "the cluster has {} jobs that have not ended; its limit is {}",
                 room_.living().jobs, context_.config().jobs_max);
  }
  return {};
}

wire::JobInfo Jobs::describe_new(const wire::SubmitJob& message) const {
  const wire::ActorSpec& driver = message.driver;
  wire::JobInfo info;
  info.job_id = driver.job_id;
  info.name = message.name.empty() ? driver.type : message.name;
  info.driver = driver.actor_id;
  info.command = command_line(driver.program.argv);
  info.priority = driver.priority;
  info.submitted_unix_us = context_.unix_us();
  return info;
}

// Before its program, which a journal never has alone.
void Jobs::submit(const wire::JobInfo& info) {
  JobRecord& job = records_[info.job_id];
  job.info = info;
  room_.take(job.info);
  record(job);
  context_.log("job_submitted", {{}, job.info.driver}, "{} was submitted: {}", describe(job),
               job.info.command);
}

Status Jobs::on(PeerId, wire::StopJob& message) {
  const auto found = records_.find(message.job_id);
  if (found == records_.end()) return no_such_job(message.job_id);
  JobRecord& job = found->second;
  if (job.ended()) return {};
  if (!std::exchange(job.info.stopping, true)) {
    job.info.why = clipped(message.reason.empty() ? "it was stopped on request" : message.reason,
                           kLivingTextBytes);
    record(job);
    context_.log("job_stopping", {job.info.node_id, job.info.driver}, "{} is to stop: {}",
                 describe(job), job.info.why);
  }
  actors_.end(actors_.at(job.info.driver), false, message.grace_ms, job.info.why);
  return {};
}

Status Jobs::no_such_job(JobId id) const {
  for (const auto& [client_id, client] : connections_.clients()) {
    if (client.job_id != id || client.kind != "driver") continue;
    return error(Code::kFailedPrecondition,
                 "job {} is that of {}, which connected by itself and was not "
                 "submitted: end that "
                 "process, and its actors end with it",
                 id.brief(), client.name);
  }
  return error(Code::kNotFound, "there is no job {}", id.to_string());
}

const JobRecord* Jobs::settle() {
  while (const auto id = actors_.take_changed_program()) {
    const auto found = records_.find(*id);
    if (found == records_.end() || found->second.ended()) continue;
    JobRecord& job = found->second;
    const ActorRecord& driver = actors_.at(job.info.driver);
    if (driver.dead()) {
      ended(job, driver);
      return &job;
    }
    if (job.info.state == wire::JobState::kPending &&
        driver.info.state == wire::ActorState::kAlive) {
      started(job, driver);
    }
  }
  return nullptr;
}

void Jobs::started(JobRecord& job, const ActorRecord& driver) {
  job.info.state = wire::JobState::kRunning;
  job.info.started_unix_us = context_.unix_us();
  job.info.node_id = driver.info.node_id;
  record(job);
  context_.log("job_started", {job.info.node_id, job.info.driver, driver.info.generation},
               "{} runs as process {}", describe(job), driver.info.pid);
}

void Jobs::ended(JobRecord& job, const ActorRecord& driver) {
  wire::JobInfo& info = job.info;
  const bool stopped = info.stopping || context_.stopping();
  const bool succeeded = driver.exit && *driver.exit == wire::ExitStatus();
  info.state = stopped     ? wire::JobState::kStopped
               : succeeded ? wire::JobState::kSucceeded
                           : wire::JobState::kFailed;
  if (!driver.info.node_id.empty()) info.node_id = driver.info.node_id;
  info.exit = driver.exit;
  info.ended_unix_us = context_.unix_us();
  if (!info.stopping) {
    // "nightly 1a2b3c4d on node n ended: …" is its entry among the actors.
    info.why = succeeded ? std::string() : driver.info.death.message();
    const std::string entry = describe(driver);
    if (info.why.starts_with(entry)) info.why.replace(0, entry.size(), "its program");
  }
  const char* event = stopped ? "job_stopped" : succeeded ? "job_succeeded" : "job_failed";
  const std::string how = info.why.empty() ? "exit code 0" : info.why;
  context_.log(event, {info.node_id, info.driver, driver.info.generation}, "{} has ended: {}",
               describe(job), how);
  record(job);
  room_.let_go(info);
  ended_.add(job.id(), journal_bytes(job.info));
}

Status Jobs::replay(const JobKnown& delta) {
  JobRecord& job = records_[delta.job.job_id];
  const bool ends = delta.job.ended() && !job.ended();
  job.info = delta.job;
  if (ends) ended_.add(job.id(), journal_bytes(job.info));
  return {};
}

const ActorRecord* Jobs::program_of(const JobRecord& job) const {
  const ActorRecord* driver = actors_.find(job.info.driver);
  const bool known =
      driver != nullptr && is_job_program(driver->spec) && driver->spec.job_id == job.id();
  return known ? driver : nullptr;
}

void Jobs::resume() {
  for (const JobId& id : ids_where([](const JobRecord& job) { return !job.ended(); })) {
    const JobRecord& job = at(id);
    if (const ActorRecord* program = program_of(job)) {
      room_.take(job.info);
      actors_.settle_program(*program);
    } else {
      records_.erase(id);  // whoever submits it says so again
      context_.record(JobForgotten{id});
    }
  }
}

std::optional<std::string> Jobs::broken_invariant() const {
  std::size_t ended = 0;
  for (const auto& [id, job] : all()) {
    const ActorRecord* program = program_of(job);
    ended += job.ended() ? 1 : 0;
    TROUPE_HOLDS(job.ended() || (program != nullptr && !program->dead()),
                 "{} goes on without its program", describe(job));
  }
  TROUPE_HOLDS(ended == ended_.size(), "ended jobs are counted wrongly");
  for (const auto& [id, actor] : actors_.all()) {
    if (actor.dead() || !is_job_program(actor.spec) || actor.stopping) continue;
    const JobRecord* job = find(actor.spec.job_id);
    TROUPE_HOLDS(job != nullptr && !job->ended(), "program {} runs without a job", id.brief());
  }
  return std::nullopt;
}

}  // namespace troupe::scheduler
