#pragma once
// A tensor and what an optimizer keeps of it, updated step by step as a rank does it.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/random.h"
#include "train/optimizer/optimizers.h"

namespace troupe::train::tests {

inline std::vector<float> values_of_seed(std::size_t count, std::uint64_t seed) {
  SeededRandom random(seed);
  std::vector<float> out(count);
  for (float& x : out) x = static_cast<float>(random.unit() - 0.5);
  return out;
}

class OptimizedTensor {
 public:
  OptimizedTensor(const Optimizer& optimizer, std::string name, std::vector<std::int64_t> shape,
                  bool decays = true)
      : optimizer_(optimizer), shape_(std::move(shape)) {
    const auto rule = optimizer.rule() ? optimizer.rule()->rule_of(name, shape_) : TensorRule();
    whole_ = rule.unit == UpdateUnit::kTensor;
    group_ = {.decays = rule.decays.value_or(decays), .treatment = rule.treatment};
    std::int64_t elements = 1;
    for (const std::int64_t size : shape_) elements *= size;
    elements_ = static_cast<std::size_t>(elements);
    const std::int64_t padded =
        (elements + kUpdateBlockElements - 1) / kUpdateBlockElements * kUpdateBlockElements;
    groups_.add(padded, group_);
    parameters = values_of_seed(elements_, 1);
    parameters.resize(static_cast<std::size_t>(padded));
    for (std::size_t slot = 0; slot < optimizer.slots().size(); ++slot) {
      const SlotStorage storage = optimizer.storage(slot, group_.treatment);
      std::int64_t bytes = static_cast<std::int64_t>(storage_bytes(storage, padded, 4));
      if (storage == SlotStorage::kTensor) {
        bytes = 4;
        for (const std::int64_t size : optimizer.tensor_shape(slot, group_.treatment, shape_))
          bytes *= size;
      }
      slots.emplace_back(static_cast<std::size_t>((bytes + 3) / 4));
      bytes_.push_back(static_cast<std::size_t>(bytes));
    }
  }

  // Of `gradients`, as many as the tensor has elements.
  void step(const OptimizerStep& step, std::vector<float> gradients) {
    gradients.resize(parameters.size());
    const auto prepared = optimizer_.prepare(step, groups_.groups());
    std::vector<float> directions(parameters.size());
    std::vector<std::span<std::byte>> chunk_slots;
    std::vector<std::span<float>> tensor_slots;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const bool by_tensor = optimizer_.storage(i, group_.treatment) == SlotStorage::kTensor;
      chunk_slots.push_back(by_tensor
                                ? std::span<std::byte>()
                                : std::as_writable_bytes(std::span(slots[i])).first(bytes_[i]));
      tensor_slots.push_back(by_tensor ? std::span(slots[i]) : std::span<float>());
    }
    if (whole_)
      prepared->direction({.shape = shape_,
                           .gradients = std::span<const float>(gradients).first(elements_),
                           .slots = tensor_slots,
                           .direction = std::span(directions).first(elements_)});
    update_chunk(*prepared, groups_,
                 {.parameters = std::as_writable_bytes(std::span(parameters)),
                  .gradients = gradients,
                  .slots = chunk_slots,
                  .directions = whole_ ? directions : std::span<const float>()},
                 &optimizer_);
  }

  std::size_t elements() const { return elements_; }
  const ParameterGroup& group() const { return group_; }

  std::vector<float> parameters;  // padded to whole blocks
  std::vector<std::vector<float>> slots;

 private:
  const Optimizer& optimizer_;
  std::vector<std::int64_t> shape_;
  bool whole_ = false;
  ParameterGroup group_;
  ParameterGroups groups_;
  std::size_t elements_ = 0;
  std::vector<std::size_t> bytes_;
};

}  // namespace troupe::train::tests
