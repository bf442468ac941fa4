#include "actors/groups/growing_pool.h"

#include <algorithm>
#include <chrono>
#include <iterator>

#include "actors/actor_spec.h"
#include "runtime/base/limits.h"
#include "runtime/base/short_slices.h"
#include "scheduler/client/actor_words.h"
#include "troupe/detail/running_call.h"

namespace troupe::detail {
namespace {

using std::chrono::milliseconds;

// Between attempts to have a member, after the first.
constexpr Duration kPoolBackoffFirst = milliseconds(100);
constexpr Duration kPoolBackoffMax = std::chrono::seconds(10);
constexpr const char* kNotGot = "no result before the deadline of get()";

Status check_options(const PoolOptions& options) {
  if (options.member.isolation == Isolation::kShared) {
    return Status(Code::kUnsupported,
                  "a pool of light actors: those of a host share one thread, and would wait for "
                  "each other. Members have processes of their own (Isolation::kProcess); a group "
                  "(actor_group.h) is made of light ones, too");
  }
  if (options.members_max < 1 || options.members_min > options.members_max ||
      options.members_max > limits::kPoolMembersMax || options.calls_per_member < 1 ||
      options.grow_after.count() < 0 || options.shrink_after.count() < 0 || options.tries_max < 1) {
    return error(Code::kInvalidArgument,
                 "PoolOptions: members_max ({}) is from 1 to {}, and members_min ({}) is not "
                 "larger; calls_per_member ({}) and tries_max ({}) are at least 1; no time is "
                 "negative",
                 options.members_max, limits::kPoolMembersMax, options.members_min,
                 options.calls_per_member, options.tries_max);
  }
  return make_spec(options.member).status();
}

bool must_not_wait(const ActorClient& client) {
  const RunningCall* const call = RunningCall::current();
  return client.loop().in_loop_thread() || (call != nullptr && call->asynchronous());
}

}  // namespace

// A call at a member.
class PoolAttempt final : public CallSink,
                          public Cancellable,
                          public std::enable_shared_from_this<PoolAttempt> {
 public:
  // `last`: it goes to no other member, nor to this one's next process.
  PoolAttempt(std::shared_ptr<GrowingPool> of, std::shared_ptr<PoolCall> what, ChannelPtr where,
              bool last)
      : call(std::move(what)),
        channel(std::move(where)),
        last_(last),
        pool_(std::move(of)),
        line_(pool_->client(), channel) {}

  void send() {
    if (given_up_) return abandon();
    OutgoingArguments arguments(*channel, kNoLightNumber, /*lends=*/true);
    call->arguments.append_to(arguments.encoder());
    // (The pool has seen to what the call takes over from one inside which it is made.)
    CallOptions options = call->options;
    options.inherit = false;
    options.timeout = call->ticket->deadline.remaining();
    options.retry = options.retry && !last_;
    line_.send(call->method, arguments, options, shared_from_this(), *this, nullptr);
    if (given_up_) line_.cancel();
  }
  void answer(const Status& status, std::span<const std::byte> result,
              Continuations* later) override {
    line_.answered();
    // (It may be the last to hold the pool.)
    if (const auto pool = std::exchange(pool_, nullptr)) {
      pool->answered(*this, status, result, later);
    }
  }
  void abandon() override { answer(broken_promise(), {}, nullptr); }
  void cancel(const char*) override { give_up(); }
  void give_up() {
    given_up_ = true;
    line_.cancel();
  }
  std::optional<Status> late() const { return line_.late(kNotGot); }
  const CallLine& line() const { return line_; }

  const std::shared_ptr<PoolCall> call;
  const ChannelPtr channel;
  std::atomic<bool> over{false};  // answered, or taken back: written under the pool's lock

 private:
  const bool last_;
  std::shared_ptr<GrowingPool> pool_;
  CallLine line_;
  std::atomic<bool> given_up_{false};
};

Status empty_pool_error(std::string_view type) {
  return error(Code::kFailedPrecondition, "an empty ActorPool<{}>", type);
}

// --- its life ------------------------------------------------------------------------------------

Result<std::shared_ptr<Pool>> Pool::create(ClientPtr client, const PoolOptions& options,
                                           const ActorInterface& interface,
                                           PackedArguments arguments) {
  TROUPE_RETURN_IF_ERROR(check_options(options));
  auto pool =
      std::make_shared<GrowingPool>(std::move(client), options, interface, std::move(arguments));
  pool->client()->tell_of_close(pool);
  pool->client()->work().add(pool);
  pool->go_on();
  return std::shared_ptr<Pool>(std::move(pool));
}

GrowingPool::GrowingPool(ClientPtr client, PoolOptions options, const ActorInterface& interface,
                         PackedArguments arguments)
    : client_(std::move(client)),
      options_(std::move(options)),
      interface_(interface),
      arguments_(std::move(arguments)) {}

// No member has a call: those would keep it.
GrowingPool::~GrowingPool() {
  const StopOptions gone{.reason = "its pool has gone"};
  for (const Member& member : members_) {
    if (member.watch != 0) client_->unwatch(member.watch);
    if (!member.ending) end_member(member.id(), member.runs(), gone);
  }
  for (const auto& [order, call] : line_) {
    call->end(of_this_pool(Status(Code::kCancelled,
                                  "the pool has gone: a call that waits does not keep it")),
              {}, nullptr, nullptr);
  }
}

void GrowingPool::closed(const Status& why) {
  std::map<std::uint64_t, CallPtr> waiting;
  {
    MutexLock lock(mutex_);
    closed_ = why;
    stopped_ = true;
    members_.clear();
    waiting.swap(line_);
    deadlines_.clear();
    changed_.notify_all();
  }
  for (const auto& [order, call] : waiting) call->end(of_this_pool(why), {}, nullptr, nullptr);
}

Status GrowingPool::stop(const StopOptions& options) {
  const Deadline deadline = Deadline::after(options.timeout);
  std::vector<CallPtr> dropped;
  std::vector<std::pair<ActorId, bool>> ends;
  {
    MutexLock lock(mutex_);
    if (!closed_.ok()) return of_this_pool(closed_);
    if (must_not_wait(*client_)) {
      return of_this_pool(Status(Code::kFailedPrecondition, "stop() of a pool waits: not here"));
    }
    stopped_ = true;
    changed_.notify_all();
    const auto nothing_to_do = [this]()
                                   TROUPE_NO_ANALYSIS { return line_.empty() && under_way_ == 0; };
    if (options.drain) (void)changed_.wait_until(mutex_, deadline, nothing_to_do);
    for (auto& [order, call] : line_) dropped.push_back(std::move(call));
    line_.clear();
    deadlines_.clear();
    for (Member& member : members_) {
      if (member.ending) continue;
      ends.emplace_back(member.id(), member.runs());
      member.ending = true;
    }
  }
  for (const CallPtr& call : dropped) {
    call->end(of_this_pool(Status(Code::kCancelled, "the pool was stopped before a member had it")),
              {}, nullptr, nullptr);
  }
  StopOptions rest = options;
  rest.timeout = std::chrono::duration_cast<milliseconds>(deadline.remaining());
  for (const auto& [id, runs] : ends) end_member(id, runs, rest);
  MutexLock lock(mutex_);
  // (As Actors::stop: a moment to say what is left.)
  const bool gone = changed_.wait_until(mutex_, Deadline::after(rest.timeout + kControlTimeout),
                                        [this]() TROUPE_NO_ANALYSIS { return members_.empty(); });
  if (gone) return {};
  return of_this_pool(
      error(Code::kDeadlineExceeded, "{} members of the pool have not ended", members_.size()));
}

FutureOptions GrowingPool::future_options() const { return client_->future_options(ActorId{}); }

Status GrowingPool::of_this_pool(Status status) const {
  return std::move(status).with("pool", interface_.type);
}

// --- calls ---------------------------------------------------------------------------------------

void GrowingPool::submit(const CallPtr& call) {
  RunningCall* const outer = RunningCall::current();
  const bool inherits = outer != nullptr && call->options.inherit;
  const Deadline own = Deadline::after(call->options.timeout);
  call->ticket = std::make_shared<PoolTicket>();
  call->ticket->made = SystemClock().now();
  call->ticket->deadline = inherits ? earlier(own, outer->deadline()) : own;
  call->future().set_ends_by(call->ticket->deadline);
  if (inherits) {
    call->ticket->with_outer.emplace(outer->stop_token(), [weak = std::weak_ptr(call)] {
      if (const auto alive = weak.lock()) {
        alive->future().cancel("the call inside which it was made was cancelled");
      }
    });
  }
  Status admitted;
  {
    MutexLock lock(mutex_);
    admitted = admit_locked(*call);
    call->ticket->order = ++next_order_;
    if (admitted.ok() && !call->future().ready()) put_in_line_locked(call);
  }
  if (!admitted.ok()) return call->end(of_this_pool(std::move(admitted)), {}, nullptr, nullptr);
  client_->work().changed();
  go_on();
}

Status GrowingPool::admit_locked(const PoolCall& call) {
  if (!closed_.ok()) return closed_;
  if (stopped_) return Status(Code::kFailedPrecondition, "the pool was stopped");
  if (!call.counts || line_.size() < options_.waiting_max + free_locked()) return {};
  return wait_for_room_locked(call);
}

Status GrowingPool::wait_for_room_locked(const PoolCall& call) {
  if (!options_.waits_for_room || must_not_wait(*client_)) {
    return error(Code::kOverloaded, "{} calls wait for a member of the pool already: {}",
                 line_.size(), what_is_lacking_locked());
  }
  const bool room = changed_.wait_until(mutex_, call.ticket->deadline, [this]() TROUPE_NO_ANALYSIS {
    return stopped_ || line_.size() < options_.waiting_max + free_locked();
  });
  if (stopped_) {
    return closed_.ok() ? Status(Code::kFailedPrecondition, "the pool was stopped") : closed_;
  }
  if (room) return {};
  return error(Code::kDeadlineExceeded, "the call waited for room in the pool's line: {}",
               what_is_lacking_locked());
}

void GrowingPool::put_in_line_locked(const CallPtr& call) {
  line_.emplace(call->ticket->order, call);
  deadlines_.emplace(call->ticket->deadline.time(), call->ticket->order);
}

void GrowingPool::leave_line_locked(const PoolCall& call) {
  line_.erase(call.ticket->order);
  deadlines_.erase({call.ticket->deadline.time(), call.ticket->order});
}

bool GrowingPool::may_try_again_locked(const PoolCall& call) const {
  return call.options.retry && call.ticket->tries < options_.tries_max && !stopped_;
}

void GrowingPool::cancel(PoolCall& call) {
  AttemptPtr attempt;
  {
    MutexLock lock(mutex_);
    attempt = call.ticket->attempt;
    if (!attempt) leave_line_locked(call);
    changed_.notify_all();
  }
  if (attempt) attempt->give_up();
}

Status GrowingPool::late(const PoolCall& call) const {
  AttemptPtr attempt;
  std::string lacking;
  {
    MutexLock lock(mutex_);
    attempt = call.ticket->attempt;
    if (!attempt) lacking = what_is_lacking_locked();
  }
  if (attempt) {
    if (auto why = attempt->late()) return of_this_pool(std::move(*why));
  }
  return of_this_pool(error(Code::kDeadlineExceeded, "{}: the call waits for a member: {}", kNotGot,
                            lacking.empty() ? "it has just been answered" : lacking));
}

void GrowingPool::help(const PoolCall& call, Deadline deadline) {
  AttemptPtr attempt;
  {
    MutexLock lock(mutex_);
    attempt = call.ticket->attempt;
  }
  if (attempt == nullptr) return;
  take_short_slices();
  attempt->channel->read_answers(deadline, [&] {
    return attempt->over.load(std::memory_order_acquire) || attempt->call->future().ready();
  });
}

void GrowingPool::answered(PoolAttempt& attempt, const Status& status,
                           std::span<const std::byte> result, Continuations* later) {
  const CallPtr& call = attempt.call;
  // Of the member, not of another actor that its method called.
  const bool died = status.code() == Code::kActorDied && attempt.channel->ended();
  bool again = false;
  {
    MutexLock lock(mutex_);
    if (attempt.over.exchange(true)) return;
    --under_way_;
    call->ticket->attempt.reset();
    if (Member* const member = find_locked(attempt.channel->actor_id())) {
      // Its first: after a loss all is well again.
      if (status.ok() && !std::exchange(member->proven, true)) {
        backoff_ = Duration::zero();
        trouble_ = Status();
      }
      std::erase_if(member->attempts, [&](const AttemptPtr& a) { return a.get() == &attempt; });
      member->idle_since = SystemClock().now();
      // The head may tell of it later.
      if (died) member->info.state = wire::ActorState::kDead;
    }
    again = died && may_try_again_locked(*call) && !call->future().ready();
    if (again) put_in_line_locked(call);
    changed_.notify_all();
  }
  if (!again) {
    call->end(status.ok() ? status : of_this_pool(status), result, &attempt.line(), later);
  }
  go_on(later);
}

// --- what follows --------------------------------------------------------------------------------

// One thread at a time does it, with what others bring meanwhile.
void GrowingPool::go_on(Continuations* later) {
  for (bool first = true;; first = false) {
    Todo todo;
    {
      MutexLock lock(mutex_);
      if (!closed_.ok() || (first && std::exchange(going_on_, true))) return;
      const TimePoint now = SystemClock().now();
      todo = plan_locked(now);
      if (todo.empty()) {
        going_on_ = false;
        arm_locked(now);
        return;
      }
    }
    carry_out(std::move(todo), later);
  }
}

GrowingPool::Todo GrowingPool::plan_locked(TimePoint now) {
  Todo todo;
  next_.reset();
  end_late_locked(now, todo);
  hand_out_locked(todo);
  if (!stopped_) {
    grow_locked(now, todo);
    shrink_locked(now, todo);
  }
  return todo;
}

void GrowingPool::end_late_locked(TimePoint now, Todo& todo) {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const auto late = line_.extract(deadlines_.begin()->second);
    deadlines_.erase(deadlines_.begin());
    todo.ended.emplace_back(late.mapped(),
                            of_this_pool(error(Code::kDeadlineExceeded,
                                               "the call waited for a member of the pool until its "
                                               "deadline: {}",
                                               what_is_lacking_locked())));
  }
  if (!deadlines_.empty()) next_ = deadlines_.begin()->first;
}

// To who has fewest; of those the first, so that the last ones come to have nothing to do.
void GrowingPool::hand_out_locked(Todo& todo) {
  while (!line_.empty()) {
    Member* best = nullptr;
    for (Member& member : members_) {
      if (!member.runs() || member.attempts.size() >= options_.calls_per_member) continue;
      if (best == nullptr || member.attempts.size() < best->attempts.size()) best = &member;
    }
    if (best == nullptr) return;
    const CallPtr call = line_.begin()->second;
    leave_line_locked(*call);
    ++call->ticket->tries;
    ++under_way_;
    todo.sends.push_back(std::make_shared<PoolAttempt>(shared_from_this(), call, best->channel,
                                                       !may_try_again_locked(*call)));
    call->ticket->attempt = todo.sends.back();
    best->attempts.push_back(todo.sends.back());
    changed_.notify_all();
  }
}

void GrowingPool::grow_locked(TimePoint now, Todo& todo) {
  const std::size_t staying = staying_locked();
  if (staying >= options_.members_max) return;
  // Those that come take as many calls.
  const auto running = static_cast<std::size_t>(
      std::count_if(members_.begin(), members_.end(), [](const Member& m) { return m.runs(); }));
  const std::size_t taken_care_of = (staying - running) * options_.calls_per_member;
  const std::size_t enough =
      taken_care_of + (options_.members_max - staying) * options_.calls_per_member;
  std::size_t late = 0;
  for (const auto& [order, call] : line_) {
    const TimePoint patience_ends = call->ticket->made + options_.grow_after;
    if (late >= enough) break;
    if (patience_ends > now) {
      next_ = next_ ? std::min(*next_, patience_ends) : patience_ends;
      break;
    }
    ++late;
  }
  std::size_t wanted = std::max(staying, options_.members_min);
  if (late > taken_care_of) {
    const std::size_t more =
        (late - taken_care_of + options_.calls_per_member - 1) / options_.calls_per_member;
    wanted = std::min(std::max(wanted, staying + more), options_.members_max);
  }
  if (wanted == staying) return;
  if (place_at_ > now) {
    next_ = next_ ? std::min(*next_, place_at_) : place_at_;
    return;
  }
  todo.spawns = wanted - staying;
  spawning_ += todo.spawns;
}

void GrowingPool::shrink_locked(TimePoint now, Todo& todo) {
  if (!line_.empty()) return;
  std::size_t staying = staying_locked();
  for (auto member = members_.rbegin(); member != members_.rend(); ++member) {
    if (staying <= options_.members_min) return;
    if (member->ending || !member->attempts.empty()) continue;
    const TimePoint patience_ends = member->idle_since + options_.shrink_after;
    if (patience_ends > now) {
      next_ = next_ ? std::min(*next_, patience_ends) : patience_ends;
      continue;
    }
    todo.ends.emplace_back(member->id(), member->runs());
    member->ending = true;
    --staying;
  }
}

void GrowingPool::carry_out(Todo todo, Continuations* later) {
  for (const auto& [call, why] : todo.ended) call->end(why, {}, nullptr, later);
  for (const AttemptPtr& attempt : todo.sends) attempt->send();
  for (std::size_t i = 0; i < todo.spawns; ++i) add_member();
  for (const auto& [id, runs] : todo.ends) {
    end_member(id, runs, {.reason = "its pool needs it no more"});
  }
}

void GrowingPool::arm_locked(TimePoint now) {
  if (!next_ || (armed_ && *armed_ <= *next_)) return;
  armed_ = next_;
  client_->loop().call_after(std::max(*next_ - now, Duration::zero()),
                             [weak = weak_from_this(), due = *next_] {
                               const auto self = weak.lock();
                               if (!self) return;
                               {
                                 MutexLock lock(self->mutex_);
                                 if (self->armed_ == due) self->armed_.reset();
                               }
                               self->go_on();
                             });
}

// --- members -------------------------------------------------------------------------------------

void GrowingPool::add_member() {
  // (Read under the lock: what the head says may come before it is written.)
  const auto id = std::make_shared<ActorId>();
  const auto on_info = [weak = weak_from_this(), id](const Result<wire::ActorInfo>& info) {
    if (const auto self = weak.lock()) self->on_member(*id, info);
  };
  {
    MutexLock lock(mutex_);
    ActorOptions options = options_.member;
    if (!options.name.empty()) options.name += "-" + std::to_string(++spawned_);
    --spawning_;
    if (stopped_) return;
    auto channel = client_->create(options, interface_, arguments_,
                                   [loop = &client_->loop(), on_info](const Status& why) {
                                     loop->post([on_info, why] { on_info(why); });
                                   });
    if (!channel.ok()) return not_placed_locked(channel.status());
    *id = (*channel)->actor_id();
    Member& member = members_.emplace_back();
    member.channel = std::move(*channel);
    member.idle_since = SystemClock().now();
  }
  const auto watch = client_->directory().watch(*id, "", on_info);
  MutexLock lock(mutex_);
  if (Member* const member = find_locked(*id)) member->watch = watch;
}

// That it has ended its watch tells; a head that was away too long to hear of it is asked again.
void GrowingPool::end_member(ActorId id, bool runs, const StopOptions& options) {
  const auto told = [weak = weak_from_this(), id](const Status& status) {
    const auto self = weak.lock();
    if (!self || !head_is_away(status)) return;
    {
      MutexLock lock(self->mutex_);
      Member* const member = self->find_locked(id);
      if (member == nullptr || self->stopped_) return;
      member->ending = false;
      member->idle_since = SystemClock().now();
    }
    self->go_on();
  };
  if (runs && options.drain) {
    client_->directory().drain(id, options.timeout.count(), options.reason, told);
  } else {
    client_->directory().kill(id, false, runs ? options.timeout.count() : 0, options.reason, told);
  }
}

void GrowingPool::on_member(const ActorId& id, const Result<wire::ActorInfo>& info) {
  std::vector<AttemptPtr> taken;
  {
    MutexLock lock(mutex_);
    Member* const member = find_locked(id);
    if (member == nullptr || (!info.ok() && head_is_away(info.status()))) return;
    const wire::ActorInfo before = member->info;
    if (info.ok()) member->info = *info;
    const bool dead = !info.ok() || info->state == wire::ActorState::kDead;
    if (dead || (before.state == wire::ActorState::kAlive &&
                 (!member->runs() || info->generation != before.generation))) {
      taken = take_back_locked(*member);
    }
    if (dead) lose_locked(*member, info.ok() ? info->death : info.status());
    changed_.notify_all();
  }
  for (const AttemptPtr& attempt : taken) attempt->give_up();
  client_->work().changed();
  go_on();
}

std::vector<GrowingPool::AttemptPtr> GrowingPool::take_back_locked(Member& member) {
  std::vector<AttemptPtr> taken;
  std::erase_if(member.attempts, [&](const AttemptPtr& attempt) TROUPE_NO_ANALYSIS {
    const CallPtr& call = attempt->call;
    if (!may_try_again_locked(*call)) return false;
    attempt->over = true;
    --under_way_;
    call->ticket->attempt.reset();
    if (!call->future().ready()) put_in_line_locked(call);
    taken.push_back(attempt);
    return true;
  });
  return taken;
}

void GrowingPool::lose_locked(Member& member, Status why) {
  const bool expected = member.ending;
  members_.erase(members_.begin() + (&member - members_.data()));
  if (!expected) not_placed_locked(std::move(why));
}

void GrowingPool::not_placed_locked(Status why) {
  trouble_ = std::move(why);
  place_at_ = SystemClock().now() + backoff_;
  backoff_ = std::clamp(2 * backoff_, kPoolBackoffFirst, kPoolBackoffMax);
}

GrowingPool::Member* GrowingPool::find_locked(ActorId id) {
  const auto found = std::find_if(members_.begin(), members_.end(),
                                  [id](const Member& m) { return m.id() == id; });
  return found == members_.end() ? nullptr : &*found;
}

std::size_t GrowingPool::staying_locked() const {
  return spawning_ +
         static_cast<std::size_t>(std::count_if(members_.begin(), members_.end(),
                                                [](const Member& m) { return !m.ending; }));
}

std::size_t GrowingPool::free_locked() const {
  std::size_t free = 0;
  for (const Member& member : members_) {
    if (member.runs()) free += options_.calls_per_member - member.attempts.size();
  }
  return free;
}

// --- what it says --------------------------------------------------------------------------------

std::string GrowingPool::what_is_lacking_locked() const {
  std::size_t running = 0;
  std::string waiting;
  for (const Member& member : members_) {
    if (member.runs()) {
      ++running;
    } else if (waiting.empty() && !member.ending) {
      waiting = scheduler::actor_waits_for(member.info, member.info.node_id.brief());
    }
  }
  std::string text = running == 0 ? "none runs" : fmt::format("{} run, and have calls", running);
  if (!waiting.empty()) text += fmt::format("; one does not yet: {}", waiting);
  if (!trouble_.ok()) text += fmt::format("; the last loss: {}", trouble_.to_string());
  return text;
}

PoolStatus GrowingPool::status() const {
  PoolStatus status;
  MutexLock lock(mutex_);
  for (const Member& member : members_) {
    status.members.push_back(
        {member.id(), member.info.state, member.attempts.size(), member.ending,
         member.info.state == wire::ActorState::kAlive
             ? ""
             : scheduler::actor_waits_for(member.info, member.info.node_id.brief())});
  }
  status.calls_under_way = under_way_;
  status.calls_waiting = line_.size();
  status.trouble = trouble_;
  return status;
}

bool GrowingPool::tell(wire::Work& work) const {
  MutexLock lock(mutex_);
  if (stopped_ && members_.empty()) return false;
  wire::GroupWork mine{.type = std::string(interface_.type), .is_pool = true};
  mine.members = members_.size();
  mine.members_max = options_.members_max;
  for (const Member& member : members_) mine.actors.push_back(member.id());
  mine.calls_waiting = line_.size();
  mine.calls_under_way = under_way_;
  if (!trouble_.ok()) mine.why = work_text(trouble_.to_string());
  work.groups.push_back(std::move(mine));
  return !line_.empty() || under_way_ > 0;
}

std::vector<ChannelPtr> GrowingPool::channels() const {
  std::vector<ChannelPtr> channels;
  MutexLock lock(mutex_);
  for (const Member& member : members_) {
    if (member.runs()) channels.push_back(member.channel);
  }
  return channels;
}

}  // namespace troupe::detail
