#include "train/cuda/communicator/nccl_world.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "runtime/base/check.h"
#include "train/cuda/device/waiting.h"

namespace troupe::train {
namespace {

constexpr const char* kState = "asking how a group of NCCL does";
// A peer that has gone may have left what completes the operation.
constexpr Duration kLostGrace = std::chrono::milliseconds(100);
// Who waits for an operation finds it overdue first.
constexpr Duration kWatchGrace = std::chrono::milliseconds(100);

// Turns of forming.
constexpr Duration kFirstTurn = std::chrono::milliseconds(100);
constexpr Duration kLongestTurn = std::chrono::seconds(4);

constexpr std::int32_t kPending = -1;
struct Verdict {
  std::int32_t code;  // of a Status, or kPending
  char text[508];
};

Status lost_status(int rank) {
  return error(Code::kAborted, "rank {} was lost: its process ended or its link broke", rank)
      .with("peer", rank)
      .with("lost_rank", rank);
}

}  // namespace

Result<bool> all_done(collective::Communicator& host, const std::optional<Status>& mine,
                      Deadline deadline) {
  Verdict verdict{};
  verdict.code = mine ? static_cast<std::int32_t>(mine->code()) : kPending;
  const std::string text = mine && !mine->ok() ? mine->to_string() : "";
  std::memcpy(verdict.text, text.data(), std::min(text.size(), sizeof verdict.text - 1));
  std::vector<Verdict> all(static_cast<std::size_t>(host.world_size()));
  const std::vector<std::size_t> counts(all.size(), sizeof verdict);
  const Status heard =
      host.all_gather(&verdict, all.data(), counts, collective::DataType::kUint8, deadline);
  if (mine && !mine->ok()) return *mine;
  TROUPE_RETURN_IF_ERROR(heard);
  bool done = true;
  for (std::size_t r = 0; r < all.size(); ++r) {
    done &= all[r].code == 0;
    if (all[r].code == 0 || all[r].code == kPending) continue;
    all[r].text[sizeof all[r].text - 1] = 0;
    return error(code_from_number(all[r].code), "rank {} failed: {}", r, all[r].text)
        .with("peer", r);
  }
  return done;
}

NcclWorld::NcclWorld(const NcclOptions& options, int nccl_version)
    : options_(options),
      transport_("NCCL " + nccl_version_text(nccl_version)),
      state_(options.host->rank(), options.host->generation(), transport_, SystemClock().now(),
             options.form_timeout) {
  group_->rank = options.host->rank();
}

Result<std::shared_ptr<NcclWorld>> NcclWorld::make(const NcclOptions& options, int nccl_version) {
  std::shared_ptr<NcclWorld> world(new NcclWorld(options, nccl_version));
  TROUPE_RETURN_IF_ERROR(world->allocate());
  return world;
}

Status NcclWorld::allocate() {
  TROUPE_RETURN_IF_ERROR(
      check(table().stream_create(options_.context, 1, &stream_), "creating a stream"));
  TROUPE_RETURN_IF_ERROR(
      check(table().event_create(options_.context, 0, &order_event_), "creating an event"));
  return options_.host->world_size() > 1 ? allocate_scratch() : Status();
}

Status NcclWorld::allocate_scratch() {
  std::int64_t granule = 0;
  TROUPE_RETURN_IF_ERROR(check(table().memory_granularity(options_.context, &granule),
                               "asking for the granularity of memory"));
  scratch_bytes_ = (options_.scratch_bytes + granule - 1) / granule * granule;
  TroupeCudaMemory* memory = nullptr;
  TROUPE_RETURN_IF_ERROR(
      check(table().memory_create(options_.context, scratch_bytes_, 0, &memory),
            fmt::format("{} bytes for the parts of sums over the ranks", scratch_bytes_)));
  const Status mapped = check(table().memory_map(memory, &scratch_), "mapping memory for sums");
  const Status released = check(table().memory_release(memory), "releasing a handle of memory");
  return mapped.ok() ? released : mapped;
}

NcclWorld::~NcclWorld() {
  if (watcher_.joinable()) {
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      changed_.notify_all();
    }
    watcher_.join();
  }
  {
    MutexLock lock(mutex_);
    abort_groups_locked();
  }
  stage_.reset();
  if (stream_ && !drained(table(), stream_)) return;
  MutexLock lock(mutex_);
  for (const InFlight& operation : in_flight_) free_events_.push_back(operation.event);
  if (order_event_) free_events_.push_back(order_event_);
  for (TroupeCudaEvent* event : free_events_) (void)table().event_destroy(event);
  if (scratch_) (void)table().memory_unmap(options_.context, scratch_, scratch_bytes_);
  if (stream_) (void)table().stream_destroy(stream_);
}

// --- forming

// In turns: each rank asks for a while, then all hear how it goes on each, so that none waits for
// one that has failed.
Status NcclWorld::form(NcclGroup& group, const Begin& begin) {
  const Deadline deadline = Deadline::after(options_.form_timeout + kAgreementGrace);
  std::optional<Status> mine = join(group, begin);
  Duration turn = kFirstTurn;
  for (;;) {
    if (!mine) mine = ask_until(group, Deadline::after(turn));
    const Result<bool> all = all_done(*group.host, mine, deadline);
    if (!all.ok()) {
      MutexLock lock(mutex_);
      if (group.handle) (void)table().group_abort(std::exchange(group.handle, nullptr));
      return all.status();
    }
    if (*all) break;
    turn = std::min(2 * turn, kLongestTurn);
  }
  MutexLock lock(mutex_);
  state_.formed();
  return {};
}

std::optional<Status> NcclWorld::join(NcclGroup& group, const Begin& begin) {
  MutexLock lock(mutex_);
  if (state_.phase() == CommunicatorState::Phase::kAborted) return state_.aborted_status(true);
  state_.begins_forming(group.name, SystemClock().now(), options_.form_timeout);
  const int code = begin(&group.handle);
  if (code == TROUPE_CUDA_OK || code == TROUPE_CUDA_NOT_READY) return std::nullopt;
  return state_.explained(check(code, "joining a group of NCCL"));
}

std::optional<Status> NcclWorld::ask_until(NcclGroup& group, Deadline deadline) {
  Backoff backoff;
  for (;; backoff.pause()) {
    MutexLock lock(mutex_);
    if (state_.phase() == CommunicatorState::Phase::kAborted) return state_.aborted_status(true);
    const int code = table().group_state(group.handle);
    if (code == TROUPE_CUDA_OK) return Status();
    if (code != TROUPE_CUDA_NOT_READY)
      return state_.explained(check(code, "forming a group of NCCL"));
    if (auto overdue = state_.overdue(SystemClock().now())) return overdue;
    if (deadline.passed()) return std::nullopt;
  }
}

void NcclWorld::formed_alone() {
  MutexLock lock(mutex_);
  state_.formed();
}

void NcclWorld::keep(std::shared_ptr<NcclGroup> group) {
  MutexLock lock(mutex_);
  groups_.push_back(std::move(group));
}

void NcclWorld::watch() {
  watcher_ = std::thread([this] { watch_loop(); });
}

// --- operations

Result<std::uint64_t> NcclWorld::begin(CommunicatorState::Note note, Deadline deadline) {
  MutexLock lock(mutex_);
  if (state_.phase() == CommunicatorState::Phase::kAborted) return state_.aborted_status(true);
  return state_.begin(std::move(note), deadline.remaining(), SystemClock().now());
}

Status NcclWorld::enqueue(NcclGroup& group, std::uint64_t number, const Enqueue& enqueue) {
  {
    MutexLock lock(mutex_);
    if (state_.phase() == CommunicatorState::Phase::kAborted) return state_.aborted_status(true);
    Status status = enqueue(group.handle);
    if (!status.ok()) return fail_locked(std::move(status), true);
  }
  return wait_for_launch(group, number);
}

// Nothing is on the stream before the library says so.
Status NcclWorld::wait_for_launch(NcclGroup& group, std::uint64_t number) {
  Backoff backoff;
  for (;; backoff.pause()) {
    MutexLock lock(mutex_);
    if (state_.phase() == CommunicatorState::Phase::kAborted) return state_.aborted_status(true);
    const int code = table().group_state(group.handle);
    if (code == TROUPE_CUDA_OK) {
      state_.launched(number);
      return {};
    }
    if (code != TROUPE_CUDA_NOT_READY) return fail_locked(check(code, kState), true);
    const TimePoint now = SystemClock().now();
    if (auto failure = device_failure_locked()) return fail_locked(std::move(*failure), true);
    if (auto lost = lost_locked(*group.host, now)) return fail_locked(std::move(*lost), true);
    if (auto overdue = state_.overdue(now)) return fail_locked(std::move(*overdue), false);
  }
}

Status NcclWorld::local(int code, std::string_view what) {
  if (code == TROUPE_CUDA_OK) return {};
  return fail(check(code, what), true);
}

TroupeCudaEvent* NcclWorld::event_locked(Status* status) {
  TroupeCudaEvent* event = nullptr;
  if (free_events_.empty()) {
    *status = check(table().event_create(options_.context, 0, &event), "creating an event");
  } else {
    event = free_events_.back();
    free_events_.pop_back();
  }
  return event;
}

Status NcclWorld::finish(NcclGroup& group, std::uint64_t number, bool wait) {
  {
    MutexLock lock(mutex_);
    if (state_.phase() == CommunicatorState::Phase::kAborted) return state_.aborted_status(true);
    Status status;
    TroupeCudaEvent* event = event_locked(&status);
    if (status.ok()) {
      status = check(table().event_record(event, stream_), "recording an event");
      in_flight_.push_back({number, event, group.host});
    }
    if (!status.ok()) return fail_locked(std::move(status), true);
  }
  return wait ? wait_for(number) : Status();
}

// Takes note of what the device has done, in order. What an event says that is neither yes nor no
// concerns everything.
std::optional<Status> NcclWorld::device_failure_locked() {
  // An abort ends what is on the stream, too: the events behind it say nothing any more.
  if (state_.phase() == CommunicatorState::Phase::kAborted) return std::nullopt;
  while (!in_flight_.empty()) {
    const InFlight& oldest = in_flight_.front();
    const int code = table().event_query(oldest.event);
    if (code == TROUPE_CUDA_NOT_READY) break;
    if (code != TROUPE_CUDA_OK) return check(code, "waiting for an operation on the device");
    state_.completed(oldest.number, SystemClock().now());
    free_events_.push_back(oldest.event);
    in_flight_.pop_front();
  }
  return std::nullopt;
}

std::optional<Status> NcclWorld::lost_locked(const collective::Communicator& host, TimePoint now) {
  const auto lost = host.lost_rank();
  if (!lost) return std::nullopt;
  const TimePoint since = lost_since_.try_emplace(&host, now).first->second;
  if (now - since < kLostGrace) return std::nullopt;
  return lost_status(*lost);
}

Status NcclWorld::wait_for(std::uint64_t number) {
  Backoff backoff;
  for (;; backoff.pause()) {
    MutexLock lock(mutex_);
    auto failure = device_failure_locked();
    if (state_.completed_number() >= number) return {};
    if (state_.phase() == CommunicatorState::Phase::kAborted) return state_.aborted_status(true);
    if (failure) return fail_locked(std::move(*failure), true);
    if (auto overdue = state_.overdue(SystemClock().now()))
      return fail_locked(std::move(*overdue), false);
  }
}

Status NcclWorld::wait_before(std::uint64_t number) { return wait_for(number - 1); }

Status NcclWorld::wait_all(Deadline deadline) {
  Backoff backoff;
  for (;; backoff.pause()) {
    MutexLock lock(mutex_);
    if (state_.phase() == CommunicatorState::Phase::kAborted) return state_.aborted_status(true);
    if (auto failure = device_failure_locked()) return fail_locked(std::move(*failure), true);
    if (state_.completed_number() == state_.begun_number()) return {};
    auto overdue = state_.overdue(SystemClock().now());
    if (!overdue && deadline.passed())
      overdue = state_.explained(error(Code::kDeadlineExceeded,
                                       "{} operations under way did not end by the deadline",
                                       state_.begun_number() - state_.completed_number()));
    if (overdue) return fail_locked(std::move(*overdue), false);
  }
}

Status NcclWorld::host_result(Status status) {
  if (status.ok()) return status;
  // What it was doing is not what its user was doing.
  Status found(status.code(), status.message());
  for (const auto& [key, value] : status.context())
    if (key == "lost_rank" || key == "peer") found.with(key, value);
  return fail(std::move(found), false);
}

Status NcclWorld::fail(Status found, bool explain) {
  MutexLock lock(mutex_);
  return fail_locked(std::move(found), explain);
}

Status NcclWorld::fail_locked(Status found, bool explain) {
  found = explain ? state_.explained(std::move(found)) : state_.located(std::move(found));
  if (state_.abort(found)) {
    abort_groups_locked();
    options_.host->abort(found);
  }
  return state_.aborted_status(true);
}

void NcclWorld::abort(Status reason) {
  MutexLock lock(mutex_);
  if (!state_.abort_on_request(reason)) return;
  abort_groups_locked();
  options_.host->abort(std::move(reason));
}

// All at once: one that is ended alone may wait for another one's operation on the same device.
void NcclWorld::abort_groups_locked() {
  std::vector<TroupeCudaGroup*> handles;
  for (const auto& group : groups_)
    if (group->handle) handles.push_back(std::exchange(group->handle, nullptr));
  if (!handles.empty())
    (void)table().groups_abort(handles.data(), static_cast<std::int32_t>(handles.size()));
}

Status NcclWorld::end() {
  MutexLock lock(mutex_);
  if (state_.phase() == CommunicatorState::Phase::kAborted) return state_.aborted_status(true);
  // Subgroups before what they were split from; all ranks in the same order.
  Status first;
  for (auto group = groups_.rbegin(); group != groups_.rend(); ++group) {
    if (!(*group)->handle) continue;
    Status status = check(table().group_destroy((*group)->handle), "giving a group of NCCL back");
    // What cannot be given back is still there.
    if (!status.ok()) (void)table().group_abort((*group)->handle);
    (*group)->handle = nullptr;
    if (first.ok()) first = std::move(status);
  }
  state_.end();
  return first;
}

std::uint64_t NcclWorld::completed() {
  MutexLock lock(mutex_);
  (void)device_failure_locked();  // whoever waits finds it, or the watching thread does
  return state_.completed_number();
}

bool NcclWorld::aborted() {
  MutexLock lock(mutex_);
  return state_.phase() == CommunicatorState::Phase::kAborted;
}

// --- the watching thread

void NcclWorld::watch_loop() {
  MutexLock lock(mutex_);
  while (!stopping_) {
    if (auto found = look_locked(SystemClock().now())) {
      // Whoever waits is told by the state.
      if (state_.abort(*found)) {
        abort_groups_locked();
        options_.host->abort(*found);
      }
    }
    changed_.wait_until(mutex_, Deadline::after(options_.watch_interval),
                        [this]() TROUPE_NO_ANALYSIS { return stopping_; });
  }
}

std::optional<Status> NcclWorld::look_locked(TimePoint now) {
  const auto phase = state_.phase();
  if (phase != CommunicatorState::Phase::kReady && phase != CommunicatorState::Phase::kOperating)
    return std::nullopt;
  if (auto failure = device_failure_locked()) return state_.explained(std::move(*failure));
  for (const auto& group : groups_) {
    if (!group->handle) continue;
    const int code = table().group_state(group->handle);
    if (code != TROUPE_CUDA_OK && code != TROUPE_CUDA_NOT_READY)
      return state_.explained(check(code, kState));
  }
  // Operations over the host find out for themselves.
  if (!in_flight_.empty()) {
    if (auto lost = lost_locked(*in_flight_.front().host, now))
      return state_.explained(std::move(*lost));
  }
  return state_.overdue(now - kWatchGrace);
}

// --- the rest

Result<HostStage*> NcclWorld::stage() {
  if (!stage_)
    stage_ = TROUPE_TRY(
        HostStage::make(options_.library, options_.context, stream_, options_.chunk_bytes));
  return stage_.get();
}

Status NcclWorld::order(TroupeCudaStream* before, TroupeCudaStream* after) {
  TROUPE_RETURN_IF_ERROR(check(table().event_record(order_event_, before), "ordering streams"));
  return check(table().stream_wait(after, order_event_), "ordering streams");
}

}  // namespace troupe::train
