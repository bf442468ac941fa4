#include "train/cuda/device/memory_ledger.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "runtime/base/check.h"

namespace troupe::train {
namespace {

std::size_t index_of(MemoryPurpose purpose) { return static_cast<std::size_t>(purpose); }

// How somebody gets by with less of what takes the most of the request.
std::string_view way_out(MemoryPurpose greatest) {
  switch (greatest) {
    case MemoryPurpose::kActivations:
      return "a smaller per_device_train_batch_size or cutoff_len, gradient checkpointing or bf16 "
             "lower it";
    case MemoryPurpose::kParameters:
      return "more ranks that share the model (zero3, fsdp), bf16 or, with zero3, "
             "troupe.offload=parameters lower it";
    case MemoryPurpose::kGradients:
      return "more ranks that share the model (zero2, zero3, fsdp) lower it";
    case MemoryPurpose::kOptimizerState:
      return "troupe.offload=optimizer (the host keeps and updates it), more ranks that share the "
             "model (zero1, zero2, zero3, fsdp) or pure_bf16 lower it";
    default:
      return "a smaller per_device_train_batch_size lowers it";
  }
}

}  // namespace

std::string_view memory_purpose_name(MemoryPurpose purpose) {
  switch (purpose) {
    case MemoryPurpose::kParameters:
      return "parameters";
    case MemoryPurpose::kGradients:
      return "gradients";
    case MemoryPurpose::kOptimizerState:
      return "optimizer state";
    case MemoryPurpose::kActivations:
      return "activations";
    case MemoryPurpose::kWorkspace:
      return "workspace";
    case MemoryPurpose::kCommunication:
      return "communication";
    case MemoryPurpose::kOther:
      return "other";
  }
  return "other";
}

void MemoryLedger::add(std::span<const MemoryShare> shares) {
  MutexLock lock(mutex_);
  for (const MemoryShare& share : shares) held_[index_of(share.purpose)] += share.bytes;
  if (total_bytes(held_) > total_bytes(peak_)) peak_ = held_;
}

void MemoryLedger::remove(std::span<const MemoryShare> shares) {
  MutexLock lock(mutex_);
  for (const MemoryShare& share : shares) {
    std::int64_t& held = held_[index_of(share.purpose)];
    held -= share.bytes;
    TROUPE_CHECK(held >= 0, "{}", memory_purpose_name(share.purpose));
  }
}

MemoryLedger::Bytes MemoryLedger::held() const {
  MutexLock lock(mutex_);
  return held_;
}

MemoryLedger::Bytes MemoryLedger::peak() const {
  MutexLock lock(mutex_);
  return peak_;
}

std::int64_t total_bytes(const MemoryLedger::Bytes& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
}

MemoryLedger::Bytes by_purpose(std::span<const MemoryShare> shares) {
  MemoryLedger::Bytes bytes{};
  for (const MemoryShare& share : shares) bytes[index_of(share.purpose)] += share.bytes;
  return bytes;
}

std::string describe_memory(const MemoryLedger::Bytes& bytes) {
  std::array<int, kMemoryPurposes> order{};
  std::iota(order.begin(), order.end(), 0);
  const auto of = [&](int i) { return bytes[static_cast<std::size_t>(i)]; };
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return of(a) > of(b); });
  std::string text;
  for (const int i : order) {
    if (of(i) == 0) continue;
    if (!text.empty()) text += ", ";
    text += fmt::format("{} {}", memory_purpose_name(static_cast<MemoryPurpose>(i)),
                        memory_size_text(of(i)));
  }
  return text.empty() ? "nothing" : text;
}

std::string memory_size_text(std::int64_t bytes) {
  const char* const units[] = {"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double count = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  for (; count >= 1023.95 && unit + 1 < std::size(units); ++unit) count /= 1024;
  return fmt::format("{:.1f} {}", count, units[unit]);
}

std::string describe_shortage(const MemoryShortage& s) {
  const std::int64_t held = total_bytes(s.held);
  std::string text = fmt::format(
      "{} has not enough memory for {}: {} were asked for ({}). This process holds {}", s.device,
      s.name, memory_size_text(s.asked_bytes), describe_memory(s.asked),
      held == 0 ? "nothing yet"
                : fmt::format("{} ({})", memory_size_text(held), describe_memory(s.held)));
  if (s.free_bytes < 0) return text + "; the device does not say what is free";
  const std::int64_t others = std::max<std::int64_t>(0, s.total_bytes - s.free_bytes - held);
  const std::int64_t fits = s.free_bytes / s.granularity_bytes * s.granularity_bytes;
  text +=
      fmt::format(", CUDA, NCCL and other processes {}; {} of {} are free, so that {} would fit",
                  memory_size_text(others), memory_size_text(s.free_bytes),
                  memory_size_text(s.total_bytes), memory_size_text(fits));
  if (fits >= s.asked_bytes)
    return text +
           ". The device refused although that is enough: another process may have taken it "
           "in between";
  const auto greatest = static_cast<MemoryPurpose>(
      std::max_element(s.asked.begin(), s.asked.end()) - s.asked.begin());
  return text + fmt::format(
                    ": {} are missing. Most is for {}: {}; `troupe plan` says what each "
                    "setting needs",
                    memory_size_text(s.asked_bytes - fits), memory_purpose_name(greatest),
                    way_out(greatest));
}

}  // namespace troupe::train
