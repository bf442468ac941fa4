#include "train/trainer/held_pieces.h"

#include <doctest/doctest.h>

#include <array>
#include <vector>

#include "train/cpu/arena.h"
#include "train/cpu/cpu_operators.h"

namespace troupe::train {
namespace {

std::vector<TensorPiece> pieces_of(const std::array<float, 4>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {{.name = "a", .end = 3, .data = bytes.first(12)},
          {.name = "b", .end = 1, .data = bytes.last(4)}};
}

TEST_CASE(
    "pieces of another memory are held as they were, pieces of the host stay where they lie") {
  std::array<float, 4> weights{1, 2, 3, 4};
  std::array<float, 4> moments{5, 6, 7, 8};
  auto first = pieces_of(weights);
  auto second = pieces_of(moments);
  HostAccess in_place;
  HeldPieces held;
  REQUIRE(held.hold(in_place, {first, second}).ok());
  CHECK(first[0].data.data() == std::as_bytes(std::span(weights)).data());

  // Any operators stand for a device: the bytes are reached through them alone.
  Arena arena(1);
  const auto operators = make_cpu_operators(arena);
  HostAccess through(*operators);
  REQUIRE(held.hold(through, {first, second}).ok());
  weights.fill(0);
  moments.fill(0);
  const auto value = [](const TensorPiece& piece, std::size_t i) {
    return reinterpret_cast<const float*>(piece.data.data())[i];
  };
  CHECK(value(first[0], 2) == 3);
  CHECK(value(first[1], 0) == 4);
  CHECK(value(second[0], 0) == 5);
  CHECK(value(second[1], 0) == 8);
}

}  // namespace
}  // namespace troupe::train
