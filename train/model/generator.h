#pragma once
// Text generation, token by token, with a KV cache.

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "runtime/base/random.h"
#include "train/model/model.h"
#include "train/model/sampling.h"

namespace troupe::train {

struct GenerateOptions {
  SamplingOptions sampling;
  std::int64_t tokens_max = 128;               // new ones
  std::int64_t length_max = 0;                 // not 0: of all, in place of tokens_max
  std::vector<std::int64_t> stop_ids;          // end the sequence; not part of the result
  std::function<void(std::int32_t)> on_token;  // optional: each new token as it comes
  std::function<bool()> is_stopped;            // optional, asked behind each token: end here
  // A Generator computes of a prompt only what is behind its common begin with the sequence before.
  bool keeps_prefix = false;
};

// One of several sequences that are generated together.
struct GenerateRequest {
  std::vector<std::int32_t> prompt;
  std::uint64_t seed = 42;
};
// The new tokens of each, as if it were alone; `options` count for each. Prompts that do not fit
// the model's position table are kInvalidArgument, as empty ones. on_token is not called.
// length_max counts here alone.
Result<std::vector<std::vector<std::int32_t>>> generate_all(
    Model& model, Operators& operators, UnitAccess& units,
    std::span<const GenerateRequest> requests, const GenerateOptions& options);

// One sequence at a time. The model and the units must outlive it.
class Generator {
 public:
  // context_max: tokens of prompt and answer together; less where the model's position table is
  // shorter. Allocates cache and activations for it.
  Generator(Model& model, Operators& operators, UnitAccess& units, std::int64_t context_max);

  // The new tokens. Ends at tokens_max, at a stop id, or when the context is full. kInvalidArgument
  // for an empty prompt, one that does not fit, or ids outside the vocabulary.
  Result<std::vector<std::int32_t>> generate(std::span<const std::int32_t> prompt,
                                             const GenerateOptions& options, Random& random);
  std::int64_t capacity() const { return cache_.capacity(); }

 private:
  // Puts `ids` behind the `kept` first tokens of the cache.
  Status decode(std::span<const std::int32_t> ids, std::size_t kept);

  Model& model_;
  UnitAccess& units_;
  KvCache cache_;
  std::vector<std::int32_t> cached_;  // the tokens that are in it
  Activations activations_;
  std::vector<float> logits_;
};

}  // namespace troupe::train
