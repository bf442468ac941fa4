#include "actors/work_reporter.h"

#include <algorithm>
#include <chrono>

#include "runtime/base/limits.h"

namespace troupe::detail {
namespace {

constexpr Duration kReportPause = std::chrono::seconds(1);
// So late that changes which belong together are told in one report.
constexpr Duration kFirstReportAfter = std::chrono::milliseconds(20);
constexpr std::size_t kWorkTextBytes = 512;

template <typename T>
void keep_listed(std::vector<T>& all, std::uint64_t& left_out) {
  if (all.size() <= limits::kWorkListedMax) return;
  left_out += all.size() - limits::kWorkListedMax;
  all.resize(limits::kWorkListedMax);
}

}  // namespace

std::string work_text(std::string text) {
  if (text.size() > kWorkTextBytes) text.resize(kWorkTextBytes);
  return text;
}

void WorkReporter::add(std::weak_ptr<const WorkSource> source) {
  if (environment_->process.is_forked()) return;
  {
    MutexLock lock(mutex_);
    if (closed_) return;
    std::erase_if(sources_, [](const auto& one) { return one.expired(); });
    sources_.push_back(std::move(source));
  }
  changed();
}

void WorkReporter::close() {
  MutexLock lock(mutex_);
  closed_ = true;
  sources_.clear();
}

void WorkReporter::begin_looking() {
  if (environment_->process.is_forked()) return;
  MutexLock lock(mutex_);
  if (closed_ || looking_.exchange(true)) return;
  const TimePoint now = SystemClock().now();
  look_after_locked(std::max(told_at_ + kReportPause - now, kFirstReportAfter));
}

void WorkReporter::look_after_locked(Duration pause) {
  environment_->loop->call_after(pause, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->look();
  });
}

void WorkReporter::look() {
  std::vector<std::shared_ptr<const WorkSource>> sources;
  {
    MutexLock lock(mutex_);
    if (closed_) return;
    // From here on a change begins another look: what is read below may be older than it.
    looking_ = false;
    for (const auto& one : sources_) {
      if (auto alive = one.lock()) sources.push_back(std::move(alive));
    }
  }
  wire::Work work;
  bool busy = false;
  // Read first, so that a pipeline which ends meanwhile is missing once and never counted twice.
  work.items_done = items_of_ended_.load();
  for (const auto& source : sources) busy = source->tell(work) || busy;
  sources.clear();
  work.actor_id = environment_->self;
  for (const auto& pipeline : work.pipelines) work.items_done += pipeline.delivered;
  keep_listed(work.tasks, work.left_out);
  keep_listed(work.groups, work.left_out);
  keep_listed(work.pipelines, work.left_out);
  std::size_t actors_left = limits::kWorkActorsMax;
  for (auto& group : work.groups) {
    if (group.actors.size() > actors_left) group.actors.resize(actors_left);
    actors_left -= group.actors.size();
  }
  MutexLock lock(mutex_);
  if (closed_) return;
  if (told_) work.items_done = std::max(work.items_done, told_->items_done);
  const bool news = told_ ? *told_ != work : !work.empty();
  if (news) {
    told_at_ = SystemClock().now();
    told_ = work;
    environment_->directory->report(std::move(work));
  }
  if ((news || busy) && !looking_.exchange(true)) look_after_locked(kReportPause);
}

}  // namespace troupe::detail
