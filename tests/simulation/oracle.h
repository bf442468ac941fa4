#pragma once
// What an undisturbed run computes: small integers in place of tensors. Every function mixes, so
// that whatever is done twice, left out, in another order or with another norm gives other values.
//
// The model is a row of values, whatever the number of ranks that share them: sums are over
// micro-batches by their numbers, so that no value depends on who computed what (as with
// `deterministic: across_world_sizes`).

#include <cstdint>
#include <span>
#include <vector>

#include "train/data/sampler.h"
#include "train/transaction/step_transaction.h"

namespace troupe::simulation {

inline constexpr int kChunks = 4;  // of a rank

// How the ranks of a world share the model's values, and in which chunks a rank updates its own.
class Layout {
 public:
  struct Range {
    std::size_t begin = 0;
    std::size_t size = 0;
  };
  // `states`: which each rank holds, by rank.
  Layout(std::vector<int> states, std::size_t values);

  int ranks() const { return static_cast<int>(states_.size()); }
  const std::vector<int>& states() const { return states_; }
  // The part of the model's values that the rank holds.
  Range values(int rank) const;
  // The part of these that one of its chunks is.
  Range chunk(int rank, int chunk) const;
  // No chunk of any rank is larger.
  std::size_t chunk_size_max() const;

 private:
  const std::vector<int> states_;
  const std::size_t distinct_;
  const std::size_t values_;
};

std::uint64_t mixed(std::uint64_t a, std::uint64_t b);
// Of all parameters, in their order.
std::uint64_t digest_of(const std::vector<std::uint64_t>& parameters);
// A micro-batch's part of a step's gradient: from all parameters and the samples in it.
std::uint64_t gradient_of(std::uint64_t parameters_digest, std::span<const std::uint32_t> samples,
                          std::int64_t step);
// Of the parts of all micro-batches, by their numbers.
std::uint64_t reduced_of(std::uint64_t parts_digest, std::size_t value);
// What the reduced gradients of values from `first` on add to the norm, and the norm.
std::uint64_t norm_part(std::span<const std::uint64_t> reduced, std::size_t first);
double norm_of(std::uint64_t parts);
std::uint64_t updated(std::uint64_t value, std::uint64_t reduced, double norm, std::int64_t step);

class Oracle {
 public:
  Oracle(std::size_t values, train::Sampler& sampler);

  // All values after `step` steps.
  const std::vector<std::uint64_t>& parameters(std::int64_t step);
  std::uint64_t digest(std::int64_t step);
  const train::CommitRecord& record(std::int64_t step);

 private:
  void compute(std::int64_t step);

  train::Sampler& sampler_;
  std::vector<std::vector<std::uint64_t>> parameters_;
  std::vector<std::uint64_t> digests_;
  std::vector<train::CommitRecord> records_;
};

}  // namespace troupe::simulation
