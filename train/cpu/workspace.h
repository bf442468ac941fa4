#pragma once
// Scratch memory for each slot of an arena, kept between calls.

#include <cstddef>
#include <memory>
#include <vector>

namespace troupe::train {

class SlotWorkspaces {
 public:
  explicit SlotWorkspaces(int slots) : slots_(static_cast<std::size_t>(slots)) {}

  // At least `count` floats of the slot's own, with any content; valid until the slot's next call.
  float* floats(int slot, std::size_t count) {
    Slot& own = slots_[static_cast<std::size_t>(slot)];
    if (own.count < count) {
      own.data.reset();
      own.data.reset(new (std::align_val_t{64}) float[count]);
      own.count = count;
    }
    return own.data.get();
  }

 private:
  struct Free {
    void operator()(float* data) const { ::operator delete[](data, std::align_val_t{64}); }
  };
  // A cache line each, so that slots do not share one.
  struct alignas(64) Slot {
    std::unique_ptr<float[], Free> data;
    std::size_t count = 0;
  };
  std::vector<Slot> slots_;
};

}  // namespace troupe::train
