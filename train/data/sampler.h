#pragma once
// Which samples a rank trains on in which step: the reference's order, and a cursor into it that is
// independent of the number of ranks.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/base/status.h"
#include "train/data/sample_packing.h"

namespace troupe::train {

// torch.randperm(count) with a generator of that seed: init_genrand(seed), then for i = 0 … n − 2
// the next 32 bits modulo n − i give what i is swapped with. Up to kPermutationSizeMax.
std::vector<std::uint32_t> random_permutation(std::uint32_t count, std::uint32_t seed);
void random_permute(std::span<std::uint32_t> order, std::uint32_t seed);
// transformers' LengthGroupedSampler: shuffled by the generator that torch.manual_seed(seed) leaves
// to `epoch`, where nothing else draws from it; in megabatches of up to 50 `batch`es, the longest
// first in each, and the longest of all in the very first place.
std::vector<std::uint32_t> length_grouped_order(std::span<const std::int32_t> lengths,
                                                std::int64_t batch, std::uint32_t seed,
                                                std::int64_t epoch);
// Above it torch draws 64 bits.
inline constexpr std::int64_t kPermutationSizeMax = (std::int64_t{1} << 32) / 20 - 1;

// Epochs that no run has done. A count beyond it is damage, which must not make a run without end.
inline constexpr std::int64_t kEpochsMax = std::int64_t{1} << 32;

// Where a run is in its data. Written into checkpoints; read by a run of any world size, which goes
// on with the samples that were not trained on in this epoch.
struct SampleCursor {
  std::int64_t epoch = 0;
  std::int64_t next_sample = 0;       // index into the epoch's order
  std::int64_t consumed_samples = 0;  // since the run began; wrapped-around ones are not counted

  json::Value to_json() const;
  static Result<SampleCursor> from_json(const json::Value& value);
  friend bool operator==(const SampleCursor&, const SampleCursor&) = default;
};

struct SamplerOptions {
  std::int64_t sample_count = 0;
  std::int64_t world_size = 1;
  std::int64_t per_device_batch_size = 8;
  std::int64_t gradient_accumulation_steps = 1;
  std::uint32_t seed = 42;  // data_seed, else seed; epoch e uses seed + e
  bool shuffle = true;      // false: disable_shuffling, and evaluation
  bool drop_last = false;   // leave out the last round where it is not full
  // More than one rank: the last round is completed with the epoch's first samples (accelerate's
  // even_batches; one rank has a short last batch instead). False for evaluation, and for a run
  // whose batch changed on the way: every sample once, some ranks with short or empty batches.
  bool even_batches = true;
  // Samples are packed anew in every epoch, in its order. A cursor's next_sample then counts
  // micro-batches; the last round of an epoch is left out where not every rank has one.
  std::optional<SamplePacking> packing;
  // Above 0 (group_by_length): samples of like length follow each other, so many of them a batch.
  std::int64_t length_group = 0;
  // Of all samples, with packing or length_group.
  std::shared_ptr<const std::vector<std::int32_t>> lengths;
};

// The samples of one optimizer step.
struct StepPlan {
  std::int64_t epoch = 0;
  std::int64_t world_size = 1;
  bool last_of_epoch = false;
  SampleCursor after;  // where the next step begins
  // Of a stream: the number in its epoch of the sample that batches call 0.
  std::int64_t first_sample = 0;

  std::int64_t micro_batch_count() const {
    return static_cast<std::int64_t>(batches.size()) / world_size;
  }
  // The samples that `rank` trains on in accumulation step `micro_batch`.
  std::span<const std::uint32_t> samples(std::int64_t micro_batch, std::int64_t rank) const {
    return batches[static_cast<std::size_t>(micro_batch * world_size + rank)];
  }
  std::vector<std::vector<std::uint32_t>> batches;  // (micro-batches, ranks)
};

// Deterministic: equal options and cursors give equal plans everywhere. Remembers the order of the
// last epoch asked for; one thread at a time.
class Sampler {
 public:
  // kInvalidArgument where a count is not positive or the data set is too large.
  static Result<Sampler> make(const SamplerOptions& options);

  // Optimizer steps of an epoch from its begin: ceil of batches per rank / accumulation, at
  // least 1. With packing, of the first epoch: others may have more or fewer.
  std::int64_t steps_per_epoch() const;
  // ceil(epochs · steps_per_epoch()).
  std::int64_t total_steps(double epochs) const;
  // Where `cursor` is in steps of these options: those of the epochs before, and those of its epoch
  // less the ones that are still to come. From a cursor that next_step() gave it is one step more
  // after each, whatever the steps were that led there.
  std::int64_t steps_at(const SampleCursor& cursor) const;
  // Where that many steps of these options lead.
  SampleCursor cursor_after(std::int64_t steps);
  // The step that begins at `cursor`; a cursor at the end of an epoch means the next one's begin.
  StepPlan next_step(const SampleCursor& cursor);

  // Micro-batches of all ranks in the first epoch, with packing.
  std::optional<std::int64_t> packed_batches() const;

  // From now on, instead of SamplerOptions::even_batches.
  void set_even_batches(bool even) { options_.even_batches = even; }

 private:
  explicit Sampler(const SamplerOptions& options) : options_(options) {}
  std::int64_t round_size() const { return options_.world_size * options_.per_device_batch_size; }
  std::int64_t rounds_from(std::int64_t epoch, std::int64_t sample) const;
  std::int64_t steps_of(std::int64_t epoch) const;
  std::vector<std::uint32_t> order_of(std::int64_t epoch) const;
  // Micro-batches that the samples of an epoch are packed into.
  std::int64_t batch_count(std::int64_t epoch) const;
  std::vector<std::vector<std::uint32_t>> batches_of(std::int64_t epoch) const;
  StepPlan next_packed_step(SampleCursor now);
  std::uint32_t sample_at(std::int64_t position) const;
  void prepare(std::int64_t epoch);

  SamplerOptions options_;
  std::int64_t epoch_ = -1;
  std::vector<std::uint32_t> order_;                     // empty: the order of the file
  std::vector<std::vector<std::uint32_t>> batches_;      // of the epoch, with packing
  mutable std::map<std::int64_t, std::int64_t> counts_;  // batch_count() of epochs asked for
};

}  // namespace troupe::train
