#include "train/data/sample_packing.h"

#include <doctest/doctest.h>

#include <numeric>

#include "train/data/sampler.h"

namespace troupe::train {
namespace {

using Bins = std::vector<std::vector<std::uint32_t>>;

const std::vector<std::int32_t> kLengths = {5, 7, 3, 8, 2, 6, 4, 1, 9, 5, 3, 7};

SamplerOptions options_of(int world_size = 1, std::int64_t accumulation = 1) {
  SamplerOptions options{.sample_count = std::ssize(kLengths),
                         .world_size = world_size,
                         .per_device_batch_size = 1,
                         .gradient_accumulation_steps = accumulation,
                         .packing = SamplePacking{.capacity = 12},
                         .lengths = nullptr};
  options.lengths = std::make_shared<std::vector<std::int32_t>>(kLengths);
  return options;
}

TEST_CASE("bins of three epochs as Axolotl's sampler made them") {
  auto sampler = Sampler::make(options_of()).value();
  const Bins expected[] = {{{6, 1, 7}, {8, 2}, {0, 10, 4}, {11, 9}, {3}, {5}},
                           {{4, 6, 7, 2}, {9, 1}, {8, 10}, {5, 0}, {11}, {3}},
                           {{4, 5, 7, 10}, {9, 1}, {3, 6}, {8, 2}, {11, 0}}};
  SampleCursor cursor;
  std::int64_t steps = 0;
  for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
    for (std::size_t bin = 0; bin < expected[epoch].size(); ++bin) {
      const auto plan = sampler.next_step(cursor);
      CHECK(plan.epoch == epoch);
      REQUIRE(plan.batches.size() == 1);
      CHECK(plan.batches[0] == expected[epoch][bin]);
      CHECK(plan.last_of_epoch == (bin + 1 == expected[epoch].size()));
      cursor = plan.after;
      ++steps;
      CHECK(sampler.steps_at(cursor) == steps);
      auto again = sampler.cursor_after(steps);
      CHECK(again.epoch == cursor.epoch);
      CHECK(again.next_sample == cursor.next_sample);
    }
  }
  CHECK(cursor.consumed_samples == 36);
  CHECK(sampler.packed_batches() == 6);
}

TEST_CASE("ranks take micro-batches in turn, and an incomplete round is left out") {
  auto sampler = Sampler::make(options_of(4)).value();
  const auto plan = sampler.next_step({});
  REQUIRE(plan.batches.size() == 4);
  CHECK(plan.batches[2] == std::vector<std::uint32_t>{0, 10, 4});
  CHECK(plan.last_of_epoch);
  auto two = Sampler::make(options_of(2, 2)).value();
  CHECK(two.steps_per_epoch() == 2);
  const auto first = two.next_step({});
  CHECK(first.batches.size() == 4);
  const auto second = two.next_step(first.after);
  CHECK(second.batches.size() == 2);
  CHECK(second.last_of_epoch);
  CHECK_FALSE(Sampler::make(options_of(7)).ok());
}

TEST_CASE("bins of several rows, full ones, and next fit") {
  std::vector<std::uint32_t> order(kLengths.size());
  std::iota(order.begin(), order.end(), 0u);
  const SamplePacking packing{.capacity = 12};
  // 5 7 | 3 8 1 | 2 6 4 | 9 3 | 5 7
  const Bins bins = {{0, 1}, {2, 3, 7}, {4, 5, 6}, {8, 10}, {9, 11}};
  CHECK(pack_samples(order, kLengths, packing) == bins);
  auto rows = packing;
  rows.batch_bins = 2;  // the fifth is left out
  CHECK(pack_samples(order, kLengths, rows) == Bins{{0, 1, 2, 3, 7}, {4, 5, 6, 8, 10}});
  auto few = packing;
  few.bin_size = 2;
  CHECK(pack_samples(order, kLengths, few) ==
        Bins{{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8, 10}, {9, 11}});
  auto groups = packing;
  groups.group_size = 3;
  CHECK(pack_samples(order, kLengths, groups) ==
        Bins{{0, 1}, {2}, {3, 4}, {5}, {6, 7}, {8}, {9, 10}, {11}});
  auto next = packing;
  next.sequentially = true;
  CHECK(pack_samples(order, kLengths, next) ==
        Bins{{0, 1}, {2, 3}, {4, 5, 6}, {7, 8}, {9, 10}, {11}});
}

}  // namespace
}  // namespace troupe::train
