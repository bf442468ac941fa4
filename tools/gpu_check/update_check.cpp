#include "tools/gpu_check/update_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/random.h"
#include "tools/gpu_check/bench.h"
#include "tools/gpu_check/check.h"
#include "tools/gpu_check/other_process.h"
#include "train/cuda/device/device_arena.h"
#include "train/cuda/operators/cuda_optimizer.h"
#include "train/cuda/operators/transacted_update.h"
#include "train/optimizer/random_rounding.h"
#include "train/tensor/convert.h"

namespace troupe::tools::gpu {
namespace {

using train::DType;
using train::UpdateRange;

// The numbers that fill memory repeat after so many: no multiple of a chunk, so that neighbouring
// chunks differ.
constexpr std::int64_t kPeriod = 1'000'003;
constexpr std::int64_t kChunk = train::kUpdateElements;
constexpr std::int64_t kUpdatesOfChild = 2000;

// A state in bf16 is rounded randomly.
train::AdamWStep step_of(std::int64_t number, DType state) {
  train::AdamWStep step{
      .learning_rate = 1e-3, .weight_decay = 0.1, .step = number, .gradient_scale = 0.37f};
  if (state == DType::kBF16) step.rounding_key = train::rounding_key(42, number);
  return step;
}

// What is updated: gradients, parameters and moments of `elements`, one behind the other, and where
// the log and the tables are.
struct Updated {
  std::int64_t elements = 0;
  DType state = DType::kF32;
  std::byte* gradients = nullptr;
  std::array<std::byte*, 3> states{};
  // In two ranges, with decay's boundaries in chunks and packs.
  std::vector<UpdateRange> ranges() const {
    const std::int64_t first = elements / kChunk / 3 * kChunk;
    return {{.flat = 5 * kChunk, .elements = first},
            {.flat = 9 * kChunk + first,
             .parameters = first,
             .gradients = first,
             .slots = first,
             .elements = elements - first}};
  }
  train::ParameterGroups groups() const {
    const std::int64_t middle = elements / 2 + 13, end = elements + 9 * kChunk;
    return {{middle, {.decays = true}}, {middle + 700, {}}, {end, {.decays = true}}};
  }
  std::int64_t state_bytes() const {
    return elements * static_cast<std::int64_t>(train::dtype_size(state));
  }
  std::int64_t log_bytes() const {
    return train::TransactedUpdate::log_bytes(elements / kChunk, state);
  }
  std::int64_t scratch_bytes() const {
    return train::TransactedUpdate::scratch_bytes(std::ssize(ranges()), groups());
  }
};

// Numbers of `seed` over `bytes` of the device, in fp32 or bf16.
Status fill(train::CudaStream& stream, DType type, std::uint64_t seed, bool squares,
            std::byte* device, std::int64_t bytes) {
  const train::CudaDevice& gpu = *stream.device();
  const auto element = static_cast<std::int64_t>(train::dtype_size(type));
  SeededRandom random(seed);
  std::vector<float> values(static_cast<std::size_t>(std::min(kPeriod, bytes / element)));
  for (float& x : values) {
    x = static_cast<float>(2.0 * random.unit() - 1.0);
    if (squares) x = x * x;
  }
  std::vector<std::uint16_t> half(values.size());
  train::bf16_from_float(values.data(), half.data(), std::ssize(values));
  const void* from = type == DType::kBF16 ? static_cast<const void*>(half.data()) : values.data();
  const auto copy = [&](const void* a, void* b, std::int64_t size) {
    return gpu.status(gpu.table().copy(stream.get(), a, b, size), "filling memory");
  };
  std::int64_t done = std::ssize(values) * element;
  TROUPE_RETURN_IF_ERROR(copy(from, device, done));
  // What is there, behind itself: whole periods.
  for (; done < bytes; done = std::min(2 * done, bytes))
    TROUPE_RETURN_IF_ERROR(copy(device, device + done, std::min(done, bytes - done)));
  return stream.wait("filling memory");
}

Status fill(train::CudaStream& stream, const Updated& to) {
  TROUPE_RETURN_IF_ERROR(fill(stream, DType::kF32, 9, false, to.gradients, to.elements * 4));
  for (std::size_t i = 0; i < 3; ++i)
    TROUPE_RETURN_IF_ERROR(fill(stream, to.state, i + 1, i == 2, to.states[i], to.state_bytes()));
  return {};
}

Result<train::TransactedUpdate> transacted(train::CudaStream& stream, const Updated& at,
                                           std::span<std::byte> log, std::span<std::byte> scratch) {
  const std::vector<UpdateRange> ranges = at.ranges();
  const train::ParameterGroups groups = at.groups();
  return train::TransactedUpdate::create(stream,
                                         {.state = at.state,
                                          .ranges = ranges,
                                          .groups = &groups,
                                          .parameters = at.states[0],
                                          .gradients = reinterpret_cast<const float*>(at.gradients),
                                          .first_moments = at.states[1],
                                          .second_moments = at.states[2]},
                                         log, scratch);
}

// One update without a log.
Status update_plainly(train::CudaOptimizer& optimizer, const Updated& at, std::int64_t number) {
  const auto groups = at.groups();
  const auto update = [&]<typename T>(T*) -> Status {
    const auto part = [&](std::size_t i, std::int64_t offset) {
      return reinterpret_cast<T*>(at.states[i]) + offset;
    };
    for (const UpdateRange& range : at.ranges())
      TROUPE_RETURN_IF_ERROR(
          optimizer.update(step_of(number, at.state), groups, range.flat, part(0, range.parameters),
                           reinterpret_cast<const float*>(at.gradients) + range.gradients,
                           part(1, range.slots), part(2, range.slots), range.elements));
    return {};
  };
  return at.state == DType::kBF16 ? update(static_cast<std::uint16_t*>(nullptr))
                                  : update(static_cast<float*>(nullptr));
}

std::span<std::byte> span_of(std::byte* at, std::int64_t bytes) {
  return {at, static_cast<std::size_t>(bytes)};
}

Result<Updated> take_updated(Gpu& gpu, DType state, std::int64_t elements) {
  Updated made{.elements = elements, .state = state};
  made.gradients = TROUPE_TRY(gpu.take(elements * 4));
  for (std::byte*& at : made.states) at = TROUPE_TRY(gpu.take(made.state_bytes()));
  return made;
}

// Bytes of the states that differ.
Result<std::int64_t> differing_bytes(Gpu& gpu, const Updated& a, const Updated& b) {
  std::int64_t differing = 0;
  const std::int64_t piece = 64 << 20;
  std::vector<std::byte> one, other;
  for (std::size_t i = 0; i < 3; ++i) {
    for (std::int64_t at = 0; at < a.state_bytes(); at += piece) {
      const auto bytes = static_cast<std::size_t>(std::min(piece, a.state_bytes() - at));
      one.resize(bytes), other.resize(bytes);
      gpu.operators->download(a.states[i] + at, one.data(), bytes);
      gpu.operators->download(b.states[i] + at, other.data(), bytes);
      TROUPE_RETURN_IF_ERROR(gpu.operators->failure());
      if (std::memcmp(one.data(), other.data(), bytes) == 0) continue;
      for (std::size_t k = 0; k < bytes; ++k) differing += one[k] != other[k];
    }
  }
  return differing;
}

Result<Figure> check_bits(Bench& bench, DType state) {
  const std::int64_t elements = (bench.rehearsal() ? 40 : 20'000) * kChunk;
  Gpu* gpu = TROUPE_TRY(bench.gpu());
  const Updated plain = TROUPE_TRY(take_updated(*gpu, state, elements));
  const Updated logged = TROUPE_TRY(take_updated(*gpu, state, elements));
  TROUPE_RETURN_IF_ERROR(fill(*gpu->stream, plain));
  TROUPE_RETURN_IF_ERROR(fill(*gpu->stream, logged));
  const std::int64_t scratch = train::CudaOptimizer::scratch_bytes(1);
  train::CudaOptimizer optimizer = TROUPE_TRY(
      train::CudaOptimizer::create(*gpu->stream, span_of(TROUPE_TRY(gpu->take(scratch)), scratch)));
  train::TransactedUpdate update = TROUPE_TRY(transacted(
      *gpu->stream, logged, span_of(TROUPE_TRY(gpu->take(logged.log_bytes())), logged.log_bytes()),
      span_of(TROUPE_TRY(gpu->take(logged.scratch_bytes())), logged.scratch_bytes())));
  TROUPE_RETURN_IF_ERROR(update.forget());
  for (std::int64_t number = 1; number <= 3; ++number) {
    TROUPE_RETURN_IF_ERROR(update_plainly(optimizer, plain, number));
    // The second time there is nothing to do.
    for (int time = 0; time < 2; ++time)
      TROUPE_RETURN_IF_ERROR(update.enqueue(step_of(number, logged.state), number));
  }
  return Figure{.value = static_cast<double>(TROUPE_TRY(differing_bytes(*gpu, plain, logged))),
                .unit = "bytes that differ",
                .bar = Figure::Bar::kAtMost,
                .bar_value = 0,
                .text = fmt::format("3 updates of {} elements in two ranges, each asked for twice",
                                    elements)};
}

Result<Figure> check_rate(Bench& bench, DType state) {
  const std::int64_t elements = (bench.rehearsal() ? 32 : 131'072) * kChunk;
  const double copies = TROUPE_TRY(bench.copy_rate());
  Gpu* gpu = TROUPE_TRY(bench.gpu());
  const Updated at = TROUPE_TRY(take_updated(*gpu, state, elements));
  TROUPE_RETURN_IF_ERROR(fill(*gpu->stream, at));
  train::TransactedUpdate update = TROUPE_TRY(
      transacted(*gpu->stream, at, span_of(TROUPE_TRY(gpu->take(at.log_bytes())), at.log_bytes()),
                 span_of(TROUPE_TRY(gpu->take(at.scratch_bytes())), at.scratch_bytes())));
  TROUPE_RETURN_IF_ERROR(update.forget());
  const TroupeCudaAdamW plain{
      .beta1_rest = 0.1f,
      .beta2 = 0.999f,
      .beta2_rest = 0.001f,
      .step_size = 1e-3f,
      .root_correction = 0.5f,
      .epsilon = 1e-8f,
      .keep = 0.99f,
      .state_type = state == DType::kBF16 ? TROUPE_CUDA_BF16 : TROUPE_CUDA_F32};
  const int times = bench.rehearsal() ? 1 : 10;
  auto* scale = reinterpret_cast<float*>(TROUPE_TRY(gpu->take(4)));
  gpu->operators->zero(scale, 1);
  TROUPE_RETURN_IF_ERROR(gpu->operators->failure());
  const double plain_ms = TROUPE_TRY(gpu->milliseconds("adamw", times, [&] {
    return gpu->table().adamw(gpu->stream->get(), &plain, at.states[0],
                              reinterpret_cast<const float*>(at.gradients), at.states[1],
                              at.states[2], elements, scale);
  }));
  std::int64_t number = 0;
  Status failed;
  const double logged_ms = TROUPE_TRY(gpu->milliseconds("adamw_transacted", times, [&]() -> int {
    ++number;  // of another step each time: there is all to do
    // Rounded to nearest, as the other one.
    if (failed.ok()) failed = update.enqueue(step_of(number, DType::kF32), number);
    return failed.ok() ? TROUPE_CUDA_OK : TROUPE_CUDA_FAILED;
  }));
  TROUPE_RETURN_IF_ERROR(failed);
  const double bytes =
      2.0 * 3.0 * static_cast<double>(at.state_bytes()) + 4.0 * static_cast<double>(elements);
  const auto percent = [&](double ms) { return 100 * bytes / ms / 1e6 / copies; };
  return Figure{.value = percent(logged_ms),
                .unit = "% of the copies' rate",
                .bar = bench.rehearsal() ? Figure::Bar::kNone : Figure::Bar::kAtLeast,
                .bar_value = 85,
                .text = fmt::format("{} elements in {:.3f} ms; without the log {:.3f} ms, {:.0f} % "
                                    "of the copies' {:.0f} GB/s",
                                    elements, logged_ms, plain_ms, percent(plain_ms), copies)};
}

// --- kill -9

train::ArenaPlan arena_plan(const Updated& of) {
  train::ArenaPlan plan;
  plan.add("gradients", train::MemoryPurpose::kGradients, of.elements * 4);
  for (const char* name : {"parameters", "first", "second"})
    plan.add(name, train::MemoryPurpose::kOptimizerState, of.state_bytes());
  plan.add("log", train::MemoryPurpose::kOptimizerState, of.log_bytes());
  return plan;
}

Updated in_arena(const Updated& of, const train::DeviceArena& arena) {
  Updated at = of;
  at.gradients = arena.part("gradients").data();
  at.states = {arena.part("parameters").data(), arena.part("first").data(),
               arena.part("second").data()};
  return at;
}

Result<Figure> check_killed(Bench& bench) {
  const Updated sizes{.elements = (bench.rehearsal() ? 64 : 65'536) * kChunk};
  constexpr int kLives = 4;
  std::int64_t differing = 0;
  std::string text;
  for (int life = 0; life < kLives; ++life) {
    OtherProcess other = TROUPE_TRY(OtherProcess::start(
        bench, {"--update-child", "3", "--bytes", std::to_string(sizes.elements)}));
    const OtherProcess::Memory memory = TROUPE_TRY(other.receive_memory());
    std::int64_t number = 0;
    for (int told = 0; told < 5 + 2 * life; ++told) number = TROUPE_TRY(other.receive_number());
    // Not in the same place of an update each time.
    std::this_thread::sleep_for(std::chrono::microseconds(50 + 110 * life));
    other.kill();
    // What was told is what a rank's record of the step would say.
    for (;;) {
      const auto next = other.receive_number();
      if (!next.ok()) break;
      number = *next;
    }
    Gpu* gpu = TROUPE_TRY(bench.gpu());
    gpu->reset();
    const train::DeviceArena arena = TROUPE_TRY(train::DeviceArena::import(
        gpu->device, arena_plan(sizes), memory.descriptor.get(), memory.bytes));
    const Updated left = in_arena(sizes, arena);
    const std::int64_t chunks = sizes.elements / kChunk;
    std::vector<std::uint64_t> marks(static_cast<std::size_t>(chunks));
    gpu->operators->download(arena.part("log").data(), marks.data(), marks.size() * 8);
    TROUPE_RETURN_IF_ERROR(gpu->operators->failure());
    const auto done = std::count(marks.begin(), marks.end(), static_cast<std::uint64_t>(number));
    text += fmt::format("{}update {}: {} of {} chunks", life ? ", " : "", number, done, chunks);

    train::TransactedUpdate update = TROUPE_TRY(
        transacted(*gpu->stream, left, arena.part("log"),
                   span_of(TROUPE_TRY(gpu->take(left.scratch_bytes())), left.scratch_bytes())));
    TROUPE_RETURN_IF_ERROR(update.enqueue(step_of(number, sizes.state), number));
    const Updated undisturbed = TROUPE_TRY(take_updated(*gpu, DType::kF32, sizes.elements));
    TROUPE_RETURN_IF_ERROR(fill(*gpu->stream, undisturbed));
    const std::int64_t scratch = train::CudaOptimizer::scratch_bytes(1);
    train::CudaOptimizer optimizer = TROUPE_TRY(train::CudaOptimizer::create(
        *gpu->stream, span_of(TROUPE_TRY(gpu->take(scratch)), scratch)));
    for (std::int64_t step = 1; step <= number; ++step)
      TROUPE_RETURN_IF_ERROR(update_plainly(optimizer, undisturbed, step));
    TROUPE_RETURN_IF_ERROR(gpu->stream->wait("the updates"));
    differing += TROUPE_TRY(differing_bytes(*gpu, left, undisturbed));
  }
  return Figure{.value = static_cast<double>(differing),
                .unit = "bytes that differ",
                .bar = Figure::Bar::kAtMost,
                .bar_value = 0,
                .text = "killed when done was: " + text};
}

}  // namespace

Status run_update_child(std::shared_ptr<const train::CudaLibrary> library, int device,
                        std::int64_t elements, int socket) {
  const auto gpu =
      TROUPE_TRY(train::CudaDevice::open(std::move(library), device, SystemEnvironment()));
  const Updated sizes{.elements = elements};
  const train::DeviceArena arena = TROUPE_TRY(
      train::DeviceArena::allocate(gpu, arena_plan(sizes), train::DeviceArena::Outlives::kProcess));
  const Updated at = in_arena(sizes, arena);
  const auto scratch = TROUPE_TRY(train::DeviceMemory::allocate(
      gpu, sizes.scratch_bytes(), "the update's tables", train::MemoryPurpose::kWorkspace));
  train::CudaStream stream = TROUPE_TRY(train::CudaStream::create(gpu));
  TROUPE_RETURN_IF_ERROR(fill(stream, at));
  train::TransactedUpdate update =
      TROUPE_TRY(transacted(stream, at, arena.part("log"), scratch.bytes()));
  TROUPE_RETURN_IF_ERROR(update.forget());
  const UniqueFd descriptor = TROUPE_TRY(arena.export_descriptor());
  TROUPE_RETURN_IF_ERROR(send_memory(socket, arena.bytes(), descriptor.get()));
  for (std::int64_t number = 1; number <= kUpdatesOfChild; ++number) {
    TROUPE_RETURN_IF_ERROR(send_number(socket, number));
    TROUPE_RETURN_IF_ERROR(update.enqueue(step_of(number, sizes.state), number));
    TROUPE_RETURN_IF_ERROR(stream.wait("an update"));
  }
  wait_for_end(socket);
  return {};
}

void add_killed_update_check(std::vector<Check>& checks) {
  checks.push_back({"memory/a killed update is finished",
                    "AdamW under its log, ended by kill -9 in its midst, finished by another "
                    "process: the bits of one that nobody disturbed",
                    8, check_killed});
}

void add_update_checks(std::vector<Check>& checks) {
  for (const DType state : {DType::kF32, DType::kBF16}) {
    const char* name = state == DType::kBF16 ? "bf16" : "f32";
    checks.push_back({fmt::format("optimizer/transacted {}", name),
                      "AdamW under a log against AdamW without one, bit by bit", 1,
                      [state](Bench& bench) { return check_bits(bench, state); }});
    checks.push_back({fmt::format("bandwidth/transacted adamw {}", name),
                      "bytes that an update must read and write a second, the log's not counted, "
                      "against copies'",
                      1, [state](Bench& bench) { return check_rate(bench, state); }});
  }
}

}  // namespace troupe::tools::gpu
