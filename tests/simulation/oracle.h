#pragma once
// What an undisturbed run computes: small integers in place of tensors. Every function mixes, so
// that whatever is done twice, left out, in another order or with another norm gives other values.

#include <cstdint>
#include <vector>

#include "train/data/sampler.h"
#include "train/transaction/step_transaction.h"

namespace troupe::simulation {

inline constexpr int kChunks = 4;  // of a rank

std::uint64_t mixed(std::uint64_t a, std::uint64_t b);
// Of all ranks' parameters, by rank and chunk.
std::uint64_t digest_of(const std::vector<std::uint64_t>& parameters);
// A rank's part of a step's gradient: from all parameters and the samples it trains on.
std::uint64_t gradient_of(std::uint64_t parameters_digest, const train::StepPlan& plan, int rank,
                          std::int64_t step);
// Reduced over all ranks' parts, of one chunk of a shard.
std::uint64_t reduced_of(const std::vector<std::uint64_t>& parts, int shard, int chunk);
// A rank's part of the norm, and the norm.
std::uint64_t norm_part(const std::vector<std::uint64_t>& reduced);
double norm_of(const std::vector<std::uint64_t>& parts);
std::uint64_t updated(std::uint64_t value, std::uint64_t reduced, double norm, std::int64_t step);

class Oracle {
 public:
  // `shards`: which each rank holds, by rank.
  Oracle(std::vector<int> shards, train::Sampler& sampler);

  // All ranks' chunks after `step` steps, by rank and chunk.
  const std::vector<std::uint64_t>& parameters(std::int64_t step);
  std::uint64_t digest(std::int64_t step);
  const train::CommitRecord& record(std::int64_t step);

 private:
  void compute(std::int64_t step);

  const std::vector<int> shards_;
  train::Sampler& sampler_;
  std::vector<std::vector<std::uint64_t>> parameters_;
  std::vector<std::uint64_t> digests_;
  std::vector<train::CommitRecord> records_;
};

}  // namespace troupe::simulation
