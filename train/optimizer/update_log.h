#pragma once
// The log that lets another process finish an update that one was killed in: marks and old bytes of
// chunks, in memory of the host that survives its process. A GPU's is
// train/cuda/operators/transacted_update.h.
//
// The state of a step changes chunk by chunk: a chunk's old bytes are saved, the chunk is updated,
// the chunk is marked done. Whoever attaches to the memory after a kill at any instant restores
// what was half written and updates what is not done. Marks and slots name their step, so those of
// an earlier one mean nothing.
//
// A process that is killed has executed a prefix of each thread's program: release stores keep the
// compiler to it, and whoever reads has seen the process's exit.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

namespace troupe::train {

// Knows no tensors: memory comes in as bytes, so that the simulator runs it as it is.
class UpdateLog {
 public:
  struct Layout {
    std::int64_t chunks = 0;
    std::size_t chunk_bytes_max = 0;  // of all that the update of a chunk changes
    int undo_slots = 1;               // chunks that are updated at once
    std::size_t marks_bytes() const;
    std::size_t slot_bytes() const;
    std::size_t undo_bytes() const;
  };
  // `marks` and `undo` lie in surviving memory, aligned to 64 bytes, zeroed when new, and outlive
  // the object.
  UpdateLog(const Layout& layout, std::span<std::byte> marks, std::span<std::byte> undo);

  // Before steps are done that may have been done before: nothing is marked, nothing is saved.
  void forget();

  // What the update of a chunk changes.
  using Parts = std::span<const std::span<std::byte>>;
  // Restores what a killed process left half written of the update of `step` (≥ 1).
  void restore(
      std::int64_t step,
      const std::function<std::vector<std::span<std::byte>>(std::int64_t chunk)>& parts_of);
  bool done(std::int64_t step, std::int64_t chunk) const {
    return mark(chunk).load(std::memory_order_acquire) == static_cast<std::uint64_t>(step);
  }
  // Saves the parts, runs `update`, marks the chunk done. A slot is used by one thread at a time.
  // `moment` is told "saved", "written", "done".
  template <typename Update, typename Moment>
  void run(std::int64_t step, int slot, std::int64_t chunk, Parts parts, Update&& update,
           Moment&& moment) {
    save(step, slot, chunk, parts);
    moment(std::string_view("saved"));
    update();
    moment(std::string_view("written"));
    mark_done(step, chunk);
    moment(std::string_view("done"));
  }

 private:
  struct SlotHeader;
  SlotHeader& header(int slot) const;
  std::byte* saved(int slot) const;
  void save(std::int64_t step, int slot, std::int64_t chunk, Parts parts);
  void mark_done(std::int64_t step, std::int64_t chunk) {
    mark(chunk).store(static_cast<std::uint64_t>(step), std::memory_order_release);
  }
  std::atomic<std::uint64_t>& mark(std::int64_t chunk) const;

  Layout layout_;
  std::span<std::byte> marks_;
  std::span<std::byte> undo_;
};

}  // namespace troupe::train
