#pragma once
// A device of the tests' GPU, and nothing of it left at the end.

#include <doctest/doctest.h>

#include <memory>
#include <vector>

#include "runtime/base/environment.h"
#include "tests/train/cuda/fake/fake_cuda.h"
#include "train/cuda/device/device.h"
#include "train/cuda/device/device_memory.h"
#include "train/cuda/device/stream.h"

namespace troupe::train::tests {

class DeviceFixture {
 public:
  explicit DeviceFixture(const troupe::tests::FakeCudaOptions& options = {}) {
    troupe::tests::fake_cuda_reset(options);
    device =
        CudaDevice::open(CudaLibrary::over(troupe::tests::fake_cuda_table()), 0, MapEnvironment())
            .value();
  }
  ~DeviceFixture() {
    CHECK(device.use_count() == 1);
    device.reset();
    troupe::tests::fake_cuda_reset();
    CHECK(troupe::tests::fake_cuda_left().empty());
    CHECK(troupe::tests::fake_cuda_allocated_bytes() == 0);
  }
  std::shared_ptr<CudaDevice> device;
};

inline bool says(const Status& status, std::string_view words) {
  const bool there = status.message().find(words) != std::string::npos;
  if (!there) MESSAGE(status.message());
  return there;
}

}  // namespace troupe::train::tests
