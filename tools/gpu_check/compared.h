#pragma once
// One operator, run with the same tensors on the GPU and on the CPU, and everything compared.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "tools/gpu_check/bench.h"
#include "tools/gpu_check/check.h"

namespace troupe::tools::gpu {

// The type of the activations.
enum class Flavour { kF32, kBf16 };
inline const char* flavour_name(Flavour flavour) {
  return flavour == Flavour::kBf16 ? "bf16" : "f32";
}

// What a result may differ by, relative to the greatest of its tensor.
struct Tolerances {
  double f32 = 1e-5;   // of anything that is fp32
  double bf16 = 8e-3;  // of activations in bf16: one unit of the last place
  // What a tensor's greatest number counts as, at least: of one that is nothing but the rounding of
  // what cancels out.
  double least = 1e-30;
};

// Tensors of a case, on both sides. Those that are written begin with rubbish too, and each is
// followed by a guard: what is left out, and what is written besides, is found.
class Compared {
 public:
  enum class Kind { kActivation, kFloat, kBf16, kIntegers };
  struct Tensor {
    int index = 0;
  };
  // Where the tensors are, of one side.
  class Side {
   public:
    Side(const Compared& compared, bool device) : compared_(compared), device_(device) {}
    bool on_device() const { return device_; }
    float* operator()(Tensor tensor, std::int64_t offset = 0) const {
      return static_cast<float*>(at(tensor)) + offset;
    }
    std::int32_t* integers(Tensor tensor) const { return static_cast<std::int32_t*>(at(tensor)); }
    std::uint16_t* bf16(Tensor tensor) const { return static_cast<std::uint16_t*>(at(tensor)); }

   private:
    void* at(Tensor tensor) const;
    const Compared& compared_;
    bool device_;
  };

  Compared(Gpu& gpu, Flavour flavour, bool exact) : gpu_(gpu), flavour_(flavour), exact_(exact) {}
  Flavour flavour() const { return flavour_; }

  // Numbers in [−scale, scale] by a seed of the tensor's own: activations (in bf16, values that
  // bf16 holds), or fp32 in either flavour.
  Tensor activation(std::string name, std::int64_t count, float scale = 1.0f);
  Tensor floats(std::string name, std::int64_t count, float scale = 1.0f);
  Tensor floats(std::string name, std::vector<float> values);
  Tensor bf16(std::string name, std::int64_t count, float scale = 1.0f);
  Tensor integers(std::string name, std::vector<std::int32_t> values);
  // Nobody asks what is in it afterwards.
  void ignore(Tensor tensor);

  // Runs `call` on the device's operators and on the CPU's and compares every element of every
  // tensor. The error's share of the tolerance, of the worst tensor, which is named.
  struct Difference {
    double share = 0;
    std::string text;
  };
  using Call = std::function<void(train::Operators&, const Side&)>;
  Result<Difference> run(const Call& call, const Tolerances& tolerances);
  // With other operators of the device's than the flavour's.
  Result<Difference> run_on(train::Operators& device, const Call& call,
                            const Tolerances& tolerances);

 private:
  friend class Side;
  struct Data {
    std::string name;
    Kind kind = Kind::kFloat;
    std::int64_t count = 0;
    bool ignored = false;
    std::vector<std::byte> host;
    std::byte* device = nullptr;
  };
  Tensor add(std::string name, Kind kind, std::int64_t count, std::vector<std::byte> bytes);
  Tensor random(std::string name, Kind kind, std::int64_t count, float scale);
  Difference compare(const Data& data, const std::vector<std::byte>& got,
                     const Tolerances& tolerances) const;

  Gpu& gpu_;
  Flavour flavour_;
  bool exact_;
  std::vector<Data> data_;
};

// The worst of several cases as a check's figure.
class WorstDifference {
 public:
  // `what`: the case's sizes.
  void add(const Compared::Difference& difference, const std::string& what);
  Figure figure() const;

 private:
  Compared::Difference worst_;
  int cases_ = 0;
};

}  // namespace troupe::tools::gpu
