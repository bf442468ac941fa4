#pragma once
// Groups of actors whatever their class: who is where, and a call of all of them on its way.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "troupe/detail/call_line.h"
#include "troupe/detail/call_sink.h"
#include "troupe/detail/future_core.h"
#include "troupe/detail/method_call.h"
#include "troupe/detail/verbs.h"
#include "troupe/options.h"
#include "troupe/status.h"

namespace troupe {

// An axis of a group: {"dp", 2}.
struct GroupAxis {
  std::string name;
  std::uint64_t size = 1;
  friend bool operator==(const GroupAxis&, const GroupAxis&) = default;
};

namespace detail {

class WorkSource;  // actors/work_reporter.h

struct GroupMember {
  ChannelPtr channel;
  std::uint32_t light_number = kNoLightNumber;
};

// How many members the axes make: kInvalidArgument for axes that make no sense.
Result<std::size_t> group_size(const std::vector<GroupAxis>& axes);

// The members of a group by their rank, which is row-major: along the last axis it grows by one.
// Does not change.
class MemberTable {
 public:
  using Ptr = std::shared_ptr<const MemberTable>;
  // No axes: one, called "rank", of all members.
  // `is_others`: it came from another process, which tells of it.
  static Result<Ptr> make(ClientPtr client, std::string_view type, std::vector<GroupMember> members,
                          std::vector<GroupAxis> axes, bool is_others);

  const ClientPtr& client() const { return client_; }
  const std::vector<GroupMember>& members() const { return members_; }
  const std::vector<GroupAxis>& axes() const { return axes_; }
  Result<std::size_t> rank_of(std::span<const std::size_t> at) const;
  // "rank 5 (dp 1, tp 1)"
  std::string name_of(std::size_t rank) const;
  std::vector<std::size_t> coordinates(std::size_t rank) const;
  // Those whose place on the axis is from `first` on and before `end`; `drop`: without that axis.
  Result<Ptr> slice(std::string_view axis, std::size_t first, std::size_t end, bool drop) const;
  // A number for a forming of the group's communicator, larger than those before.
  std::uint64_t next_generation() const;

 private:
  ClientPtr client_;
  std::string type_;
  std::vector<GroupMember> members_;
  std::vector<GroupAxis> axes_;
  std::shared_ptr<const WorkSource> work_;  // what is told of it
  mutable std::atomic<std::uint64_t> generation_{0};
};

Status empty_group_error(std::string_view type);
void check_group_rank(std::size_t rank, std::size_t size);

// Where some members failed: the first one's failure, with its rank and how many others there are.
// Ok where nobody failed. `status_of(rank)` is asked for each once.
Status group_failure(const MemberTable& group, const std::function<Status(std::size_t)>& status_of);

struct GroupArguments {
  PackedArguments same;                                   // of all
  std::function<PackedArguments(std::size_t rank)> each;  // or, where there is one, of each
  PackedArguments of(std::size_t rank) const { return each ? each(rank) : same; }
};

// What is called, and how.
struct GroupCall {
  const ActorInterface& hosts;  // of the class's light actors
  std::uint32_t method = 0;     // of the class
  CallOptions options;
  const GroupArguments& arguments;
  bool fail_fast = false;  // the first failure cancels what others have not done yet
};

// One message for each member's process, and their answers. Thread-safe.
class GroupCast : public std::enable_shared_from_this<GroupCast> {
 public:
  virtual ~GroupCast();
  GroupCast(const GroupCast&) = delete;
  GroupCast& operator=(const GroupCast&) = delete;

  // Once. `future` is a part of this.
  void start(const GroupCall& call, FutureCore& future);
  void cancel();
  // Who has not answered, for get() at its deadline.
  Status late() const;

 protected:
  explicit GroupCast(MemberTable::Ptr group) : group_(std::move(group)) {}
  const MemberTable& group() const { return *group_; }
  // Continuations where the caller is an actor; and who must not wait for it.
  static FutureOptions future_options(const MemberTable& group);

 private:
  class Part;
  // Each member's once, on any thread; then finish(), once. `context`: of one message, whose
  // members are answered one after the other.
  virtual void answer(std::size_t rank, const Status& status, std::span<const std::byte> result,
                      const DecodeContext& context) = 0;
  virtual void finish(Continuations* later) = 0;
  void ended(bool failed, Continuations* later);

  const MemberTable::Ptr group_;
  std::vector<std::shared_ptr<Part>> parts_;  // written before any is sent
  std::atomic<std::size_t> open_{0};
  std::atomic<bool> fail_fast_{false};
};

}  // namespace detail
}  // namespace troupe
