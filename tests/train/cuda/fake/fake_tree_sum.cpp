// The fake's sum by the fixed tree: that of the CPU's communicators.

#include <algorithm>
#include <cstring>

#include "runtime/collective/reduce_tree.h"
#include "tests/train/cuda/fake/fake_state.h"
#include "train/tensor/convert.h"

namespace troupe::tests::fake {
namespace {

void add_parts(const std::vector<const void*>& parts, bool narrow, void* out, bool narrow_out,
               std::int64_t elements) {
  const auto count = static_cast<std::size_t>(elements);
  std::vector<std::vector<float>> wide(parts.size(), std::vector<float>(count));
  std::vector<const std::byte*> inputs;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (narrow) {
      train::float_from_bf16(static_cast<const std::uint16_t*>(parts[i]), wide[i].data(), elements);
    } else {
      std::memcpy(wide[i].data(), parts[i], count * sizeof(float));
    }
    inputs.push_back(reinterpret_cast<const std::byte*>(wide[i].data()));
  }
  std::vector<float> sum(count);
  collective::tree_reduce(inputs, reinterpret_cast<std::byte*>(sum.data()), count,
                          collective::DataType::kFloat32, collective::ReduceOp::kSum);
  if (narrow_out) {
    train::bf16_from_float(sum.data(), static_cast<std::uint16_t*>(out), elements);
  } else {
    std::memcpy(out, sum.data(), count * sizeof(float));
  }
}

int tree_sum(TroupeCudaStream* stream, const void* const* parts, std::int32_t count,
             std::int32_t type, void* out, std::int32_t out_type, std::int64_t elements) {
  if (const int code = state().enter("tree_sum", stream->context->device)) return code;
  const auto is_sum_type = [](int t) { return t == TROUPE_CUDA_F32 || t == TROUPE_CUDA_BF16; };
  if (count < 1 || count > TROUPE_CUDA_PARTS_MAX || !is_sum_type(type) || !is_sum_type(out_type))
    return state().fail(TROUPE_CUDA_INVALID, "a tree of so many parts or of such types");
  const std::int64_t bytes = elements * (type == TROUPE_CUDA_F32 ? 4 : 2);
  for (std::int32_t i = 0; i < count; ++i) {
    if (elements != 0 && !state().on_device(parts[i], bytes))
      return state().fail(TROUPE_CUDA_INVALID, "a part is no memory of the device");
  }
  stream->enqueue([=, inputs = std::vector<const void*>(parts, parts + count)] {
    add_parts(inputs, type == TROUPE_CUDA_BF16, out, out_type == TROUPE_CUDA_BF16, elements);
  });
  return TROUPE_CUDA_OK;
}

}  // namespace

void fill_tree_sum(TroupeCudaTable& table) { table.tree_sum = tree_sum; }

}  // namespace troupe::tests::fake
