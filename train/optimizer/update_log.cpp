#include "train/optimizer/update_log.h"

#include <cstring>

#include "runtime/base/check.h"

namespace troupe::train {
namespace {

constexpr std::size_t kLogLineBytes = 64;
constexpr std::size_t kLogPageBytes = 4096;
// What is saved lies so far behind the beginning of a page: parts begin with one, and where both
// did, the processor would look for them in the same places of its cache and take a part's next
// elements for those that were just stored. A tenth of the update's time.
constexpr std::size_t kSavedOffset = kLogPageBytes / 2;

std::size_t whole(std::size_t bytes, std::size_t granule) {
  return (bytes + granule - 1) / granule * granule;
}

}  // namespace

// Of what a slot saved. Headers lie behind all that is saved.
struct UpdateLog::SlotHeader {
  std::atomic<std::uint64_t> chunk;  // 1 + the chunk; 0: nothing whole is saved
  std::atomic<std::uint64_t> step;   // it was saved for
};

std::size_t UpdateLog::Layout::marks_bytes() const {
  return whole(static_cast<std::size_t>(chunks) * sizeof(std::uint64_t), kLogLineBytes);
}

std::size_t UpdateLog::Layout::slot_bytes() const { return whole(chunk_bytes_max, kLogPageBytes); }

std::size_t UpdateLog::Layout::undo_bytes() const {
  return kSavedOffset + static_cast<std::size_t>(undo_slots) * (slot_bytes() + kLogLineBytes);
}

UpdateLog::UpdateLog(const Layout& layout, std::span<std::byte> marks, std::span<std::byte> undo)
    : layout_(layout), marks_(marks), undo_(undo) {
  static_assert(sizeof(SlotHeader) <= kLogLineBytes);
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
  TROUPE_CHECK(marks.size() >= layout.marks_bytes() && undo.size() >= layout.undo_bytes());
}

UpdateLog::SlotHeader& UpdateLog::header(int slot) const {
  TROUPE_CHECK(slot >= 0 && slot < layout_.undo_slots);
  const std::size_t behind = static_cast<std::size_t>(layout_.undo_slots) * layout_.slot_bytes();
  return *reinterpret_cast<SlotHeader*>(undo_.data() + kSavedOffset + behind +
                                        static_cast<std::size_t>(slot) * kLogLineBytes);
}

std::byte* UpdateLog::saved(int slot) const {
  return undo_.data() + kSavedOffset + static_cast<std::size_t>(slot) * layout_.slot_bytes();
}

std::atomic<std::uint64_t>& UpdateLog::mark(std::int64_t chunk) const {
  TROUPE_CHECK(chunk >= 0 && chunk < layout_.chunks);
  return reinterpret_cast<std::atomic<std::uint64_t>*>(marks_.data())[chunk];
}

void UpdateLog::forget() {
  std::memset(marks_.data(), 0, marks_.size());
  for (int slot = 0; slot < layout_.undo_slots; ++slot) header(slot).chunk.store(0);
}

void UpdateLog::save(std::int64_t step, int slot, std::int64_t chunk, Parts parts) {
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
  head.step.store(static_cast<std::uint64_t>(step), std::memory_order_relaxed);
  head.chunk.store(static_cast<std::uint64_t>(chunk) + 1, std::memory_order_release);
  // No store of the update may come before. A fence for the compiler is enough: this thread is the
  // only one that reads the log while its process lives.
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

void UpdateLog::restore(
    std::int64_t step,
    const std::function<std::vector<std::span<std::byte>>(std::int64_t chunk)>& parts_of) {
  for (int slot = 0; slot < layout_.undo_slots; ++slot) {
    SlotHeader& head = header(slot);
    const std::uint64_t held = head.chunk.load(std::memory_order_acquire);
    if (held == 0 || held > static_cast<std::uint64_t>(layout_.chunks)) continue;
    const auto chunk = static_cast<std::int64_t>(held) - 1;
    if (head.step.load(std::memory_order_relaxed) != static_cast<std::uint64_t>(step) ||
        done(step, chunk))
      continue;
    const std::byte* from = saved(slot);
    for (const auto& part : parts_of(chunk)) {
      std::memcpy(part.data(), from, part.size());
      from += part.size();
    }
  }
}

}  // namespace troupe::train
