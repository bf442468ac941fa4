#include "train/transaction/step_transaction.h"

#include <algorithm>
#include <cstring>

#include "runtime/base/check.h"

namespace troupe::train {
namespace {

constexpr std::size_t kLineBytes = 64;
constexpr std::size_t kPageBytes = 4096;
// What is saved lies so far behind the beginning of a page: parts begin with one, and where both
// did, the processor would look for them in the same places of its cache and take a part's next
// elements for those that were just stored. A tenth of the update's time.
constexpr std::size_t kSavedOffset = kPageBytes / 2;

std::size_t whole(std::size_t bytes, std::size_t granule) {
  return (bytes + granule - 1) / granule * granule;
}

}  // namespace

// Of what a slot saved. Headers lie behind all that is saved.
struct StepTransaction::SlotHeader {
  std::atomic<std::uint64_t> chunk;  // 1 + the chunk; 0: nothing whole is saved
  std::atomic<std::uint64_t> step;   // it was saved for
};

void CommitRecord::set_why(std::string_view why) {
  const std::size_t length = std::min(why.size(), skipped_why.size() - 1);
  skipped_why = {};
  std::copy_n(why.data(), length, skipped_why.data());
}

std::string_view commit_phase_name(CommitPhase phase) {
  switch (phase) {
    case CommitPhase::kComputing:
      return "computing";
    case CommitPhase::kPrepared:
      return "prepared";
    case CommitPhase::kCommitted:
      return "committed";
  }
  return "unknown";
}

std::size_t StepTransaction::Layout::marks_bytes() const {
  return whole(static_cast<std::size_t>(chunks) * sizeof(std::uint64_t), kLineBytes);
}

std::size_t StepTransaction::Layout::slot_bytes() const {
  return whole(chunk_bytes_max, kPageBytes);
}

std::size_t StepTransaction::Layout::undo_bytes() const {
  return kSavedOffset + static_cast<std::size_t>(undo_slots) * (slot_bytes() + kLineBytes);
}

StepTransaction::StepTransaction(TransactionMemory& memory, const Layout& layout,
                                 std::span<std::byte> marks, std::span<std::byte> undo)
    : memory_(memory), layout_(layout), marks_(marks), undo_(undo) {
  static_assert(sizeof(SlotHeader) <= kLineBytes);
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
  TROUPE_CHECK(marks.size() >= layout.marks_bytes() && undo.size() >= layout.undo_bytes());
}

RankPosition StepTransaction::position() const {
  const std::uint64_t state = memory_.state.load(std::memory_order_acquire);
  if (state == 0 || (state - 1) % 4 > 2) return {};
  return {.loaded = 1,
          .phase = static_cast<CommitPhase>((state - 1) % 4),
          .step = static_cast<std::int64_t>((state - 1) / 4),
          .begun = memory_.begun.load(std::memory_order_relaxed)};
}

void StepTransaction::set(std::int64_t step, CommitPhase phase) {
  const std::uint64_t state =
      1 + static_cast<std::uint64_t>(step) * 4 + static_cast<std::uint64_t>(phase);
  memory_.state.store(state, std::memory_order_release);
}

const CommitRecord& StepTransaction::record() const { return memory_.records[position().step % 2]; }

const CommitRecord& StepTransaction::committed() const {
  TROUPE_CHECK(position().phase == CommitPhase::kCommitted);
  return memory_.records[(position().step + 1) % 2];
}

const Aftermath& StepTransaction::aftermath() const {
  return memory_.aftermaths[memory_.aftermaths_written.load(std::memory_order_acquire) % 2];
}

void StepTransaction::set_aftermath(const Aftermath& aftermath) {
  const std::uint64_t next = memory_.aftermaths_written.load(std::memory_order_relaxed) + 1;
  memory_.aftermaths[next % 2] = aftermath;
  memory_.aftermaths_written.store(next, std::memory_order_release);
}

void StepTransaction::begin_generation(std::uint64_t generation) {
  TROUPE_CHECK(generation > this->generation());
  memory_.generation.store(generation, std::memory_order_release);
}

void StepTransaction::unload() { memory_.state.store(0, std::memory_order_release); }

void StepTransaction::load(const CommitRecord& record) {
  TROUPE_CHECK(!position().loaded && record.step >= 0);
  // Steps may be done again after this: what was marked for them before means nothing.
  std::memset(marks_.data(), 0, marks_.size());
  for (int slot = 0; slot < layout_.undo_slots; ++slot) header(slot).chunk.store(0);
  memory_.records[record.step % 2] = record;
  memory_.begun.store(record.step, std::memory_order_relaxed);
  set(record.step, CommitPhase::kComputing);
}

void StepTransaction::begin_step() {
  memory_.begun.store(position().step + 1, std::memory_order_relaxed);
}

void StepTransaction::prepare() {
  const RankPosition at = position();
  TROUPE_CHECK(at.loaded && at.phase == CommitPhase::kComputing);
  set(at.step, CommitPhase::kPrepared);
}

void StepTransaction::commit(const CommitRecord& record) {
  const RankPosition at = position();
  TROUPE_CHECK(at.loaded && record.step == at.step + 1);
  if (at.phase == CommitPhase::kCommitted) return;
  TROUPE_CHECK(at.phase == CommitPhase::kPrepared, "committed without having prepared");
  memory_.records[record.step % 2] = record;
  set(at.step, CommitPhase::kCommitted);
}

void StepTransaction::discard() {
  const RankPosition at = position();
  TROUPE_CHECK(at.loaded && at.phase != CommitPhase::kCommitted);
  set(at.step, CommitPhase::kComputing);
}

void StepTransaction::finish() {
  const RankPosition at = position();
  TROUPE_CHECK(at.phase == CommitPhase::kCommitted);
  set(at.step + 1, CommitPhase::kComputing);
}

StepTransaction::SlotHeader& StepTransaction::header(int slot) const {
  TROUPE_CHECK(slot >= 0 && slot < layout_.undo_slots);
  const std::size_t behind = static_cast<std::size_t>(layout_.undo_slots) * layout_.slot_bytes();
  return *reinterpret_cast<SlotHeader*>(undo_.data() + kSavedOffset + behind +
                                        static_cast<std::size_t>(slot) * kLineBytes);
}

std::byte* StepTransaction::saved(int slot) const {
  return undo_.data() + kSavedOffset + static_cast<std::size_t>(slot) * layout_.slot_bytes();
}

std::atomic<std::uint64_t>& StepTransaction::mark(std::int64_t chunk) const {
  TROUPE_CHECK(chunk >= 0 && chunk < layout_.chunks);
  return reinterpret_cast<std::atomic<std::uint64_t>*>(marks_.data())[chunk];
}

bool StepTransaction::done(std::int64_t chunk) const {
  return mark(chunk).load(std::memory_order_acquire) == under_way();
}

void StepTransaction::save(int slot, std::int64_t chunk, Parts parts) {
  SlotHeader& head = header(slot);
  head.chunk.store(0, std::memory_order_relaxed);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  std::byte* out = saved(slot);
  std::size_t bytes = 0;
  for (const auto& part : parts) {
    bytes += part.size();
    TROUPE_CHECK(bytes <= layout_.chunk_bytes_max);
    std::memcpy(out, part.data(), part.size());
    out += part.size();
  }
  head.step.store(under_way(), std::memory_order_relaxed);
  head.chunk.store(static_cast<std::uint64_t>(chunk) + 1, std::memory_order_release);
  // No store of the update may come before. A fence for the compiler is enough: this thread is the
  // only one that reads the log while its process lives.
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

void StepTransaction::mark_done(std::int64_t chunk) {
  mark(chunk).store(under_way(), std::memory_order_release);
}

void StepTransaction::restore(
    const std::function<std::vector<std::span<std::byte>>(std::int64_t chunk)>& parts_of) {
  TROUPE_CHECK(position().phase == CommitPhase::kCommitted);
  for (int slot = 0; slot < layout_.undo_slots; ++slot) {
    SlotHeader& head = header(slot);
    const std::uint64_t held = head.chunk.load(std::memory_order_acquire);
    if (held == 0 || held > static_cast<std::uint64_t>(layout_.chunks)) continue;
    const auto chunk = static_cast<std::int64_t>(held) - 1;
    if (head.step.load(std::memory_order_relaxed) != under_way() || done(chunk)) continue;
    const std::byte* from = saved(slot);
    for (const auto& part : parts_of(chunk)) {
      std::memcpy(part.data(), from, part.size());
      from += part.size();
    }
  }
}

}  // namespace troupe::train
