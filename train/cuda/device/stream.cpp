#include "train/cuda/device/stream.h"

#include <fmt/format.h>

#include <thread>

namespace troupe::train {
namespace {

// Most waits are for work of microseconds, or for work that ends soon after many.
constexpr Duration kYieldFor = std::chrono::milliseconds(2);
constexpr Duration kSleep = std::chrono::microseconds(50);

// Asks until it is done. The vendor's own waits have no deadline.
template <typename Query>
Status wait_until_done(const CudaDevice& device, std::string_view what, Duration limit,
                       Query query) {
  const SystemClock clock;
  const TimePoint begin = clock.now();
  while (true) {
    const int code = query();
    if (code != TROUPE_CUDA_NOT_READY)
      return device.status(code, fmt::format("waiting for {}", what));
    const Duration waited = clock.now() - begin;
    if (waited > limit)
      return error(Code::kDeadlineExceeded,
                   "{}: {} did not end within {:.0f} s: a kernel hangs, or waits for another rank "
                   "that does not come (`nvidia-smi` shows whether it computes)",
                   device.name(), what, std::chrono::duration<double>(limit).count());
    if (waited < kYieldFor)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(kSleep);
  }
}

}  // namespace

Result<CudaEvent> CudaEvent::create(std::shared_ptr<CudaDevice> device, Times times) {
  CudaEvent event;
  TROUPE_RETURN_IF_ERROR(device->status(
      device->table().event_create(device->context(), times == Times::kTaken, &event.event_),
      "making an event"));
  event.device_ = std::move(device);
  return event;
}

CudaEvent& CudaEvent::operator=(CudaEvent&& other) noexcept {
  if (this == &other) return *this;
  release();
  device_ = std::move(other.device_);
  event_ = std::exchange(other.event_, nullptr);
  return *this;
}

void CudaEvent::release() {
  if (event_) device_->given_back(device_->table().event_destroy(event_), "ending an event");
  event_ = nullptr;
  device_.reset();
}

Status CudaEvent::record(const CudaStream& stream) {
  return device_->status(device_->table().event_record(event_, stream.get()), "recording an event");
}

Status CudaEvent::wait(std::string_view what, Duration limit) const {
  return wait_until_done(*device_, what, limit,
                         [this] { return device_->table().event_query(event_); });
}

Result<double> CudaEvent::milliseconds_since(const CudaEvent& earlier) const {
  float milliseconds = 0;
  TROUPE_RETURN_IF_ERROR(device_->status(
      device_->table().event_elapsed_ms(earlier.event_, event_, &milliseconds), "timing"));
  return static_cast<double>(milliseconds);
}

Result<CudaStream> CudaStream::create(std::shared_ptr<CudaDevice> device, Priority priority) {
  CudaStream stream;
  TROUPE_RETURN_IF_ERROR(device->status(
      device->table().stream_create(device->context(), static_cast<int>(priority), &stream.stream_),
      "making a stream"));
  stream.device_ = std::move(device);
  return stream;
}

CudaStream& CudaStream::operator=(CudaStream&& other) noexcept {
  if (this == &other) return *this;
  release();
  device_ = std::move(other.device_);
  stream_ = std::exchange(other.stream_, nullptr);
  return *this;
}

void CudaStream::release() {
  if (stream_) device_->given_back(device_->table().stream_destroy(stream_), "ending a stream");
  stream_ = nullptr;
  device_.reset();
}

Status CudaStream::follow(const CudaEvent& event) {
  return device_->status(device_->table().stream_wait(stream_, event.get()),
                         "making a stream wait for another one");
}

Status CudaStream::wait(std::string_view what, Duration limit) const {
  return wait_until_done(*device_, what, limit,
                         [this] { return device_->table().stream_query(stream_); });
}

}  // namespace troupe::train
