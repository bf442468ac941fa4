#include "train/progress/progress_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "runtime/base/check.h"
#include "train/progress/record_words.h"
#include "train/progress/step_phases.h"

namespace troupe::train {
namespace {

// More units than any model has.
constexpr std::int32_t kUnitMax = 1'000'000;

// Characters up to the first zero; what cannot be part of a name is shown as '?', so that nothing
// of another process gets into a terminal or a log.
std::string load_name(const ProgressName& name) {
  char text[kOperationNameBytes];
  for (std::size_t i = 0; i < name.size(); ++i) {
    const std::uint64_t word = name[i].load(std::memory_order_relaxed);
    std::memcpy(text + 8 * i, &word, sizeof word);
  }
  std::string out(text, ::strnlen(text, sizeof text));
  for (char& c : out)
    if (c < 0x20 || c > 0x7e) c = '?';
  return out;
}

bool valid_place(std::uint32_t stage, std::int32_t unit) {
  return stage < kStageCount && unit >= -1 && unit <= kUnitMax;
}

// The point of this index (from 1), unless it is gone, half written, or makes no sense.
std::optional<ProgressSnapshot::Entry> load_entry(const ProgressEntry& entry, std::uint64_t index) {
  if (entry.index.load(std::memory_order_acquire) != index) return std::nullopt;
  ProgressSnapshot::Entry out;
  out.at_ns = entry.at_ns.load(std::memory_order_relaxed);
  out.step = entry.step.load(std::memory_order_relaxed);
  out.number = entry.number.load(std::memory_order_relaxed);
  const std::uint32_t kind_stage = entry.kind_stage.load(std::memory_order_relaxed);
  out.unit = entry.unit.load(std::memory_order_relaxed);
  out.operation = load_name(entry.operation);
  std::atomic_thread_fence(std::memory_order_acquire);
  if (entry.index.load(std::memory_order_relaxed) != index) return std::nullopt;
  if (kind_stage / 256 >= kPointKindCount || !valid_place(kind_stage % 256, out.unit))
    return std::nullopt;
  out.kind = static_cast<PointKind>(kind_stage / 256);
  out.stage = static_cast<Stage>(kind_stage % 256);
  return out;
}

// "all_reduce" is written all-reduce in words.
std::string hyphenated(std::string_view name) {
  std::string out(name);
  std::replace(out.begin(), out.end(), '_', '-');
  return out;
}

std::string_view stage_words(Stage stage) {
  constexpr std::array<std::string_view, kStageCount> kWords = {
      "waiting for a generation",
      "meeting the other ranks",
      "loading its state",
      "beginning",
      "data",
      "forward",
      "backward",
      "communication of gradients",
      "gradient norm",
      "gradients to the buddy",
      "prepared",
      "vote on the step",
      "committed",
      "optimizer",
      "publishing parameters",
      "logs of the finished step",
      "evaluation",
      "beginning a checkpoint",
      "finishing the run",
  };
  return kWords[static_cast<std::size_t>(stage)];
}

bool of_loop(PointKind kind) {
  return kind == PointKind::kStage || kind == PointKind::kUnit || kind == PointKind::kGradient ||
         kind == PointKind::kOperator || kind == PointKind::kChunk;
}

// Whether the loop went on after the collective that is under way had begun: then another thread is
// in it, and the loop does not wait.
bool overlaps(const ProgressSnapshot& snapshot) {
  for (auto entry = snapshot.entries.rbegin(); entry != snapshot.entries.rend(); ++entry) {
    if (entry->kind == PointKind::kCollective) return false;
    if (of_loop(entry->kind)) return true;
  }
  return true;  // so many points since then
}

// What followed the last stage or unit, as the loop's thread told it: an operator or a chunk.
std::string describe_detail(const ProgressSnapshot& snapshot) {
  for (auto entry = snapshot.entries.rbegin(); entry != snapshot.entries.rend(); ++entry) {
    switch (entry->kind) {
      case PointKind::kStage:
      case PointKind::kUnit:
        return {};
      case PointKind::kOperator:
        return fmt::format(", operator {}", entry->operation);
      case PointKind::kChunk:
        return fmt::format(", chunk {} {}", entry->number, entry->operation);
      case PointKind::kGradient:
        return fmt::format(", gradient of unit {} complete", entry->unit);
      default:
        break;  // of other threads, perhaps
    }
  }
  return {};
}

}  // namespace

ProgressRecord& progress_record_in(std::span<std::byte> memory) {
  TROUPE_CHECK(memory.size() >= sizeof(ProgressRecord), "{} bytes", memory.size());
  TROUPE_CHECK(reinterpret_cast<std::uintptr_t>(memory.data()) % alignof(ProgressRecord) == 0);
  return *std::launder(reinterpret_cast<ProgressRecord*>(memory.data()));
}

std::optional<ProgressSnapshot> read_progress(std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof(ProgressRecord)) return std::nullopt;
  // The bytes may lie anywhere in a message.
  alignas(ProgressRecord) std::array<std::byte, sizeof(ProgressRecord)> copy;
  std::memcpy(copy.data(), bytes.data(), copy.size());
  return read_progress(std::as_const(progress_record_in(copy)));
}

std::optional<ProgressSnapshot> read_progress(const ProgressRecord& record) {
  if (record.magic.load(std::memory_order_acquire) != kProgressMagic) return std::nullopt;
  ProgressSnapshot out;
  out.pid = record.pid.load(std::memory_order_relaxed);
  out.generation = record.generation.load(std::memory_order_relaxed);
  out.beats = record.beats.load(std::memory_order_relaxed);
  out.beat_at_ns = record.beat_at_ns.load(std::memory_order_relaxed);
  out.cpu_ns = record.cpu_ns.load(std::memory_order_relaxed);
  out.changed_at_ns = record.changed_at_ns.load(std::memory_order_relaxed);
  out.moved_bytes = record.moved_bytes.load(std::memory_order_relaxed);
  out.step = record.step.load(std::memory_order_relaxed);
  const std::uint32_t stage = record.stage.load(std::memory_order_relaxed);
  out.unit = record.unit.load(std::memory_order_relaxed);
  if (!valid_place(stage, out.unit)) return std::nullopt;
  out.stage = static_cast<Stage>(stage);
  out.in_collective = record.in_collective.load(std::memory_order_relaxed) != 0;
  out.in_file = record.in_file.load(std::memory_order_relaxed) != 0;
  out.collective_sequence = record.collective_sequence.load(std::memory_order_relaxed);
  out.collective = load_name(record.collective);
  out.collective_group = load_name(record.collective_group);
  out.file = load_name(record.file);
  for (std::size_t i = 0; i < kStepPhases.size(); ++i)
    out.seconds.*kStepPhases[i].seconds =
        static_cast<double>(record.phase_ns[i].load(std::memory_order_relaxed)) / 1e9;
  out.timed_steps = record.timed_steps.load(std::memory_order_relaxed);
  out.timed_step = record.timed_step.load(std::memory_order_relaxed);
  const std::uint64_t written = record.entries.load(std::memory_order_acquire);
  out.changes = written + record.moves.load(std::memory_order_relaxed);
  const std::uint64_t shown = std::min<std::uint64_t>(written, kProgressRing);
  for (std::uint64_t i = written - shown; i != written; ++i)
    if (auto entry = load_entry(record.ring[i % kProgressRing], i + 1))
      out.entries.push_back(std::move(*entry));
  return out;
}

std::string describe_collective(const ProgressSnapshot& snapshot) {
  if (snapshot.collective.empty()) return {};
  const bool all = snapshot.collective_group.empty() || snapshot.collective_group == "world";
  return fmt::format(
      "{} {}{}", hyphenated(snapshot.collective), snapshot.collective_sequence,
      all ? std::string() : fmt::format(" of group '{}'", snapshot.collective_group));
}

std::string describe_progress(const ProgressSnapshot& snapshot) {
  std::string out;
  if (snapshot.step > 0) out = fmt::format("step {}, ", snapshot.step);
  if (snapshot.in_collective && !overlaps(snapshot))
    return out + "waits in " + describe_collective(snapshot);
  out += stage_words(snapshot.stage);
  if (snapshot.unit >= 0) out += fmt::format(" of unit {}", snapshot.unit);
  if (snapshot.in_file) return out + fmt::format(", file operation {}", snapshot.file);
  out += describe_detail(snapshot);
  if (snapshot.in_collective) out += fmt::format(", {} beside it", describe_collective(snapshot));
  return out;
}

}  // namespace troupe::train
