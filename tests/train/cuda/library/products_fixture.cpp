#include "tests/train/cuda/library/products_fixture.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cmath>
#include <cstdlib>
#include <cstring>

#include "runtime/base/check.h"
#include "train/cuda/kernels/fp8.h"
#include "train/cuda/library/vendor_versions.h"
#include "train/tensor/convert.h"

// --- what gemm.cpp needs of cudart and of its neighbours: there is no device that could fail
extern "C" {
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaMemGetInfo(std::size_t* unused, std::size_t* total) {
  *unused = *total = 0;
  return cudaSuccess;
}
const char* cudaGetErrorName(cudaError_t) { return "an error of CUDA's"; }
const char* cudaGetErrorString(cudaError_t) { return "an error of CUDA's"; }
}

namespace troupe::train::cuda {

void AttentionLibraryDeleter::operator()(AttentionLibrary*) const {}
int enter(const char* what, const TroupeCudaContext* context) {
  return context ? TROUPE_CUDA_OK : fail(TROUPE_CUDA_INVALID, std::string(what) + ": no context");
}
int enter(const char* what, const TroupeCudaStream* stream) {
  return stream ? TROUPE_CUDA_OK : fail(TROUPE_CUDA_INVALID, std::string(what) + ": no stream");
}

}  // namespace troupe::train::cuda

namespace troupe::tests {
namespace {

std::string stand_in_folder() {
  const char* bin = std::getenv("TROUPE_BIN_DIR");
  return std::string(bin ? bin : "bin") + "/../cublaslt_stand_in";
}

constexpr std::int64_t kGuard = 64;
constexpr float kUntouched = -8;  // every type has it

std::size_t element_bytes(int type) {
  if (type == TROUPE_CUDA_F32) return 4;
  return type == TROUPE_CUDA_BF16 ? 2 : 1;
}

}  // namespace

Products::Products() {
  ::setenv("TROUPE_CUDA_LIBRARY_PATH", stand_in_folder().c_str(), 1);
  train::cuda::fill_gemm(table);
  // The first call loads it.
  REQUIRE(train::cuda::cublaslt_version() > 0);
  ::unsetenv("TROUPE_CUDA_LIBRARY_PATH");
}

std::vector<TroupeCudaAlgorithm> Products::algorithms(const TroupeCudaGemm& gemm,
                                                      std::int64_t workspace_bytes) {
  std::vector<TroupeCudaAlgorithm> found(16);
  std::int32_t count = 0;
  const int code =
      table.gemm_algorithms(&context, &gemm, workspace_bytes, 16, found.data(), &count);
  REQUIRE_MESSAGE(code == TROUPE_CUDA_OK, train::cuda::last_failure());
  found.resize(static_cast<std::size_t>(count));
  return found;
}

StoredMatrix::StoredMatrix(int type, std::int64_t rows, std::int64_t columns, std::int64_t stride,
                           std::int64_t offset)
    : type(type), rows(rows), columns(columns), stride(stride) {
  const std::size_t bytes = element_bytes(type);
  bytes_.resize(static_cast<std::size_t>(rows * stride + offset + kGuard) * bytes + 256);
  const auto begin = reinterpret_cast<std::uintptr_t>(bytes_.data());
  at_ = bytes_.data() + ((begin + 255) / 256 * 256 - begin) +
        static_cast<std::size_t>(offset) * bytes;
  for (std::int64_t i = 0; i < rows * stride + kGuard; ++i) write(i, kUntouched);
}

float StoredMatrix::read(std::int64_t at) const {
  const std::uint8_t* from = at_ + static_cast<std::size_t>(at) * element_bytes(type);
  switch (type) {
    case TROUPE_CUDA_E4M3:
      return train::cuda::float_from_fp8<train::cuda::E4M3>(*from);
    case TROUPE_CUDA_E5M2:
      return train::cuda::float_from_fp8<train::cuda::E5M2>(*from);
    case TROUPE_CUDA_BF16: {
      std::uint16_t bits = 0;
      std::memcpy(&bits, from, sizeof bits);
      return train::bf16_to_float(bits);
    }
    default: {
      float value = 0;
      std::memcpy(&value, from, sizeof value);
      return value;
    }
  }
}

void StoredMatrix::write(std::int64_t at, float value) {
  std::uint8_t* to = at_ + static_cast<std::size_t>(at) * element_bytes(type);
  if (type == TROUPE_CUDA_E4M3) {
    *to = static_cast<std::uint8_t>(train::cuda::fp8_from_float<train::cuda::E4M3>(value));
  } else if (type == TROUPE_CUDA_E5M2) {
    *to = static_cast<std::uint8_t>(train::cuda::fp8_from_float<train::cuda::E5M2>(value));
  } else if (type == TROUPE_CUDA_BF16) {
    const std::uint16_t bits = train::float_to_bf16(value);
    std::memcpy(to, &bits, sizeof bits);
  } else {
    std::memcpy(to, &value, sizeof value);
  }
}

float StoredMatrix::get(std::int64_t row, std::int64_t column) const {
  return read(row * stride + column);
}
void StoredMatrix::set(std::int64_t row, std::int64_t column, float value) {
  write(row * stride + column, value);
}

void StoredMatrix::fill(std::uint32_t seed, int greatest) {
  std::uint32_t state = seed * 2654435761u + 12345u;
  const auto choices = static_cast<std::uint32_t>(2 * greatest + 1);
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t column = 0; column < columns; ++column) {
      state = state * 1664525u + 1013904223u;
      set(row, column, static_cast<float>((state >> 16) % choices) - static_cast<float>(greatest));
    }
}

bool StoredMatrix::gaps_are_untouched() const {
  for (std::int64_t i = 0; i < rows * stride + kGuard; ++i)
    if ((i >= rows * stride || i % stride >= columns) && read(i) != kUntouched) return false;
  return true;
}

TroupeCudaGemm gemm_of(const StoredMatrix& a, bool transpose_a, const StoredMatrix& b,
                       bool transpose_b, const StoredMatrix& c, int arithmetic) {
  const bool narrow = element_bytes(a.type) == 1;
  return {.m = c.rows,
          .n = c.columns,
          .k = transpose_a ? a.rows : a.columns,
          .a_stride = a.stride,
          .b_stride = b.stride,
          .c_stride = c.stride,
          .a_type = a.type,
          .b_type = b.type,
          .c_type = c.type,
          .transpose_a = transpose_a,
          .transpose_b = transpose_b,
          .arithmetic = arithmetic,
          .alignment_bytes = narrow ? 16 : static_cast<std::int32_t>(element_bytes(a.type))};
}

std::vector<double> plain_product(const TroupeCudaGemm& g, const StoredMatrix& a,
                                  const StoredMatrix& b) {
  std::vector<double> out(static_cast<std::size_t>(g.m * g.n));
  for (std::int64_t i = 0; i < g.m; ++i)
    for (std::int64_t j = 0; j < g.n; ++j) {
      double sum = 0;
      for (std::int64_t p = 0; p < g.k; ++p)
        sum += static_cast<double>(g.transpose_a ? a.get(p, i) : a.get(i, p)) *
               static_cast<double>(g.transpose_b ? b.get(j, p) : b.get(p, j));
      out[static_cast<std::size_t>(i * g.n + j)] = sum;
    }
  return out;
}

std::int64_t stand_in_objects() {
  void* library = ::dlopen((stand_in_folder() + "/libcublasLt.so." +
                            std::to_string(train::cuda::cublaslt_version() / 10000))
                               .c_str(),
                           RTLD_NOW | RTLD_NOLOAD);
  REQUIRE(library != nullptr);
  const auto count =
      reinterpret_cast<std::int64_t (*)()>(::dlsym(library, "blas_lt_stand_in_objects"));
  REQUIRE((count != nullptr));
  ::dlclose(library);
  return count();
}

}  // namespace troupe::tests
