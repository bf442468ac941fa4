#pragma once
// Progress in shared memory: one record a rank, a ring of its last points, and how others read it.
//
// One process writes, others read the bytes (by the node, at any time, also after its death). Words
// are written one by one: a reader may see a point half written and leaves out what does not fit
// together.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "train/progress/point.h"
#include "train/report/step_seconds.h"

namespace troupe::train {

inline constexpr std::size_t kProgressRing = 64;
// Longer names are cut.
inline constexpr std::size_t kOperationNameBytes = 24;

// Phases of a step whose seconds are summed up: those of StepSeconds.
inline constexpr std::size_t kStepPhaseCount = sizeof(StepSeconds) / sizeof(double);

// A name in words that are read and written one by one. Zeros behind the name.
using ProgressName = std::array<std::atomic<std::uint64_t>, kOperationNameBytes / 8>;

struct ProgressEntry {
  // Which point of all this is, from 1; 0 while it is being written.
  std::atomic<std::uint64_t> index;
  std::atomic<std::int64_t> at_ns;  // monotonic clock of the machine
  std::atomic<std::int64_t> step;
  std::atomic<std::uint64_t> number;
  std::atomic<std::uint32_t> kind_stage;  // PointKind · 256 + Stage
  std::atomic<std::int32_t> unit;
  ProgressName operation;  // of collectives with their group: "all_reduce shard"
};
static_assert(sizeof(ProgressEntry) == 64);

// All zero when new: no record yet.
struct ProgressRecord {
  std::atomic<std::uint64_t> magic;
  std::atomic<std::int64_t> pid;
  std::atomic<std::uint64_t> generation;
  // Of a thread that does nothing else (beat.h): the process runs.
  std::atomic<std::uint64_t> beats;
  std::atomic<std::int64_t> beat_at_ns;
  std::atomic<std::int64_t> cpu_ns;  // of the process, all its threads, at the last beat
  // The context of the loop's thread.
  std::atomic<std::int64_t> step;
  std::atomic<std::uint32_t> stage;
  std::atomic<std::int32_t> unit;
  // Points and moved bytes: the rank moves.
  std::atomic<std::uint64_t> entries;  // written so far; the last is entries − 1 modulo the ring
  std::atomic<std::uint64_t> moves;    // times that moved bytes were told
  std::atomic<std::uint64_t> moved_bytes;
  std::atomic<std::int64_t> changed_at_ns;
  // What it waits for now: a collective's name, group and sequence number, a file's operation; how
  // many are under way. The names stay when they are over.
  std::atomic<std::uint32_t> in_collective;
  std::atomic<std::uint32_t> in_file;
  std::atomic<std::uint64_t> collective_sequence;
  ProgressName collective;
  ProgressName collective_group;
  ProgressName file;
  // Seconds of all finished steps by phase, as StepSeconds lists them, how many steps that were,
  // and the last one.
  std::atomic<std::int64_t> phase_ns[kStepPhaseCount];
  std::atomic<std::uint64_t> timed_steps;
  std::atomic<std::int64_t> timed_step;
  ProgressEntry ring[kProgressRing];
};
static_assert(sizeof(ProgressRecord) == 256 + kProgressRing * sizeof(ProgressEntry));
static_assert(std::atomic<std::uint64_t>::is_always_lock_free &&
              std::atomic<std::uint32_t>::is_always_lock_free);

// The record at the beginning of `memory`, which is zeroed or holds a record, and is aligned to 8
// bytes; too small a memory is a bug.
ProgressRecord& progress_record_in(std::span<std::byte> memory);

// A record as read: plain values.
struct ProgressSnapshot {
  std::int64_t pid = 0;
  std::uint64_t generation = 0;
  std::uint64_t beats = 0;
  std::int64_t beat_at_ns = 0;
  std::int64_t cpu_ns = 0;
  std::uint64_t changes = 0;  // goes up with each point and each time bytes moved
  std::int64_t changed_at_ns = 0;
  std::uint64_t moved_bytes = 0;
  std::int64_t step = 0;
  Stage stage = Stage::kIdle;
  int unit = -1;
  // The last one that began; it is under way where in_collective.
  std::uint64_t collective_sequence = 0;
  std::string collective;
  std::string collective_group;
  bool in_collective = false;
  // Likewise.
  std::string file;
  bool in_file = false;
  // Of all steps that the record has seen the end of.
  StepSeconds seconds;
  std::uint64_t timed_steps = 0;
  std::int64_t timed_step = 0;  // the last of them
  struct Entry {
    std::int64_t at_ns = 0;
    std::int64_t step = 0;
    PointKind kind{};
    Stage stage{};
    int unit = -1;
    std::string operation;
    std::uint64_t number = 0;
    friend bool operator==(const Entry&, const Entry&) = default;
  };
  std::vector<Entry> entries;  // oldest first; those that were being written are left out
  friend bool operator==(const ProgressSnapshot&, const ProgressSnapshot&) = default;
};
// Of bytes from another process, none of which are trusted; nothing where they are no record (too
// few, another version, or a rank that has not begun one).
std::optional<ProgressSnapshot> read_progress(std::span<const std::byte> bytes);
// Of a record in this process's memory.
std::optional<ProgressSnapshot> read_progress(const ProgressRecord& record);

// "step 41, backward of unit 3, operator gemm" / "step 41, waits in all-reduce 1207" / "step 41,
// backward of unit 3, operator gemm, all-reduce 1207 beside it" where the loop went on meanwhile.
std::string describe_progress(const ProgressSnapshot& snapshot);
// "all-reduce 1207" / "reduce-scatter 12 of group 'shard'", of the last collective; empty where
// there was none.
std::string describe_collective(const ProgressSnapshot& snapshot);

}  // namespace troupe::train
