#pragma once
// Products of the library's own gemm.cpp over the stand-in of libcublasLt: operands of small whole
// numbers, which every type holds and every sum adds without rounding, and the product in
// row-major terms beside them.

#include <doctest/doctest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "train/cuda/library/objects.h"

namespace troupe::tests {

// The library's functions, of a context without a device. One per process.
struct Products {
  Products();
  // Every algorithm that is named for a product, by any workspace up to this.
  std::vector<TroupeCudaAlgorithm> algorithms(const TroupeCudaGemm& gemm,
                                              std::int64_t workspace_bytes = 32 << 20);

  TroupeCudaTable table{};
  TroupeCudaContext context;
  TroupeCudaStream stream{.context = &context};
};

// A row-major matrix at 256 bytes, or `offset` elements behind. Between its rows and behind it
// stand numbers that nobody may read or write.
class StoredMatrix {
 public:
  StoredMatrix(int type, std::int64_t rows, std::int64_t columns, std::int64_t stride,
               std::int64_t offset = 0);

  void* data() { return at_; }
  float get(std::int64_t row, std::int64_t column) const;
  void set(std::int64_t row, std::int64_t column, float value);
  // Small whole numbers by a seed.
  void fill(std::uint32_t seed, int greatest = 2);
  // Of a matrix that is written: what is between rows stands as it was.
  bool gaps_are_untouched() const;

  const int type;
  const std::int64_t rows, columns, stride;

 private:
  float read(std::int64_t at) const;
  void write(std::int64_t at, float value);
  std::vector<std::uint8_t> bytes_;
  std::uint8_t* at_;
};

// By what train/model asks for. Strides are the matrices'.
TroupeCudaGemm gemm_of(const StoredMatrix& a, bool transpose_a, const StoredMatrix& b,
                       bool transpose_b, const StoredMatrix& c, int arithmetic);

// op(a)·op(b), element by element.
std::vector<double> plain_product(const TroupeCudaGemm& gemm, const StoredMatrix& a,
                                  const StoredMatrix& b);

// A workspace at 256 bytes.
struct Workspace {
  explicit Workspace(std::int64_t size) : bytes(static_cast<std::size_t>(size) + 256) {}
  void* data() {
    const auto at = reinterpret_cast<std::uintptr_t>(bytes.data());
    return reinterpret_cast<void*>((at + 255) / 256 * 256);
  }
  std::int64_t size() const { return static_cast<std::int64_t>(bytes.size()) - 256; }
  std::vector<std::uint8_t> bytes;
};

// Of the stand-in: handles that were not given back.
std::int64_t stand_in_objects();

}  // namespace troupe::tests
