// What pieces do between collectives: the same bits on the CPU and on the fake GPU.
#include "train/sharding/shard_operations.h"

#include <array>
#include <limits>

#include "tests/train/sharding/engine_ranks.h"

namespace troupe::train::tests {
namespace {

// An odd number, so that the last elements are no whole vector.
constexpr std::size_t kElements = 2 * 1024 + 77;

// Ordinary numbers of all sizes, and what is not ordinary.
std::vector<float> awkward_values(std::uint64_t seed) {
  SeededRandom random(seed);
  std::vector<float> values(kElements);
  for (float& value : values)
    value = static_cast<float>((2 * random.unit() - 1) * std::pow(10.0, 60 * random.unit() - 30));
  values[0] = std::numeric_limits<float>::infinity();
  values[1] = -values[0];
  values[2] = std::numeric_limits<float>::max();  // to infinity
  values[3] = std::numeric_limits<float>::denorm_min();
  values[4] = -0.0f;
  values[5] = 1.00390625f;  // between two neighbours: to the even one
  values[6] = std::numeric_limits<float>::quiet_NaN();
  return values;
}

// One place's results of everything, from the same input.
class Operated {
 public:
  explicit Operated(Place place)
      : side_(make_side({.place = place}, 0)),
        host_(collective::make_cpu_communicator({.rank = 0, .world_size = 1}, {}).value()),
        device_(side_->form(*host_, 0)),
        queue_(device_.make_queue(false)),
        operations_(device_.make_operations(*queue_)) {
    std::span<std::byte> rest = side_->make_state(kRooms * kRoomBytes);
    for (auto& room : rooms_) {
      room = rest.first(kRoomBytes);
      rest = rest.subspan(kRoomBytes);
    }
  }
  ~Operated() {
    queue_.reset();
    CHECK(device_.synchronize().ok());
  }

  static constexpr std::size_t kRooms = 3, kRoomBytes = 1 << 18;
  std::span<float> floats(std::size_t room, std::size_t count = kElements) {
    return {reinterpret_cast<float*>(rooms_.at(room).data()), count};
  }
  std::span<std::uint16_t> halves(std::size_t room, std::size_t count) {
    return {reinterpret_cast<std::uint16_t*>(rooms_.at(room).data()), count};
  }
  void put(std::size_t room, std::span<const float> values) {
    side_->operators().upload(values.data(), rooms_.at(room).data(), values.size_bytes());
  }
  // A piece, and what a room holds after it.
  std::vector<std::byte> after(const std::function<Status(ShardOperations&)>& piece,
                               std::span<const std::byte> room) {
    queue_->submit([&] { return piece(*operations_); });
    const Status status = queue_->drain();
    CHECK_MESSAGE(status.ok(), status.to_string());
    std::vector<std::byte> held(room.size());
    side_->operators().download(room.data(), held.data(), held.size());
    return held;
  }
  const ShardOperations& operations() const { return *operations_; }

 private:
  std::unique_ptr<RankSide> side_;
  std::unique_ptr<collective::Communicator> host_;
  EngineDevice& device_;
  std::unique_ptr<CommunicationQueue> queue_;
  std::unique_ptr<ShardOperations> operations_;
  std::array<std::span<std::byte>, kRooms> rooms_;
};

// The same calls on both.
void check_alike(const std::function<std::vector<std::byte>(Operated&)>& calls) {
  troupe::tests::fake_cuda_reset();
  {
    Operated cpu(Place::kCpu), gpu(Place::kOverHost);
    const auto expected = calls(cpu);
    CHECK_FALSE(expected.empty());
    CHECK(calls(gpu) == expected);
  }
  CHECK(troupe::tests::fake_cuda_left().empty());
}

TEST_CASE("roundings, sums and copies on a GPU have the CPU's bits") {
  check_alike([](Operated& place) {
    place.put(0, awkward_values(1));
    const auto narrow = place.halves(1, kElements);
    return place.after([&](ShardOperations& to) { return to.narrow(place.floats(0), narrow); },
                       std::as_bytes(narrow));
  });
  check_alike([](Operated& place) {
    place.put(0, awkward_values(2));  // their halves, as bf16
    const auto wide = place.floats(1, 2 * kElements);
    return place.after(
        [&](ShardOperations& to) { return to.widen(place.halves(0, wide.size()), wide); },
        std::as_bytes(wide));
  });
  check_alike([](Operated& place) {
    place.put(0, awkward_values(3));
    return place.after([&](ShardOperations& to) { return to.round(place.floats(0)); },
                       std::as_bytes(place.floats(0)));
  });
  check_alike([](Operated& place) {
    place.put(0, awkward_values(4));
    place.put(1, awkward_values(5));
    return place.after(
        [&](ShardOperations& to) {
          TROUPE_RETURN_IF_ERROR(to.add(place.floats(0), place.floats(1)));
          return to.add(place.floats(0), place.floats(1));
        },
        std::as_bytes(place.floats(0)));
  });
  check_alike([](Operated& place) {
    place.put(0, awkward_values(6));
    return place.after(
        [&](ShardOperations& to) {
          return to.copy(std::as_bytes(place.floats(0)), std::as_writable_bytes(place.floats(1)));
        },
        std::as_bytes(place.floats(1)));
  });
}

TEST_CASE("parts in bf16 are summed by the tree on a GPU, too") {
  for (const int members : {2, 3, 5}) {
    check_alike([members](Operated& place) {
      const auto parts = place.halves(1, static_cast<std::size_t>(members) * kElements);
      for (int member = 0; member < members; ++member) {
        place.put(0, awkward_values(static_cast<std::uint64_t>(10 + member)));
        place.after(
            [&](ShardOperations& to) {
              return to.narrow(
                  place.floats(0),
                  parts.subspan(static_cast<std::size_t>(member) * kElements, kElements));
            },
            {});
      }
      return place.after(
          [&](ShardOperations& to) { return to.sum_parts(parts, members, place.floats(2)); },
          std::as_bytes(place.floats(2)));
    });
  }
}

TEST_CASE("a unit's vectors come out of its bf16 buffer on a GPU as on the CPU") {
  const ParameterLayout layout(small_model(true));
  const auto whole = static_cast<std::size_t>(layout.units()[1].elements);
  const auto vectors = static_cast<std::size_t>(layout.units()[1].vector_elements);
  REQUIRE(whole * 2 <= Operated::kRoomBytes);
  REQUIRE(vectors > 0);
  check_alike([&](Operated& place) {
    const auto unit = place.halves(1, whole);
    std::vector<float> values(whole / 2);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i));
    place.put(1, values);  // the bits of two bf16 each
    return place.after(
        [&](ShardOperations& to) { return to.expand(layout, 1, unit, place.floats(2, vectors)); },
        std::as_bytes(place.floats(2, vectors)));
  });
}

TEST_CASE("a sum of more parts than a GPU takes is refused before the first step") {
  troupe::tests::fake_cuda_reset();
  {
    Operated gpu(Place::kOverHost);
    const ParameterLayout layout(small_model(true));
    const auto check = [&](int members, int replicas, DType reduce, ReductionOrder order) {
      const RankLayout rank(layout, Strategy::kHybridShard,
                            {.dp_replicate = replicas, .dp_shard = members}, 0);
      return GradientReducer::check(rank, {.order = order, .reduce = reduce}, gpu.operations());
    };
    const Status refused = check(65, 2, DType::kBF16, ReductionOrder::kStrategy);
    CHECK(refused.code() == Code::kUnsupported);
    CHECK(refused.message().find("shard groups of 65 ranks") != std::string::npos);
    CHECK(refused.message().find("reduce in fp32") != std::string::npos);
    CHECK(check(64, 2, DType::kBF16, ReductionOrder::kStrategy).ok());
    CHECK(check(65, 2, DType::kF32, ReductionOrder::kStrategy).ok());
    CHECK(check(65, 1, DType::kBF16, ReductionOrder::kStrategy).ok());
    CHECK(check(65, 2, DType::kBF16, ReductionOrder::kAcrossWorldSizes).ok());
  }
  CHECK(troupe::tests::fake_cuda_left().empty());
}

}  // namespace
}  // namespace troupe::train::tests
