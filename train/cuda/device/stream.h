#pragma once
// Streams and events of a device, owned.

#include <chrono>
#include <memory>
#include <string_view>
#include <utility>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "train/cuda/device/device.h"

namespace troupe::train {

// What work on a stream takes at most before it counts as hung: a step's takes seconds.
inline constexpr Duration kStreamWaitMax = std::chrono::minutes(5);

class CudaStream;

// A place in a stream's work. Movable; one thread at a time.
class CudaEvent {
 public:
  enum class Times { kNone, kTaken };
  static Result<CudaEvent> create(std::shared_ptr<CudaDevice> device, Times times = Times::kNone);
  CudaEvent(CudaEvent&& other) noexcept { *this = std::move(other); }
  CudaEvent& operator=(CudaEvent&& other) noexcept;
  ~CudaEvent() { release(); }

  // Behind what is enqueued on the stream now.
  Status record(const CudaStream& stream);
  // Returns when the stream has come to the last record (at once where there is none).
  // kDeadlineExceeded says that `what` is not done.
  Status wait(std::string_view what, Duration limit = kStreamWaitMax) const;
  // Of two events that took times and have been waited for.
  Result<double> milliseconds_since(const CudaEvent& earlier) const;
  TroupeCudaEvent* get() const { return event_; }

 private:
  CudaEvent() = default;
  void release();
  std::shared_ptr<CudaDevice> device_;
  TroupeCudaEvent* event_ = nullptr;
};

// A queue of work. Movable; one thread at a time.
class CudaStream {
 public:
  enum class Priority { kOrdinary = 0, kHigh = 1 };
  static Result<CudaStream> create(std::shared_ptr<CudaDevice> device,
                                   Priority priority = Priority::kOrdinary);
  CudaStream(CudaStream&& other) noexcept { *this = std::move(other); }
  CudaStream& operator=(CudaStream&& other) noexcept;
  ~CudaStream() { release(); }

  // What is enqueued from now on runs after the event's last record.
  Status follow(const CudaEvent& event);
  // Returns when all that is enqueued is done. kDeadlineExceeded says that `what` is not.
  Status wait(std::string_view what, Duration limit = kStreamWaitMax) const;

  TroupeCudaStream* get() const { return stream_; }
  const std::shared_ptr<CudaDevice>& device() const { return device_; }

 private:
  CudaStream() = default;
  void release();
  std::shared_ptr<CudaDevice> device_;
  TroupeCudaStream* stream_ = nullptr;
};

}  // namespace troupe::train
