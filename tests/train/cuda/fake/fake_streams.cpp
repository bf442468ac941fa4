// The fake's streams, events and copies.

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <utility>

#include "tests/train/cuda/fake/fake_state.h"

namespace {

// Work that is put off is so for this long at most, and so many pieces after one another.
constexpr auto kPutOffMax = std::chrono::milliseconds(3);
constexpr std::uint64_t kStretchMax = 16;

}  // namespace

TroupeCudaStream::TroupeCudaStream(TroupeCudaContext* of, std::uint64_t lazy_seed) : context(of) {
  if (lazy_seed != 0) lazy_.emplace(lazy_seed);
  thread_ = std::thread([this] { run(); });
}

TroupeCudaStream::~TroupeCudaStream() {
  {
    std::lock_guard lock(mutex_);
    ended_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::uint64_t TroupeCudaStream::enqueue(troupe::tests::fake::Work work) {
  auto item = std::make_unique<std::function<void()>>(work.run);
  troupe::tests::fake::happens_before(item.get());
  const troupe::tests::fake::Unwatched own;
  std::lock_guard lock(mutex_);
  if (capturing_) {
    kept_.push_back(std::move(work));
    return enqueued_;
  }
  work_.push_back(std::move(item));
  changed_.notify_all();
  return ++enqueued_;
}

int TroupeCudaStream::outside_of_capture(const char* function) {
  std::lock_guard lock(mutex_);
  if (!capturing_) return TROUPE_CUDA_OK;
  broken_ = true;
  return troupe::tests::fake::state().fail(TROUPE_CUDA_FAILED,
                                           std::string(function) + " of a stream that is captured");
}

int TroupeCudaStream::begin_capture() {
  std::lock_guard lock(mutex_);
  if (capturing_)
    return troupe::tests::fake::state().fail(TROUPE_CUDA_INVALID, "a capture within a capture");
  capturing_ = true;
  broken_ = false;
  kept_.clear();
  return TROUPE_CUDA_OK;
}

int TroupeCudaStream::end_capture(std::vector<troupe::tests::fake::Work>& kept) {
  std::lock_guard lock(mutex_);
  if (!capturing_)
    return troupe::tests::fake::state().fail(TROUPE_CUDA_INVALID, "the end of no capture");
  capturing_ = false;
  kept = std::exchange(kept_, {});
  if (!broken_) return TROUPE_CUDA_OK;
  return troupe::tests::fake::state().fail(TROUPE_CUDA_FAILED, "the capture was broken off");
}

bool TroupeCudaStream::idle() {
  bool done = false;
  {
    const troupe::tests::fake::Unwatched own;
    std::lock_guard lock(mutex_);
    done = done_locked();
    if (!done) hurry_locked();
  }
  if (done) troupe::tests::fake::happens_after(this);
  return done;
}

void TroupeCudaStream::wait_idle() {
  {
    const troupe::tests::fake::Unwatched own;
    std::unique_lock lock(mutex_);
    hurry_locked();
    changed_.wait(lock, [this] { return done_locked(); });
  }
  troupe::tests::fake::happens_after(this);
}

void TroupeCudaStream::hurry_locked() {
  hurried_ = enqueued_;
  changed_.notify_all();
}

void TroupeCudaStream::hurry(std::uint64_t number) {
  std::lock_guard lock(mutex_);
  hurried_ = std::max(hurried_, number);
  changed_.notify_all();
}

void TroupeCudaStream::put_off(std::unique_lock<std::mutex>& lock) {
  if (!lazy_) return;
  if (stretch_ == 0) {
    stretch_ = 1 + lazy_->below(kStretchMax);
    puts_off_ = lazy_->below(2) == 0;
  }
  --stretch_;
  // Who was not waited for all the time does the rest of the stretch at once.
  if (puts_off_)
    puts_off_ = changed_.wait_for(lock, kPutOffMax, [this] { return ended_ || begun_ < hurried_; });
}

TroupeCudaStream::Item TroupeCudaStream::next() {
  const troupe::tests::fake::Unwatched own;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return ended_ || !work_.empty(); });
  if (work_.empty()) return nullptr;
  put_off(lock);
  Item item = std::move(work_.front());
  work_.pop_front();
  ++begun_;
  running_ = true;
  return item;
}

void TroupeCudaStream::run() {
  while (Item item = next()) {
    troupe::tests::fake::happens_after(item.get());
    {
      const troupe::tests::fake::OpenMemory open;
      (*item)();
    }
    troupe::tests::fake::happens_before(this);
    const troupe::tests::fake::Unwatched own;
    item.reset();
    std::lock_guard lock(mutex_);
    running_ = false;
    if (work_.empty()) changed_.notify_all();
  }
}

namespace troupe::tests::fake {
namespace {

// All streams of a context, for context_synchronize.
std::mutex streams_mutex;
std::set<TroupeCudaStream*> streams;

std::int64_t now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

int context_synchronize(TroupeCudaContext* context) {
  if (const int code = state().enter("context_synchronize", context->device)) return code;
  wait_for_streams(context);
  return TROUPE_CUDA_OK;
}

int stream_create(TroupeCudaContext* context, std::int32_t, TroupeCudaStream** stream) {
  if (const int code = state().enter("stream_create", context->device)) return code;
  *stream = new TroupeCudaStream(context, state().next_stream_seed());
  std::lock_guard lock(streams_mutex);
  streams.insert(*stream);
  state().count_object("stream", 1);
  return TROUPE_CUDA_OK;
}

int stream_destroy(TroupeCudaStream* stream) {
  const int code = state().enter("stream_destroy");
  {
    std::lock_guard lock(streams_mutex);
    streams.erase(stream);
  }
  delete stream;
  state().count_object("stream", -1);
  return code;
}

int stream_synchronize(TroupeCudaStream* stream) {
  if (const int code = state().enter("stream_synchronize", stream->context->device)) return code;
  if (const int code = stream->outside_of_capture("stream_synchronize")) return code;
  stream->wait_idle();
  return TROUPE_CUDA_OK;
}

int stream_query(TroupeCudaStream* stream) {
  // Asked first: work that loses the device is not done without having lost it.
  const bool idle = stream->idle();
  if (const int code = state().enter("stream_query", stream->context->device)) return code;
  if (const int code = stream->outside_of_capture("stream_query")) return code;
  return idle ? TROUPE_CUDA_OK : state().fail(TROUPE_CUDA_NOT_READY, "the stream has work");
}

int event_create(TroupeCudaContext* context, std::int32_t timed, TroupeCudaEvent** event) {
  if (const int code = state().enter("event_create", context->device)) return code;
  *event = new TroupeCudaEvent();
  (*event)->context = context;
  (*event)->timed = timed != 0;
  state().count_object("event", 1);
  return TROUPE_CUDA_OK;
}

int event_destroy(TroupeCudaEvent* event) {
  const int code = state().enter("event_destroy");
  delete event;
  state().count_object("event", -1);
  return code;
}

std::shared_ptr<TroupeCudaEvent::Record> record_of(TroupeCudaEvent* event) {
  std::lock_guard lock(event->mutex);
  return event->last;
}

// Under the record's lock.
void hurry(TroupeCudaEvent::Record& record) {
  if (record.stream) record.stream->hurry(record.number);
}

void wait_for(TroupeCudaEvent::Record& record) {
  {
    const Unwatched own;
    std::unique_lock lock(record.mutex);
    hurry(record);
    record.changed.wait(lock, [&] { return record.done; });
  }
  happens_after(&record);
}

void set_done(TroupeCudaEvent::Record& record) {
  happens_before(&record);
  const Unwatched own;
  std::lock_guard lock(record.mutex);
  record.at_ns = now_ns();
  record.done = true;
  record.stream = nullptr;
  record.changed.notify_all();
}

std::optional<std::int64_t> time_of(TroupeCudaEvent* event) {
  const auto record = record_of(event);
  if (!record) return std::nullopt;
  {
    const Unwatched own;
    std::lock_guard lock(record->mutex);
    hurry(*record);
    if (!record->done) return std::nullopt;
  }
  happens_after(record.get());
  return record->at_ns;
}

int event_record(TroupeCudaEvent* event, TroupeCudaStream* stream) {
  if (const int code = state().enter("event_record", stream->context->device)) return code;
  if (const int code = stream->outside_of_capture("event_record")) return code;
  auto record = std::make_shared<TroupeCudaEvent::Record>();
  {
    std::lock_guard lock(event->mutex);
    event->last = record;
  }
  const std::uint64_t number = stream->enqueue({.run = [record] { set_done(*record); }});
  const Unwatched own;
  std::lock_guard lock(record->mutex);
  if (!record->done) record->stream = stream, record->number = number;
  return TROUPE_CUDA_OK;
}

int event_query(TroupeCudaEvent* event) {
  // As CUDA has it: an event that was never recorded is done. Asked first, as for streams.
  const bool done = !record_of(event) || time_of(event);
  if (const int code = state().enter("event_query", event->context->device)) return code;
  if (done) return TROUPE_CUDA_OK;
  return state().fail(TROUPE_CUDA_NOT_READY, "the event's stream has not come to it");
}

int event_synchronize(TroupeCudaEvent* event) {
  if (const int code = state().enter("event_synchronize", event->context->device)) return code;
  if (const auto record = record_of(event)) wait_for(*record);
  return TROUPE_CUDA_OK;
}

int event_elapsed_ms(TroupeCudaEvent* from, TroupeCudaEvent* to, float* milliseconds) {
  if (const int code = state().enter("event_elapsed_ms", from->context->device)) return code;
  const auto begin = time_of(from), end = time_of(to);
  if (!from->timed || !to->timed || !begin || !end)
    return state().fail(TROUPE_CUDA_INVALID,
                        "events that were not recorded with times, or not yet");
  *milliseconds = static_cast<float>(static_cast<double>(*end - *begin) / 1e6);
  return TROUPE_CUDA_OK;
}

int stream_wait(TroupeCudaStream* stream, TroupeCudaEvent* event) {
  if (const int code = state().enter("stream_wait", stream->context->device)) return code;
  if (const int code = stream->outside_of_capture("stream_wait")) return code;
  if (auto record = record_of(event)) stream->enqueue({.run = [record] { wait_for(*record); }});
  return TROUPE_CUDA_OK;
}

// Enqueued where both sides stay; else done when the call returns, behind what was enqueued before.
int run_copy(TroupeCudaStream* stream, Work work) {
  bool enqueued = true;
  for (const Work::Use& use : work.uses) enqueued = enqueued && state().known(use.at, use.bytes);
  if (!enqueued)
    if (const int code = stream->outside_of_capture(work.function)) return code;
  stream->enqueue(std::move(work));
  if (!enqueued) stream->wait_idle();
  return TROUPE_CUDA_OK;
}

int copy(TroupeCudaStream* stream, const void* from, void* to, std::int64_t bytes) {
  if (const int code = state().enter("copy", stream->context->device)) return code;
  return run_copy(stream, {.run = [=] { std::memcpy(to, from, static_cast<std::size_t>(bytes)); },
                           .function = "copy",
                           .uses = {{from, bytes}, {to, bytes}}});
}

int copy_rows(TroupeCudaStream* stream, const void* from, std::int64_t from_stride_bytes, void* to,
              std::int64_t to_stride_bytes, std::int64_t rows, std::int64_t row_bytes) {
  if (const int code = state().enter("copy_rows", stream->context->device)) return code;
  if (row_bytes > from_stride_bytes || row_bytes > to_stride_bytes)
    return state().fail(TROUPE_CUDA_INVALID, "rows longer than their distance");
  return run_copy(
      stream, {.run =
                   [=] {
                     for (std::int64_t row = 0; row < rows; ++row)
                       std::memcpy(static_cast<std::byte*>(to) + row * to_stride_bytes,
                                   static_cast<const std::byte*>(from) + row * from_stride_bytes,
                                   static_cast<std::size_t>(row_bytes));
                   },
               .function = "copy_rows",
               .uses = {{from, row_bytes}, {to, row_bytes}}});
}

int fill(TroupeCudaStream* stream, void* device, std::int32_t byte, std::int64_t bytes) {
  if (const int code = state().enter("fill", stream->context->device)) return code;
  if (!state().on_device(device, bytes))
    return state().fail(TROUPE_CUDA_INVALID, "no memory of the device");
  stream->enqueue({.run = [=] { std::memset(device, byte, static_cast<std::size_t>(bytes)); },
                   .function = "fill",
                   .uses = {{device, bytes}}});
  return TROUPE_CUDA_OK;
}

}  // namespace

void wait_for_streams(TroupeCudaContext* context) {
  std::lock_guard lock(streams_mutex);
  for (TroupeCudaStream* stream : streams) {
    if (stream->context == context) stream->wait_idle();
  }
}

void fill_streams(TroupeCudaTable& table) {
  table.context_synchronize = context_synchronize;
  table.stream_create = stream_create;
  table.stream_destroy = stream_destroy;
  table.stream_synchronize = stream_synchronize;
  table.stream_query = stream_query;
  table.event_create = event_create;
  table.event_destroy = event_destroy;
  table.event_record = event_record;
  table.event_query = event_query;
  table.event_synchronize = event_synchronize;
  table.event_elapsed_ms = event_elapsed_ms;
  table.stream_wait = stream_wait;
  table.copy = copy;
  table.copy_rows = copy_rows;
  table.fill = fill;
}

}  // namespace troupe::tests::fake
