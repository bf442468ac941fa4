#pragma once

namespace troupe::train {

// How the weights of a checkpoint lie: see checkpoint_saver.h.
enum class CheckpointLayout { kHf, kSharded };

}  // namespace troupe::train
