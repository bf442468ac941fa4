#pragma once
// The threads of a block on a host: each has a stack and goes through the whole body, taking turns
// on the calling thread. Who comes to a barrier gives the turn away until all have come. Private to
// this folder.

#include <csetjmp>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "train/cuda/kernels/block.h"

namespace troupe::tests::host_gpu {

// The numbers 0 … count in the order of a seed: 0: ascending, 1: descending, else by chance,
// another one with each turn.
class Order {
 public:
  Order(std::int64_t count, std::uint64_t seed);
  const std::vector<std::int64_t>& next();

 private:
  std::vector<std::int64_t> numbers_;
  std::uint64_t seed_, state_;
};

// One calling thread's; stacks are kept for further blocks.
class HostThreads final : public train::cuda::HostThread {
 public:
  HostThreads() = default;
  ~HostThreads();
  HostThreads(const HostThreads&) = delete;
  HostThreads& operator=(const HostThreads&) = delete;

  // Every one of `count` threads runs body(), with threadIdx set. What was wrong; empty: nothing.
  std::string run(int count, Order& order, const std::function<void()>& body);

  int index(int threads) override;
  void barrier() override;

 private:
  struct Fiber {
    std::jmp_buf at;  // where it gave the turn away
    void* stack = nullptr;
    bool begun = false, ended = false;
  };
  static void begin();
  void resume(Fiber& fiber);
  void leave();

  std::vector<Fiber> fibers_;
  std::jmp_buf home_;
  const std::function<void()>* body_ = nullptr;
  int count_ = 0, current_ = 0;
  std::string wrong_;
};

}  // namespace troupe::tests::host_gpu
