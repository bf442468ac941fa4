#include "actors/mailbox.h"

#include <chrono>

namespace troupe::detail {

Status Mailbox::push(QueuedCall call) {
  MutexLock lock(mutex_);
  if (stopped_) return error(Code::kUnavailable, "the actor is stopping");
  if (calls_ >= calls_max_) {
    return error(Code::kOverloaded,
                 "{} calls wait in the actor's mailbox already. Wait for answers before calling on",
                 calls_);
  }
  ++calls_;
  items_.emplace_back(std::move(call));
  arrived_.notify_one();
  return {};
}

void Mailbox::post(Work work) {
  MutexLock lock(mutex_);
  if (stopped_) return;
  items_.emplace_back(std::move(work));
  arrived_.notify_one();
}

bool Mailbox::in_thread() const {
  MutexLock lock(mutex_);
  return thread_ == std::this_thread::get_id();
}

void Mailbox::adopt_thread() {
  MutexLock lock(mutex_);
  thread_ = std::this_thread::get_id();
}

bool Mailbox::remove(ClientId caller, std::uint64_t sequence) {
  MutexLock lock(mutex_);
  for (auto it = items_.begin(); it != items_.end(); ++it) {
    const auto* call = std::get_if<QueuedCall>(&*it);
    if (call && call->caller == caller && call->sequence == sequence) {
      items_.erase(it);
      --calls_;
      return true;
    }
  }
  return false;
}

std::optional<Mailbox::Item> Mailbox::pop() {
  if (stopped_ || items_.empty()) return std::nullopt;
  Item item = std::move(items_.front());
  items_.pop_front();
  if (std::holds_alternative<QueuedCall>(item)) --calls_;
  return item;
}

std::optional<Mailbox::Item> Mailbox::next() {
  MutexLock lock(mutex_);
  thread_ = std::this_thread::get_id();
  // An idle actor wakes once an hour: every wait has a deadline.
  while (!stopped_ && items_.empty()) {
    arrived_.wait_until(mutex_, Deadline::after(std::chrono::hours(1)),
                        [&]() TROUPE_NO_ANALYSIS { return stopped_ || !items_.empty(); });
  }
  return pop();
}

std::optional<Mailbox::Item> Mailbox::poll() {
  MutexLock lock(mutex_);
  return pop();
}

void Mailbox::stop() {
  MutexLock lock(mutex_);
  stopped_ = true;
  arrived_.notify_all();
}

std::deque<QueuedCall> Mailbox::drain() {
  MutexLock lock(mutex_);
  std::deque<QueuedCall> calls;
  for (auto& item : items_) {
    if (auto* call = std::get_if<QueuedCall>(&item)) calls.push_back(std::move(*call));
  }
  items_.clear();
  calls_ = 0;
  return calls;
}

std::size_t Mailbox::calls() const {
  MutexLock lock(mutex_);
  return calls_;
}

}  // namespace troupe::detail
