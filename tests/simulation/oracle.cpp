#include "oracle.h"

#include <algorithm>
#include <utility>

namespace troupe::simulation {
namespace {

// The `number`th of `count` parts of that many.
Layout::Range part_of(std::size_t whole, std::size_t number, std::size_t count) {
  const std::size_t begin = whole * number / count;
  return {begin, whole * (number + 1) / count - begin};
}

}  // namespace

Layout::Layout(std::vector<int> states, std::size_t values)
    : states_(std::move(states)),
      distinct_(static_cast<std::size_t>(*std::ranges::max_element(states_)) + 1),
      values_(values) {}

Layout::Range Layout::values(int rank) const {
  const int state = states_[static_cast<std::size_t>(rank)];
  return part_of(values_, static_cast<std::size_t>(state), distinct_);
}

Layout::Range Layout::chunk(int rank, int chunk) const {
  return part_of(values(rank).size, static_cast<std::size_t>(chunk), kChunks);
}

std::size_t Layout::chunk_size_max() const { return (values_ / distinct_ + 1) / kChunks + 1; }

std::uint64_t mixed(std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = (a ^ (b + 0x9E3779B97F4A7C15u + (a << 6) + (a >> 2))) * 0xBF58476D1CE4E5B9u;
  x ^= x >> 29;
  return x * 0x94D049BB133111EBu;
}

std::uint64_t digest_of(const std::vector<std::uint64_t>& parameters) {
  std::uint64_t digest = 1;
  for (const std::uint64_t value : parameters) digest = mixed(digest, value);
  return digest;
}

std::uint64_t gradient_of(std::uint64_t parameters_digest, std::span<const std::uint32_t> samples,
                          std::int64_t step) {
  std::uint64_t gradient = mixed(parameters_digest, static_cast<std::uint64_t>(step));
  for (const std::uint32_t sample : samples) gradient = mixed(gradient, sample);
  return gradient;
}

std::uint64_t reduced_of(std::uint64_t parts_digest, std::size_t value) {
  return mixed(parts_digest, value);
}

// A sum: it does not matter how the values are shared.
std::uint64_t norm_part(std::span<const std::uint64_t> reduced, std::size_t first) {
  std::uint64_t part = 0;
  for (std::size_t i = 0; i < reduced.size(); ++i) part += mixed(reduced[i], first + i);
  return part;
}

double norm_of(std::uint64_t parts) {
  // Exact in a double.
  return static_cast<double>(parts >> 12);
}

std::uint64_t updated(std::uint64_t value, std::uint64_t reduced, double norm, std::int64_t step) {
  return mixed(mixed(value, reduced),
               static_cast<std::uint64_t>(norm) + static_cast<std::uint64_t>(step));
}

Oracle::Oracle(std::size_t values, train::Sampler& sampler) : sampler_(sampler) {
  parameters_.emplace_back();
  for (std::size_t value = 0; value < values; ++value)
    parameters_.back().push_back(mixed(17, value));
  digests_.push_back(digest_of(parameters_.back()));
  records_.emplace_back();
}

const std::vector<std::uint64_t>& Oracle::parameters(std::int64_t step) {
  compute(step);
  return parameters_[static_cast<std::size_t>(step)];
}

std::uint64_t Oracle::digest(std::int64_t step) {
  compute(step);
  return digests_[static_cast<std::size_t>(step)];
}

const train::CommitRecord& Oracle::record(std::int64_t step) {
  compute(step);
  return records_[static_cast<std::size_t>(step)];
}

void Oracle::compute(std::int64_t step) {
  while (static_cast<std::int64_t>(records_.size()) <= step) {
    train::CommitRecord record = records_.back();
    const train::StepPlan plan = sampler_.next_step(record.cursor);
    record.step += 1;
    record.cursor = plan.after;
    std::vector<std::uint64_t> parts;
    for (const auto& samples : plan.batches)
      parts.push_back(gradient_of(digests_.back(), samples, record.step));
    const std::uint64_t parts_digest = digest_of(parts);
    std::vector<std::uint64_t> next = parameters_.back();
    std::vector<std::uint64_t> reduced;
    for (std::size_t value = 0; value < next.size(); ++value)
      reduced.push_back(reduced_of(parts_digest, value));
    record.grad_norm = norm_of(norm_part(reduced, 0));
    for (std::size_t value = 0; value < next.size(); ++value)
      next[value] = updated(next[value], reduced[value], record.grad_norm, record.step);
    parameters_.push_back(std::move(next));
    digests_.push_back(digest_of(parameters_.back()));
    records_.push_back(record);
  }
}

}  // namespace troupe::simulation
