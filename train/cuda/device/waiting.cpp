#include "train/cuda/device/waiting.h"

#include <algorithm>
#include <thread>

#include "train/cuda/device/cuda_library.h"

namespace troupe::train {
namespace {

constexpr int kTurnsAtOnce = 200;  // some 100 µs of questions
constexpr int kSleepMaxUs = 200;

}  // namespace

void Backoff::pause() {
  if (++turns_ <= kTurnsAtOnce) {
    std::this_thread::yield();
    return;
  }
  std::this_thread::sleep_for(
      std::chrono::microseconds(std::min(kSleepMaxUs, 10 * (turns_ - kTurnsAtOnce))));
}

Status wait_for_event(const TroupeCudaTable& table, TroupeCudaEvent* event, Deadline deadline,
                      std::string_view what) {
  Backoff backoff;
  for (;;) {
    const int code = table.event_query(event);
    if (code != TROUPE_CUDA_NOT_READY) return cuda_status(table, code, what);
    if (deadline.passed())
      return error(Code::kDeadlineExceeded, "{}: the device was not done in time", what);
    backoff.pause();
  }
}

int finish(const TroupeCudaTable& table, TroupeCudaStream* stream, Deadline deadline) {
  for (Backoff backoff;; backoff.pause()) {
    const int code = table.stream_query(stream);
    if (code != TROUPE_CUDA_NOT_READY || deadline.passed()) return code;
  }
}

bool drained(const TroupeCudaTable& table, TroupeCudaStream* stream) {
  return finish(table, stream, Deadline::after(std::chrono::seconds(10))) != TROUPE_CUDA_NOT_READY;
}

}  // namespace troupe::train
