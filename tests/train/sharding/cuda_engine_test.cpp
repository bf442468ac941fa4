// The engine on the fake GPU: the CPU's bits, under every strategy, and what becomes of failures.
#include <algorithm>

#include "tests/train/sharding/engine_ranks.h"
#include "train/cpu/isa.h"

namespace troupe::train::tests {
namespace {

// The fake GPU expands bf16 activations and computes in fp32, as train/cpu does where there is no
// AMX; AMX sums in an order of its own. Before anything here makes an operator.
const Status kWithoutAmx = limit_cpu_isa(std::min(cpu_isa_level(), kCpuAvx512Bf16));

constexpr Place kPlaces[] = {Place::kNccl, Place::kOverHost};

void check_like_the_cpu(Setting setting, std::span<const Place> places) {
  setting.length = 7;
  setting.place = Place::kCpu;
  const std::vector<Outcome> expected = train_ranks(setting);
  for (const Place place : places) {
    setting.place = place;
    CAPTURE(describe(setting.strategy, setting.mesh));
    CAPTURE(static_cast<int>(place));
    CAPTURE(static_cast<int>(setting.order));
    CAPTURE(setting.mesh.size());
    const std::vector<Outcome> outcomes = train_ranks(setting);
    for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
      CHECK_MESSAGE(outcomes[rank].status.ok(), outcomes[rank].status.to_string());
      CHECK(std::isfinite(outcomes[rank].norm));
      CHECK(outcomes[rank].norm == expected[rank].norm);
      CHECK(same_bits(outcomes[rank].gradients, expected[rank].gradients));
      CHECK(same_bits(outcomes[rank].parameters, expected[rank].parameters));
      // Three layers, forward and backward, in each turn of a step.
      if (setting.graphs == GraphOptions::Use::kAlways)
        CHECK(outcomes[rank].graphs_launched >= 3 * 2 * 2);
    }
  }
}

// Of state, products and reduction.
struct Types {
  DType state, compute, reduce;
};

// Each strategy at each world size twice; orders, types and the way between the ranks go round.
TEST_CASE("an engine on GPUs gives the CPU's bits under every strategy") {
  REQUIRE_MESSAGE(kWithoutAmx.ok(), kWithoutAmx.to_string());
  constexpr Types kTypes[] = {{DType::kF32, DType::kF32, DType::kF32},
                              {DType::kF32, DType::kBF16, DType::kBF16},
                              {DType::kBF16, DType::kBF16, DType::kF32},
                              {DType::kF32, DType::kBF16, DType::kF32},
                              {DType::kBF16, DType::kBF16, DType::kBF16}};
  constexpr ReductionOrder kOrders[] = {ReductionOrder::kStrategy,
                                        ReductionOrder::kAcrossWorldSizes, ReductionOrder::kOff};
  std::size_t round = 0;
  for (const int world : {1, 2, 4}) {
    for (const auto& [strategy, mesh] : strategies(world)) {
      for (int again = 0; again < 2; ++again) {
        const Types types = kTypes[round % std::size(kTypes)];
        check_like_the_cpu({.strategy = strategy,
                            .mesh = mesh,
                            .micro_batches = 2 * world,
                            .order = kOrders[round % std::size(kOrders)],
                            .state = types.state,
                            .compute = types.compute,
                            .reduce = types.reduce,
                            .overlaps = true,
                            .steps = again == 0 ? 2 : 1},
                           std::span(kPlaces).subspan(round / 2 % 2, 1));
        ++round;
      }
    }
  }
}

// The second step makes the graphs that the third one launches again.
TEST_CASE("an engine on GPUs whose layers are graphs gives the CPU's bits under every strategy") {
  std::size_t round = 0;
  for (const auto& [strategy, mesh] : strategies(2)) {
    check_like_the_cpu({.strategy = strategy,
                        .mesh = mesh,
                        .micro_batches = 4,
                        .compute = round % 2 == 0 ? DType::kF32 : DType::kBF16,
                        .overlaps = true,
                        .steps = 3,
                        .guarded = round % 4 == 0,
                        .graphs = GraphOptions::Use::kAlways},
                       std::span(kPlaces).subspan(round / 2 % 2, 1));
    ++round;
  }
}

TEST_CASE("replicated shard groups on GPUs sum bf16 gradients as on the CPU") {
  for (const ReductionOrder order : {ReductionOrder::kStrategy, ReductionOrder::kOff})
    check_like_the_cpu({.strategy = Strategy::kHybridShardZero2,
                        .mesh = {.dp_replicate = 2, .dp_shard = 2},
                        .micro_batches = 4,
                        .order = order,
                        .reduce = DType::kBF16,
                        .steps = 1},
                       kPlaces);
}

TEST_CASE("the host never touches an engine's memory on a GPU") {
  for (const int world : {1, 2}) {
    for (const ReductionOrder order :
         {ReductionOrder::kStrategy, ReductionOrder::kAcrossWorldSizes}) {
      check_like_the_cpu({.strategy = Strategy::kZero2,
                          .mesh = Mesh{.dp_shard = world},
                          .micro_batches = 2 * world,
                          .order = order,
                          .compute = DType::kBF16,
                          .reduce = DType::kBF16,
                          .steps = 1,
                          .guarded = true},
                         std::span(kPlaces).first(1));
    }
  }
}

TEST_CASE("on GPUs gathers come after what reads their places, and before what reads them") {
  for (const Strategy strategy : {Strategy::kZero3, Strategy::kShardGradOp, Strategy::kZero1}) {
    for (const GatherLimits& limits :
         {GatherLimits{.max_live = 1, .prefetch = 0},
          GatherLimits{.max_live = 200'000, .prefetch = 100'000},
          GatherLimits{.max_reuse_distance = 100'000, .persistence_threshold = 40'000}}) {
      check_like_the_cpu({.strategy = strategy,
                          .mesh = Mesh{.dp_shard = 2},
                          .micro_batches = 2,
                          .compute = DType::kBF16,
                          .tied = false,
                          .steps = 1,
                          .limits = limits,
                          .spoilt = true,
                          .late = true},
                         std::span(kPlaces).first(1));
    }
  }
}

// A wait between streams that is missing gives other bits under some seed.
TEST_CASE("an engine on GPUs gives the CPU's bits however late its streams are") {
  constexpr Strategy kStrategies[] = {Strategy::kDdp, Strategy::kZero1, Strategy::kZero2,
                                      Strategy::kZero3};
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    CAPTURE(seed);
    const Strategy strategy = kStrategies[seed % std::size(kStrategies)];
    check_like_the_cpu(
        {.strategy = strategy,
         .mesh = make_mesh(strategy, 2, 2, 0, 0).value(),
         .micro_batches = 4,
         .order = seed % 3 == 0 ? ReductionOrder::kAcrossWorldSizes : ReductionOrder::kStrategy,
         .compute = seed % 2 == 0 ? DType::kBF16 : DType::kF32,
         .overlaps = true,
         .steps = 2,
         .limits = {.max_live = 1, .prefetch = seed % 2 == 0 ? 100'000 : 0},
         .spoilt = true,
         .lazy_streams_seed = seed,
         .graphs = seed % 4 == 1 ? GraphOptions::Use::kAlways : GraphOptions::Use::kNever},
        std::span(kPlaces).subspan(seed / 4 % 2, 1));
  }
}

bool says(const Status& status, std::string_view words) {
  return status.to_string().find(words) != std::string::npos;
}

// Rank 1 of two meets something in the midst of its backward pass. All ranks' steps end, soon, and
// nothing of them is believed. What they say.
std::vector<Outcome> struck(Place place, Strategy strategy,
                            const std::function<void(EngineDevice&)>& strike) {
  std::latch leave_together(2);
  const auto outcomes = train_ranks({.strategy = strategy,
                                     .mesh = make_mesh(strategy, 2, 2, 0, 0).value(),
                                     .micro_batches = 2,
                                     .reduce = DType::kBF16,
                                     .steps = 2,
                                     .place = place,
                                     .strike =
                                         [&](int rank, int unit, EngineDevice& device) {
                                           if (rank == 1 && unit == 2) strike(device);
                                         },
                                     .leave_together = &leave_together});
  for (const Outcome& outcome : outcomes) {
    CAPTURE(outcome.status.to_string());
    CHECK_FALSE(outcome.status.ok());
    CHECK(outcome.status.code() != Code::kDeadlineExceeded);
    CHECK_FALSE(outcome.afterwards.ok());
  }
  CHECK(outcomes[0].status.code() == Code::kAborted);
  CHECK(outcomes[0].afterwards.message() == outcomes[0].status.message());
  CHECK(says(outcomes[0].status, "rank 1 was lost"));
  return outcomes;
}

TEST_CASE("a GPU that is lost in the midst of a step ends the step on all ranks") {
  for (const Place place : kPlaces) {
    for (const Strategy strategy : {Strategy::kDdp, Strategy::kZero3}) {
      const auto outcomes =
          struck(place, strategy, [](EngineDevice&) { troupe::tests::fake_cuda_lose_device(1); });
      // Arithmetic may find it first.
      CHECK(says(outcomes[1].status, "the device was lost"));
      CHECK(says(outcomes[1].status, "GPU 1"));
      CHECK(says(outcomes[1].afterwards, "the device was lost"));
    }
  }
}

TEST_CASE("a communicator of GPUs that is aborted in the midst of a step ends it on all ranks") {
  for (const Place place : kPlaces) {
    for (const Strategy strategy : {Strategy::kDdp, Strategy::kZero3}) {
      const auto outcomes = struck(place, strategy, [](EngineDevice& device) {
        device.world().device->abort(Status(Code::kActorDied, "trainer 7 died"));
      });
      CHECK(outcomes[1].status.code() == Code::kAborted);
      CHECK(says(outcomes[1].status, "trainer 7 died"));
      CHECK(outcomes[1].afterwards.message() == outcomes[1].status.message());
    }
  }
}

TEST_CASE("what fails on a GPU between collectives ends the step on all ranks") {
  for (const Place place : kPlaces) {
    const auto outcomes = struck(place, Strategy::kZero2, [](EngineDevice&) {
      troupe::tests::fake_cuda_inject(
          {.function = "convert", .text = "an illegal address", .device = 1});
    });
    CHECK(says(outcomes[1].status, "rounding a part of a unit to bf16: an illegal address"));
    CHECK(says(outcomes[1].status, "GPU 1"));
    CHECK(outcomes[1].afterwards.message() == outcomes[1].status.message());
  }
}

TEST_CASE("an engine's memory on a GPU that is too small is refused, and none is needed beyond") {
  troupe::tests::fake_cuda_reset();
  {
    const auto gpu =
        CudaDevice::open(CudaLibrary::over(troupe::tests::fake_cuda_table()), 0, MapEnvironment())
            .value();
    CudaStream compute = CudaStream::create(gpu).value();
    const auto host = collective::make_cpu_communicator({.rank = 0, .world_size = 1}, {}).value();
    const auto communicator =
        make_staged_communicator(
            {.library = gpu->library(), .context = gpu->context(), .host = host.get()})
            .value();
    const DeviceMemory memory =
        DeviceMemory::allocate(gpu, 1 << 16, "a stretch", MemoryPurpose::kOther).value();
    CudaEngineDevice device({.device = gpu,
                             .communicator = communicator.get(),
                             .compute = &compute,
                             .memory = memory.bytes()});
    const WorkingBytes fits{.sent = 1 << 15, .own = 1 << 15};
    WorkingMemory made = device.make_memory(fits, false).value();
    CHECK(made.take_sent(1 << 15).data() == memory.data());
    CHECK(made.take_own(1 << 15).data() == memory.data() + (1 << 15));
    CHECK_FALSE(made.segment().valid());
    const auto refused = device.make_memory({.sent = 1 << 15, .own = (1 << 15) + 64}, false);
    CHECK(refused.status().code() == Code::kFailedPrecondition);
    CHECK(says(refused.status(), "65536 bytes are given"));
    CHECK(says(refused.status(), "need 65600 (engine_bytes)"));
  }
  CHECK(troupe::tests::fake_cuda_left().empty());
}

}  // namespace
}  // namespace troupe::train::tests
