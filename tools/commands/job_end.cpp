#include "tools/commands/job_end.h"

#include <cmath>
#include <condition_variable>
#include <mutex>
#include <vector>

#include "scheduler/client/jobs.h"
#include "tools/commands/describe.h"

namespace troupe::tools {
namespace {

constexpr Duration kGraceDefault = std::chrono::seconds(10);
constexpr double kGraceMaxS = 86400;

}  // namespace

Result<wire::JobInfo> find_job(ClusterConnection& cluster, const std::string& word) {
  const auto jobs = TROUPE_TRY(scheduler::list_jobs(*cluster.head, true, cluster.deadline));
  std::vector<const wire::JobInfo*> found;
  for (const auto& job : jobs) {
    if (is_meant(word, job.name, job.job_id.to_string())) found.push_back(&job);
  }
  const auto ended = [](const wire::JobInfo* job) { return job->ended(); };
  std::vector<const wire::JobInfo*> going = found;
  std::erase_if(going, ended);
  if (!going.empty()) found = std::move(going);
  if (found.empty()) {
    return error(Code::kNotFound, "there is no job '{}': 'troupe jobs --all' lists them", word);
  }
  if (found.size() > 1) {
    std::string list;
    for (const auto* job : found) list += (list.empty() ? " " : ", ") + job->job_id.brief();
    return error(Code::kInvalidArgument, "'{}' means several jobs:{}; give an id", word, list);
  }
  return *found.front();
}

std::string how_it_ended(const wire::JobInfo& job) {
  if (job.state == wire::JobState::kStopped) {
    return job.exit ? fmt::format("{} ({})", job.why, job.exit->to_string()) : job.why;
  }
  if (job.state == wire::JobState::kSucceeded && job.exit) return job.exit->to_string();
  return job.why;
}

std::string in_short(const std::string& how) {
  const std::string line = how.substr(0, how.find('\n'));
  return line.substr(0, line.find("; its last output:"));
}

Result<Duration> grace_option(const std::optional<double>& seconds) {
  if (!seconds) return kGraceDefault;
  if (!std::isfinite(*seconds) || *seconds < 0 || *seconds > kGraceMaxS) {
    return error(Code::kInvalidArgument,
                 "--grace is {}: it is a number of seconds, 0 to {:.0f} (a day)", *seconds,
                 kGraceMaxS);
  }
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(*seconds));
}

struct JobEnd::State {
  mutable std::mutex mutex;
  std::condition_variable changed;
  bool over = false;
  bool given_up = false;
  std::string pending_why;
  Status status;
};

JobEnd::JobEnd(scheduler::HeadClient& head, const wire::JobInfo& job)
    : head_(head), job_id_(job.job_id), state_(std::make_shared<State>()) {
  if (job.ended()) {
    state_->over = true;
    watch_ = 0;
    return;
  }
  watch_ = head_.watch_actor(job.driver, "", [state = state_](Result<wire::ActorInfo> actor) {
    const std::lock_guard lock(state->mutex);
    const bool dead = actor.ok() && actor->state == wire::ActorState::kDead;
    state->over = state->over || dead || !actor.ok();
    // One whose program is forgotten ended long ago.
    if (!actor.ok() && actor.status().code() != Code::kNotFound) state->status = actor.status();
    state->pending_why = actor.ok() ? actor->pending_why : std::string();
    state->changed.notify_all();
  });
}

JobEnd::~JobEnd() {
  if (watch_ != 0) head_.unwatch(watch_);
}

bool JobEnd::wait(Deadline deadline) {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait_until(lock, deadline.time(),
                             [this] { return state_->over || state_->given_up; });
  return state_->over;
}

void JobEnd::give_up() {
  const std::lock_guard lock(state_->mutex);
  state_->given_up = true;
  state_->changed.notify_all();
}

std::string JobEnd::pending_why() const {
  const std::lock_guard lock(state_->mutex);
  return state_->pending_why;
}

Status JobEnd::status() const {
  const std::lock_guard lock(state_->mutex);
  return state_->status;
}

Result<wire::JobInfo> JobEnd::info(Deadline deadline) const {
  for (auto& job : TROUPE_TRY(scheduler::list_jobs(head_, true, deadline))) {
    if (job.job_id == job_id_) return std::move(job);
  }
  return error(Code::kNotFound, "the head knows job {} no more", job_id_.brief());
}

}  // namespace troupe::tools
