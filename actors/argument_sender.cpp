#include "actors/argument_sender.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <cstring>
#include <utility>

#include "runtime/base/hash.h"
#include "runtime/base/start_thread.h"
#include "runtime/memory/segment_transfer.h"
#include "runtime/net/transport.h"

namespace troupe::detail {
namespace {

constexpr std::size_t kSendersMax = 4;
constexpr Duration kConnectTime = std::chrono::seconds(5);
// Before a process that was not reached is tried again.
constexpr Duration kSendAgainAfter = std::chrono::milliseconds(50);
constexpr Duration kIdleLook = std::chrono::hours(1);  // waits have deadlines

}  // namespace

Duration arguments_time(std::uint64_t bytes) {
  return kArgumentsWait + std::chrono::microseconds(bytes / 10);
}

ArgumentSender::ArgumentSender(std::shared_ptr<const ChannelEnvironment> environment)
    : environment_(std::move(environment)) {}

ArgumentSender::~ArgumentSender() { close(); }

Status ArgumentSender::take(wire::ActorSpec& spec, wire::Bytes arguments) {
  auto segment = TROUPE_TRY(memory::Segment::create("troupe-arguments", arguments.size()));
  std::memcpy(segment.data(), arguments.data(), arguments.size());
  spec.arguments_beside_bytes = arguments.size();
  spec.arguments_beside_hash = xxh3_64(arguments);
  MutexLock lock(mutex_);
  kept_[spec.actor_id].arguments = std::make_shared<const memory::Segment>(std::move(segment));
  return {};
}

void ArgumentSender::keep(ActorId actor_id, std::vector<std::shared_ptr<const void>> objects) {
  if (objects.empty()) return;
  MutexLock lock(mutex_);
  if (!closed_) kept_[actor_id].objects = std::move(objects);
}

void ArgumentSender::begin(ActorId actor_id) {
  {
    MutexLock lock(mutex_);
    if (closed_ || !kept_.contains(actor_id)) return;
  }
  const auto watch = environment_->directory->watch(
      actor_id, "", [weak = weak_from_this(), actor_id](const Result<wire::ActorInfo>& info) {
        if (const auto self = weak.lock()) self->on_actor(actor_id, info);
      });
  MutexLock lock(mutex_);
  if (const auto it = kept_.find(actor_id); it != kept_.end()) it->second.watch = watch;
}

void ArgumentSender::forget(ActorId actor_id) {
  Kept gone;  // objects are let go without the lock
  MutexLock lock(mutex_);
  const auto it = kept_.find(actor_id);
  if (it == kept_.end()) return;
  gone = std::move(it->second);
  kept_.erase(it);
}

void ArgumentSender::on_actor(ActorId actor_id, const Result<wire::ActorInfo>& info) {
  Kept gone;
  MutexLock lock(mutex_);
  const auto it = kept_.find(actor_id);
  if (it == kept_.end()) return;
  const bool away = !info.ok() && head_is_away(info.status());
  if (away) return;  // the watch goes on
  if (!info.ok() || info->state == wire::ActorState::kDead) {
    gone = std::move(it->second);
    kept_.erase(it);
    return;
  }
  if (!it->second.arguments) return;
  it->second.actor = *info;
  queue_locked(actor_id, it->second);
}

void ArgumentSender::queue_locked(ActorId actor_id, Kept& kept) {
  if (closed_ || kept.queued || kept.actor.state != wire::ActorState::kStarting ||
      kept.actor.generation <= kept.sent_to) {
    return;
  }
  kept.queued = true;
  queue_.push_back(actor_id);
  if (idle_ < queue_.size() && threads_.size() < kSendersMax) {
    auto thread = start_thread("send constructor arguments", [this] { run(); });
    if (thread.ok()) threads_.push_back(std::move(*thread));
  }
  if (threads_.empty()) {  // there may be room for one in a while
    queue_.pop_back();
    return try_later(actor_id);
  }
  changed_.notify_one();
}

void ArgumentSender::try_later(ActorId actor_id) {
  environment_->loop->call_after(kSendAgainAfter, [weak = weak_from_this(), actor_id] {
    const auto self = weak.lock();
    if (!self) return;
    MutexLock lock(self->mutex_);
    const auto found = self->kept_.find(actor_id);
    if (found == self->kept_.end()) return;
    found->second.queued = false;
    self->queue_locked(actor_id, found->second);
  });
}

void ArgumentSender::run() {
  while (true) {
    ActorId actor_id;
    std::shared_ptr<const memory::Segment> arguments;
    wire::ActorInfo actor;
    {
      MutexLock lock(mutex_);
      ++idle_;
      while (!closed_ && queue_.empty()) {
        (void)changed_.wait_until(mutex_, Deadline::after(kIdleLook),
                                  [&]() TROUPE_NO_ANALYSIS { return closed_ || !queue_.empty(); });
      }
      --idle_;
      if (closed_) return;
      actor_id = queue_.front();
      queue_.pop_front();
      const auto it = kept_.find(actor_id);
      if (it == kept_.end()) continue;
      arguments = it->second.arguments;
      actor = it->second.actor;
    }
    const Status sent = send(*arguments, actor);
    MutexLock lock(mutex_);
    const auto it = kept_.find(actor_id);
    if (closed_ || it == kept_.end()) continue;
    Kept& kept = it->second;
    if (sent.ok()) kept.sent_to = std::max(kept.sent_to, actor.generation);
    if (sent.ok() || kept.actor.generation != actor.generation) {
      kept.queued = false;
      queue_locked(actor_id, kept);
      continue;
    }
    // Its node has not heard of it yet, or its process has died: then the head says what follows.
    try_later(actor_id);
  }
}

Status ArgumentSender::send(const memory::Segment& arguments, const wire::ActorInfo& actor) {
  const net::Address address = environment_->address_of(actor.node_id, actor.endpoint);
  const bool same_node = !address.local_name.empty();
  auto stream = TROUPE_TRY(
      net::connect_blocking(address, fmt::format("actor/{}/{}", actor.actor_id, kArgumentsPurpose),
                            environment_->token, Deadline::after(kConnectTime)));
  {
    MutexLock lock(mutex_);
    if (closed_) return Status(Code::kCancelled, "the cluster object of this process was closed");
    sending_.insert(stream.fd());
  }
  Status sent = memory::send_segment(stream, same_node, arguments,
                                     Deadline::after(arguments_time(arguments.size())));
  MutexLock lock(mutex_);
  sending_.erase(stream.fd());
  return sent;
}

void ArgumentSender::close() {
  std::vector<std::thread> threads;
  {
    MutexLock lock(mutex_);
    closed_ = true;
    threads.swap(threads_);
    for (const int fd : sending_) ::shutdown(fd, SHUT_RDWR);
    changed_.notify_all();
  }
  for (auto& thread : threads) thread.join();
}

}  // namespace troupe::detail
