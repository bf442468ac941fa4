#pragma once
// Which process made an object.
//
// After fork() the child has a copy of every object, but of the threads only the one that forked,
// and it shares sockets, epoll sets and shared memory with its parent. What an object of the parent
// did there would hang, or be done to the parent. So what owns threads, sockets or shared memory
// keeps a stamp, and does nothing in a child; what the child makes itself is its own, and works.
// (A child of vfork() or posix_spawn() runs nothing of ours before its exec.)

#include <atomic>
#include <cstdint>

#include "runtime/base/status.h"

namespace troupe {

namespace detail {
// How many forks lie between the program's first process and this one.
extern std::atomic<std::uint32_t> process_forks;
// How many children this process has forked.
extern std::atomic<std::uint32_t> children_forked;
}  // namespace detail

class ProcessStamp {
 public:
  ProcessStamp() : forks_(detail::process_forks.load(std::memory_order_relaxed)) {}
  // Whether this process is a fork of the one that made the stamp.
  bool is_forked() const { return forks_ != detail::process_forks.load(std::memory_order_relaxed); }
  // Whether a child may have a copy of what was made with the stamp. In the process that made it.
  bool has_child() const {
    return children_ != detail::children_forked.load(std::memory_order_relaxed);
  }
  // kFailedPrecondition, with the way out.
  static Status forked_error();

 private:
  std::uint32_t forks_;
  std::uint32_t children_ = detail::children_forked.load(std::memory_order_relaxed);
};

// Keeps an object of the parent's from being destroyed in a forked child, and from being reported
// as leaked there.
void keep_forked(const void* object);

}  // namespace troupe
