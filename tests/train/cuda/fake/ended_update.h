#pragma once
// The kernels of train/cuda/kernels/transacted_adamw.h on the host, as if their process were killed
// at any instant.
//
// A GPU's threads store to memory that is not theirs alone: a store has come there for certain only
// when a fence of its thread is behind it. So what a block stores is held back here. It comes to
// memory when all of the block's threads have passed a fence and met at a barrier; where the launch
// ends before that, every thread has come as far as chance has it: all that it stored before some
// fence is there, nothing from behind the next one, and of what lies between any part.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "runtime/base/random.h"
#include "train/cuda/kernels/transacted_adamw.h"

namespace troupe::tests {

// Thrown where the launch ends.
struct LaunchEnded {};

struct LaunchEnd {
  std::int64_t moment = 0;  // the launch ends in this one, counted from 1; 0: it comes to its end
  std::uint64_t seed = 1;   // of the blocks' order and of what has come to memory
  bool without_fences = false;  // a mistake: fences do nothing
};

class EndingLaunch {
 public:
  explicit EndingLaunch(const LaunchEnd& end) : end_(end), random_(end.seed) {}

  // In every fence of a thread, before it counts.
  void moment() {
    if (++moments_ == end_.moment) throw LaunchEnded{};
  }
  std::int64_t moments() const { return moments_; }
  bool without_fences() const { return end_.without_fences; }
  std::int64_t below(std::int64_t bound) {
    return static_cast<std::int64_t>(random_.below(static_cast<std::uint64_t>(bound)));
  }

 private:
  const LaunchEnd end_;
  SeededRandom random_;
  std::int64_t moments_ = 0;
};

// The memory of one block: what its threads stored and did not see come there yet.
class HeldWords {
 public:
  HeldWords(EndingLaunch& launch, int threads)
      : launch_(&launch), fences_(static_cast<std::size_t>(threads)) {}

  train::cuda::PackWords load(const train::cuda::PackWords* from) const { return *from; }
  void store(int thread, train::cuda::PackWords* to, const train::cuda::PackWords& words) {
    hold(thread, to, &words, sizeof words);
  }
  void save(int thread, train::cuda::PackWords* to, const train::cuda::PackWords& words) {
    hold(thread, to, &words, sizeof words);
  }
  void store(int thread, std::uint64_t* to, std::uint64_t value) {
    hold(thread, to, &value, sizeof value);
  }
  void fence(int thread) {
    launch_->moment();
    if (!launch_->without_fences()) ++passed(thread);
  }

  // All threads have met: what has a fence behind it is there.
  void barrier() {
    std::erase_if(held_, [&](const Held& held) {
      const bool there = held.fences < passed(held.thread);
      if (there) put(held);
      return there;
    });
  }
  // The kernel has ended, and with it come all stores.
  void finish() {
    for (const Held& held : held_) put(held);
    held_.clear();
  }
  // The launch ends here.
  void end() {
    std::vector<int> reached(fences_.size());
    for (std::size_t t = 0; t < reached.size(); ++t) {
      int first = fences_[t];
      for (const Held& held : held_)
        if (held.thread == static_cast<int>(t)) first = std::min(first, held.fences);
      reached[t] = first + static_cast<int>(launch_->below(fences_[t] - first + 1));
    }
    for (const Held& held : held_) {
      const int at = reached[static_cast<std::size_t>(held.thread)];
      if (held.fences < at || (held.fences == at && launch_->below(2) == 0)) put(held);
    }
    held_.clear();
  }

 private:
  struct Held {
    void* to;
    unsigned char bytes[16];
    std::uint8_t size;
    int thread;
    int fences;  // of the thread, before it
  };
  void hold(int thread, void* to, const void* from, std::size_t size) {
    Held& held = held_.emplace_back();
    held.to = to;
    std::memcpy(held.bytes, from, size);
    held.size = static_cast<std::uint8_t>(size);
    held.thread = thread;
    held.fences = passed(thread);
  }
  static void put(const Held& held) { std::memcpy(held.to, held.bytes, held.size); }
  int& passed(int thread) { return fences_[static_cast<std::size_t>(thread)]; }

  EndingLaunch* launch_;
  std::vector<Held> held_;
  std::vector<int> fences_;
};

// Both kernels of an update over a log of `slots`, with `writers` ≤ slots / 2 blocks in an order
// that chance gives. False: the launch ended before.
template <class State, int kThreads>
bool run_update(const train::cuda::TransactedAdamW<State>& a, std::int64_t slots,
                std::int64_t writers, EndingLaunch& launch) {
  using Writer = train::cuda::UpdateWriter<State, kThreads, HeldWords>;
  using Block = train::cuda::Block<kThreads>;
  // Blocks of the kernel that runs, with what they hold back.
  std::vector<HeldWords> words;
  const auto end = [&words] {
    for (HeldWords& held : words) held.end();
    return false;
  };
  try {
    for (std::int64_t slot = 0; slot < slots; ++slot) words.emplace_back(launch, kThreads);
    for (std::int64_t slot = 0; slot < slots; ++slot) {
      train::cuda::restore_chunk(Block{slot}, a, words[static_cast<std::size_t>(slot)]);
      launch.moment();
    }
  } catch (const LaunchEnded&) {
    return end();
  }
  for (HeldWords& held : words) held.finish();
  words.clear();

  struct Running {
    std::unique_ptr<Writer> writer;
    std::size_t number = 0;
    enum class Next { kOpen, kChange, kAnnounce } next = Next::kOpen;
  };
  std::vector<Running> running;
  for (std::int64_t writer = 0; writer < writers; ++writer) {
    words.emplace_back(launch, kThreads);
    running.push_back({std::make_unique<Writer>(a, writer, writers),
                       static_cast<std::size_t>(writer), Running::Next::kOpen});
  }
  try {
    while (!running.empty()) {
      const auto chosen = launch.below(static_cast<std::int64_t>(running.size()));
      Running& r = running[static_cast<std::size_t>(chosen)];
      const Block block{static_cast<std::int64_t>(r.number)};
      HeldWords& held = words[r.number];
      switch (r.next) {
        case Running::Next::kOpen:
          r.writer->open(block, held);
          r.next = Running::Next::kChange;
          break;
        case Running::Next::kChange:
          r.writer->change(block, held);
          r.next = Running::Next::kAnnounce;
          break;
        case Running::Next::kAnnounce:
          r.writer->announce(block, held);
          r.next = Running::Next::kChange;
          break;
      }
      held.barrier();
      if (!r.writer->working()) running.erase(running.begin() + chosen);
    }
  } catch (const LaunchEnded&) {
    return end();
  }
  for (HeldWords& held : words) held.finish();
  return true;
}

}  // namespace troupe::tests
