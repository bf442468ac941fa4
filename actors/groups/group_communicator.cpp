// Rank i connects to every rank below it and accepts from every one above; the target of a socket
// names the communicator, the generation and the rank: "actor/ID/group.NAME/GENERATION/RANK".

#include "troupe/group_communicator.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <map>
#include <optional>
#include <stop_token>
#include <utility>

#include "runtime/base/status.h"
#include "runtime/collective/cpu_communicator.h"
#include "troupe/context.h"
#include "troupe/detail/mutex.h"
#include "troupe/detail/running_call.h"
#include "troupe/raw_connection.h"

namespace troupe {
namespace {

using collective::PeerLink;

// One attempt to reach a member, before it is looked whether the forming was given up.
constexpr auto kMeetingAttempt = std::chrono::milliseconds(500);
// Sockets of members that come before this one is told to form.
constexpr std::size_t kEarlyMembersMax = 4096;

// The two numbers at the end of a target.
std::optional<std::pair<std::uint64_t, std::uint32_t>> seat_in(std::string_view target) {
  const auto second = target.rfind('/');
  const auto first = second == target.npos ? target.npos : target.rfind('/', second - 1);
  if (first == target.npos) return std::nullopt;
  std::uint64_t generation = 0;
  std::uint32_t rank = 0;
  const char* const data = target.data();
  const char* const end = data + target.size();
  const auto a = std::from_chars(data + first + 1, data + second, generation);
  const auto b = std::from_chars(data + second + 1, end, rank);
  if (a.ptr != data + second || b.ptr != end || a.ec != std::errc() || b.ec != std::errc()) {
    return std::nullopt;
  }
  return std::pair(generation, rank);
}

bool good_name(const std::string& name) {
  const auto good = [](unsigned char c) { return std::isalnum(c) != 0 || c == '-' || c == '_'; };
  return !name.empty() && name.size() < 48 && std::all_of(name.begin(), name.end(), good);
}

}  // namespace

// Who has come. The host's thread brings them, as long as this lives.
struct GroupCommunicator::Meeting {
  Mutex mutex;
  CondVar changed;
  std::map<std::pair<std::uint64_t, std::uint32_t>, PeerLink> came TROUPE_GUARDED_BY(mutex);

  void arrived(ByteStream stream, const std::string& target, bool same_node) {
    const auto seat = seat_in(target);
    if (!seat) return;
    MutexLock lock(mutex);
    came.insert_or_assign(*seat,
                          PeerLink{static_cast<int>(seat->second), same_node, std::move(stream)});
    if (came.size() > kEarlyMembersMax) came.erase(came.begin());
    changed.notify_all();
  }
};

struct GroupCommunicator::State {
  ActorContext& context;
  const std::string name;
  const std::string purpose = "group." + name;
  const std::shared_ptr<Meeting> meeting = std::make_shared<Meeting>();
  mutable Mutex mutex;
  std::unique_ptr<collective::Communicator> communicator TROUPE_GUARDED_BY(mutex);
  Duration timeout TROUPE_GUARDED_BY(mutex){};

  Result<std::vector<PeerLink>> meet(const CommunicatorSeat& seat, Deadline deadline) const;
  Result<PeerLink> reach(const CommunicatorSeat& seat, std::uint32_t peer, Deadline deadline) const;
  Result<PeerLink> await(const CommunicatorSeat& seat, std::uint32_t peer, Deadline deadline) const;
  static Status given_up() {
    return Status(Code::kCancelled, "the forming of the communicator was given up by its caller");
  }
};

GroupCommunicator::GroupCommunicator(ActorContext& context, std::string name)
    : state_(new State{.context = context, .name = std::move(name)}) {
  if (context.light()) return;  // which form() says
  context.accept_connections(state_->purpose,
                             [weak = std::weak_ptr(state_->meeting)](
                                 ByteStream stream, const std::string& target, bool same_node) {
                               if (const auto alive = weak.lock())
                                 alive->arrived(std::move(stream), target, same_node);
                             });
}

GroupCommunicator::~GroupCommunicator() = default;

// --- forming -------------------------------------------------------------------------------------

Status GroupCommunicator::form(const CommunicatorSeat& seat) {
  if (state_->context.light()) {
    return Status(Code::kUnsupported,
                  "a communicator among light actors: they share a process. Give the group's "
                  "members processes of their own (Isolation::kProcess)");
  }
  if (!good_name(state_->name)) {
    return error(Code::kInvalidArgument,
                 "a GroupCommunicator called '{}': its name has letters, digits, '-' and '_', 47 "
                 "at most",
                 state_->name);
  }
  const auto in_group = seat.rank < seat.members.size();
  if (!in_group || seat.members[seat.rank] != state_->context.id() || seat.timeout_ms <= 0) {
    return error(Code::kInvalidArgument, "a communicator's seat {} of {} is not this actor's",
                 seat.rank, seat.members.size());
  }
  Deadline deadline = Deadline::after(std::chrono::milliseconds(seat.timeout_ms));
  if (const auto own = state_->context.deadline()) deadline = detail::earlier(deadline, *own);
  MutexLock lock(state_->mutex);
  state_->communicator.reset();
  auto links = state_->meet(seat, deadline);
  if (!links.ok()) return links.status().with("communicator", state_->name);
  state_->communicator = TROUPE_TRY(
      collective::make_cpu_communicator({.rank = static_cast<int>(seat.rank),
                                         .world_size = static_cast<int>(seat.members.size()),
                                         .generation = seat.generation,
                                         .name = state_->name,
                                         .default_timeout = deadline.remaining()},
                                        std::move(*links)));
  state_->timeout = std::chrono::milliseconds(seat.timeout_ms);
  return {};
}

Result<std::vector<PeerLink>> GroupCommunicator::State::meet(const CommunicatorSeat& seat,
                                                             Deadline deadline) const {
  std::vector<PeerLink> links;
  for (std::uint32_t peer = 0; peer < seat.rank; ++peer) {
    links.push_back(TROUPE_TRY(reach(seat, peer, deadline).with("peer", peer)));
  }
  {
    // Whoever belongs to a forming before this one has given up.
    MutexLock lock(meeting->mutex);
    meeting->came.erase(meeting->came.begin(), meeting->came.lower_bound({seat.generation, 0}));
  }
  for (std::uint32_t peer = seat.rank + 1; peer < seat.members.size(); ++peer) {
    links.push_back(TROUPE_TRY(await(seat, peer, deadline).with("peer", peer)));
  }
  return links;
}

Result<PeerLink> GroupCommunicator::State::reach(const CommunicatorSeat& seat, std::uint32_t peer,
                                                 Deadline deadline) const {
  const std::string target = fmt::format("{}/{}/{}", purpose, seat.generation, seat.rank);
  const std::stop_token stop = context.call_stop_token();
  for (;;) {
    if (stop.stop_requested()) return given_up();
    auto reached = context.connect_to(seat.members[peer], target,
                                      detail::earlier(deadline, Deadline::after(kMeetingAttempt)));
    if (reached.ok()) {
      return PeerLink{static_cast<int>(peer), reached->same_node, std::move(reached->stream)};
    }
    const Code code = reached.status().code();
    const bool may_come = code == Code::kDeadlineExceeded || code == Code::kUnavailable;
    if (!may_come || deadline.passed()) return reached.status();
  }
}

Result<PeerLink> GroupCommunicator::State::await(const CommunicatorSeat& seat, std::uint32_t peer,
                                                 Deadline deadline) const {
  const std::stop_token stop = context.call_stop_token();
  const std::stop_callback wake(stop, [this] {
    MutexLock lock(meeting->mutex);
    meeting->changed.notify_all();
  });
  const std::pair key(seat.generation, peer);
  MutexLock lock(meeting->mutex);
  (void)meeting->changed.wait_until(meeting->mutex, deadline, [&]() TROUPE_NO_ANALYSIS {
    return stop.stop_requested() || meeting->came.contains(key);
  });
  auto found = meeting->came.extract(key);
  if (found) return std::move(found.mapped());
  if (stop.stop_requested()) return given_up();
  return error(Code::kDeadlineExceeded, "rank {} has not come to meet rank {}", peer, seat.rank);
}

// --- operations ----------------------------------------------------------------------------------

std::uint64_t GroupCommunicator::generation() const {
  MutexLock lock(state_->mutex);
  return state_->communicator ? state_->communicator->generation() : 0;
}
int GroupCommunicator::rank() const {
  MutexLock lock(state_->mutex);
  return state_->communicator ? state_->communicator->rank() : 0;
}
int GroupCommunicator::world_size() const {
  MutexLock lock(state_->mutex);
  return state_->communicator ? state_->communicator->world_size() : 0;
}

template <typename Operation>
Status GroupCommunicator::run(Operation operation) {
  MutexLock lock(state_->mutex);
  if (!state_->communicator) {
    return error(Code::kFailedPrecondition,
                 "communicator '{}' was not formed: call ActorGroup::communicator() first",
                 state_->name);
  }
  Deadline deadline = Deadline::after(state_->timeout);
  if (const auto own = state_->context.deadline()) deadline = detail::earlier(deadline, *own);
  return operation(*state_->communicator, deadline);
}

Status GroupCommunicator::all_reduce(void* data, std::size_t count, detail::GroupElement element,
                                     GroupReduce op) {
  static_assert(static_cast<int>(detail::GroupElement::kDouble) ==
                static_cast<int>(collective::DataType::kFloat64));
  static_assert(static_cast<int>(GroupReduce::kMin) ==
                static_cast<int>(collective::ReduceOp::kMin));
  return run([&](collective::Communicator& world, Deadline deadline) {
    return world.all_reduce(data, count, static_cast<collective::DataType>(element),
                            static_cast<collective::ReduceOp>(op), deadline);
  });
}

Status GroupCommunicator::broadcast(void* data, std::size_t bytes, int root) {
  return run([&](collective::Communicator& world, Deadline deadline) -> Status {
    if (root < 0 || root >= world.world_size()) {
      return error(Code::kInvalidArgument, "broadcast from rank {} of {}", root,
                   world.world_size());
    }
    return world.broadcast(data, bytes, collective::DataType::kUint8, root, deadline);
  });
}

Status GroupCommunicator::all_gather(const void* own, std::size_t own_bytes, void* all,
                                     std::size_t all_bytes) {
  return run([&](collective::Communicator& world, Deadline deadline) -> Status {
    const auto members = static_cast<std::size_t>(world.world_size());
    if (all_bytes != own_bytes * members) {
      return error(Code::kInvalidArgument,
                   "all_gather of {} bytes of each of {} members into {} bytes", own_bytes, members,
                   all_bytes);
    }
    const std::vector<std::size_t> counts(members, own_bytes);
    return world.all_gather(own, all, counts, collective::DataType::kUint8, deadline);
  });
}

Status GroupCommunicator::barrier() {
  return run(
      [](collective::Communicator& world, Deadline deadline) { return world.barrier(deadline); });
}

}  // namespace troupe
