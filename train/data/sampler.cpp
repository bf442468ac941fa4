#include "train/data/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "runtime/base/check.h"

namespace troupe::train {

namespace {

// Epochs whose packings are looked at to count their steps.
constexpr std::int64_t kPackedEpochsMax = 10'000;

// torch.randperm.
void permute(std::span<std::uint32_t> order, std::mt19937& generator) {
  TROUPE_CHECK(std::ssize(order) <= kPermutationSizeMax);
  std::iota(order.begin(), order.end(), 0u);
  const auto count = static_cast<std::uint32_t>(order.size());
  for (std::uint32_t i = 0; i + 1 < count; ++i) {
    const auto offset = static_cast<std::uint32_t>(generator() % (count - i));
    std::swap(order[i], order[i + offset]);
  }
}

}  // namespace

void random_permute(std::span<std::uint32_t> order, std::uint32_t seed) {
  std::mt19937 generator(seed);
  permute(order, generator);
}

std::vector<std::uint32_t> random_permutation(std::uint32_t count, std::uint32_t seed) {
  std::vector<std::uint32_t> order(count);
  random_permute(order, seed);
  return order;
}

std::vector<std::uint32_t> length_grouped_order(std::span<const std::int32_t> lengths,
                                                std::int64_t batch, std::uint32_t seed,
                                                std::int64_t epoch) {
  constexpr std::int64_t kBatchesMax = 50;
  const auto count = static_cast<std::uint32_t>(lengths.size());
  const auto batches = std::clamp<std::int64_t>(std::ssize(lengths) / (batch * 4), 1, kBatchesMax);
  std::mt19937 generator(seed);
  // Each epoch takes the 64 bits of the data loader's seed, then a permutation.
  const auto draws = 2 + static_cast<std::uint64_t>(std::max<std::uint32_t>(count, 1) - 1);
  generator.discard(static_cast<std::uint64_t>(epoch) * draws + 2);
  std::vector<std::uint32_t> order(count);
  permute(order, generator);
  const auto longer = [&](std::uint32_t a, std::uint32_t b) { return lengths[a] > lengths[b]; };
  std::size_t longest = 0;  // where the megabatch with the longest sample begins
  const auto step = static_cast<std::size_t>(batches * batch);
  for (std::size_t at = 0; at < order.size(); at += step) {
    const auto begin = order.begin() + static_cast<std::ptrdiff_t>(at);
    const auto end = order.begin() + static_cast<std::ptrdiff_t>(std::min(at + step, order.size()));
    std::stable_sort(begin, end, longer);
    if (longer(*begin, order[longest])) longest = at;
  }
  if (!order.empty()) std::swap(order.front(), order[longest]);
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
  if (options.length_group > 0 && options.shuffle && !options.lengths) {
    return error(Code::kUnsupported,
                 "group_by_length needs a data set whose lengths are known: leave it out");
  }
  Sampler out(options);
  if (options.packing) {
    TROUPE_CHECK(options.lengths && std::ssize(*options.lengths) == options.sample_count);
    if (out.rounds_from(0, 0) == 0) {
      return error(Code::kInvalidArgument,
                   "packing leaves nothing to train on: {} samples make {} micro-batches for {} "
                   "workers; use fewer workers or a smaller batch",
                   options.sample_count, out.batch_count(0), options.world_size);
    }
    return out;
  }
  if (options.drop_last && out.rounds_from(0, 0) == 0) {
    return error(Code::kInvalidArgument,
                 "dataloader_drop_last leaves nothing: {} samples are fewer than {} workers × {} "
                 "sequences; use dataloader_drop_last: false or a smaller batch",
                 options.sample_count, options.world_size, options.per_device_batch_size);
  }
  return out;
}

// Rounds (one micro-batch on every rank) from a position to the end of the epoch.
std::int64_t Sampler::rounds_from(std::int64_t epoch, std::int64_t sample) const {
  if (options_.packing)
    return std::max<std::int64_t>(batch_count(epoch) - sample, 0) / options_.world_size;
  const auto left = std::max<std::int64_t>(options_.sample_count - sample, 0);
  return options_.drop_last ? left / round_size() : (left + round_size() - 1) / round_size();
}

std::int64_t Sampler::steps_of(std::int64_t epoch) const {
  const auto accumulation = options_.gradient_accumulation_steps;
  return std::max<std::int64_t>((rounds_from(epoch, 0) + accumulation - 1) / accumulation, 1);
}

std::int64_t Sampler::steps_per_epoch() const { return steps_of(0); }

std::optional<std::int64_t> Sampler::packed_batches() const {
  return options_.packing ? std::optional(batch_count(0)) : std::nullopt;
}

std::int64_t Sampler::batch_count(std::int64_t epoch) const {
  // No run is that long; where a damaged cursor says so, its end comes all the same.
  epoch = std::min(epoch, kPackedEpochsMax);
  const auto known = counts_.find(epoch);
  if (known != counts_.end()) return known->second;
  return counts_[epoch] = std::ssize(batches_of(epoch));
}

std::vector<std::vector<std::uint32_t>> Sampler::batches_of(std::int64_t epoch) const {
  auto out = pack_samples(order_of(epoch), *options_.lengths, *options_.packing);
  // Where an order happens to have no micro-batch for every rank, the first one, which has, is
  // taken again.
  if (epoch > 0 && std::ssize(out) < options_.world_size) return batches_of(0);
  return out;
}

std::int64_t Sampler::total_steps(double epochs) const {
  return static_cast<std::int64_t>(std::ceil(epochs * static_cast<double>(steps_per_epoch())));
}

std::int64_t Sampler::steps_at(const SampleCursor& cursor) const {
  const auto accumulation = options_.gradient_accumulation_steps;
  const auto left =
      (rounds_from(cursor.epoch, cursor.next_sample) + accumulation - 1) / accumulation;
  if (!options_.packing) return (cursor.epoch + 1) * steps_per_epoch() - left;
  std::int64_t steps = 0;
  const auto counted = std::min(cursor.epoch, kPackedEpochsMax);
  for (std::int64_t epoch = 0; epoch < counted; ++epoch) steps += steps_of(epoch);
  return steps + (cursor.epoch - counted) * steps_of(0) + steps_of(cursor.epoch) - left;
}

SampleCursor Sampler::cursor_after(std::int64_t steps) {
  SampleCursor cursor;
  if (options_.packing) {
    while (cursor.epoch < kPackedEpochsMax && steps >= steps_of(cursor.epoch))
      steps -= steps_of(cursor.epoch++);
    cursor.consumed_samples = cursor.epoch * options_.sample_count;
    for (auto left = std::min(steps, steps_of(cursor.epoch)); left > 0; --left)
      cursor = next_step(cursor).after;
    return cursor;
  }
  cursor.epoch = std::min(steps / steps_per_epoch(), kEpochsMax);
  cursor.consumed_samples =
      cursor.epoch * std::min(rounds_from(0, 0) * round_size(), options_.sample_count);
  for (auto left = steps % steps_per_epoch(); left > 0; --left) cursor = next_step(cursor).after;
  return cursor;
}

std::vector<std::uint32_t> Sampler::order_of(std::int64_t epoch) const {
  const auto count = static_cast<std::uint32_t>(options_.sample_count);
  if (options_.shuffle && options_.length_group > 0)
    return length_grouped_order(*options_.lengths, options_.length_group, options_.seed, epoch);
  if (options_.shuffle)
    return random_permutation(count, options_.seed + static_cast<std::uint32_t>(epoch));
  std::vector<std::uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0u);
  return order;
}

void Sampler::prepare(std::int64_t epoch) {
  if (epoch == epoch_) return;
  epoch_ = epoch;
  order_.clear();
  if (options_.packing) {
    batches_ = batches_of(std::min(epoch, kPackedEpochsMax));
    counts_[epoch] = std::ssize(batches_);
  } else if (options_.shuffle) {
    order_ = order_of(epoch);
  }
}

std::uint32_t Sampler::sample_at(std::int64_t position) const {
  position %= options_.sample_count;
  return order_.empty() ? static_cast<std::uint32_t>(position)
                        : order_[static_cast<std::size_t>(position)];
}

StepPlan Sampler::next_step(const SampleCursor& cursor) {
  SampleCursor now = cursor;
  if (rounds_from(now.epoch, now.next_sample) == 0) {
    ++now.epoch;
    now.next_sample = 0;
  }
  prepare(now.epoch);
  if (options_.packing) return next_packed_step(now);
  StepPlan plan;
  plan.epoch = now.epoch;
  plan.world_size = options_.world_size;
  const auto rounds_left = rounds_from(now.epoch, now.next_sample);
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

StepPlan Sampler::next_packed_step(SampleCursor now) {
  StepPlan plan;
  plan.epoch = now.epoch;
  plan.world_size = options_.world_size;
  const auto rounds_left = rounds_from(now.epoch, now.next_sample);
  const auto rounds = std::min(rounds_left, options_.gradient_accumulation_steps);
  plan.after = now;
  for (std::int64_t i = 0; i < rounds * options_.world_size; ++i) {
    plan.batches.push_back(batches_[static_cast<std::size_t>(plan.after.next_sample++)]);
    plan.after.consumed_samples += std::ssize(plan.batches.back());
  }
  plan.last_of_epoch = rounds == rounds_left;
  if (plan.last_of_epoch) {
    ++plan.after.epoch;
    plan.after.next_sample = 0;
  }
  return plan;
}

}  // namespace troupe::train
