#pragma once
// How fast this machine multiplies matrices, and how many operations a step takes: what a step's
// arithmetic is compared with.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "runtime/base/clock.h"
#include "train/model/model_config.h"
#include "train/tensor/operators.h"

namespace troupe::train {

// Which products are timed.
struct GemmProbe {
  std::int64_t rows = 0;
  std::int64_t hidden = 0, inner = 0;  // widths
  // Of all operands, in any arithmetic.
  std::int64_t bytes() const;
};
// For a device whose rate grows with a product's size: of the model's own widths over so many
// tokens, both up to what any device is fully used with.
GemmProbe gemm_probe(const ModelConfig& config, std::int64_t tokens);

// Floating-point operations per second of the operators' matrix product: the best of several
// products in `arithmetic` of the model's own widths (its MLP and attention projections over up to
// 512 tokens), about 10 ms for each after a first run of it. 0 where the clock did not move. All
// ranks that share a machine should measure at the same time, as they will compute at the same
// time; the sum over the ranks is what step_rates takes.
double measure_gemm_rate(Operators& operators, const Clock& clock, const ModelConfig& config,
                         Arithmetic arithmetic);
// The same over memory of the operators' device: probe.bytes(), which it overwrites. `settle` waits
// for the device.
double measure_gemm_rate(Operators& operators, const Clock& clock, const GemmProbe& probe,
                         Arithmetic arithmetic, std::span<std::byte> memory,
                         const std::function<void()>& settle);

// Runs small products, for nothing: the code that they generate at their first use in a process,
// tens of milliseconds of work, is then there for all that follow. One thread's worth; may run
// beside anything.
void warm_up_products();

}  // namespace troupe::train
