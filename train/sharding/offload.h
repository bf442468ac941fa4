#pragma once
// What of a rank's state lies in the host's memory though a GPU computes.

namespace troupe::train {

// Each holds what the one before it holds.
enum class Offload {
  kNothing,
  // The optimizer's slots and the parameters that it updates, this rank's; the host updates them.
  // The device has parameters in the type that they are used in.
  kOptimizer,
  // Those parameters too: units are copied to the device when they are gathered.
  kParameters,
};

}  // namespace troupe::train
