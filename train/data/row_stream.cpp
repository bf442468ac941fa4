#include "train/data/row_stream.h"

#include <algorithm>
#include <deque>
#include <thread>
#include <utility>

#include "runtime/base/clock.h"
#include "runtime/base/signal_block.h"
#include "train/data/dataset_info.h"
#include "troupe/detail/mutex.h"

namespace troupe::train {
namespace {

// Rows go from thread to thread so many at a time; so many of these lie ready.
constexpr std::size_t kRowsTogether = 64;
constexpr std::size_t kReadyMax = 8;
// Both sides live as long as they wait for each other: it is asked again then.
constexpr auto kWait = std::chrono::milliseconds(200);

}  // namespace

struct PulledRows::State {
  using Rows = std::deque<Conversation>;
  Mutex mutex;
  CondVar changed;
  std::deque<Rows> ready TROUPE_GUARDED_BY(mutex);
  std::optional<Status> end TROUPE_GUARDED_BY(mutex);  // of the reading
  bool leave TROUPE_GUARDED_BY(mutex) = false;
  Rows now;  // of who asks
  StreamBeat beat;
  std::jthread thread;

  Status put(Rows rows) {
    MutexLock lock(mutex);
    const auto wanted = [&]() TROUPE_NO_ANALYSIS { return leave || ready.size() < kReadyMax; };
    while (!changed.wait_until(mutex, Deadline::after(kWait), wanted)) continue;
    if (leave) return error(Code::kCancelled, "nobody wants the rows any more");
    ready.push_back(std::move(rows));
    changed.notify_all();
    return {};
  }
};

PulledRows::PulledRows(Reading read, StreamBeat beat) : state_(std::make_unique<State>()) {
  state_->beat = std::move(beat);
  const SignalBlock block;  // signals are other threads'
  state_->thread = std::jthread([state = state_.get(), read = std::move(read)] {
    State::Rows rows;
    Status done = read([&](Conversation row) -> Status {
      rows.push_back(std::move(row));
      return rows.size() < kRowsTogether ? Status() : state->put(std::exchange(rows, {}));
    });
    if (done.ok() && !rows.empty()) done = state->put(std::move(rows));
    MutexLock lock(state->mutex);
    state->end = std::move(done);
    state->changed.notify_all();
  });
}

PulledRows::~PulledRows() {
  MutexLock lock(state_->mutex);
  state_->leave = true;
  state_->changed.notify_all();
}

Result<bool> PulledRows::has_next() {
  if (!state_->now.empty()) return true;
  MutexLock lock(state_->mutex);
  const auto there = [&]() TROUPE_NO_ANALYSIS { return !state_->ready.empty() || state_->end; };
  do {
    if (state_->beat) state_->beat();
  } while (!state_->changed.wait_until(state_->mutex, Deadline::after(kWait), there));
  if (state_->ready.empty()) {
    if (!state_->end->ok()) return *state_->end;
    return false;
  }
  state_->now = std::move(state_->ready.front());
  state_->ready.pop_front();
  state_->changed.notify_all();
  return true;
}

Conversation PulledRows::next() {
  Conversation row = std::move(state_->now.front());
  state_->now.pop_front();
  return row;
}

MixedRows::MixedRows(Sources sources, std::string strategy, const std::vector<double>& shares,
                     std::uint32_t seed, StreamBeat beat)
    : sources_(std::move(sources)),
      strategy_(std::move(strategy)),
      beat_(std::move(beat)),
      ended_(sources_.size()) {
  if (!shares.empty()) choice_.emplace(seed, shares);
  rows_.resize(sources_.size());
}

// The source of the next row; with concat the first that has not ended.
std::size_t MixedRows::choose() {
  if (strategy_ == "concat")
    return static_cast<std::size_t>(std::ranges::find(ended_, false) - ended_.begin());
  if (choice_) return choice_->next();
  return turn_++ % sources_.size();
}

bool MixedRows::over() const {
  return strategy_ == "interleave_under" ? std::ranges::count(ended_, true) > 0
                                         : std::ranges::count(ended_, false) == 0;
}

Result<std::optional<Conversation>> MixedRows::next() {
  const bool again = strategy_ == "interleave_over";
  while (!over()) {
    const std::size_t source = choose();
    if (ended_[source] && !again) continue;
    auto& rows = rows_[source];
    if (!rows) rows = std::make_unique<PulledRows>(sources_[source], beat_);
    // A source without rows ends at once.
    if (!TROUPE_TRY(rows->has_next())) {
      ended_[source] = true;
      rows.reset();
      continue;
    }
    std::optional<Conversation> row = rows->next();
    if (!TROUPE_TRY(rows->has_next())) {
      ended_[source] = true;
      rows.reset();
    }
    return row;
  }
  return std::optional<Conversation>();
}

Result<std::unique_ptr<RowStream>> RowStream::open(FileSystem& files, const DataOptions& options,
                                                   const StreamOrder& order, std::int64_t epoch,
                                                   StreamBeat beat) {
  MixedRows::Sources sources;
  for (auto& attributes : TROUPE_TRY(
           read_dataset_info(files, options.dataset_dir, options.dataset, options.hub_files))) {
    if (const std::string picked = picked_by(attributes); !picked.empty())
      return error(Code::kUnsupported,
                   "data set '{}': {} needs all rows before the first, and streaming: true has "
                   "them one by one; leave one of them out",
                   attributes.name, picked);
    sources.push_back([&files, options, attributes = std::move(attributes)](const RowTaker& take) {
      EncodeReport report;
      return visit_rows(files, options, attributes, report, take);
    });
  }
  const auto shares = TROUPE_TRY(interleave_shares(options, sources.size()));
  const std::string strategy = sources.size() == 1 ? "concat" : options.mix_strategy;
  std::optional<ShuffleBuffer<Conversation>> buffer;
  if (order.shuffle) buffer.emplace(options.seed, epoch, order.buffer_size);
  return std::unique_ptr<RowStream>(
      new RowStream(MixedRows(std::move(sources), strategy, shares, options.seed, std::move(beat)),
                    std::move(buffer)));
}

Result<std::optional<Conversation>> RowStream::next() {
  if (!buffer_) return rows_.next();
  return buffer_->next([this] { return rows_.next(); });
}

}  // namespace troupe::train
