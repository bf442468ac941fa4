#include "oracle.h"

#include <utility>

namespace troupe::simulation {

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

std::uint64_t gradient_of(std::uint64_t parameters_digest, const train::StepPlan& plan, int rank,
                          std::int64_t step) {
  std::uint64_t gradient = mixed(parameters_digest, static_cast<std::uint64_t>(step));
  for (std::int64_t micro = 0; micro < plan.micro_batch_count(); ++micro) {
    for (const std::uint32_t sample : plan.samples(micro, rank)) gradient = mixed(gradient, sample);
  }
  return gradient;
}

std::uint64_t reduced_of(const std::vector<std::uint64_t>& parts, int shard, int chunk) {
  std::uint64_t reduced =
      mixed(static_cast<std::uint64_t>(shard), static_cast<std::uint64_t>(chunk));
  for (const std::uint64_t part : parts) reduced = mixed(reduced, part);
  return reduced;
}

std::uint64_t norm_part(const std::vector<std::uint64_t>& reduced) {
  std::uint64_t part = 3;
  for (const std::uint64_t value : reduced) part = mixed(part, value);
  return part;
}

double norm_of(const std::vector<std::uint64_t>& parts) {
  // Exact in a double.
  return static_cast<double>(norm_part(parts) >> 12);
}

std::uint64_t updated(std::uint64_t value, std::uint64_t reduced, double norm, std::int64_t step) {
  return mixed(mixed(value, reduced),
               static_cast<std::uint64_t>(norm) + static_cast<std::uint64_t>(step));
}

Oracle::Oracle(std::vector<int> shards, train::Sampler& sampler)
    : shards_(std::move(shards)), sampler_(sampler) {
  parameters_.emplace_back();
  for (const int shard : shards_) {
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      parameters_.back().push_back(mixed(17, static_cast<std::uint64_t>(shard * kChunks + chunk)));
    }
  }
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
    for (int rank = 0; rank < static_cast<int>(shards_.size()); ++rank) {
      parts.push_back(gradient_of(digests_.back(), plan, rank, record.step));
    }
    std::vector<std::uint64_t> reduced;
    std::vector<std::uint64_t> norms;
    for (const int shard : shards_) {
      std::vector<std::uint64_t> own;
      for (int chunk = 0; chunk < kChunks; ++chunk) own.push_back(reduced_of(parts, shard, chunk));
      norms.push_back(norm_part(own));
      reduced.insert(reduced.end(), own.begin(), own.end());
    }
    record.grad_norm = norm_of(norms);
    std::vector<std::uint64_t> next = parameters_.back();
    for (std::size_t i = 0; i < next.size(); ++i) {
      next[i] = updated(next[i], reduced[i], record.grad_norm, record.step);
    }
    parameters_.push_back(std::move(next));
    digests_.push_back(digest_of(parameters_.back()));
    records_.push_back(record);
  }
}

}  // namespace troupe::simulation
