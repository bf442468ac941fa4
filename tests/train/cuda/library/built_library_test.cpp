// libtroupe_cuda.so as it was built: it loads without NVIDIA's other libraries, has every function
// of the table, and says what is missing where there is no driver.

#include <doctest/doctest.h>

#include <cstdlib>
#include <cstring>
#include <thread>

#include "train/cuda/device/cuda_library.h"
#include "train/cuda/kernels/scratch_sizes.h"

namespace troupe::train {
namespace {

std::shared_ptr<const CudaLibrary> built_library() {
  const char* folder = std::getenv("TROUPE_BIN_DIR");
  const std::string path = std::string(folder ? folder : "bin") + "/libtroupe_cuda.so";
  const auto loaded = CudaLibrary::load(MapEnvironment({{"TROUPE_CUDA_LIBRARY", path}}));
  REQUIRE_MESSAGE(loaded.ok(), loaded.status().message());
  return *loaded;
}

TEST_CASE("the built library has every function of the table") {
  const auto library = built_library();
  const TroupeCudaTable& table = library->table();
  // All members behind the two numbers are functions.
  const auto* bytes = reinterpret_cast<const char*>(&table);
  for (std::size_t at = offsetof(TroupeCudaTable, error_text); at < sizeof table;
       at += sizeof(void*)) {
    void* function = nullptr;
    std::memcpy(&function, bytes + at, sizeof function);
    CAPTURE(at);
    // Operators that have no kernel yet, which a GPU refuses by name.
    const bool is_missing = at == offsetof(TroupeCudaTable, scale) ||
                            at == offsetof(TroupeCudaTable, add_number) ||
                            at == offsetof(TroupeCudaTable, geglu_forward) ||
                            at == offsetof(TroupeCudaTable, geglu_backward) ||
                            at == offsetof(TroupeCudaTable, add_column_products) ||
                            at == offsetof(TroupeCudaTable, add_scaled_columns) ||
                            at == offsetof(TroupeCudaTable, magnitude_factors) ||
                            at == offsetof(TroupeCudaTable, weighted_cross_entropy) ||
                            at == offsetof(TroupeCudaTable, entropy_weighted_cross_entropy) ||
                            at == offsetof(TroupeCudaTable, divergence_cross_entropy);
    CHECK((function == nullptr) == is_missing);
  }
  TroupeCudaVersions versions{};
  REQUIRE(table.versions(&versions) == TROUPE_CUDA_OK);
  CHECK(versions.runtime >= 13000);
}

TEST_CASE("plans know the sizes of the built library's scratch memory") {
  const auto library = built_library();
  for (const std::int64_t rows : {1, 31, 500, 8192, 100'000}) {
    CAPTURE(rows);
    CHECK((*library)->embedding_scratch_bytes(rows) == cuda::embedding_scratch_size(rows));
    for (const std::int64_t width : {1, 896, 4864, 151'936})
      CHECK((*library)->row_sum_scratch_bytes(rows, width) ==
            cuda::row_sum_scratch_size(rows, width));
    const TroupeCudaAttention shape{.batch = 3, .query_length = rows, .query_heads = 14};
    CHECK((*library)->attention_scratch_bytes(&shape) ==
          cuda::attention_scratch_size(3 * 14 * rows));
  }
}

TEST_CASE("without a driver the built library says so") {
  const auto library = built_library();
  const TroupeCudaTable& table = library->table();
  std::int32_t count = -1;
  const int code = table.device_count(&count);
  if (code == TROUPE_CUDA_OK) {
    MESSAGE("skipped: this machine has ", count, " GPUs");
    return;
  }
  CHECK(code == TROUPE_CUDA_UNAVAILABLE);
  CHECK(count == 0);
  const std::string text = table.error_text();
  CHECK(text.find("NVIDIA driver") != std::string::npos);
  TroupeCudaContext* context = nullptr;
  CHECK(table.context_open(0, &context) == TROUPE_CUDA_UNAVAILABLE);
  CHECK(context == nullptr);
  CHECK(std::string(table.error_text()) == text);
  // Texts are the thread's own.
  std::thread([&] { CHECK(std::string(table.error_text()).empty()); }).join();
  // What no context can be made for is refused, not followed.
  CHECK(table.context_synchronize(nullptr) == TROUPE_CUDA_INVALID);
  CHECK(table.stream_synchronize(nullptr) == TROUPE_CUDA_INVALID);
  CHECK(std::string(table.error_text()).find("stream_synchronize") != std::string::npos);
}

TEST_CASE("the built library says whether cuDNN computes attention, or what is missing for it") {
  const auto library = built_library();
  const TroupeCudaTable& table = library->table();
  const int code = table.fused_attention_available();
  if (code == TROUPE_CUDA_OK) {
    TroupeCudaVersions versions{};
    REQUIRE(table.versions(&versions) == TROUPE_CUDA_OK);
    CHECK(versions.cudnn >= 90600);
  } else {
    CHECK(code == TROUPE_CUDA_UNAVAILABLE);
    CHECK(std::string(table.error_text()).find("`tools/setup --cuda`") != std::string::npos);
  }
  // Nothing can be planned in no context.
  TroupeCudaFusedAttention shape{};
  TroupeCudaAttentionPlan* plan = nullptr;
  std::int64_t workspace_bytes = 0;
  CHECK(table.attention_plan_create(nullptr, &shape, &plan, &workspace_bytes) != TROUPE_CUDA_OK);
  CHECK(plan == nullptr);
}

TEST_CASE("scratch sizes of the built library grow with what is summed") {
  const auto library = built_library();
  const TroupeCudaTable& table = library->table();
  CHECK(table.row_sum_scratch_bytes(1, 8) == 8 * 4);
  CHECK(table.row_sum_scratch_bytes(4096, 1024) > table.row_sum_scratch_bytes(64, 1024));
  CHECK(table.row_sum_scratch_bytes(0, 1024) == 0);
  CHECK(table.embedding_scratch_bytes(1) == 2048 * 8);
  CHECK(table.embedding_scratch_bytes(2049) == 4096 * 8);
  TroupeCudaAttention attention{};
  attention.batch = 2, attention.query_heads = 3, attention.query_length = 5;
  CHECK(table.attention_scratch_bytes(&attention) == 2 * 3 * 5 * 4);
}

}  // namespace
}  // namespace troupe::train
