#include <algorithm>
#include <set>
#include <utility>

#include "actors/actor_channel.h"
#include "actors/client.h"
#include "actors/work_reporter.h"
#include "runtime/base/check.h"
#include "runtime/base/clock.h"
#include "runtime/base/limits.h"
#include "troupe/detail/group.h"

namespace troupe::detail {
namespace {

constexpr const char* kOnlyAxis = "rank";

std::string names_of(const std::vector<GroupAxis>& axes) {
  std::string names;
  for (const GroupAxis& axis : axes) {
    names += fmt::format("{}{} {}", names.empty() ? "" : ", ", axis.name, axis.size);
  }
  return names.empty() ? "none" : names;
}

// What is told of a group as long as it lives; how its members are the head knows itself.
class GroupTold final : public WorkSource {
 public:
  GroupTold(std::string_view type, std::string axes, const std::vector<GroupMember>& members) {
    told_.type = type;
    told_.axes = std::move(axes);
    told_.members = members.size();
    std::set<ActorId> processes;
    for (const GroupMember& member : members) {
      if (processes.size() == limits::kWorkActorsMax) break;
      const ActorId id = member.channel->actor_id();
      if (processes.insert(id).second) told_.actors.push_back(id);
    }
  }
  bool tell(wire::Work& work) const override {
    work.groups.push_back(told_);
    return false;
  }

 private:
  wire::GroupWork told_;
};

}  // namespace

Result<std::size_t> group_size(const std::vector<GroupAxis>& axes) {
  std::size_t size = 1;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const GroupAxis& axis = axes[i];
    if (axis.name.empty() || axis.size == 0) {
      return error(Code::kInvalidArgument,
                   "axis {} of a group is '{}' of size {}: it has a name, and a size of at least 1",
                   i, axis.name, axis.size);
    }
    const auto same = [&](const GroupAxis& other) { return other.name == axis.name; };
    if (std::any_of(axes.begin(), axes.begin() + static_cast<std::ptrdiff_t>(i), same)) {
      return error(Code::kInvalidArgument, "two axes of a group are called '{}'", axis.name);
    }
    if (axis.size > limits::kGroupMembersMax / size) {
      return error(Code::kInvalidArgument, "a group with the axes {} has more than {} members",
                   names_of(axes), limits::kGroupMembersMax);
    }
    size *= axis.size;
  }
  return size;
}

Result<MemberTable::Ptr> MemberTable::make(ClientPtr client, std::string_view type,
                                           std::vector<GroupMember> members,
                                           std::vector<GroupAxis> axes, bool is_others) {
  if (members.empty()) return error(Code::kInvalidArgument, "a group of no {}", type);
  if (axes.empty()) axes.push_back({kOnlyAxis, members.size()});
  const std::size_t size = TROUPE_TRY(group_size(axes));
  if (size != members.size()) {
    return error(Code::kInvalidArgument,
                 "{} {} do not make a group with the axes {}: those have {}", members.size(), type,
                 names_of(axes), size);
  }
  std::vector<std::pair<const ActorChannel*, std::uint32_t>> known;
  for (std::size_t rank = 0; rank < members.size(); ++rank) {
    if (!members[rank].channel) {
      return empty_handle_error("a group's member is", type).with("rank", rank);
    }
    known.emplace_back(members[rank].channel.get(), members[rank].light_number);
  }
  std::sort(known.begin(), known.end());
  if (const auto twice = std::adjacent_find(known.begin(), known.end()); twice != known.end()) {
    return error(Code::kInvalidArgument, "an actor is in the group twice")
        .with("actor", twice->first->actor_id().brief());
  }
  auto table = std::make_shared<MemberTable>();
  table->client_ = std::move(client);
  table->type_ = type;
  table->members_ = std::move(members);
  table->axes_ = std::move(axes);
  if (!is_others && table->client_) {
    table->work_ =
        std::make_shared<GroupTold>(table->type_, names_of(table->axes_), table->members_);
    table->client_->work().add(table->work_);
  }
  return Ptr(std::move(table));
}

Result<std::size_t> MemberTable::rank_of(std::span<const std::size_t> at) const {
  if (at.size() != axes_.size()) {
    return error(Code::kInvalidArgument, "{} coordinates in a group with the axes {}", at.size(),
                 names_of(axes_));
  }
  std::size_t rank = 0;
  for (std::size_t i = 0; i < at.size(); ++i) {
    if (at[i] >= axes_[i].size) {
      return error(Code::kInvalidArgument, "{} {} in a group with the axes {}", axes_[i].name,
                   at[i], names_of(axes_));
    }
    rank = rank * axes_[i].size + at[i];
  }
  return rank;
}

std::vector<std::size_t> MemberTable::coordinates(std::size_t rank) const {
  std::vector<std::size_t> at(axes_.size());
  for (std::size_t i = axes_.size(); i-- > 0; rank /= axes_[i].size) at[i] = rank % axes_[i].size;
  return at;
}

std::string MemberTable::name_of(std::size_t rank) const {
  std::string name = fmt::format("rank {}", rank);
  if (axes_.empty() || axes_.front().name == kOnlyAxis) return name;
  const auto at = coordinates(rank);
  std::string places;
  for (std::size_t i = 0; i < at.size(); ++i) {
    places += fmt::format("{}{} {}", i == 0 ? "" : ", ", axes_[i].name, at[i]);
  }
  return fmt::format("{} ({})", name, places);
}

Result<MemberTable::Ptr> MemberTable::slice(std::string_view axis, std::size_t first,
                                            std::size_t end, bool drop) const {
  const auto found =
      std::find_if(axes_.begin(), axes_.end(), [&](const GroupAxis& a) { return a.name == axis; });
  if (found == axes_.end()) {
    return error(Code::kInvalidArgument, "a group with the axes {} has no axis '{}'",
                 names_of(axes_), axis);
  }
  if (first >= end || end > found->size) {
    return error(Code::kInvalidArgument,
                 "a slice of the places {} to before {} on axis {} of size {}", first, end, axis,
                 found->size);
  }
  std::size_t stride = 1;  // between neighbours on the axis
  for (auto inner = found + 1; inner != axes_.end(); ++inner) stride *= inner->size;
  auto part = std::make_shared<MemberTable>();
  part->client_ = client_;
  part->type_ = type_;
  for (std::size_t rank = 0; rank < members_.size(); ++rank) {
    const std::size_t place = rank / stride % found->size;
    if (place >= first && place < end) part->members_.push_back(members_[rank]);
  }
  part->axes_ = axes_;
  const auto own = part->axes_.begin() + (found - axes_.begin());
  if (drop) {
    part->axes_.erase(own);
  } else {
    own->size = end - first;
  }
  return Ptr(std::move(part));
}

// By the clock, so that another driver's, or another table's of the same actors, is another one.
std::uint64_t MemberTable::next_generation() const {
  const auto now = static_cast<std::uint64_t>(SystemClock().unix_time_us());
  std::uint64_t before = generation_.load();
  std::uint64_t next = 0;
  do {
    next = std::max(before + 1, now);
  } while (!generation_.compare_exchange_weak(before, next));
  return next;
}

Status empty_group_error(std::string_view type) {
  return error(Code::kFailedPrecondition, "an empty ActorGroup<{}>", type);
}

void check_group_rank(std::size_t rank, std::size_t size) {
  TROUPE_CHECK(rank < size, "rank {} of a group of {}", rank, size);
}

Status group_failure(const MemberTable& group,
                     const std::function<Status(std::size_t)>& status_of) {
  std::size_t failures = 0, first = 0;
  Status why;
  for (std::size_t rank = 0; rank < group.members().size(); ++rank) {
    Status status = status_of(rank);
    if (status.ok()) continue;
    ++failures;
    // One that was cancelled because another one failed says nothing.
    if (!why.ok() && why.code() != Code::kCancelled) continue;
    if (!why.ok() && status.code() == Code::kCancelled) continue;
    why = std::move(status);
    first = rank;
  }
  if (failures == 0) return why;
  std::string who = group.name_of(first);
  if (failures > 1) {
    who = fmt::format("{} of {} members failed; {}", failures, group.members().size(), who);
  }
  return why.prefixed(who);
}

}  // namespace troupe::detail
