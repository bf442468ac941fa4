#include "train/model/generator.h"

#include <algorithm>
#include <memory>

namespace troupe::train {
namespace {

// A position table has an end that no context can pass.
std::int64_t capacity_of(const ModelConfig& config, std::int64_t context_max) {
  return std::min(context_max, config.length_limit().value_or(context_max));
}

// Chosen behind `sequence`, which it joins.
std::int32_t next_token(std::span<float> logits, std::vector<std::int32_t>& sequence,
                        const SamplingOptions& sampling, Random& random) {
  penalize_repetition(logits, sequence, sampling.repetition_penalty);
  sequence.push_back(sample_token(logits, sampling, random));
  return sequence.back();
}

bool is_stop(const GenerateOptions& options, std::int32_t token) {
  return std::ranges::find(options.stop_ids, token) != options.stop_ids.end();
}

// A sequence of several.
struct Growing {
  std::size_t number = 0;  // of its request
  KvCache cache;
  SeededRandom random;
  std::vector<std::int32_t> sequence;  // with the prompt

  Growing(std::size_t of, const ModelConfig& config, std::int64_t capacity, std::uint64_t seed)
      : number(of), cache(config, capacity), random(seed) {}
};

}  // namespace

Generator::Generator(Model& model, Operators& operators, UnitAccess& units,
                     std::int64_t context_max)
    : model_(model),
      units_(units),
      cache_(model.config(), capacity_of(model.config(), context_max)),
      activations_(model.config(),
                   {.rows_max = 1, .length_max = cache_.capacity(), .training = false}, operators),
      logits_(static_cast<std::size_t>(model.config().vocab_size)) {}

Status Generator::decode(std::span<const std::int32_t> ids, std::size_t kept) {
  cached_.resize(kept);
  cache_.clear();
  cache_.advance(static_cast<std::int64_t>(kept));
  TROUPE_RETURN_IF_ERROR(model_.decode(ids, cache_, units_, activations_, logits_));
  cached_.insert(cached_.end(), ids.begin(), ids.end());
  return {};
}

Result<std::vector<std::int32_t>> Generator::generate(std::span<const std::int32_t> prompt,
                                                      const GenerateOptions& options,
                                                      Random& random) {
  TROUPE_RETURN_IF_ERROR(check_sampling(options.sampling));
  if (prompt.empty())
    return error(Code::kInvalidArgument, "the prompt has no tokens; begin with the bos token");
  std::size_t kept = 0;
  // (The last token is computed anew, for its logits.)
  while (options.keeps_prefix && kept + 1 < prompt.size() && kept < cached_.size() &&
         prompt[kept] == cached_[kept])
    ++kept;
  TROUPE_RETURN_IF_ERROR(decode(prompt.subspan(kept), kept));
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> sequence(prompt.begin(), prompt.end());
  while (static_cast<std::int64_t>(tokens.size()) < options.tokens_max) {
    const std::int32_t next = next_token(logits_, sequence, options.sampling, random);
    if (is_stop(options, next)) break;
    tokens.push_back(next);
    if (options.on_token) options.on_token(next);
    if (options.is_stopped && options.is_stopped()) break;
    if (cache_.length() == cache_.capacity() ||
        static_cast<std::int64_t>(tokens.size()) == options.tokens_max)
      break;
    TROUPE_RETURN_IF_ERROR(decode(std::span(&next, 1), cached_.size()));
  }
  return tokens;
}

Result<std::vector<std::vector<std::int32_t>>> generate_all(
    Model& model, Operators& operators, UnitAccess& units,
    std::span<const GenerateRequest> requests, const GenerateOptions& options) {
  TROUPE_RETURN_IF_ERROR(check_sampling(options.sampling));
  const ModelConfig& config = model.config();
  // New tokens behind a prompt; at least one, as transformers makes.
  const auto room = [&](const std::vector<std::int32_t>& prompt) {
    return options.length_max > 0
               ? std::max<std::int64_t>(1, options.length_max - std::ssize(prompt))
               : options.tokens_max;
  };
  std::int64_t longest = std::ssize(requests);
  for (const GenerateRequest& request : requests) {
    if (request.prompt.empty())
      return error(Code::kInvalidArgument, "the prompt has no tokens; begin with the bos token");
    longest = std::max(longest, std::ssize(request.prompt) + room(request.prompt));
  }
  const std::int64_t capacity = capacity_of(config, longest);
  // A prompt at a time, then a token of each sequence at a time.
  Activations activations(
      config,
      {.rows_max = 1, .length_max = std::max(capacity, std::ssize(requests)), .training = false},
      operators);
  const auto vocabulary = static_cast<std::size_t>(config.vocab_size);
  std::vector<std::vector<std::int32_t>> made(requests.size());
  std::vector<std::unique_ptr<Growing>> open;
  std::vector<float> logits(vocabulary * requests.size());
  // Takes the next token of a sequence; whether another one is wanted.
  const auto grow = [&](Growing& one, std::span<float> its_logits) {
    auto& tokens = made[one.number];
    const std::int64_t tokens_max = room(requests[one.number].prompt);
    if (std::ssize(tokens) >= tokens_max) return false;
    const std::int32_t next = next_token(its_logits, one.sequence, options.sampling, one.random);
    if (is_stop(options, next)) return false;
    tokens.push_back(next);
    return one.cache.length() < one.cache.capacity() && std::ssize(tokens) < tokens_max;
  };
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const auto& prompt = requests[i].prompt;
    auto one = std::make_unique<Growing>(
        i, config, capacity_of(config, std::ssize(prompt) + room(prompt)), requests[i].seed);
    one->sequence = prompt;
    const auto its_logits = std::span(logits).first(vocabulary);
    TROUPE_RETURN_IF_ERROR(model.decode(prompt, one->cache, units, activations, its_logits));
    if (grow(*one, its_logits)) open.push_back(std::move(one));
  }
  while (!open.empty() && !(options.is_stopped && options.is_stopped())) {
    std::vector<std::int32_t> last;
    std::vector<KvCache*> caches;
    for (const auto& one : open) {
      last.push_back(one->sequence.back());
      caches.push_back(&one->cache);
    }
    const auto their_logits = std::span(logits).first(vocabulary * open.size());
    TROUPE_RETURN_IF_ERROR(model.decode_each(last, caches, units, activations, their_logits));
    std::vector<std::unique_ptr<Growing>> left;
    for (std::size_t i = 0; i < open.size(); ++i) {
      if (grow(*open[i], their_logits.subspan(i * vocabulary, vocabulary)))
        left.push_back(std::move(open[i]));
    }
    open = std::move(left);
  }
  return made;
}

}  // namespace troupe::train
