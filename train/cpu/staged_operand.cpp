#include "train/cpu/staged_operand.h"

#include <algorithm>

#include "runtime/base/check.h"
#include "train/tensor/convert.h"

namespace troupe::train {
namespace {

constexpr std::int64_t kRowAlignElements = 32;  // a cache line of bf16
constexpr std::int64_t kRowsPerTask = 32;

// Rows whose distance is a multiple of a page fall into the same sets of a cache.
std::int64_t padded_stride(std::int64_t width) {
  const std::int64_t stride =
      (width + kRowAlignElements - 1) / kRowAlignElements * kRowAlignElements;
  return stride % 1024 == 0 ? stride + kRowAlignElements : stride;
}

const std::byte* element_at(const void* data, DType type, std::int64_t index) {
  return static_cast<const std::byte*>(data) +
         index * static_cast<std::int64_t>(type == DType::kBF16 ? 2 : 4);
}

void convert_row(const std::byte* source, DType from, std::byte* target, DType to,
                 Arithmetic arithmetic, std::int64_t count) {
  if (arithmetic == Arithmetic::kFp16) {
    auto* const values = reinterpret_cast<float*>(target);
    const bool wide = from == DType::kF32;
    if (!wide) float_from_bf16(reinterpret_cast<const std::uint16_t*>(source), values, count);
    round_to_f16(wide ? reinterpret_cast<const float*>(source) : values, values, count);
    return;
  }
  if (from == DType::kBF16)
    float_from_bf16(reinterpret_cast<const std::uint16_t*>(source),
                    reinterpret_cast<float*>(target), count);
  else if (to == DType::kBF16)
    bf16_from_float(reinterpret_cast<const float*>(source),
                    reinterpret_cast<std::uint16_t*>(target), count);
  else
    round_to_bf16(reinterpret_cast<const float*>(source), reinterpret_cast<float*>(target), count);
}

}  // namespace

void StagedOperand::begin(const OperandView& view, DType staged_type, Arithmetic arithmetic,
                          std::int64_t elements_max) {
  view_ = view;
  staged_type_ = staged_type;
  arithmetic_ = arithmetic;
  in_place_ = view.type == DType::kBF16 && staged_type == DType::kBF16;
  panel_ = view.blocks();
  if (in_place_) return;
  block_elements_ = view.edge_is_row ? view.block_edge * padded_stride(view.block_depth)
                                     : view.block_depth * padded_stride(view.block_edge);
  panel_ = std::clamp<std::int64_t>(elements_max / block_elements_, 1, panel_);
  const std::size_t bytes =
      static_cast<std::size_t>(panel_ * block_elements_) * dtype_size(staged_type);
  if (bytes <= scratch_bytes_) return;
  scratch_.reset();
  scratch_bytes_ = bytes;
  scratch_.reset(allocate_huge(scratch_bytes_));
  TROUPE_CHECK(scratch_, "no memory for {} bytes of scratch", scratch_bytes_);
}

std::int64_t StagedOperand::edge_of(std::int64_t block) const {
  return std::min(view_.block_edge, view_.edge - block * view_.block_edge);
}

std::int64_t StagedOperand::block_stride(std::int64_t block) const {
  return padded_stride(view_.edge_is_row ? depth_ : edge_of(block));
}

// Rows of memory that all blocks share are read from one end to the other, not block by block.
void StagedOperand::stage(Arena& arena, std::int64_t first, std::int64_t k0, std::int64_t depth) {
  first_ = first, k0_ = k0, depth_ = depth;
  if (in_place_) return;
  const std::int64_t count = std::min(panel_, view_.blocks() - first);
  const std::int64_t rows =
      view_.edge_is_row ? std::min(count * view_.block_edge, view_.edge - first * view_.block_edge)
                        : depth;
  arena.parallel_for((rows + kRowsPerTask - 1) / kRowsPerTask, [&](std::int64_t task, int) {
    const std::int64_t end = std::min(rows, (task + 1) * kRowsPerTask);
    for (std::int64_t row = task * kRowsPerTask; row < end; ++row)
      if (view_.edge_is_row)
        convert(first + row / view_.block_edge, row % view_.block_edge);
      else
        for (std::int64_t i = 0; i < count; ++i) convert(first + i, row);
  });
}

void StagedOperand::convert(std::int64_t block, std::int64_t row) const {
  const std::int64_t edge0 = block * view_.block_edge;
  const std::int64_t source =
      view_.edge_is_row ? (edge0 + row) * view_.stride + k0_ : (k0_ + row) * view_.stride + edge0;
  const std::int64_t target = (block - first_) * block_elements_ + row * block_stride(block);
  convert_row(element_at(view_.data, view_.type, source), view_.type,
              scratch_.get() + target * static_cast<std::int64_t>(dtype_size(staged_type_)),
              staged_type_, arithmetic_, view_.edge_is_row ? depth_ : edge_of(block));
}

OperandPart StagedOperand::part(std::int64_t block) const {
  if (in_place_) {
    const std::int64_t edge0 = block * view_.block_edge;
    return {element_at(view_.data, view_.type,
                       view_.edge_is_row ? edge0 * view_.stride + k0_ : k0_ * view_.stride + edge0),
            view_.type, view_.stride};
  }
  return {scratch_.get() + (block - first_) * block_elements_ *
                               static_cast<std::int64_t>(dtype_size(staged_type_)),
          staged_type_, block_stride(block)};
}

}  // namespace troupe::train
