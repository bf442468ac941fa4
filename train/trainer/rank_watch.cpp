#include "train/trainer/rank_watch.h"

#include <algorithm>
#include <utility>

#include "train/progress/progress_record.h"
#include "train/trainer/progress_memory.h"

namespace troupe::train {
namespace {

// Often enough that a hang is told soon after its time; where none is looked for, for stragglers.
Duration look_interval(Duration hang_timeout) {
  if (hang_timeout == Duration::zero()) return std::chrono::seconds(1);
  return std::clamp<Duration>(hang_timeout / 12, std::chrono::milliseconds(5),
                              std::chrono::milliseconds(500));
}

HangSettings hang_settings(Duration hang_timeout) {
  return hang_timeout == Duration::zero() ? HangSettings()
                                          : HangSettings::with_timeout(hang_timeout);
}

}  // namespace

std::string progress_segment_name(int world, int rank) {
  return fmt::format("{}/{}", rank_memory(world, rank), kProgressName);
}

RankWatch::RankWatch(int world_size, Options options)
    : options_(std::move(options)),
      interval_(look_interval(options_.hang_timeout)),
      hangs_(world_size, hang_settings(options_.hang_timeout)),
      stragglers_(world_size) {
  seen_.processes.resize(static_cast<std::size_t>(world_size));
  changes_.resize(static_cast<std::size_t>(world_size));
  wanted_ = seen_;
  thread_ = std::thread([this] { run(); });
}

RankWatch::~RankWatch() {
  {
    MutexLock lock(mutex_);
    ends_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void RankWatch::look_at(Ranks ranks) {
  MutexLock lock(mutex_);
  wanted_ = std::move(ranks);
}

void RankWatch::run() {
  for (;;) {
    Ranks wanted;
    {
      MutexLock lock(mutex_);
      changed_.wait_until(mutex_, Deadline::after(interval_),
                          [this]() TROUPE_NO_ANALYSIS { return ends_; });
      if (ends_) return;
      wanted = wanted_;
    }
    take(wanted);
    Noticed noticed = look();
    if (!noticed.hangs.empty() || !noticed.stragglers.empty() || noticed.saving_moves)
      options_.tell(std::move(noticed));
  }
}

void RankWatch::take(const Ranks& ranks) {
  const TimePoint now = clock_.now();
  if (ranks.world != seen_.world) {
    const auto size = ranks.processes.size();
    hangs_ = HangWatch(static_cast<int>(size), hang_settings(options_.hang_timeout));
    stragglers_ = StragglerWatch(static_cast<int>(size));
    seen_ = {.world = ranks.world, .processes = {size, std::nullopt}};
    changes_.assign(size, {});
  }
  for (std::size_t rank = 0; rank < seen_.processes.size(); ++rank) {
    const auto& process = ranks.processes[rank];
    if (process == seen_.processes[rank]) continue;
    if (seen_.processes[rank]) hangs_.rank_ended(static_cast<int>(rank), now);
    if (process) hangs_.rank_started(static_cast<int>(rank), now, process->pid);
  }
  if (ranks.running != seen_.running || ranks.generation != seen_.generation) {
    if (seen_.running) hangs_.generation_ended(now);
    if (ranks.running) hangs_.generation_begun(ranks.generation, now);
  }
  seen_ = ranks;
}

RankWatch::Noticed RankWatch::look() {
  Noticed noticed{.generation = seen_.generation};
  for (std::size_t i = 0; i < seen_.processes.size(); ++i) {
    if (!seen_.processes[i]) continue;
    const int rank = static_cast<int>(i);
    const auto bytes =
        options_.read(seen_.processes[i]->actor, progress_segment_name(seen_.world, rank),
                      sizeof(ProgressRecord), Deadline::after(interval_));
    auto snapshot = bytes.ok() ? read_progress(*bytes) : std::nullopt;
    if (snapshot && snapshot->pid != seen_.processes[i]->pid) snapshot.reset();
    hangs_.read(rank, snapshot, clock_.now());
    if (!snapshot) continue;
    const bool moved = std::exchange(changes_[i], snapshot->changes) != snapshot->changes;
    noticed.saving_moves = noticed.saving_moves || (seen_.saving && moved);
    for (auto& report : stragglers_.add(rank, *snapshot)) {
      noticed.stragglers.push_back(std::move(report));
    }
  }
  if (options_.hang_timeout > Duration::zero()) noticed.hangs = hangs_.decide();
  return noticed;
}

}  // namespace troupe::train
