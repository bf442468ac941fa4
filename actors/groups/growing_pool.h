#pragma once
// A pool of actors: calls wait in one queue for the member that is free first; members are added
// and ended by what waits. Events (a call, an answer, what the head says of a member, a time)
// change what it knows under its lock; plan_locked() says what follows, which is then done without
// it.

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <stop_token>
#include <utility>
#include <vector>

#include "actors/actor_channel.h"
#include "actors/client.h"
#include "actors/work_reporter.h"
#include "runtime/base/clock.h"
#include "troupe/actor_pool.h"
#include "troupe/detail/mutex.h"
#include "troupe/detail/pool.h"

namespace troupe::detail {

class PoolAttempt;

struct PoolTicket {
  TimePoint made;
  Deadline deadline = Deadline::after(Duration::zero());
  std::uint64_t order = 0;  // of the calls; one that comes back keeps it, and is the next
  int tries = 0;
  std::shared_ptr<PoolAttempt> attempt;  // null: it waits, or has ended
  std::optional<std::stop_callback<std::function<void()>>> with_outer;
};

class GrowingPool final : public Pool,
                          public ActorClient::Closing,
                          public WorkSource,
                          public std::enable_shared_from_this<GrowingPool> {
 public:
  using CallPtr = std::shared_ptr<PoolCall>;
  using AttemptPtr = std::shared_ptr<PoolAttempt>;

  GrowingPool(ClientPtr client, PoolOptions options, const ActorInterface& interface,
              PackedArguments arguments);
  ~GrowingPool() override;

  void submit(const CallPtr& call) override;
  PoolStatus status() const override;
  std::vector<ChannelPtr> channels() const override;
  std::size_t capacity() const override { return options_.members_max * options_.calls_per_member; }
  Status stop(const StopOptions& options) override;
  const ClientPtr& client() const override { return client_; }
  FutureOptions future_options() const override;
  void cancel(PoolCall& call) override;
  Status late(const PoolCall& call) const override;
  void help(const PoolCall& call, Deadline deadline) override;

  bool tell(wire::Work& work) const override;

  // The process's connection to its cluster is: nothing is asked of it any more.
  void closed(const Status& why) override;
  // A member's answer, or that there will be none.
  void answered(PoolAttempt& attempt, const Status& status, std::span<const std::byte> result,
                Continuations* later);
  // Does what there is to do now.
  void go_on(Continuations* later = nullptr) TROUPE_EXCLUDES(mutex_);

 private:
  struct Member {
    ChannelPtr channel;
    wire::ActorInfo info;  // as the head told last
    Directory::WatchId watch = 0;
    bool ending = false;
    bool proven = false;  // it has done a call
    TimePoint idle_since;
    std::vector<AttemptPtr> attempts;
    ActorId id() const { return channel->actor_id(); }
    bool runs() const { return info.state == wire::ActorState::kAlive && !ending; }
  };
  struct Todo {
    std::vector<AttemptPtr> sends;
    std::size_t spawns = 0;
    std::vector<std::pair<ActorId, bool>> ends;  // whether it runs
    std::vector<std::pair<CallPtr, Status>> ended;
    bool empty() const { return sends.empty() && spawns == 0 && ends.empty() && ended.empty(); }
  };

  Todo plan_locked(TimePoint now) TROUPE_REQUIRES(mutex_);
  void end_late_locked(TimePoint now, Todo& todo) TROUPE_REQUIRES(mutex_);
  void hand_out_locked(Todo& todo) TROUPE_REQUIRES(mutex_);
  void grow_locked(TimePoint now, Todo& todo) TROUPE_REQUIRES(mutex_);
  void shrink_locked(TimePoint now, Todo& todo) TROUPE_REQUIRES(mutex_);
  void carry_out(Todo todo, Continuations* later) TROUPE_EXCLUDES(mutex_);
  void arm_locked(TimePoint now) TROUPE_REQUIRES(mutex_);

  void add_member() TROUPE_EXCLUDES(mutex_);
  void end_member(ActorId id, bool runs, const StopOptions& options);
  void on_member(const ActorId& id, const Result<wire::ActorInfo>& info) TROUPE_EXCLUDES(mutex_);
  void lose_locked(Member& member, Status why) TROUPE_REQUIRES(mutex_);
  // Calls that may go to another member; to be given up where they are.
  std::vector<AttemptPtr> take_back_locked(Member& member) TROUPE_REQUIRES(mutex_);
  void not_placed_locked(Status why) TROUPE_REQUIRES(mutex_);
  Member* find_locked(ActorId id) TROUPE_REQUIRES(mutex_);
  // Those that are not about to end, with those that are being made.
  std::size_t staying_locked() const TROUPE_REQUIRES(mutex_);
  std::size_t free_locked() const TROUPE_REQUIRES(mutex_);
  std::string what_is_lacking_locked() const TROUPE_REQUIRES(mutex_);

  // Ok: it may wait in the line.
  Status admit_locked(const PoolCall& call) TROUPE_REQUIRES(mutex_);
  Status wait_for_room_locked(const PoolCall& call) TROUPE_REQUIRES(mutex_);
  void put_in_line_locked(const CallPtr& call) TROUPE_REQUIRES(mutex_);
  void leave_line_locked(const PoolCall& call) TROUPE_REQUIRES(mutex_);
  bool may_try_again_locked(const PoolCall& call) const TROUPE_REQUIRES(mutex_);
  Status of_this_pool(Status status) const;

  const ClientPtr client_;
  const PoolOptions options_;
  const ActorInterface interface_;
  const PackedArguments arguments_;  // of the constructor
  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<Member> members_ TROUPE_GUARDED_BY(mutex_);
  std::size_t spawning_ TROUPE_GUARDED_BY(mutex_) = 0;
  std::uint64_t spawned_ TROUPE_GUARDED_BY(mutex_) = 0;
  // Calls that no member has: by their order, and their deadlines.
  std::map<std::uint64_t, CallPtr> line_ TROUPE_GUARDED_BY(mutex_);
  std::set<std::pair<TimePoint, std::uint64_t>> deadlines_ TROUPE_GUARDED_BY(mutex_);
  std::uint64_t next_order_ TROUPE_GUARDED_BY(mutex_) = 0;
  std::size_t under_way_ TROUPE_GUARDED_BY(mutex_) = 0;
  Status trouble_ TROUPE_GUARDED_BY(mutex_);
  // After a loss: until when no other member is made, and how long after the next one.
  TimePoint place_at_ TROUPE_GUARDED_BY(mutex_){};
  Duration backoff_ TROUPE_GUARDED_BY(mutex_){};
  bool stopped_ TROUPE_GUARDED_BY(mutex_) = false;
  Status closed_ TROUPE_GUARDED_BY(mutex_);  // not ok: and why
  bool going_on_ TROUPE_GUARDED_BY(mutex_) = false;
  // When there is something to do that no event brings, and for when the timer is set.
  std::optional<TimePoint> next_ TROUPE_GUARDED_BY(mutex_);
  std::optional<TimePoint> armed_ TROUPE_GUARDED_BY(mutex_);
};

}  // namespace troupe::detail
