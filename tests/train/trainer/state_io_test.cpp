#include "train/trainer/state_io.h"

#include <doctest/doctest.h>

#include <thread>

#include "runtime/collective/cpu_communicator.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/test_data.h"
#include "train/cpu/arena.h"
#include "train/cpu/cpu_operators.h"
#include "train/model/model.h"

namespace troupe::train {
namespace {

using troupe::tests::FaultyFileSystem;

// A machine's disk with the golden model's folder, each byte of the weights' data xored.
std::unique_ptr<FaultyFileSystem> disk(unsigned char change, bool with_weights = true) {
  const std::string golden = troupe::tests::source_dir() + "/tests/golden/model/train_llama/";
  PosixFileSystem files;
  auto made = std::make_unique<FaultyFileSystem>();
  REQUIRE(made->create_directories("model").ok());
  const std::string config = files.read(golden + "config.json", 1 << 20).value();
  REQUIRE(write_file_atomically(*made, "model/config.json", config).ok());
  if (!with_weights) return made;
  std::string weights = files.read(golden + "model.safetensors", 1 << 20).value();
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, weights.data(), 8);
  for (std::size_t i = 8 + header_bytes; i < weights.size(); ++i)
    weights[i] = static_cast<char>(weights[i] ^ change);
  REQUIRE(write_file_atomically(*made, "model/model.safetensors", weights).ok());
  return made;
}

// The parameters that two ranks load of "model", each from its own disk, put together.
std::vector<float> load(FaultyFileSystem& first, FaultyFileSystem& second, Strategy strategy) {
  auto links = collective::make_local_links({0, 0}).value();
  FaultyFileSystem* disks[] = {&first, &second};
  std::vector<float> whole;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const auto world =
          collective::make_cpu_communicator({.rank = rank, .world_size = 2, .generation = 1},
                                            std::move(links[static_cast<std::size_t>(rank)]))
              .value();
      Arena arena(1);
      const auto operators = make_cpu_operators(arena);
      const auto config =
          ModelConfig::parse(first.read("model/config.json", 1 << 20).value(), "config").value();
      const auto model = make_model(config, *operators);
      const RankLayout layout(model->layout(), strategy, make_mesh(strategy, 2, 2, 0, 0).value(),
                              rank);
      std::vector<float> parameters(static_cast<std::size_t>(layout.elements(Region::kParameters)),
                                    7.0f);
      std::vector<float> moments(static_cast<std::size_t>(layout.elements(Region::kOptimizer)));
      auto second_moments = moments;
      const StateBuffers buffers{
          .parameters = std::as_writable_bytes(std::span(parameters)),
          .gradients = {},
          .slots = {{"exp_avg", std::as_writable_bytes(std::span(moments))},
                    {"exp_avg_sq", std::as_writable_bytes(std::span(second_moments))}}};
      HostAccess access;
      const Status loaded =
          load_state(*disks[rank], {.path = "model"}, config, model->model_layout(), 0, layout,
                     buffers, access, false, *world);
      REQUIRE_MESSAGE(loaded.ok(), loaded.to_string());
      std::vector<float> all(static_cast<std::size_t>(model->layout().total_elements()));
      for (int unit = 0; unit < layout.units(); ++unit) {
        const ElementRange own = layout.owned(unit);
        const auto base = static_cast<std::size_t>(
            model->layout().units()[static_cast<std::size_t>(unit)].flat_offset);
        const auto out = std::span(all).subspan(base).first(
            static_cast<std::size_t>(layout.unit_elements(unit)));
        const auto held =
            std::span<const float>(parameters)
                .subspan(
                    static_cast<std::size_t>(layout.offset(Region::kParameters, unit, own.begin)),
                    static_cast<std::size_t>(own.size()));
        if (layout.mesh().dp_shard == 1) {
          std::copy(held.begin(), held.end(), out.begin());
        } else {
          REQUIRE(world->all_gather(held, out, layout.owned_counts(unit)).ok());
        }
      }
      if (rank == 1) whole = all;
    });
  }
  for (auto& thread : threads) thread.join();
  return whole;
}

TEST_CASE("a rank that sees other files at the same path, or none, takes rank 0's") {
  for (const Strategy strategy : {Strategy::kDdp, Strategy::kZero3}) {
    const auto good = disk(0), same = disk(0), other = disk(1), none = disk(0, false);
    const auto expected = load(*good, *same, strategy);
    CHECK(load(*good, *other, strategy) == expected);
    CHECK(load(*good, *none, strategy) == expected);
    CHECK(load(*other, *other, strategy) != expected);
  }
}

}  // namespace
}  // namespace troupe::train
