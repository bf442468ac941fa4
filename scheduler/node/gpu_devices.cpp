#include "scheduler/node/gpu_devices.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "runtime/base/check.h"
#include "runtime/base/timing.h"
#include "scheduler/node/cuda_visible.h"
#include "scheduler/policy/resources.h"

namespace troupe::scheduler {
namespace {

constexpr std::int64_t kWhole = wire::kResourceUnit;
// While somebody may wait for the memory, and while that has taken too long.
constexpr Duration kReadSoon = std::chrono::milliseconds(50);
constexpr Duration kReadLater = std::chrono::seconds(1);
constexpr std::size_t kPidsNamedMax = 8;

constexpr const char* kPoolName = "amount";

// Of the node's amount; a part of one takes a device, too.
std::vector<wire::GpuDevice> first_of(const std::vector<wire::GpuDevice>& devices,
                                      std::int64_t amount) {
  const auto wanted = static_cast<std::size_t>((amount + kWhole - 1) / kWhole);
  const auto count = std::min(devices.size(), wanted);
  return {devices.begin(), devices.begin() + static_cast<std::ptrdiff_t>(count)};
}

std::string mebibytes(std::uint64_t bytes) { return fmt::format("{} MiB", bytes >> 20); }

}  // namespace

std::int64_t GpuDevices::Slot::held() const {
  return std::accumulate(holders.begin(), holders.end(), std::int64_t{0},
                         [](std::int64_t sum, const auto& each) { return sum + each.share; });
}

GpuDevices::GpuDevices(const NodeGpus& gpus, std::int64_t amount)
    : topology_(first_of(gpus.devices, amount)) {
  std::int64_t left = amount;
  for (const wire::GpuDevice& device : first_of(gpus.devices, amount)) {
    Slot slot;
    slot.device = device;
    slot.name = cuda_name(device);
    slot.capacity = std::min(left, kWhole);
    left -= slot.capacity;
    for (const GpuReading& reading : gpus.readings) {
      if (device.uuid.empty() || reading.uuid != device.uuid) continue;
      readable_ = true;
      slot.used_bytes = slot.idle_bytes = reading.used_bytes;
      slot.processes = reading.processes;
      for (const auto& process : reading.processes) slot.idle_pids.push_back(process.pid);
    }
    slots_.push_back(std::move(slot));
  }
  if (left <= 0) return;
  Slot pool;
  pool.device.index = static_cast<std::uint32_t>(slots_.size());
  pool.device.name = "an amount without devices";
  pool.name = kPoolName;
  pool.capacity = left;
  pool.pool = true;
  slots_.push_back(std::move(pool));
}

bool GpuDevices::any_device() const {
  return std::any_of(slots_.begin(), slots_.end(), [](const Slot& slot) { return !slot.pool; });
}

std::string GpuDevices::label(const Slot& slot) {
  if (slot.pool) return fmt::format("{} GPUs without a device", format_amount(kGpu, slot.capacity));
  if (slot.device.uuid.empty()) return fmt::format("GPU {}", slot.device.index);
  return fmt::format("GPU {} ({}, {})", slot.device.index, slot.device.name, slot.device.uuid);
}

// --- who gets which ------------------------------------------------------------------------------

Status GpuDevices::check(std::int64_t amount) const {
  const wire::Resources wanted{{std::string(kGpu), amount}};
  TROUPE_RETURN_IF_ERROR(check_gpus(wanted, {}));
  std::int64_t whole = 0, instances = 0, largest = 0;
  for (const Slot& slot : slots_) {
    if (slot.lost) continue;
    largest = std::max(largest, slot.capacity);
    whole += slot.capacity / kWhole;
    instances += slot.device.is_instance();
  }
  if (amount > kWhole && whole - instances < amount / kWhole && instances > 0 &&
      whole >= amount / kWhole) {
    return error(Code::kFailedPrecondition,
                 "a process sees one MIG instance and no more, so {} GPUs cannot be made of the {} "
                 "instances here: ask for 1, or leave MIG mode",
                 format_amount(kGpu, amount), instances);
  }
  if (amount <= kWhole ? largest >= amount : whole >= amount / kWhole) return {};
  return error(Code::kUnavailable, "{} GPUs are not here: {}", format_amount(kGpu, amount),
               describe());
}

// Whether somebody of the job may have it, or a part of it.
bool GpuDevices::is_open(const Slot& slot, const JobId& job_id, const KeepsMemory& keeps) const {
  if (slot.lost) return false;
  if (!slot.releasing()) return true;
  // What is left on it may be what the job keeps for its next process.
  return !slot.stuck && slot.vacant && slot.last_job == job_id && keeps(job_id);
}

void GpuDevices::give(Slot& slot, const wire::GpuHolder& holder, const JobId& job_id,
                      std::int64_t share) {
  slot.holders.push_back({holder.actor_id, holder.label, share});
  slot.last_job = job_id;
  slot.release_by.reset();
  slot.vacant = false;
  changed_ = true;
}

bool GpuDevices::take(const wire::GpuHolder& holder, const JobId& job_id,
                      const std::vector<std::string>& before, const KeepsMemory& keeps) {
  const std::int64_t amount = holder.share;
  const auto was_its = [&](const Slot& slot) {
    return std::find(before.begin(), before.end(), slot.name) != before.end();
  };
  // Memory that is kept for it lies there: worth the moment until that is known to be vacant.
  for (const Slot& slot : slots_) {
    const bool soon = was_its(slot) && slot.release_by && !slot.vacant && slot.last_job == job_id;
    if (soon && keeps(job_id)) return false;
  }
  if (amount < kWhole) {
    // The fullest that has room, so that whole ones stay whole; its own before all others, and
    // devices before amounts.
    Slot* best = nullptr;
    const auto rank = [&](const Slot& slot) {
      return std::tuple(was_its(slot), !slot.pool, slot.held());
    };
    for (Slot& slot : slots_) {
      if (!is_open(slot, job_id, keeps) || slot.capacity - slot.held() < amount) continue;
      if (best == nullptr || rank(slot) > rank(*best)) best = &slot;
    }
    if (best == nullptr) return false;
    give(*best, holder, job_id, amount);
    return true;
  }
  const auto count = static_cast<std::size_t>(amount / kWhole);
  std::vector<std::size_t> free, own;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    if (slot.pool || slot.capacity < kWhole || !slot.holders.empty()) continue;
    if (!is_open(slot, job_id, keeps)) continue;
    if (was_its(slot)) own.push_back(i);
    // A process sees one instance and no more.
    if (count == 1 || !slot.device.is_instance()) free.push_back(i);
  }
  const auto devices =
      own.size() == count ? own : topology_.choose(free, std::min(count, free.size()));
  // The rest are amounts.
  const std::int64_t rest = amount - static_cast<std::int64_t>(devices.size()) * kWhole;
  Slot* pool = !slots_.empty() && slots_.back().pool ? &slots_.back() : nullptr;
  if (rest > 0 && (pool == nullptr || pool->capacity - pool->held() < rest)) return false;
  for (const std::size_t i : devices) give(slots_[i], holder, job_id, kWhole);
  if (rest > 0) give(*pool, holder, job_id, rest);
  return true;
}

void GpuDevices::adopt(const wire::GpuHolder& holder, const JobId& job_id,
                       const std::vector<std::string>& names) {
  std::int64_t left = holder.share;
  for (Slot& slot : slots_) {
    const bool its = std::find(names.begin(), names.end(), slot.name) != names.end();
    const std::int64_t share = std::min(left, slot.capacity - slot.held());
    if (!its || share <= 0) continue;
    give(slot, holder, job_id, share);
    left -= share;
  }
}

void GpuDevices::adopt(const wire::KeptGpu& kept, TimePoint now) {
  for (Slot& slot : slots_) {
    if (slot.name != kept.name) continue;
    slot.idle_bytes = kept.idle_bytes;
    slot.idle_pids = kept.idle_pids;
    slot.last_job = kept.last_job;
    slot.lost = kept.lost;
    slot.trouble = kept.trouble;
    if (kept.releasing && slot.holders.empty() && readable_)
      slot.release_by = now + kTiming.gpu_release_timeout;
  }
}

void GpuDevices::visit(const wire::GpuHolder& guest, const std::vector<std::string>& names) {
  for (Slot& slot : slots_) {
    if (std::find(names.begin(), names.end(), slot.name) == names.end()) continue;
    slot.guests.push_back({{guest.actor_id, guest.label, 0}, 0});
  }
}

void GpuDevices::visitor_runs(const ActorId& actor_id, std::int64_t pid) {
  for (Slot& slot : slots_) {
    for (Guest& guest : slot.guests) {
      if (guest.holder.actor_id == actor_id) guest.pid = pid;
    }
  }
}

void GpuDevices::release(const ActorId& actor_id, TimePoint now) {
  for (Slot& slot : slots_) {
    std::erase_if(slot.guests, [&](const Guest& each) { return each.holder.actor_id == actor_id; });
    const std::size_t before = slot.holders.size();
    std::erase_if(slot.holders, [&](const auto& each) { return each.actor_id == actor_id; });
    if (slot.holders.size() == before) continue;
    changed_ = true;
    if (!slot.holders.empty() || slot.lost || !readable_ || slot.device.uuid.empty()) continue;
    slot.release_by = now + kTiming.gpu_release_timeout;
    slot.released_after = readings_begun_;
    slot.answered = slot.vacant = false;
  }
}

// --- when one is free again ----------------------------------------------------------------------

void GpuDevices::become_free(Slot& slot) {
  if (std::exchange(slot.stuck, false)) {
    notes_.push_back({"gpu_freed", fmt::format("{} is free again", label(slot))});
  }
  slot.release_by.reset();
  slot.vacant = false;
  slot.trouble.clear();
  changed_ = true;
}

bool GpuDevices::is_vacant(const Slot& slot) {
  const auto runs_there = [&](std::int64_t pid) {
    return std::any_of(slot.processes.begin(), slot.processes.end(),
                       [&](const auto& process) { return process.pid == pid; });
  };
  // In a container the driver may call processes by other numbers than the node does: a guest that
  // is not seen by its own may be any one of the others.
  std::ptrdiff_t not_seen = 0;
  for (const Guest& guest : slot.guests) not_seen += !runs_there(guest.pid);
  const auto others =
      std::count_if(slot.processes.begin(), slot.processes.end(), [&](const auto& process) {
        return std::find(slot.idle_pids.begin(), slot.idle_pids.end(), process.pid) ==
                   slot.idle_pids.end() &&
               std::none_of(slot.guests.begin(), slot.guests.end(),
                            [&](const Guest& guest) { return guest.pid == process.pid; });
      });
  return others <= not_seen;
}

void GpuDevices::look(Slot& slot, const GpuReading& reading, bool new_enough) {
  slot.used_bytes = reading.used_bytes;
  slot.processes = reading.processes;
  if (!slot.stuck) slot.trouble.clear();
  if (!slot.releasing()) {
    if (slot.holders.empty() && slot.used_bytes < slot.idle_bytes) {
      slot.idle_bytes = slot.used_bytes;
      changed_ = true;
    }
    return;
  }
  if (!new_enough) return;
  slot.answered = true;
  slot.vacant = is_vacant(slot);
  const std::uint64_t slack = std::min(kSlackBytes, slot.device.memory_total_bytes / 16);
  if (slot.vacant && slot.used_bytes <= slot.idle_bytes + slack) become_free(slot);
}

void GpuDevices::seen(std::uint64_t number, const std::vector<GpuReading>& readings) {
  for (const GpuReading& reading : readings) {
    for (Slot& slot : slots_) {
      if (slot.lost || slot.device.uuid.empty() || slot.device.uuid != reading.uuid) continue;
      if (!reading.status.ok()) {
        slot.trouble = reading.status.message();
      } else {
        look(slot, reading, number > slot.released_after);
      }
    }
  }
}

std::vector<ActorId> GpuDevices::lose(const std::string& uuid, const std::string& why) {
  std::vector<ActorId> holders;
  for (Slot& slot : slots_) {
    const bool hit = !uuid.empty() && (slot.device.uuid == uuid || slot.device.parent_uuid == uuid);
    if (!hit || std::exchange(slot.lost, true)) continue;
    slot.trouble = why;
    slot.stuck = false;
    slot.release_by.reset();
    changed_ = true;
    notes_.push_back({"gpu_lost", fmt::format("{} is lost: {}", label(slot), why)});
    for (const auto& holder : slot.holders) holders.push_back(holder.actor_id);
    for (const Guest& guest : slot.guests) holders.push_back(guest.holder.actor_id);
  }
  return holders;
}

void GpuDevices::tick(TimePoint now, const KeepsMemory& keeps) {
  for (Slot& slot : slots_) {
    if (!slot.release_by || *slot.release_by > now) continue;
    if (slot.vacant && keeps(slot.last_job)) {
      // It is to be there when the job's next process comes.
      slot.release_by = now + kTiming.gpu_release_timeout;
      continue;
    }
    slot.release_by.reset();
    slot.stuck = true;
    changed_ = true;
    if (slot.trouble.empty() && !slot.answered) {
      slot.trouble = "NVML does not answer: whether its memory is free is not known";
    } else if (slot.trouble.empty()) {
      std::string pids;
      std::size_t named = 0;
      for (const auto& process : slot.processes) {
        if (++named > kPidsNamedMax) break;
        pids += fmt::format("{}{}", pids.empty() ? "" : ", ", process.pid);
      }
      slot.trouble = fmt::format(
          "memory is still held: {} more than before its last actor, by {}; it is used again when "
          "that is free",
          mebibytes(slot.used_bytes - std::min(slot.used_bytes, slot.idle_bytes)),
          pids.empty() ? "no process that the driver names" : "pids " + pids);
    }
    notes_.push_back({"gpu_stuck", fmt::format("{}: {}", label(slot), slot.trouble)});
  }
}

std::optional<TimePoint> GpuDevices::next_deadline() const {
  std::optional<TimePoint> first;
  for (const Slot& slot : slots_) {
    if (slot.release_by && (!first || *slot.release_by < *first)) first = slot.release_by;
  }
  return first;
}

std::optional<Duration> GpuDevices::reading_interval() const {
  std::optional<Duration> interval;
  for (const Slot& slot : slots_) {
    if (slot.release_by) return kReadSoon;
    if (slot.stuck) interval = kReadLater;
  }
  return interval;
}

// --- what there is -------------------------------------------------------------------------------

std::vector<wire::GpuDevice> GpuDevices::devices_of(const ActorId& actor_id) const {
  std::vector<wire::GpuDevice> devices;
  for (const Slot& slot : slots_) {
    if (slot.pool) continue;
    for (const auto& holder : slot.holders) {
      if (holder.actor_id == actor_id) devices.push_back(slot.device);
    }
  }
  return devices;
}

std::vector<std::string> GpuDevices::names_of(const ActorId& actor_id) const {
  std::vector<std::string> names;
  for (const Slot& slot : slots_) {
    for (const auto& holder : slot.holders) {
      if (holder.actor_id == actor_id) names.push_back(slot.name);
    }
  }
  return names;
}

std::int64_t GpuDevices::amount() const {
  std::int64_t sum = 0;
  for (const Slot& slot : slots_) sum += slot.stuck || slot.lost ? slot.held() : slot.capacity;
  return sum;
}

wire::GpuState GpuDevices::state_of(const Slot& slot) const {
  if (slot.lost) return wire::GpuState::kLost;
  if (slot.stuck) return wire::GpuState::kStuck;
  if (!slot.holders.empty()) return wire::GpuState::kHeld;
  return slot.release_by ? wire::GpuState::kReleasing : wire::GpuState::kFree;
}

std::vector<wire::GpuStatus> GpuDevices::status() const {
  std::vector<wire::GpuStatus> all;
  for (const Slot& slot : slots_) {
    all.push_back({slot.device, state_of(slot), slot.used_bytes, slot.trouble, slot.holders});
    for (const Guest& guest : slot.guests) all.back().holders.push_back(guest.holder);
  }
  return all;
}

std::string GpuDevices::describe() const {
  std::string text;
  for (const Slot& slot : slots_) {
    text += fmt::format("{}{} is {}", text.empty() ? "" : "; ", label(slot),
                        wire::gpu_state_name(state_of(slot)));
    for (const auto& holder : slot.holders) {
      text += fmt::format(", {} of it by {}", format_amount(kGpu, holder.share), holder.label);
    }
    for (const Guest& guest : slot.guests) text += fmt::format(", seen by {}", guest.holder.label);
    if (!slot.trouble.empty()) text += fmt::format(" ({})", slot.trouble);
  }
  return text.empty() ? "this node has no GPUs" : text;
}

std::optional<wire::KeptGpus> GpuDevices::changed() {
  if (!std::exchange(changed_, false) || !readable_) return std::nullopt;
  wire::KeptGpus kept;
  for (const Slot& slot : slots_) {
    if (slot.device.uuid.empty()) continue;
    kept.gpus.push_back({slot.name, slot.idle_bytes, slot.idle_pids, slot.last_job,
                         slot.releasing(), slot.lost, slot.trouble});
  }
  return kept;
}

std::optional<std::string> GpuDevices::broken_invariant() const {
  for (const Slot& slot : slots_) {
    if (slot.held() > slot.capacity) return label(slot) + ": more is held than there is";
    if (slot.stuck && slot.release_by) return label(slot) + ": stuck, and waited for";
    if (slot.releasing() && !slot.holders.empty()) return label(slot) + ": held, and waited for";
    for (const Guest& guest : slot.guests) {
      if (guest.holder.share != 0) return label(slot) + ": a guest has a share of it";
    }
  }
  return std::nullopt;
}

}  // namespace troupe::scheduler
