#include "runtime/base/process_stamp.h"

#include <pthread.h>

#include <vector>

namespace troupe {
namespace detail {

std::atomic<std::uint32_t> process_forks{0};
std::atomic<std::uint32_t> children_forked{0};

namespace {

[[maybe_unused]] const int registered = ::pthread_atfork(
    nullptr, [] { children_forked.fetch_add(1, std::memory_order_relaxed); },
    [] { process_forks.fetch_add(1, std::memory_order_relaxed); });

}  // namespace
}  // namespace detail

Status ProcessStamp::forked_error() {
  return Status(Code::kFailedPrecondition,
                "this process is a fork of one that was connected to Troupe, whose connections and "
                "threads stay with the parent. Exec a program in the child, or connect anew there "
                "with Cluster::connect()");
}

void keep_forked(const void* object) {
  static auto& kept = *new std::vector<const void*>();
  kept.push_back(object);
}

}  // namespace troupe
