#include "train/cuda/operators/cuda_optimizer.h"

#include <algorithm>

#include "runtime/base/check.h"

namespace troupe::train {
namespace {

// The gradients' factor lies first.
constexpr std::int64_t kFactorBytes = 256;

}  // namespace

std::int64_t CudaOptimizer::scratch_bytes(std::int64_t tiles_max) {
  return kFactorBytes + tiles_max * static_cast<std::int64_t>(sizeof(double));
}

Result<CudaOptimizer> CudaOptimizer::create(CudaStream& stream, std::span<std::byte> scratch) {
  TROUPE_CHECK(static_cast<std::int64_t>(scratch.size()) >= scratch_bytes(0));
  return CudaOptimizer(stream, TROUPE_TRY(HostTransfer::create(stream)), scratch);
}

Result<std::vector<double>> CudaOptimizer::tile_sums(const float* x, std::int64_t count,
                                                     std::int64_t tile_elements) {
  TROUPE_RETURN_IF_ERROR(enqueue_sums(x, count, tile_elements, 0));
  return download_sums((count + tile_elements - 1) / tile_elements);
}

Result<std::vector<double>> CudaOptimizer::tile_sums(const float* gradients,
                                                     std::span<const UpdateRange> ranges,
                                                     std::int64_t tile_elements) {
  std::int64_t tiles = 0;
  for (std::size_t i = 0; i < ranges.size();) {
    // Neighbours of which one begins where the other ends are summed together.
    const std::int64_t begin = ranges[i].gradients;
    std::int64_t end = begin;
    for (; i < ranges.size() && ranges[i].gradients == end; ++i) {
      TROUPE_CHECK(ranges[i].elements % tile_elements == 0, "{} elements", ranges[i].elements);
      end += ranges[i].elements;
    }
    TROUPE_RETURN_IF_ERROR(enqueue_sums(gradients + begin, end - begin, tile_elements, tiles));
    tiles += (end - begin) / tile_elements;
  }
  return download_sums(tiles);
}

double* CudaOptimizer::sums() const {
  return reinterpret_cast<double*>(scratch_.data() + kFactorBytes);
}

Status CudaOptimizer::enqueue_sums(const float* x, std::int64_t count, std::int64_t tile_elements,
                                   std::int64_t first_tile) {
  const std::int64_t tiles = first_tile + (count + tile_elements - 1) / tile_elements;
  TROUPE_CHECK(scratch_bytes(tiles) <= static_cast<std::int64_t>(scratch_.size()), "{} tiles",
               tiles);
  const CudaDevice& device = *stream_->device();
  return device.status(device.table().tile_sums_of_squares(stream_->get(), x, count, tile_elements,
                                                           sums() + first_tile),
                       "sums of squares of the gradients");
}

Result<std::vector<double>> CudaOptimizer::download_sums(std::int64_t tiles) {
  std::vector<double> out(static_cast<std::size_t>(tiles));
  if (tiles > 0) {
    TROUPE_RETURN_IF_ERROR(
        transfer_.download(sums(), out.data(), tiles * static_cast<std::int64_t>(sizeof(double))));
  }
  return out;
}

Status CudaOptimizer::update(const AdamWStep& step, const ParameterGroups& groups,
                             std::int64_t begin, float* parameters, const float* gradients,
                             float* first_moments, float* second_moments, std::int64_t count) {
  return update_as(TROUPE_CUDA_F32, step, groups, begin, parameters, gradients, first_moments,
                   second_moments, count);
}

Status CudaOptimizer::update(const AdamWStep& step, const ParameterGroups& groups,
                             std::int64_t begin, std::uint16_t* parameters, const float* gradients,
                             std::uint16_t* first_moments, std::uint16_t* second_moments,
                             std::int64_t count) {
  return update_as(TROUPE_CUDA_BF16, step, groups, begin, parameters, gradients, first_moments,
                   second_moments, count);
}

Status CudaOptimizer::update_as(std::int32_t type, const AdamWStep& step,
                                const ParameterGroups& groups, std::int64_t begin, void* parameters,
                                const float* gradients, void* first_moments, void* second_moments,
                                std::int64_t count) {
  const CudaDevice& device = *stream_->device();
  auto* factor = reinterpret_cast<float*>(scratch_.data());
  TROUPE_RETURN_IF_ERROR(transfer_.upload(&step.gradient_scale, factor, sizeof(float)));
  const std::int64_t element = type == TROUPE_CUDA_BF16 ? 2 : 4;
  const auto at = [element](void* base, std::int64_t index) {
    return static_cast<std::byte*>(base) + index * element;
  };
  TROUPE_CHECK(begin + count <= groups.end(), "no parameter group at {}", groups.end());
  Status status;
  groups.for_each_part(
      begin, begin + count, [&](std::size_t group, std::int64_t from, std::int64_t to) {
        if (!status.ok()) return;
        const AdamWFactors factors(step, groups.groups()[group]);
        const TroupeCudaAdamW given{.beta1_rest = factors.beta1_rest,
                                    .beta2 = factors.beta2,
                                    .beta2_rest = factors.beta2_rest,
                                    .step_size = factors.step_size,
                                    .root_correction = factors.root_correction,
                                    .epsilon = factors.epsilon,
                                    .keep = factors.keep,
                                    .state_type = type,
                                    .round_randomly = factors.rounding_key.has_value(),
                                    .seed = factors.rounding_key.value_or(0),
                                    .first_element = from};
        const std::int64_t first = from - begin;
        status = device.status(device.table().adamw(stream_->get(), &given, at(parameters, first),
                                                    gradients + first, at(first_moments, first),
                                                    at(second_moments, first), to - from, factor),
                               "AdamW");
      });
  return status;
}

}  // namespace troupe::train
