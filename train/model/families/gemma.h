#pragma once
// The parts of which Gemma's layers are made, and their keys: what its generations have in common.
// Private to this folder.

#include "train/model/family_parts.h"

namespace troupe::train {

// The tokens' vectors times √(hidden size).
extern const EmbeddingKind kScaledTokenEmbedding;
// An RMS norm times 1 + w.
extern const NormKind kOffsetRmsNorm;
// An MLP gated by the tanh form of GELU.
extern const Activation kGeGlu;

// Chooses them, and reads the keys of attention and MLP, without positions and windows.
void read_gemma_parts(ConfigReader& reader, ModelConfig& config);

}  // namespace troupe::train
