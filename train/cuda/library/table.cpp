// The library's one exported function.

#include "train/cuda/library/objects.h"

namespace troupe::train::cuda {
namespace {

TroupeCudaTable make_table() {
  TroupeCudaTable table{};
  table.version = TROUPE_CUDA_TABLE_VERSION;
  table.bytes = sizeof table;
  table.error_text = last_failure;
  fill_devices(table);
  fill_memory(table);
  fill_streams(table);
  fill_gemm(table);
  fill_fp8(table);
  fill_elementwise(table);
  fill_norms(table);
  fill_losses(table);
  fill_attention(table);
  fill_attention_dropout(table);
  fill_attention_mask(table);
  fill_fused_attention(table);
  fill_optimizer(table);
  fill_groups(table);
  fill_graphs(table);
  return table;
}

}  // namespace
}  // namespace troupe::train::cuda

extern "C" __attribute__((visibility("default"))) const TroupeCudaTable* troupe_cuda_table(
    std::uint32_t version) {
  static const TroupeCudaTable table = troupe::train::cuda::make_table();
  return version == TROUPE_CUDA_TABLE_VERSION ? &table : nullptr;
}
