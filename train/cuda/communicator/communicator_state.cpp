#include "train/cuda/communicator/communicator_state.h"

#include <algorithm>

#include "runtime/base/check.h"

namespace troupe::train {
namespace {

constexpr const char* kFormingCauses =
    "usual causes: a rank that never came; NCCL_SOCKET_IFNAME (or what was chosen without it) "
    "names "
    "an interface that the other ranks cannot reach; a firewall between the nodes; different "
    "versions of NCCL; NCCL_DEBUG=INFO shows the addresses";
constexpr const char* kFirstCauses =
    "its group's connections were being made or used for the first time; usual causes: peer access "
    "between GPUs that is there in name only (IOMMU or PCIe ACS; NCCL_P2P_DISABLE=1 goes "
    "without it); /dev/shm too small in a container (--shm-size; NCCL_SHM_DISABLE=1 goes without "
    "it); an interface that the others cannot reach (NCCL_SOCKET_IFNAME)";
constexpr const char* kLaterCauses =
    "its group had worked before; usual causes: a rank that died or hangs (its log, or an Xid in "
    "dmesg, says why); ranks that do not call the same operations with the same sizes; a link that "
    "failed";

double in_seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

CommunicatorState::CommunicatorState(int rank, std::uint64_t generation, std::string transport,
                                     TimePoint now, Duration form_limit)
    : rank_(rank), generation_(generation), transport_(std::move(transport)) {
  begins_forming("", now, form_limit);
}

CommunicatorState::Phase CommunicatorState::phase() const {
  if (aborted_) return Phase::kAborted;
  if (ended_) return Phase::kEnded;
  if (forming_) return Phase::kForming;
  return running_.empty() ? Phase::kReady : Phase::kOperating;
}

void CommunicatorState::begins_forming(std::string group, TimePoint now, Duration limit) {
  TROUPE_CHECK(running_.empty(), "a group is formed during an operation");
  forming_ = true;
  forming_group_ = std::move(group);
  forming_since_ = now;
  forming_limit_ = limit;
}

void CommunicatorState::formed() { forming_ = false; }

Result<std::uint64_t> CommunicatorState::begin(Note note, Duration limit, TimePoint now) {
  if (aborted_) return aborted_status(false);
  if (ended_)
    return error(Code::kFailedPrecondition, "the communicator was ended")
        .with("operation", operation_name(note.operation))
        .with("group", note.group)
        .with("rank", rank_)
        .with("generation", generation_);
  TROUPE_CHECK(!forming_, "an operation of group '{}' before it was formed", note.group);
  running_.push_back({std::move(note), ++begun_, limit, now, false});
  return begun_;
}

void CommunicatorState::launched(std::uint64_t number) {
  for (Running& running : running_) {
    if (running.number == number) running.launched = true;
  }
}

void CommunicatorState::completed(std::uint64_t number, TimePoint now) {
  while (!running_.empty() && running_.front().number <= number) {
    proven_groups_.insert(running_.front().note.group);
    completed_ = running_.front().number;
    last_completion_ = now;
    running_.pop_front();
  }
}

TimePoint CommunicatorState::since(const Running& running) const {
  return std::max(running.begun, last_completion_);
}

std::optional<Status> CommunicatorState::overdue(TimePoint now) const {
  if (aborted_ || ended_) return std::nullopt;
  if (forming_) {
    if (now < forming_since_ + forming_limit_) return std::nullopt;
    return explained(error(Code::kDeadlineExceeded, "the group was not formed within {:g} s",
                           in_seconds(forming_limit_)));
  }
  const Running* first = oldest();
  if (!first || now < since(*first) + first->limit) return std::nullopt;
  return explained(error(Code::kDeadlineExceeded, "{} did not end within {:g} s",
                         operation_name(first->note.operation), in_seconds(first->limit)));
}

std::string CommunicatorState::causes() const {
  if (forming_) return kFormingCauses;
  const Running* first = oldest();
  if (!first) return kLaterCauses;
  return proven_groups_.contains(first->note.group) && first->launched ? kLaterCauses
                                                                       : kFirstCauses;
}

Status CommunicatorState::explained(Status found) const {
  Status status = error(found.code(), "{} ({}); {}", found.message(), transport_, causes());
  for (const auto& [key, value] : found.context()) status.with(key, value);
  return located(std::move(status));
}

Status CommunicatorState::located(Status found) const {
  const Running* first = oldest();
  if (forming_) {
    found.with("operation", "forming").with("group", forming_group_);
  } else if (first) {
    found.with("operation", operation_name(first->note.operation))
        .with("group", first->note.group)
        .with("sequence", first->note.sequence);
  }
  return found.with("rank", rank_).with("generation", generation_);
}

bool CommunicatorState::abort(Status reason) {
  TROUPE_CHECK(!reason.ok());
  if (aborted_) return false;
  aborted_ = true;
  reason_ = std::move(reason);
  return true;
}

bool CommunicatorState::abort_on_request(Status reason) {
  if (!abort(std::move(reason))) return false;
  reason_told_ = true;
  return true;
}

Status CommunicatorState::aborted_status(bool waited) {
  TROUPE_CHECK(aborted_);
  if (waited && !std::exchange(reason_told_, true)) return reason_;
  // In the words of the CPU's communicator.
  Status status = error(Code::kAborted, "the communicator was given up: {}", reason_.to_string());
  for (const auto& [key, value] : reason_.context())
    if (key == "lost_rank" || key == "peer") status.with(key, value);
  return status.with("rank", rank_).with("generation", generation_);
}

void CommunicatorState::end() {
  TROUPE_CHECK(running_.empty() || aborted_, "a communicator is ended during an operation");
  ended_ = true;
}

}  // namespace troupe::train
