#include "actors/mailbox.h"

#include <chrono>
#include <utility>

namespace troupe::detail {
namespace {

// An idle actor wakes once an hour: every wait has a deadline. With callers in other processes,
// once a second: one of them may be faulty and have damaged the word.
constexpr Duration kIdleSleep = std::chrono::hours(1);
constexpr Duration kConnectedSleep = std::chrono::seconds(1);
// So many items are taken from a mailbox that does not get empty before the source has its turn.
constexpr std::uint32_t kItemsPerGathering = 16;

}  // namespace

Mailbox::Mailbox(std::size_t calls_max, MailboxWords shared)
    : shared_(shared.word != nullptr ? std::move(shared)
                                     : MailboxWords{&own_word_, &own_calls_, nullptr}),
      calls_max_(calls_max),
      waker_(shared_.word),
      sleeper_(shared_.word) {}

void Mailbox::set_source(std::weak_ptr<CallSource> source) {
  MutexLock lock(mutex_);
  source_ = std::move(source);
}

void Mailbox::changed() {
  waiting_calls_.store(calls_, std::memory_order_release);
  shared_.calls->store(calls_ + held_, std::memory_order_release);
  has_items_.store(stopped_ || !items_.empty(), std::memory_order_seq_cst);
}

// Outside of mutex_, which the thread that is woken takes first.
void Mailbox::wake() {
  MutexLock lock(waker_mutex_);
  (void)waker_.wake();
}

Status Mailbox::push(QueuedCall call) {
  {
    MutexLock lock(mutex_);
    if (stopped_) return error(Code::kUnavailable, "the actor is stopping");
    if (calls_ + held_ >= calls_max_) {
      return error(
          Code::kOverloaded,
          "{} calls wait in the actor's mailbox already. Wait for answers before calling on",
          calls_ + held_);
    }
    ++calls_;
    items_.emplace_back(std::move(call));
    changed();
  }
  wake();
  return {};
}

void Mailbox::limit_calls(std::size_t calls_max) {
  MutexLock lock(mutex_);
  calls_max_ = calls_max;
}

std::size_t Mailbox::calls_max() const {
  MutexLock lock(mutex_);
  return calls_max_;
}

void Mailbox::count_held(int change) {
  MutexLock lock(mutex_);
  held_ += static_cast<std::size_t>(change);
  shared_.calls->store(calls_ + held_, std::memory_order_release);
}

void Mailbox::post(Work work) {
  if (process_.is_forked()) return;
  {
    MutexLock lock(mutex_);
    if (stopped_) return;
    items_.emplace_back(std::move(work));
    changed();
  }
  wake();
}

bool Mailbox::in_thread() const {
  return thread_.load(std::memory_order_acquire) == std::this_thread::get_id();
}

void Mailbox::adopt_thread() {
  thread_.store(std::this_thread::get_id(), std::memory_order_release);
}

bool Mailbox::remove(ClientId caller, std::uint64_t sequence) {
  MutexLock lock(mutex_);
  for (auto it = items_.begin(); it != items_.end(); ++it) {
    const auto* call = std::get_if<QueuedCall>(&*it);
    if (call && call->caller == caller && call->sequence == sequence) {
      items_.erase(it);
      --calls_;
      changed();
      return true;
    }
  }
  return false;
}

std::optional<std::uint32_t> Mailbox::method_of(ClientId caller, std::uint64_t sequence) {
  MutexLock lock(mutex_);
  for (const Item& item : items_) {
    const auto* call = std::get_if<QueuedCall>(&item);
    if (call && call->caller == caller && call->sequence == sequence) return call->method;
  }
  return std::nullopt;
}

std::optional<Mailbox::Item> Mailbox::pop() {
  if (stopped_ || items_.empty()) return std::nullopt;
  Item item = std::move(items_.front());
  items_.pop_front();
  if (std::holds_alternative<QueuedCall>(item)) --calls_;
  changed();
  return item;
}

std::optional<Mailbox::Item> Mailbox::next() {
  adopt_thread();
  std::shared_ptr<CallSource> source;
  {
    MutexLock lock(mutex_);
    source = source_.lock();
  }
  for (;;) {
    if (!idle()) {
      if (source && ++since_gathered_ >= kItemsPerGathering) {
        since_gathered_ = 0;
        if (source->waiting()) source->gather();
      }
      MutexLock lock(mutex_);
      if (stopped_) return std::nullopt;
      if (auto item = pop()) return item;
    }
    if (source && source->waiting()) {
      if (auto call = source->take()) return Item(std::move(*call));
    }
    wait(source.get());
  }
}

void Mailbox::wait(CallSource* source) {
  const auto found = [&] { return !idle() || (source != nullptr && source->waiting()); };
  if (found()) return;
  const Duration budget = source != nullptr ? source->spin() : Duration::zero();
  if (budget > Duration::zero() && adaptive_.worthwhile()) {
    const bool in_time = memory::spin_until(budget, SystemClock(), found);
    adaptive_.ended(in_time);
    if (in_time) return;
  }
  sleeper_.announce(memory::WaitState::kAsleep);
  if (!found()) {
    sleeper_.sleep(source != nullptr && source->connected() ? kConnectedSleep : kIdleSleep);
  }
  sleeper_.awake();
}

std::optional<Mailbox::Item> Mailbox::poll() {
  MutexLock lock(mutex_);
  return pop();
}

void Mailbox::stop() {
  if (process_.is_forked()) return;
  {
    MutexLock lock(mutex_);
    stopped_ = true;
    changed();
  }
  wake();
}

std::deque<QueuedCall> Mailbox::take_calls() {
  MutexLock lock(mutex_);
  std::deque<QueuedCall> calls;
  std::erase_if(items_, [&](Item& item) {
    auto* const call = std::get_if<QueuedCall>(&item);
    if (call != nullptr) calls.push_back(std::move(*call));
    return call != nullptr;
  });
  calls_ = 0;
  changed();
  return calls;
}

}  // namespace troupe::detail
