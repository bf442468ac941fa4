#pragma once
// One call of the table, over the tests' GPU: by train/cpu, and by the library's own launchers and
// kernels, whose blocks and threads run in several orders. What the CPU finds is what kernels must
// find, within a tolerance; orders must not show in a single bit.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "runtime/base/random.h"
#include "tests/train/cuda/device/device_fixture.h"
#include "tests/train/cuda/fake/host_gpu.h"
#include "train/cuda/kernels/arithmetic.h"

namespace troupe::train::tests {

// Of a result, relative to the greatest number of its tensor.
struct Tolerance {
  double f32 = 1e-5;
  double bf16 = 8e-3;  // of what is bf16: one unit of the last place
};

// A device, a stream and memory for calls, one after another.
struct CallDevice : DeviceFixture {
  static constexpr std::int64_t kBytes = 8 << 20;
  CudaStream stream = CudaStream::create(device).value();
  DeviceMemory memory =
      DeviceMemory::allocate(device, kBytes, "tensors", MemoryPurpose::kActivations).value();
};

class DeviceCall {
 public:
  // type: of activations.
  DeviceCall(CallDevice& device, std::string name, std::int32_t type)
      : type(type),
        name_(std::move(name)),
        device_(device),
        stream_(device.stream.get()),
        memory_(device.memory.data()) {}

  // --- tensors, at 256 bytes and as many elements further as `off` says. Each has rubbish behind
  // it that must stay. Numbers lie in [−scale, scale].
  void* activations(std::int64_t count, float scale = 1.0f, std::int64_t off = 0) {
    return type == TROUPE_CUDA_BF16 ? bf16(count, scale, off) : floats(count, scale, off);
  }
  float* floats(std::int64_t count, float scale = 1.0f, std::int64_t off = 0) {
    auto* at = static_cast<float*>(add(Kind::kFloat, count, sizeof(float), off));
    for (std::int64_t i = 0; i < count; ++i) at[i] = random_number(scale);
    return at;
  }
  void* bf16(std::int64_t count, float scale = 1.0f, std::int64_t off = 0) {
    auto* at = static_cast<cuda::Bf16*>(add(Kind::kBf16, count, sizeof(cuda::Bf16), off));
    for (std::int64_t i = 0; i < count; ++i) at[i] = cuda::nearest_bf16(random_number(scale));
    return at;
  }
  // What comes of them is nobody's business.
  float* destroyed_floats(std::int64_t count, float scale) {
    float* at = floats(count, scale);
    tensors_.back().kind = Kind::kScratch;
    return at;
  }
  // None of them negative.
  void* squares(std::int64_t count) {
    void* at = activations(count);
    for (std::int64_t i = 0; i < count; ++i) {
      if (type == TROUPE_CUDA_BF16)
        static_cast<cuda::Bf16*>(at)[i].bits &= 0x7fff;
      else
        static_cast<float*>(at)[i] = std::abs(static_cast<float*>(at)[i]);
    }
    return at;
  }
  double* doubles(std::int64_t count) {
    return static_cast<double*>(add(Kind::kDouble, count, sizeof(double), 0));
  }
  std::int32_t* integers(const std::vector<std::int32_t>& values) {
    const auto count = static_cast<std::int64_t>(values.size());
    auto* at = static_cast<std::int32_t*>(add(Kind::kBits, count, sizeof(std::int32_t), 0));
    std::memcpy(at, values.data(), values.size() * sizeof(std::int32_t));
    return at;
  }
  // Compared bit by bit with the CPU's.
  void* bytes(std::int64_t count) { return add(Kind::kBits, count, 1, 0); }
  // Of which nobody asks what is in it afterwards.
  void* scratch(std::int64_t count) {
    return count > 0 ? add(Kind::kScratch, count, 1, 0) : nullptr;
  }

  const TroupeCudaTable& table() const { return device_.device->table(); }

  // Runs the call in all ways and compares what is in the tensors afterwards.
  using Call = std::function<int(const TroupeCudaTable&, TroupeCudaStream*)>;
  void check(const Call& call, const Tolerance& tolerance = {}) {
    CAPTURE(name_);
    CAPTURE(type);
    const auto used = static_cast<std::size_t>(used_);
    const std::vector<std::byte> before(memory_, memory_ + used);
    const auto run = [&](troupe::tests::FakeKernels kernels, std::uint64_t order) {
      std::memcpy(memory_, before.data(), used);
      troupe::tests::fake_cuda_reset({.kernels = kernels, .kernel_order = order});
      const int code = call(table(), stream_);
      CAPTURE(std::string(table().error_text()));
      REQUIRE(code == TROUPE_CUDA_OK);
      REQUIRE(table().stream_synchronize(stream_) == TROUPE_CUDA_OK);
      return std::vector<std::byte>(memory_, memory_ + used);
    };
    const auto expected = run(troupe::tests::FakeKernels::kNone, 0);
    const auto found = run(troupe::tests::FakeKernels::kByPhases, 0);
    compare(before, expected, found, tolerance);
    if (!troupe::tests::host_gpu::why_not_apart().empty()) return;
    for (const std::uint64_t order : {1, 2026}) {
      CAPTURE(order);
      const auto again = run(troupe::tests::FakeKernels::kByThreads, order);
      const bool same_bits = again == found;
      CHECK(same_bits);
    }
  }
  // The call, over the library's own launcher: refused, with these words.
  void check_refused(const Call& call, const std::string& words) {
    CAPTURE(name_);
    troupe::tests::fake_cuda_reset({.kernels = troupe::tests::FakeKernels::kByPhases});
    CHECK(call(table(), stream_) != TROUPE_CUDA_OK);
    const std::string text = table().error_text();
    CAPTURE(text);
    CHECK(text.find(words) != std::string::npos);
    CHECK(table().stream_synchronize(stream_) == TROUPE_CUDA_OK);
  }

  const std::int32_t type;

 private:
  enum class Kind { kFloat, kBf16, kDouble, kBits, kScratch };
  struct Tensor {
    Kind kind;
    std::int64_t at, count, bytes;
  };
  float random_number(float scale) {
    return scale * static_cast<float>(2.0 * random_.unit() - 1.0);
  }
  void* add(Kind kind, std::int64_t count, std::int64_t element_bytes, std::int64_t off) {
    const std::int64_t at = used_ + off * element_bytes;
    tensors_.push_back({kind, at, count, count * element_bytes});
    const std::int64_t end = (at + count * element_bytes + 64 + 255) / 256 * 256;
    REQUIRE(end <= CallDevice::kBytes);
    std::memset(memory_ + used_, 0xee, static_cast<std::size_t>(end - used_));
    used_ = end;
    return memory_ + at;
  }
  static double number(const Tensor& tensor, const std::vector<std::byte>& bytes, std::int64_t i) {
    const std::byte* at = bytes.data() + tensor.at;
    if (tensor.kind == Kind::kDouble) return reinterpret_cast<const double*>(at)[i];
    if (tensor.kind == Kind::kFloat)
      return static_cast<double>(reinterpret_cast<const float*>(at)[i]);
    return static_cast<double>(cuda::widen(reinterpret_cast<const cuda::Bf16*>(at)[i]));
  }
  void compare(const std::vector<std::byte>& before, const std::vector<std::byte>& expected,
               const std::vector<std::byte>& found, const Tolerance& tolerance) const {
    std::int64_t end = 0;
    for (std::size_t index = 0; index <= tensors_.size(); ++index) {
      const bool last = index == tensors_.size();
      CAPTURE(index);
      const auto gap = static_cast<std::size_t>((last ? used_ : tensors_[index].at) - end);
      const bool nothing_between = std::memcmp(before.data() + end, found.data() + end, gap) == 0;
      CHECK(nothing_between);
      if (last) break;
      const Tensor& tensor = tensors_[index];
      end = tensor.at + tensor.bytes;
      if (tensor.kind == Kind::kScratch) continue;
      if (tensor.kind == Kind::kBits) {
        const bool same = std::memcmp(expected.data() + tensor.at, found.data() + tensor.at,
                                      static_cast<std::size_t>(tensor.bytes)) == 0;
        CHECK(same);
        continue;
      }
      double greatest = 1e-30, worst = 0;
      std::int64_t worst_at = 0;
      for (std::int64_t i = 0; i < tensor.count; ++i) {
        const double a = number(tensor, expected, i), b = number(tensor, found, i);
        if (std::isfinite(a)) greatest = std::max(greatest, std::abs(a));
        const bool alike = a == b || (std::isnan(a) && std::isnan(b));
        double off = alike ? 0 : std::abs(a - b);
        if (!std::isfinite(off)) off = 1e30;
        if (off > worst) worst = off, worst_at = i;
      }
      CAPTURE(worst_at);
      CAPTURE(greatest);
      CHECK(worst <= greatest * (tensor.kind == Kind::kBf16 ? tolerance.bf16 : tolerance.f32));
    }
  }

  std::string name_;
  CallDevice& device_;
  TroupeCudaStream* stream_;
  std::byte* memory_;
  SeededRandom random_{7};
  std::vector<Tensor> tensors_;
  std::int64_t used_ = 0;
};

}  // namespace troupe::train::tests
