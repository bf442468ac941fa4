#pragma once
// A GPU that this process uses: its context, what it is, what its memory holds.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/environment.h"
#include "runtime/base/status.h"
#include "train/cuda/device/cuda_library.h"
#include "train/cuda/device/memory_ledger.h"

namespace troupe::train {

// Shared by all that lives in its context (memory, streams, events), which keeps it open. Functions
// may be called from any thread.
class CudaDevice {
 public:
  // `index` counts what CUDA_VISIBLE_DEVICES (of `environment`, for the error's words) shows this
  // process. kUnavailable: no device; kInvalidArgument: none of this index.
  static Result<std::shared_ptr<CudaDevice>> open(std::shared_ptr<const CudaLibrary> library,
                                                  int index, const Environment& environment);
  ~CudaDevice();
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  int index() const { return index_; }
  const TroupeCudaDevice& info() const { return info_; }
  const TroupeCudaVersions& versions() const { return versions_; }
  // "GPU 0 (NVIDIA H200)".
  std::string name() const;

  const std::shared_ptr<const CudaLibrary>& library() const { return library_; }
  const TroupeCudaTable& table() const { return library_->table(); }
  TroupeCudaContext* context() const { return context_; }
  // What a function of the table answered, with the device's name before it.
  Status status(int code, std::string_view what) const;
  // What a function answered that gives something back. A device that was lost takes nothing: the
  // process's end does it. Invalid arguments are a bug.
  void given_back(int code, std::string_view what) const;

  // Allocations are multiples of it.
  std::int64_t granularity_bytes() const { return granularity_bytes_; }
  struct MemoryUse {
    std::int64_t free_bytes = 0, total_bytes = 0;  // of the device, whoever holds the rest
    MemoryLedger::Bytes held{};                    // by this process
  };
  Result<MemoryUse> memory_use() const;
  MemoryLedger& ledger() { return ledger_; }

 private:
  CudaDevice(std::shared_ptr<const CudaLibrary> library, int index)
      : library_(std::move(library)), index_(index) {}
  Status attach(const Environment& environment);

  std::shared_ptr<const CudaLibrary> library_;
  int index_;
  TroupeCudaDevice info_{};
  TroupeCudaVersions versions_{};
  TroupeCudaContext* context_ = nullptr;
  std::int64_t granularity_bytes_ = 1;
  MemoryLedger ledger_;
};

// The devices that this process sees, without opening any. kUnavailable where there is none.
Result<std::vector<TroupeCudaDevice>> list_devices(const CudaLibrary& library,
                                                   const Environment& environment);

}  // namespace troupe::train
