// The fake's optimizer: train/optimizer's updates and sums, the collectives' tree.

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <span>

#include "runtime/base/check.h"
#include "runtime/collective/reduce_tree.h"
#include "tests/train/cuda/fake/ended_update.h"
#include "tests/train/cuda/fake/fake_launch.h"
#include "train/optimizer/adamw.h"
#include "train/optimizer/gradient_norm.h"
#include "train/tensor/convert.h"

namespace troupe::tests::fake {
namespace {

using train::Operators;

train::AdamWFactors factors_of(const TroupeCudaAdamW& step, float gradient_scale) {
  train::AdamWFactors factors({}, {});
  factors.keep = step.keep;
  factors.beta1_rest = step.beta1_rest;
  factors.beta2 = step.beta2;
  factors.beta2_rest = step.beta2_rest;
  factors.step_size = step.step_size;
  factors.root_correction = step.root_correction;
  factors.epsilon = step.epsilon;
  factors.gradient_scale = gradient_scale;
  if (step.round_randomly) factors.rounding_key = step.seed;
  return factors;
}

template <typename T>
void update(const train::AdamWFactors& factors, std::int64_t first, void* parameters,
            const float* gradients, void* first_moments, void* second_moments, std::int64_t count) {
  const auto span = [count](void* at) {
    return std::span(static_cast<T*>(at), static_cast<std::size_t>(count));
  };
  train::adamw_update(factors, first, span(parameters),
                      std::span(gradients, static_cast<std::size_t>(count)), span(first_moments),
                      span(second_moments));
}

int adamw(TroupeCudaStream* stream, const TroupeCudaAdamW* given, void* parameters,
          const float* gradients, void* first_moments, void* second_moments, std::int64_t count,
          const float* gradient_scale) {
  const TroupeCudaAdamW step = *given;
  const int type = step.state_type;
  return Launch(stream, "adamw")
      .activations_of(type)
      .requires_that(!step.round_randomly || type == TROUPE_CUDA_BF16,
                     "only states of BF16 are rounded randomly")
      .needs(parameters, count, type, "parameters")
      .floats(gradients, count, "gradients")
      .needs(first_moments, count, type, "first moments")
      .needs(second_moments, count, type, "second moments")
      .floats(gradient_scale, 1, "gradient_scale")
      .run([=](Operators&) {
        const train::AdamWFactors factors = factors_of(step, *gradient_scale);
        if (type == TROUPE_CUDA_BF16)
          update<std::uint16_t>(factors, step.first_element, parameters, gradients, first_moments,
                                second_moments, count);
        else
          update<float>(factors, step.first_element, parameters, gradients, first_moments,
                        second_moments, count);
      });
}

// --- the update under a log: the kernel's own body

namespace cuda = train::cuda;

static_assert(sizeof(cuda::ChunkRange) == sizeof(TroupeCudaUpdateRange));
static_assert(sizeof(cuda::DecayEnd) == sizeof(TroupeCudaDecayEnd));
static_assert(sizeof(cuda::UndoHeader) == TROUPE_CUDA_UNDO_HEADER_BYTES);
static_assert(cuda::kUpdateThreads * cuda::kPack == TROUPE_CUDA_CHUNK_ELEMENTS);

// Blocks that run at a time, at most.
constexpr std::int64_t kBlocks = 4;

template <class State>
cuda::TransactedAdamW<State> transacted_of(const TroupeCudaUpdate& u) {
  auto* headers = static_cast<cuda::UndoHeader*>(u.undo);
  const TroupeCudaAdamW& step = u.adamw;
  return {
      static_cast<State*>(u.parameters),
      u.gradients,
      static_cast<State*>(u.first_moments),
      static_cast<State*>(u.second_moments),
      reinterpret_cast<const cuda::ChunkRange*>(u.ranges),
      u.range_count,
      reinterpret_cast<const cuda::DecayEnd*>(u.decays),
      u.chunks,
      u.step,
      u.marks,
      headers,
      reinterpret_cast<cuda::PackWords*>(headers + u.writers * TROUPE_CUDA_UNDO_SLOTS_PER_WRITER),
      u.gradient_scale,
      {step.beta1_rest, step.beta2, step.beta2_rest, step.step_size, step.root_correction,
       step.epsilon, step.keep},
      step.round_randomly != 0,
      step.seed};
}

template <class State>
void run_transacted(const TroupeCudaUpdate& update, int device,
                    const std::optional<FakeUpdateEnd>& end) {
  const cuda::TransactedAdamW<State> a = transacted_of<State>(update);
  const std::int64_t slots = update.writers * TROUPE_CUDA_UNDO_SLOTS_PER_WRITER;
  const std::int64_t writers = std::min(update.writers, kBlocks);
  if (end) {
    EndingLaunch launch({.moment = end->moment, .seed = end->seed});
    const bool whole = run_update<State, cuda::kUpdateThreads>(a, slots, writers, launch);
    state().updated(launch.moments());
    if (!whole) state().lose(device);
    return;
  }
  cuda::DeviceWords words;
  for (std::int64_t slot = 0; slot < slots; ++slot)
    cuda::restore_chunk(cuda::Block<cuda::kUpdateThreads>{slot}, a, words);
  for (std::int64_t writer = 0; writer < writers; ++writer) {
    const cuda::Block<cuda::kUpdateThreads> block{writer};
    const auto body =
        std::make_unique<cuda::UpdateWriter<State, cuda::kUpdateThreads, cuda::DeviceWords>>(
            a, writer, writers);
    body->open(block, words);
    while (body->working()) {
      body->change(block, words);
      body->announce(block, words);
    }
  }
}

// What only the device may read: an address that is not its own ends the program, as it would end a
// GPU's context.
void check_ranges(const TroupeCudaUpdate& u) {
  const std::int64_t element = type_bytes(u.adamw.state_type);
  for (std::int64_t i = 0; i < u.range_count; ++i) {
    const TroupeCudaUpdateRange& range = u.ranges[i];
    const std::int64_t end = i + 1 < u.range_count ? u.ranges[i + 1].first_chunk : u.chunks;
    const std::int64_t count = (end - range.first_chunk) * TROUPE_CUDA_CHUNK_ELEMENTS;
    const auto there = [&](const void* base, std::int64_t offset, std::int64_t bytes) {
      return state().known(static_cast<const std::byte*>(base) + offset * bytes, count * bytes);
    };
    TROUPE_CHECK(count > 0 && there(u.parameters, range.parameters, element) &&
                     there(u.gradients, range.gradients, 4) &&
                     there(u.first_moments, range.moments, element) &&
                     there(u.second_moments, range.moments, element),
                 "adamw_transacted: range {} is no memory of the device", i);
  }
}

int adamw_transacted(TroupeCudaStream* stream, const TroupeCudaUpdate* given) {
  const TroupeCudaUpdate u = *given;
  const int type = u.adamw.state_type;
  Launch launch(stream, "adamw_transacted");
  const auto aligned = [](const void* at) {
    return reinterpret_cast<std::uintptr_t>(at) % 16 == 0;
  };
  const std::int64_t slots = u.writers * TROUPE_CUDA_UNDO_SLOTS_PER_WRITER;
  const std::int64_t slot_bytes =
      TROUPE_CUDA_UNDO_HEADER_BYTES + 3 * TROUPE_CUDA_CHUNK_ELEMENTS * type_bytes(type);
  launch.activations_of(type)
      .requires_that(
          u.step > 0 && u.chunks > 0 && u.writers > 0 && u.range_count > 0 && u.decay_count > 0,
          "sizes that are not positive")
      .requires_that(!u.adamw.round_randomly || type == TROUPE_CUDA_BF16,
                     "only states of BF16 are rounded randomly")
      .requires_that(aligned(u.parameters) && aligned(u.gradients) && aligned(u.first_moments) &&
                         aligned(u.second_moments) && aligned(u.undo),
                     "buffers that do not begin at multiples of 16 bytes")
      .needs(u.ranges, u.range_count * static_cast<std::int64_t>(sizeof *u.ranges), TROUPE_CUDA_U8,
             "ranges")
      .needs(u.decays, u.decay_count * static_cast<std::int64_t>(sizeof *u.decays), TROUPE_CUDA_U8,
             "decays")
      .needs(u.marks, u.chunks, TROUPE_CUDA_I64, "marks")
      .needs(u.undo, slots * slot_bytes, TROUPE_CUDA_U8, "undo")
      .first([u] { check_ranges(u); });
  return launch.run(
      [u, type, device = stream->context->device, end = state().take_update_end()](Operators&) {
        if (type == TROUPE_CUDA_BF16)
          run_transacted<cuda::Bf16>(u, device, end);
        else
          run_transacted<float>(u, device, end);
      });
}

int tile_sums_of_squares(TroupeCudaStream* stream, const float* x, std::int64_t count,
                         std::int64_t tile_elements, double* sums) {
  const std::int64_t tiles = (count + tile_elements - 1) / tile_elements;
  return Launch(stream, "tile_sums_of_squares")
      .floats(x, count, "x")
      .needs(sums, tiles, TROUPE_CUDA_F64, "sums")
      .run([=](Operators&) {
        for (std::int64_t tile = 0; tile < tiles; ++tile) {
          const std::int64_t begin = tile * tile_elements;
          sums[tile] = train::tile_sum_of_squares(std::span(
              x + begin, static_cast<std::size_t>(std::min(tile_elements, count - begin))));
        }
      });
}

int tree_sum(TroupeCudaStream* stream, const void* const* given, std::int32_t count,
             std::int32_t type, void* out, std::int32_t out_type, std::int64_t elements) {
  Launch launch(stream, "tree_sum");
  launch.activations_of(type)
      .activations_of(out_type)
      .requires_that(count > 0 && count <= TROUPE_CUDA_PARTS_MAX, "a count of parts out of range")
      .needs(out, elements, out_type, "out");
  std::vector<const void*> parts;
  for (std::int32_t i = 0; i < std::min<std::int32_t>(count, TROUPE_CUDA_PARTS_MAX); ++i) {
    parts.push_back(given[i]);
    launch.needs(given[i], elements, type, "a part");
  }
  return launch.run([=](Operators&) {
    std::vector<std::vector<float>> values;
    std::vector<const std::byte*> inputs;
    for (const void* part : parts) {
      const In in(type, part, elements);
      values.emplace_back(static_cast<const float*>(in), static_cast<const float*>(in) + elements);
    }
    for (const auto& value : values)
      inputs.push_back(reinterpret_cast<const std::byte*>(value.data()));
    std::vector<float> sum(static_cast<std::size_t>(elements));
    collective::tree_reduce(inputs, reinterpret_cast<std::byte*>(sum.data()), sum.size(),
                            collective::DataType::kFloat32, collective::ReduceOp::kSum);
    InOut target(out_type, out, elements);
    std::memcpy(static_cast<float*>(target), sum.data(), sum.size() * sizeof(float));
  });
}

}  // namespace

void fill_optimizer(TroupeCudaTable& table) {
  table.adamw = adamw;
  table.adamw_transacted = adamw_transacted;
  table.tile_sums_of_squares = tile_sums_of_squares;
  table.tree_sum = tree_sum;
}

}  // namespace troupe::tests::fake
