#pragma once
// How much a decision takes in the journal, told without encoding it, so that the head can refuse
// what its journal could not hold. Never less than a record takes in which it is alone
// (delta_batch.h), and at most some hundred bytes more.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "runtime/base/status.h"
#include "runtime/wire/types.h"
#include "scheduler/control/delta.h"

namespace troupe::scheduler {

std::uint64_t journal_bytes(const Delta& delta);
std::uint64_t journal_bytes(std::span<const Delta> deltas);
// The same of what is kept of a thing: what created it, and what last changed it.
std::uint64_t journal_bytes(const wire::ActorSpec& spec);
std::uint64_t journal_bytes(const wire::ActorInfo& info);
std::uint64_t journal_bytes(const wire::PlacementGroupSpec& spec);
std::uint64_t journal_bytes(const wire::PlacementGroupInfo& info);
std::uint64_t journal_bytes(const wire::SupervisorSpec& spec);
std::uint64_t journal_bytes(const wire::SupervisorInfo& info);
std::uint64_t journal_bytes(const wire::JobInfo& info);
std::uint64_t journal_bytes(const wire::NodeInfo& info);
std::uint64_t journal_bytes(const wire::EventRecord& event);

// How much is kept of texts that others wrote, or that name many: of an event, of the death of an
// actor or of a job's program, why something living is as it is, and the name of an owner.
inline constexpr std::size_t kEventTextBytes = 4096;
inline constexpr std::size_t kDeathTextBytes = 4096;
inline constexpr std::size_t kLivingTextBytes = 512;
inline constexpr std::size_t kOwnerBytes = 256;

// At most so many bytes, and three more that say that something was cut off.
std::string clipped(std::string text, std::size_t bytes_max);
Status clipped(Status status, std::size_t bytes_max);

}  // namespace troupe::scheduler
