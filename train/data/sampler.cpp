#include "train/data/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "runtime/base/check.h"

namespace troupe::train {

std::vector<std::uint32_t> random_permutation(std::uint32_t count, std::uint32_t seed) {
  TROUPE_CHECK(count <= kPermutationSizeMax);
  std::vector<std::uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0u);
  std::mt19937 generator(seed);
  for (std::uint32_t i = 0; i + 1 < count; ++i) {
    const auto offset = static_cast<std::uint32_t>(generator() % (count - i));
    std::swap(order[i], order[i + offset]);
  }
  return order;
}

json::Value SampleCursor::to_json() const {
  return {{"epoch", epoch}, {"next_sample", next_sample}, {"consumed_samples", consumed_samples}};
}

Result<SampleCursor> SampleCursor::from_json(const json::Value& value) {
  SampleCursor out;
  const std::pair<const char*, std::int64_t*> members[] = {
      {"epoch", &out.epoch},
      {"next_sample", &out.next_sample},
      {"consumed_samples", &out.consumed_samples}};
  for (const auto& [key, member] : members) {
    const auto number = json::find_integer(value, key);
    if (!number || *number < 0) {
      return error(Code::kDataLoss, "the sample cursor's '{}' is missing or no count", key);
    }
    *member = *number;
  }
  if (out.epoch > kEpochsMax || out.next_sample > kPermutationSizeMax ||
      out.consumed_samples > kEpochsMax * kPermutationSizeMax) {
    return error(Code::kDataLoss, "the sample cursor lies beyond what any run has trained on");
  }
  return out;
}

Result<Sampler> Sampler::make(const SamplerOptions& options) {
  const std::pair<const char*, std::int64_t> counts[] = {
      {"the number of samples", options.sample_count},
      {"the world size", options.world_size},
      {"the batch size per device", options.per_device_batch_size},
      {"gradient_accumulation_steps", options.gradient_accumulation_steps}};
  for (const auto& [name, count] : counts) {
    if (count < 1 || count > kPermutationSizeMax) {
      return error(Code::kInvalidArgument, "{} is {}: must be in [1, {}]", name, count,
                   kPermutationSizeMax);
    }
  }
  Sampler out(options);
  if (options.drop_last && out.rounds_from(0) == 0) {
    return error(Code::kInvalidArgument,
                 "dataloader_drop_last leaves nothing: {} samples, one round of all ranks takes {}",
                 options.sample_count, out.round_size());
  }
  return out;
}

// Rounds (one micro-batch on every rank) from a position to the end of the epoch.
std::int64_t Sampler::rounds_from(std::int64_t sample) const {
  const auto left = std::max<std::int64_t>(options_.sample_count - sample, 0);
  return options_.drop_last ? left / round_size() : (left + round_size() - 1) / round_size();
}

std::int64_t Sampler::steps_per_epoch() const {
  const auto accumulation = options_.gradient_accumulation_steps;
  return std::max<std::int64_t>((rounds_from(0) + accumulation - 1) / accumulation, 1);
}

std::int64_t Sampler::total_steps(double epochs) const {
  return static_cast<std::int64_t>(std::ceil(epochs * static_cast<double>(steps_per_epoch())));
}

std::int64_t Sampler::steps_at(const SampleCursor& cursor) const {
  const auto accumulation = options_.gradient_accumulation_steps;
  const auto left = (rounds_from(cursor.next_sample) + accumulation - 1) / accumulation;
  return (cursor.epoch + 1) * steps_per_epoch() - left;
}

SampleCursor Sampler::cursor_after(std::int64_t steps) {
  SampleCursor cursor;
  cursor.epoch = std::min(steps / steps_per_epoch(), kEpochsMax);
  cursor.consumed_samples =
      cursor.epoch * std::min(rounds_from(0) * round_size(), options_.sample_count);
  for (auto left = steps % steps_per_epoch(); left > 0; --left) cursor = next_step(cursor).after;
  return cursor;
}

void Sampler::prepare(std::int64_t epoch) {
  if (epoch == epoch_) return;
  epoch_ = epoch;
  order_.clear();
  if (!options_.shuffle) return;
  order_ = random_permutation(static_cast<std::uint32_t>(options_.sample_count),
                              options_.seed + static_cast<std::uint32_t>(epoch));
}

std::uint32_t Sampler::sample_at(std::int64_t position) const {
  position %= options_.sample_count;
  return order_.empty() ? static_cast<std::uint32_t>(position)
                        : order_[static_cast<std::size_t>(position)];
}

StepPlan Sampler::next_step(const SampleCursor& cursor) {
  SampleCursor now = cursor;
  if (rounds_from(now.next_sample) == 0) {
    ++now.epoch;
    now.next_sample = 0;
  }
  prepare(now.epoch);
  StepPlan plan;
  plan.epoch = now.epoch;
  plan.world_size = options_.world_size;
  const auto rounds_left = rounds_from(now.next_sample);
  const auto rounds = std::min(rounds_left, options_.gradient_accumulation_steps);
  const bool wrap = options_.even_batches && options_.world_size > 1;
  std::int64_t position = now.next_sample;
  for (std::int64_t i = 0; i < rounds * options_.world_size; ++i) {
    auto& batch = plan.batches.emplace_back();
    for (std::int64_t k = 0; k < options_.per_device_batch_size; ++k, ++position) {
      if (position < options_.sample_count || wrap) batch.push_back(sample_at(position));
    }
  }
  plan.last_of_epoch = rounds == rounds_left;
  plan.after = now;
  const auto reached = std::min(position, options_.sample_count);
  plan.after.consumed_samples += reached - now.next_sample;
  plan.after.next_sample = reached;
  if (plan.last_of_epoch) {
    ++plan.after.epoch;
    plan.after.next_sample = 0;
  }
  return plan;
}

}  // namespace troupe::train
