#include "runtime/base/large_buffers.h"

#include <pthread.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "runtime/base/huge_pages.h"
#include "runtime/base/process_stamp.h"
#include "runtime/base/start_thread.h"
#include "troupe/detail/mutex.h"

namespace troupe {
namespace {

using Buffer = std::vector<std::byte>;

// A buffer that is many times as large as what is to be in it stays for others.
constexpr std::size_t kTimesAsLargeMax = 4;

struct IdleBuffers {
  struct Idle {
    Buffer buffer;
    TimePoint since;
  };
  const ProcessStamp process;
  Mutex mutex;
  CondVar changed;
  std::vector<Idle> buffers TROUPE_GUARDED_BY(mutex);  // the one that waits longest first
  std::size_t bytes TROUPE_GUARDED_BY(mutex) = 0;
  bool freeing TROUPE_GUARDED_BY(mutex) = false;  // a thread is there that frees them

  Buffer remove(std::vector<Idle>::iterator at) TROUPE_REQUIRES(mutex) {
    Buffer buffer = std::move(at->buffer);
    bytes -= buffer.capacity();
    buffers.erase(at);
    return buffer;
  }

  // A thread's work: ends when no buffer waits any more.
  void free_in_time() {
    for (;;) {
      Buffer old;  // freed outside the lock
      MutexLock lock(mutex);
      if (buffers.empty()) {
        freeing = false;
        return;
      }
      const Deadline due = Deadline::at(buffers.front().since + kLargeIdleTime);
      if (due.passed()) {
        old = remove(buffers.begin());
      } else {
        (void)changed.wait_until(mutex, due, [] { return false; });
      }
    }
  }
};

// Lives as long as the process: its thread may.
IdleBuffers& idle_buffers() {
  static auto* const idle = new IdleBuffers;
  return *idle;
}

}  // namespace

Buffer take_large_buffer(std::uint64_t bytes) {
  IdleBuffers& idle = idle_buffers();
  if (bytes >= kLargeBufferBytesMin && !idle.process.is_forked()) {
    MutexLock lock(idle.mutex);
    auto best = idle.buffers.end();
    for (auto it = idle.buffers.begin(); it != idle.buffers.end(); ++it) {
      const std::size_t room = it->buffer.capacity();
      if (room < bytes || room / kTimesAsLargeMax > bytes) continue;
      if (best == idle.buffers.end() || room < best->buffer.capacity()) best = it;
    }
    if (best != idle.buffers.end()) return idle.remove(best);
  }
  Buffer buffer;
  buffer.reserve(bytes);
  if (bytes >= kLargeBufferBytesMin) advise_huge({buffer.data(), buffer.capacity()});
  return buffer;
}

void give_back_large_buffer(Buffer&& given) {
  Buffer buffer = std::move(given);
  if (buffer.capacity() < kLargeBufferBytesMin || buffer.capacity() > kIdleLargeBytesMax) return;
  IdleBuffers& idle = idle_buffers();
  if (idle.process.is_forked()) return;  // the lock, and the thread, are the parent's
  std::vector<Buffer> dropped;           // freed outside the lock
  MutexLock lock(idle.mutex);
  while (idle.bytes + buffer.capacity() > kIdleLargeBytesMax) {
    dropped.push_back(idle.remove(idle.buffers.begin()));
  }
  idle.bytes += buffer.capacity();
  idle.buffers.push_back({std::move(buffer), SystemClock().now()});
  if (idle.freeing) return;
  auto freeing = start_thread("free buffers in time", [&idle] {
    pthread_setname_np(pthread_self(), "large-buffers");
    idle.free_in_time();
  });
  idle.freeing = freeing.ok();
  if (freeing.ok()) return freeing->detach();
  dropped.push_back(idle.remove(std::prev(idle.buffers.end())));  // nobody would free it later
}

std::shared_ptr<const Buffer> share_large_buffer(Buffer bytes) {
  if (bytes.capacity() < kLargeBufferBytesMin) {
    return std::make_shared<const Buffer>(std::move(bytes));
  }
  return {new Buffer(std::move(bytes)), [](Buffer* buffer) {
            give_back_large_buffer(std::move(*buffer));
            delete buffer;
          }};
}

std::size_t idle_large_bytes() {
  IdleBuffers& idle = idle_buffers();
  MutexLock lock(idle.mutex);
  return idle.bytes;
}

}  // namespace troupe
