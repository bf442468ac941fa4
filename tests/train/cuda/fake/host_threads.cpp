#include "tests/train/cuda/fake/host_threads.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <numeric>

#include "runtime/base/check.h"
#include "tests/train/cuda/fake/host_gpu.h"

namespace troupe::tests::host_gpu {
namespace {

// Of a thread: a body's PerThreads are there for all threads of the block, of which each stack has
// one thread's pages.
constexpr std::size_t kStackBytes = 512 << 10, kGuardBytes = 4096;

thread_local HostThreads* beginning = nullptr;  // whose fiber begins

std::uint64_t next_random(std::uint64_t& state) {  // SplitMix64
  std::uint64_t z = state += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

}  // namespace

Order::Order(std::int64_t count, std::uint64_t seed)
    : numbers_(static_cast<std::size_t>(count)), seed_(seed), state_(seed) {
  std::iota(numbers_.begin(), numbers_.end(), 0);
  if (seed == 1) std::iota(numbers_.rbegin(), numbers_.rend(), 0);
}

const std::vector<std::int64_t>& Order::next() {
  if (seed_ > 1)
    for (std::size_t i = numbers_.size(); i > 1; --i)
      std::swap(numbers_[i - 1], numbers_[next_random(state_) % i]);
  return numbers_;
}

HostThreads::~HostThreads() {
  for (const Fiber& fiber : fibers_) ::munmap(fiber.stack, kStackBytes);
}

std::string HostThreads::run(int count, Order& order, const std::function<void()>& body) {
  while (static_cast<int>(fibers_.size()) < count) {
    void* stack = ::mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    TROUPE_CHECK(stack != MAP_FAILED && ::mprotect(stack, kGuardBytes, PROT_NONE) == 0,
                 "no memory for the stack of a thread of the tests' GPU");
    fibers_.emplace_back().stack = stack;
  }
  for (Fiber& fiber : fibers_) fiber.ended = false;
  body_ = &body, count_ = count, wrong_.clear();
  train::cuda::host_thread = this;
  int ended = 0;
  while (ended == 0 && wrong_.empty()) {
    for (const std::int64_t thread : order.next()) {
      current_ = static_cast<int>(thread);
      threadIdx = dim3(static_cast<unsigned>(thread), 0, 0);
      resume(fibers_[static_cast<std::size_t>(thread)]);
      ended += fibers_[static_cast<std::size_t>(thread)].ended;
    }
  }
  train::cuda::host_thread = nullptr;
  if (wrong_.empty() && ended != count)
    wrong_ =
        fmt::format("{} of a block's {} threads ended, the others wait at a barrier", ended, count);
  // What waits in the middle of its body does so for ever: its thread begins anew with the next
  // one.
  if (!wrong_.empty())
    for (Fiber& fiber : fibers_) fiber.begun = false;
  return wrong_;
}

int HostThreads::index(int threads) {
  if (threads != count_)
    wrong_ = fmt::format("a body of blocks of {} threads was started with {}", threads, count_);
  return current_;
}

void HostThreads::barrier() {
  Fiber& fiber = fibers_[static_cast<std::size_t>(current_)];
  if (::_setjmp(fiber.at) == 0) leave();
}

void HostThreads::leave() { ::_longjmp(home_, 1); }

// One body after another, of whatever blocks come.
void HostThreads::begin() {
  HostThreads* self = beginning;
  while (true) {
    (*self->body_)();
    Fiber& fiber = self->fibers_[static_cast<std::size_t>(self->current_)];
    fiber.ended = true;
    if (::_setjmp(fiber.at) == 0) self->leave();
  }
}

// Returns when the fiber gives the turn away.
void HostThreads::resume(Fiber& fiber) {
  if (::_setjmp(home_) != 0) return;
  if (fiber.begun) ::_longjmp(fiber.at, 1);
  fiber.begun = true;
  beginning = this;
  ::ucontext_t context;
  ::getcontext(&context);
  context.uc_stack.ss_sp = fiber.stack;
  context.uc_stack.ss_size = kStackBytes;
  context.uc_link = nullptr;
  ::makecontext(&context, &HostThreads::begin, 0);
  ::setcontext(&context);
}

std::string why_not_apart() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return "sanitizers know nothing of the stacks of a block's threads";
#else
  return {};
#endif
}

}  // namespace troupe::tests::host_gpu
