#pragma once
// A block of a GPU's threads, as the bodies of kernels see it.
//
// A body is a sequence of phases; in each, every thread does its part, and the next one begins when
// all are through. On a GPU a phase is the calling thread's own part and a barrier. Tests run the
// very same bodies: one thread of the host plays the block's threads one after another, phase by
// phase. So what a thread keeps from one phase to the next is in a PerThread. Or the host plays
// each thread by itself, as a GPU does (HostThread): that shows where a barrier is missing.

#include <cstdint>

#include "train/cuda/kernels/arithmetic.h"

namespace troupe::train::cuda {

#if !defined(__CUDA_ARCH__)
// The thread of a block that the host runs at the moment, where each of them goes through the whole
// body by itself.
class HostThread {
 public:
  // Which one it is, of a block that takes itself to have `threads`.
  virtual int index(int threads) = 0;
  // Returns when all threads of the block have come here.
  virtual void barrier() = 0;

 protected:
  ~HostThread() = default;
};
// Null: one thread plays all of a block's.
inline thread_local HostThread* host_thread = nullptr;
#endif

template <int kThreadCount>
struct Block {
  static constexpr int kThreads = kThreadCount;
  std::int64_t x = 0, y = 0, z = 0;  // which one of the grid

  template <class F>
  TROUPE_HOST_DEVICE void phase(F&& part) const {
#if defined(__CUDA_ARCH__)
    part(static_cast<int>(threadIdx.x));
    __syncthreads();
#else
    if (host_thread) {
      part(host_thread->index(kThreads));
      host_thread->barrier();
      return;
    }
    for (int thread = 0; thread < kThreads; ++thread) part(thread);
#endif
  }

  // Without the barrier behind it: what follows needs of each thread's part only its own.
  template <class F>
  TROUPE_HOST_DEVICE void each(F&& part) const {
#if defined(__CUDA_ARCH__)
    part(static_cast<int>(threadIdx.x));
#else
    if (host_thread) return part(host_thread->index(kThreads));
    for (int thread = 0; thread < kThreads; ++thread) part(thread);
#endif
  }
};

template <class T, int kThreads>
class PerThread {
 public:
#if defined(__CUDA_ARCH__)
  TROUPE_HOST_DEVICE T& operator[](int) { return value_; }

 private:
  T value_;
#else
  TROUPE_HOST_DEVICE T& operator[](int thread) { return values_[thread]; }

 private:
  T values_[kThreads];
#endif
};

// Two sums that are made together.
struct TwoSums {
  float a, b;
};
TROUPE_HOST_DEVICE TwoSums operator+(const TwoSums& x, const TwoSums& y) {
  return {x.a + y.a, x.b + y.b};
}

// Partial sums that are added by one thread each before the rest.
inline constexpr int kSumStrands = 16;

// Values that sum_groups needs of shared memory.
constexpr int sum_groups_room(int threads, int group) {
  return threads + (group > kSumStrands ? threads / group * kSumStrands : 0);
}

// Each thread's value becomes the sum over its group of kGroup neighbouring threads: the same bits
// for all of the group, in an order that depends on kGroup alone.
template <int kGroup, int kThreads, class V>
TROUPE_HOST_DEVICE void sum_groups(const Block<kThreads>& block, V* shared,
                                   PerThread<V, kThreads>& value) {
  static_assert(kThreads % kGroup == 0);
  block.phase([&](int t) { shared[t] = value[t]; });
  const V* parts = shared;
  if constexpr (kGroup > kSumStrands) {
    V* strands = shared + kThreads;
    block.phase([&](int t) {
      const int member = t % kGroup;
      if (member >= kSumStrands) return;
      V sum = shared[t];
      TROUPE_UNROLL
      for (int i = kSumStrands; i < kGroup; i += kSumStrands) sum = sum + shared[t + i];
      strands[t / kGroup * kSumStrands + member] = sum;
    });
    parts = strands;
  }
  constexpr int kParts = kGroup > kSumStrands ? kSumStrands : kGroup;
  block.phase([&](int t) {
    const V* mine = parts + t / kGroup * kParts;
    V sum = mine[0];
    TROUPE_UNROLL
    for (int i = 1; i < kParts; ++i) sum = sum + mine[i];
    value[t] = sum;
  });
}

}  // namespace troupe::train::cuda
