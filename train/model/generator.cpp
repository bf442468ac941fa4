#include "train/model/generator.h"

#include <algorithm>

namespace troupe::train {
namespace {

// A position table has an end that no context can pass.
std::int64_t capacity_of(const ModelConfig& config, std::int64_t context_max) {
  return std::min(context_max, config.length_limit().value_or(context_max));
}

}  // namespace

Generator::Generator(Model& model, Operators& operators, UnitAccess& units,
                     std::int64_t context_max)
    : model_(model),
      units_(units),
      cache_(model.config(), capacity_of(model.config(), context_max)),
      activations_(model.config(),
                   {.rows_max = 1, .length_max = cache_.capacity(), .training = false}, operators),
      logits_(static_cast<std::size_t>(model.config().vocab_size)) {}

Result<std::vector<std::int32_t>> Generator::generate(std::span<const std::int32_t> prompt,
                                                      const GenerateOptions& options,
                                                      Random& random) {
  TROUPE_RETURN_IF_ERROR(check_sampling(options.sampling));
  if (prompt.empty())
    return error(Code::kInvalidArgument, "the prompt has no tokens; begin with the bos token");
  cache_.clear();
  TROUPE_RETURN_IF_ERROR(model_.decode(prompt, cache_, units_, activations_, logits_));
  std::vector<std::int32_t> tokens;
  while (static_cast<std::int64_t>(tokens.size()) < options.tokens_max) {
    const std::int32_t next = sample_token(logits_, options.sampling, random);
    if (std::find(options.stop_ids.begin(), options.stop_ids.end(), next) != options.stop_ids.end())
      break;
    tokens.push_back(next);
    if (options.on_token) options.on_token(next);
    if (options.is_stopped && options.is_stopped()) break;
    if (cache_.length() == cache_.capacity() ||
        static_cast<std::int64_t>(tokens.size()) == options.tokens_max)
      break;
    TROUPE_RETURN_IF_ERROR(
        model_.decode(std::span(&next, 1), cache_, units_, activations_, logits_));
  }
  return tokens;
}

}  // namespace troupe::train
