#pragma once
// How the fake's operators run: arguments checked when they are enqueued, the work done by
// train/cpu on the stream's thread. Private to this folder.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "tests/train/cuda/fake/fake_state.h"
#include "train/tensor/operators.h"

namespace troupe::tests::fake {

// The calling stream's own: one thread, so bits are those of any other number.
train::Operators& cpu_operators();

inline std::int64_t type_bytes(int type) {
  switch (type) {
    case TROUPE_CUDA_BF16:
      return 2;
    case TROUPE_CUDA_U8:
    case TROUPE_CUDA_E4M3:
    case TROUPE_CUDA_E5M2:
      return 1;
    case TROUPE_CUDA_I64:
    case TROUPE_CUDA_F64:
      return 8;
    default:
      return 4;
  }
}

// Elements of `rows` rows of `width` that lie `stride` apart.
inline std::int64_t extent(std::int64_t rows, std::int64_t stride, std::int64_t width) {
  return (rows - 1) * stride + width;
}

// As long as it lives, the calling thread's Launches look at their arguments and note what they
// use, and leave the work to somebody else.
class OnlyChecking {
 public:
  OnlyChecking();
  ~OnlyChecking();
  OnlyChecking(const OnlyChecking&) = delete;
  OnlyChecking& operator=(const OnlyChecking&) = delete;
};

// A function of the table that enqueues work. What is wrong with an argument is told at once, as a
// GPU would not do: an address of ordinary memory of the host, too.
class Launch {
 public:
  Launch(TroupeCudaStream* stream, const char* function);
  // `count` elements of a type at an address; a null one where `optional`.
  Launch& needs(const void* at, std::int64_t count, int type, const char* name,
                bool optional = false);
  Launch& floats(const void* at, std::int64_t count, const char* name, bool optional = false) {
    return needs(at, count, TROUPE_CUDA_F32, name, optional);
  }
  // An activation's type: F32 or BF16.
  Launch& activations_of(int type);
  // Filled with rubbish by the work: who reads it, or gives it to two, is found out.
  Launch& scratch(void* at, std::int64_t bytes);
  // What can be looked at on the stream alone, ahead of the work, whoever does that.
  Launch& first(std::function<void()> look);
  // A plan of attention's, which must be there.
  Launch& by_plan(std::int64_t number);
  // What must be said of the arguments.
  Launch& requires_that(bool condition, const char* what);
  int run(std::function<void(train::Operators&)> work);

 private:
  TroupeCudaStream* stream_;
  const char* function_;
  int code_;
  void* scratch_ = nullptr;
  std::int64_t scratch_bytes_ = 0;
  std::function<void()> first_;
  std::vector<Work::Use> uses_;
  std::int64_t plan_ = 0;
};

// Elements of the device's as fp32: the elements themselves, or a copy of bf16 ones.
class In {
 public:
  In(int type, const void* at, std::int64_t count);
  // NOLINTBEGIN(google-explicit-constructor)
  operator const float*() const { return data_; }
  operator train::ConstElements() const { return data_; }
  // NOLINTEND(google-explicit-constructor)

 private:
  std::vector<float> copy_;
  const float* data_;
};

// The same, rounded back when the object ends.
class InOut {
 public:
  InOut(int type, void* at, std::int64_t count);
  ~InOut();
  InOut(const InOut&) = delete;
  InOut& operator=(const InOut&) = delete;
  // NOLINTBEGIN(google-explicit-constructor)
  operator float*() { return data_; }
  operator train::Elements() { return data_; }
  operator train::ConstElements() { return data_; }
  // NOLINTEND(google-explicit-constructor)

 private:
  std::vector<float> copy_;
  std::uint16_t* bf16_ = nullptr;
  float* data_ = nullptr;
};

}  // namespace troupe::tests::fake
