#pragma once
// What checks stand on: the library, the device once it is open, memory, operators on both sides.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/environment.h"
#include "runtime/base/status.h"
#include "train/cpu/arena.h"
#include "train/cuda/device/device.h"
#include "train/cuda/device/device_memory.h"
#include "train/cuda/device/stream.h"
#include "train/cuda/operators/cuda_operators.h"
#include "train/cuda/operators/gemm_algorithms.h"
#include "train/report/step_log.h"
#include "train/tensor/operators.h"

namespace troupe::tools::gpu {

struct BenchOptions {
  int device = 0;
  // Small sizes, values equal to the CPU's bit by bit where the tests' GPU gives them so, and no
  // bars for times: what shows without a GPU that the checks themselves work.
  bool rehearsal = false;
  // With it: the library computes as a GPU does, so that values are held against a GPU's
  // tolerances.
  bool kernels = false;
  // This program, for the check that needs a process of its own; empty: that check cannot run.
  std::string program;
  std::string library_path;
  // The Python that checks beside PyTorch run: a path, or a name in PATH.
  std::string python = "python3";
};

// A device that is open. One thread.
class Gpu {
 public:
  static Result<std::unique_ptr<Gpu>> open(std::shared_ptr<const train::CudaLibrary> library,
                                           const BenchOptions& options);
  ~Gpu();

  const TroupeCudaTable& table() const { return device->table(); }
  // Memory for a check's tensors, 256-byte aligned, until reset(). kOutOfMemory.
  Result<std::byte*> take(std::int64_t bytes);
  void reset() { used_ = 0; }
  std::int64_t capacity() const { return memory_->size(); }
  // Milliseconds of one launch() of `times` enqueued together, the least of three, after one to
  // warm up. launch: what functions of the table answer.
  Result<double> milliseconds(const std::string& what, int times,
                              const std::function<int()>& launch);

  std::shared_ptr<train::CudaDevice> device;
  std::optional<train::CudaStream> stream;
  std::optional<train::GemmAlgorithms> algorithms;
  std::unique_ptr<train::CudaOperators> operators;
  std::unique_ptr<train::CudaOperators> tf32_operators;
  std::unique_ptr<train::CudaOperators> graph_operators;  // layers' launches as graphs
  // Where the device has 8 bits (train::check_fp8).
  std::unique_ptr<train::CudaOperators> fp8_operators, fp8_graph_operators;
  // The CPU's, in as many threads as there are.
  std::unique_ptr<train::Arena> host_arena;
  std::unique_ptr<train::Operators> host;
  std::byte* workspace = nullptr;  // algorithms->workspace_bytes()

 private:
  Gpu() = default;
  std::optional<train::DeviceMemory> memory_, scratch_;
  std::int64_t used_ = 0;
};

// What a run of `troupe train` reached: the median of its steps behind those that warm up, what
// rank 0 held of the device's memory at most, and what was taken of that before.
struct RunRate {
  double tokens_per_s = 0;
  int steps = 0;
  std::vector<train::NamedBytes> device_bytes;
  std::int64_t in_use_before = 0;
};

class Bench {
 public:
  Bench(std::shared_ptr<const train::CudaLibrary> library, BenchOptions options)
      : library_(std::move(library)), options_(std::move(options)) {}

  const std::shared_ptr<const train::CudaLibrary>& library() const { return library_; }
  const BenchOptions& options() const { return options_; }
  bool rehearsal() const { return options_.rehearsal; }
  // Whether values are the CPU's bit by bit, where the tests' GPU gives them so.
  bool exact() const { return options_.rehearsal && !options_.kernels; }
  // Opened when it is first asked for; its memory is free for the check.
  Result<Gpu*> gpu();
  bool is_open() const { return gpu_ != nullptr; }
  // Gives the device's memory back, for programs that need all of it.
  void close() { gpu_.reset(); }
  // GB/s that copies within the device read and write, measured once.
  Result<double> copy_rate();
  // What shows a program this device alone, where it would see others, too: CUDA_VISIBLE_DEVICES.
  Result<std::map<std::string, std::string>> device_environment() const;
  // What checks have measured that others need, too, by the run's settings.
  std::map<std::string, RunRate>& run_rates() { return run_rates_; }

 private:
  std::shared_ptr<const train::CudaLibrary> library_;
  BenchOptions options_;
  std::unique_ptr<Gpu> gpu_;
  std::optional<double> copy_rate_;
  std::map<std::string, RunRate> run_rates_;
};

}  // namespace troupe::tools::gpu
