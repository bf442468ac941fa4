#pragma once
// The CUDA library, loaded when somebody asks for a GPU.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "runtime/base/environment.h"
#include "runtime/base/status.h"
#include "train/cuda/device/table.h"

namespace troupe::train {

// What a function of the table answered, as a status: nothing for OK, else its code's and the
// library's own words behind `what` ("memory for activations"). NOT_READY is no failure of the
// library's and must not get here.
Status cuda_status(const TroupeCudaTable& table, int code, std::string_view what);

// Keeps the library loaded. Shared by everything that calls its table, from any thread.
class CudaLibrary {
 public:
  // The file of TROUPE_CUDA_LIBRARY where that is set, else libtroupe_cuda.so beside the program,
  // or in ../lib/troupe.
  // Errors: kUnavailable (no library, no driver or no device: what is missing and how to get it),
  // kFailedPrecondition (a library of another version).
  static Result<std::shared_ptr<const CudaLibrary>> load(const Environment& environment);
  // Over a table that is there anyway: tests.
  static std::shared_ptr<const CudaLibrary> over(const TroupeCudaTable& table);

  ~CudaLibrary();
  CudaLibrary(const CudaLibrary&) = delete;
  CudaLibrary& operator=(const CudaLibrary&) = delete;

  const TroupeCudaTable& table() const { return *table_; }
  const TroupeCudaTable* operator->() const { return table_; }
  // Where it was loaded from; empty for a given table.
  const std::string& path() const { return path_; }

 private:
  CudaLibrary(void* handle, std::string path, const TroupeCudaTable* table)
      : handle_(handle), path_(std::move(path)), table_(table) {}

  void* handle_ = nullptr;
  std::string path_;
  const TroupeCudaTable* table_ = nullptr;
};

}  // namespace troupe::train
