#include "train/cuda/communicator/nccl_tree.h"

#include <vector>

#include "runtime/base/check.h"

namespace troupe::train {

std::size_t tree_classes(std::size_t parts) {
  constexpr std::size_t kMax = TROUPE_CUDA_PARTS_MAX;
  if (parts <= kMax) return 0;
  std::size_t classes = 2;
  while ((parts + classes - 1) / classes > kMax) classes *= 2;
  TROUPE_CHECK(classes <= kMax, "a sum of {} ranks", parts);
  return classes;
}

int tree_sum_of_any(const TroupeCudaTable& table, TroupeCudaStream* stream,
                    std::span<const void* const> parts, TroupeCudaType type, float* classes,
                    void* out, std::int64_t elements) {
  const std::size_t count = tree_classes(parts.size());
  if (count == 0)
    return table.tree_sum(stream, parts.data(), static_cast<std::int32_t>(parts.size()), type, out,
                          type, elements);
  std::vector<const void*> sums;
  for (std::size_t r = 0; r < count; ++r) {
    std::vector<const void*> members;
    for (std::size_t i = r; i < parts.size(); i += count) members.push_back(parts[i]);
    float* sum = classes + static_cast<std::int64_t>(r) * elements;
    const int code =
        table.tree_sum(stream, members.data(), static_cast<std::int32_t>(members.size()), type, sum,
                       TROUPE_CUDA_F32, elements);
    if (code != TROUPE_CUDA_OK) return code;
    sums.push_back(sum);
  }
  return table.tree_sum(stream, sums.data(), static_cast<std::int32_t>(count), TROUPE_CUDA_F32, out,
                        type, elements);
}

}  // namespace troupe::train
