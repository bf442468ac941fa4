#include "train/data/sampler.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>

#include "runtime/base/random.h"

namespace troupe::train {
namespace {

using Ids = std::vector<std::uint32_t>;

Ids list(std::span<const std::uint32_t> samples) { return {samples.begin(), samples.end()}; }

Sampler make(std::int64_t count, std::int64_t world, std::int64_t batch, std::int64_t gas = 1,
             bool shuffle = true) {
  SamplerOptions options;
  options.sample_count = count;
  options.world_size = world;
  options.per_device_batch_size = batch;
  options.gradient_accumulation_steps = gas;
  options.shuffle = shuffle;
  return Sampler::make(options).value();
}

TEST_CASE("the reference's permutation") {
  CHECK(random_permutation(10, 42) == Ids{2, 6, 1, 8, 4, 5, 0, 9, 3, 7});
  CHECK(random_permutation(10, 43) == Ids{8, 4, 9, 0, 5, 1, 6, 7, 2, 3});
  CHECK(random_permutation(1, 42) == Ids{0});
  CHECK(random_permutation(0, 42).empty());
}

TEST_CASE("one rank: consecutive batches, a short last one, the next epoch's own order") {
  auto sampler = make(10, 1, 4);
  CHECK(sampler.steps_per_epoch() == 3);
  CHECK(sampler.total_steps(3.0) == 9);
  CHECK(sampler.total_steps(0.5) == 2);
  auto plan = sampler.next_step({});
  CHECK(list(plan.samples(0, 0)) == Ids{2, 6, 1, 8});
  CHECK_FALSE(plan.last_of_epoch);
  CHECK(plan.after == SampleCursor{0, 4, 4});
  plan = sampler.next_step({0, 8, 8});
  CHECK(list(plan.samples(0, 0)) == Ids{3, 7});
  CHECK(plan.last_of_epoch);
  CHECK(plan.after == SampleCursor{1, 0, 10});
  plan = sampler.next_step(plan.after);
  CHECK(plan.epoch == 1);
  CHECK(list(plan.samples(0, 0)) == Ids{8, 4, 9, 0});
}

TEST_CASE("several ranks: batch i goes to rank i mod W, the last round wraps around") {
  auto sampler = make(10, 2, 3);
  CHECK(sampler.steps_per_epoch() == 2);
  auto plan = sampler.next_step({});
  CHECK(list(plan.samples(0, 0)) == Ids{2, 6, 1});
  CHECK(list(plan.samples(0, 1)) == Ids{8, 4, 5});
  plan = sampler.next_step(plan.after);
  CHECK(list(plan.samples(0, 0)) == Ids{0, 9, 3});
  CHECK(list(plan.samples(0, 1)) == Ids{7, 2, 6});  // 2 and 6 a second time
  CHECK(plan.after == SampleCursor{1, 0, 10});

  auto few = make(2, 4, 2);  // fewer samples than places: again and again
  plan = few.next_step({});
  const auto order = random_permutation(2, 42);
  CHECK(list(plan.samples(0, 3)) == order);
  CHECK(list(plan.samples(0, 0)) == order);
}

TEST_CASE("accumulation: the last group of an epoch is short") {
  auto sampler = make(10, 1, 2, 2);
  CHECK(sampler.steps_per_epoch() == 3);
  auto plan = sampler.next_step({});
  REQUIRE(plan.micro_batch_count() == 2);
  CHECK(list(plan.samples(1, 0)) == Ids{1, 8});
  plan = sampler.next_step({0, 8, 8});
  CHECK(plan.micro_batch_count() == 1);
  CHECK(plan.last_of_epoch);
}

TEST_CASE("disable_shuffling keeps the order of the file; evaluation takes every sample once") {
  auto sampler = make(5, 1, 2, 1, false);
  CHECK(list(sampler.next_step({0, 2, 2}).samples(0, 0)) == Ids{2, 3});

  SamplerOptions options;
  options.sample_count = 5;
  options.world_size = 4;
  options.per_device_batch_size = 2;
  options.shuffle = false;
  options.even_batches = false;
  auto evaluation = Sampler::make(options).value();
  const auto plan = evaluation.next_step({});
  CHECK(list(plan.samples(0, 1)) == Ids{2, 3});
  CHECK(list(plan.samples(0, 2)) == Ids{4});
  CHECK(plan.samples(0, 3).empty());
  CHECK(plan.last_of_epoch);
}

TEST_CASE("drop_last leaves out the round that is not full") {
  SamplerOptions options;
  options.sample_count = 10;
  options.world_size = 2;
  options.per_device_batch_size = 2;
  options.drop_last = true;
  auto sampler = Sampler::make(options).value();
  CHECK(sampler.steps_per_epoch() == 2);
  const auto plan = sampler.next_step({0, 4, 4});
  CHECK(plan.last_of_epoch);
  CHECK(plan.after == SampleCursor{1, 0, 8});
  options.sample_count = 3;
  CHECK_FALSE(Sampler::make(options).ok());
}

TEST_CASE("the same global batch at any world size") {
  for (const std::int64_t world : {1, 2, 4}) {
    auto sampler = make(32, world, 8 / world);
    SampleCursor cursor;
    for (int step = 0; step < 9; ++step) {
      const auto plan = sampler.next_step(cursor);
      Ids all;
      for (std::int64_t rank = 0; rank < world; ++rank) {
        for (const auto id : plan.samples(0, rank)) all.push_back(id);
      }
      const auto order = random_permutation(32, 42 + static_cast<std::uint32_t>(step / 4));
      CHECK(std::equal(all.begin(), all.end(), order.begin() + step % 4 * 8));
      cursor = plan.after;
    }
  }
}

TEST_CASE("a resume at another world size goes on with the samples not seen yet") {
  auto before = make(23, 2, 2);
  SampleCursor cursor;
  std::map<std::uint32_t, int> seen;
  for (int step = 0; step < 3; ++step) {
    const auto plan = before.next_step(cursor);
    for (const auto& batch : plan.batches) {
      for (const auto id : batch) ++seen[id];
    }
    cursor = plan.after;
  }
  const auto stored = SampleCursor::from_json(cursor.to_json()).value();
  CHECK(stored == cursor);
  CHECK(stored.next_sample == 12);
  auto after = make(23, 1, 3);
  for (cursor = stored; cursor.epoch == 0;) {
    const auto plan = after.next_step(cursor);
    for (const auto& batch : plan.batches) {
      for (const auto id : batch) ++seen[id];
    }
    cursor = plan.after;
  }
  CHECK(seen.size() == 23);
  CHECK(std::all_of(seen.begin(), seen.end(), [](const auto& entry) { return entry.second == 1; }));
  CHECK(cursor.consumed_samples == 23);
}

TEST_CASE("where many steps lead is told without doing them") {
  for (const bool drop_last : {false, true}) {
    auto sampler = Sampler::make({.sample_count = 23,
                                  .world_size = 2,
                                  .per_device_batch_size = 2,
                                  .gradient_accumulation_steps = 2,
                                  .drop_last = drop_last})
                       .value();
    SampleCursor cursor;
    for (std::int64_t steps = 0; steps < 12; ++steps) {
      CHECK(sampler.cursor_after(steps) == cursor);
      CHECK(sampler.steps_at(cursor) == steps);
      cursor = sampler.next_step(cursor).after;
    }
    CHECK(sampler.cursor_after(1'000'000'000'000'000).epoch == kEpochsMax);
  }
}

TEST_CASE("a cursor beyond what any run has trained on is damage") {
  const auto read = [](std::int64_t epoch, std::int64_t next, std::int64_t consumed) {
    return SampleCursor::from_json(SampleCursor{epoch, next, consumed}.to_json()).ok();
  };
  CHECK(read(kEpochsMax, kPermutationSizeMax, kEpochsMax));
  CHECK_FALSE(read(kEpochsMax + 1, 0, 0));
  CHECK_FALSE(read(0, std::int64_t{1} << 62, 0));
  CHECK_FALSE(read(0, 0, std::int64_t{1} << 62));
}

TEST_CASE("every sample once in an epoch, whatever the batches that it is trained in") {
  SeededRandom random(7);
  for (int round = 0; round < 200; ++round) {
    const auto samples = static_cast<std::int64_t>(1 + random.below(60));
    SampleCursor cursor;
    for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
      std::map<std::uint32_t, int> seen;
      while (cursor.epoch == epoch) {
        SamplerOptions options{
            .sample_count = samples,
            .world_size = static_cast<std::int64_t>(1 + random.below(5)),
            .per_device_batch_size = static_cast<std::int64_t>(1 + random.below(4)),
            .gradient_accumulation_steps = static_cast<std::int64_t>(1 + random.below(4))};
        auto sampler = Sampler::make(options).value();
        sampler.set_even_batches(false);
        const std::int64_t at = sampler.steps_at(cursor);
        CHECK(at <= (epoch + 1) * sampler.steps_per_epoch());
        for (std::uint64_t steps = 1 + random.below(4); steps > 0 && cursor.epoch == epoch;
             --steps) {
          const std::int64_t before = sampler.steps_at(cursor);
          const auto plan = sampler.next_step(cursor);
          cursor = plan.after;
          CHECK(sampler.steps_at(cursor) == before + 1);
          if (plan.last_of_epoch)
            CHECK(sampler.steps_at(cursor) == (epoch + 1) * sampler.steps_per_epoch());
          for (const auto& batch : plan.batches) {
            for (const auto id : batch) ++seen[id];
          }
        }
      }
      CHECK(seen.size() == static_cast<std::size_t>(samples));
      for (const auto& [id, count] : seen) CHECK_MESSAGE(count == 1, id);
    }
    CHECK(cursor.consumed_samples == 3 * samples);
  }
}

TEST_CASE("a batch that never changes is at its own steps") {
  auto sampler = make(23, 2, 2);
  SampleCursor cursor;
  for (std::int64_t step = 0; step < 15; ++step) {
    CHECK(sampler.steps_at(cursor) == step);
    cursor = sampler.next_step(cursor).after;
  }
}

TEST_CASE("wrong counts and damaged cursors are refused") {
  SamplerOptions options;
  CHECK(Sampler::make(options).status().message() ==
        "the number of samples is 0: must be in [1, 214748363]");
  options.sample_count = 1;
  options.per_device_batch_size = 0;
  CHECK_FALSE(Sampler::make(options).ok());
  CHECK(SampleCursor::from_json(json::Value()).status().code() == Code::kDataLoss);
  CHECK_FALSE(
      SampleCursor::from_json({{"epoch", -1}, {"next_sample", 0}, {"consumed_samples", 0}}).ok());
  // A cursor behind the data set's end (it has shrunk): the next epoch.
  CHECK(make(4, 1, 2).next_step({3, 100, 400}).epoch == 4);
}

}  // namespace
}  // namespace troupe::train
