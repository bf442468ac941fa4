// Loading the CUDA library: what is missing is said, with the way out.

#include "train/cuda/device/cuda_library.h"

#include <doctest/doctest.h>

#include <cstdlib>

#include "tests/train/cuda/fake/fake_cuda.h"

namespace troupe::train {
namespace {

std::string bin(const char* file) {
  const char* folder = std::getenv("TROUPE_BIN_DIR");
  return std::string(folder ? folder : "bin") + "/" + file;
}

TEST_CASE("a library that is not there, is not Troupe's, and one that is") {
  const auto load = [](const std::string& path) {
    return CudaLibrary::load(MapEnvironment({{"TROUPE_CUDA_LIBRARY", path}}));
  };
  const auto missing = load("/nowhere/libtroupe_cuda.so");
  REQUIRE_FALSE(missing.ok());
  CHECK(missing.status().code() == Code::kUnavailable);
  CHECK(missing.status().message().find("/nowhere/libtroupe_cuda.so") != std::string::npos);
  CHECK(missing.status().message().find("troupe.device=cpu") != std::string::npos);

  const auto other = load("libm.so.6");
  REQUIRE_FALSE(other.ok());
  CHECK(other.status().code() == Code::kFailedPrecondition);
  CHECK(other.status().message().find("is not Troupe's CUDA library") != std::string::npos);

  const auto loaded = load(bin("libtroupe_cuda_fake.so"));
  REQUIRE_MESSAGE(loaded.ok(), loaded.status().to_string());
  std::int32_t devices = 0;
  CHECK((*loaded)->table().device_count(&devices) == TROUPE_CUDA_OK);
  CHECK(devices == 1);
}

TEST_CASE("what the library answers becomes a status with its words") {
  troupe::tests::fake_cuda_reset();
  troupe::tests::fake_cuda_inject({.function = "device_count",
                                   .code = TROUPE_CUDA_UNAVAILABLE,
                                   .text = "CUDA_ERROR_NO_DEVICE"});
  const auto library = CudaLibrary::over(troupe::tests::fake_cuda_table());
  std::int32_t devices = 0;
  const Status status =
      cuda_status(library->table(), (*library)->device_count(&devices), "counting devices");
  CHECK(status.code() == Code::kUnavailable);
  CHECK(status.message() == "counting devices: CUDA_ERROR_NO_DEVICE");
  troupe::tests::fake_cuda_reset();
  CHECK(cuda_status(library->table(), (*library)->device_count(&devices), "").ok());
}

}  // namespace
}  // namespace troupe::train
