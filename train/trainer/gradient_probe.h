#pragma once
// Looks at local gradients instead of reducing them: whose are not finite, and of which tensor.

#include <optional>

#include "train/model/unit_access.h"
#include "train/sharding/engine.h"
#include "train/trainer/host_access.h"

namespace troupe::train {

// The first tensor, in the order in which a backward pass finishes units, whose local gradient is
// not finite.
class GradientProbe final : public UnitAccess {
 public:
  // `access`: to the gradients' memory. All of them outlive it.
  GradientProbe(Engine& engine, const ParameterLayout& layout, HostAccess& access)
      : engine_(engine), layout_(layout), access_(access) {}

  // Index into ParameterLayout::parameters(); nothing: all are finite.
  std::optional<std::int64_t> found() const { return found_; }

  Result<UnitParameters> acquire(int unit, Phase phase) override {
    return engine_.units().acquire(unit, phase);
  }
  void release(int unit, Phase phase) override { engine_.units().release(unit, phase); }
  Result<UnitGradient> gradient(int unit) override { return engine_.units().gradient(unit); }
  Status gradient_done(int unit) override;

 private:
  Engine& engine_;
  const ParameterLayout& layout_;
  HostAccess& access_;
  std::optional<std::int64_t> found_;
};

}  // namespace troupe::train
