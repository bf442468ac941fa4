#include "train/cuda/device/cuda_library.h"

#include <dlfcn.h>
#include <unistd.h>

#include <array>

#include "runtime/base/check.h"

namespace troupe::train {
namespace {

constexpr const char* kVariable = "TROUPE_CUDA_LIBRARY";
constexpr const char* kFile = "libtroupe_cuda.so";
constexpr const char* kInstalledFolder = "../lib/troupe/";

Code code_of(int code) {
  switch (code) {
    case TROUPE_CUDA_OK:
      return Code::kOk;
    case TROUPE_CUDA_OUT_OF_MEMORY:
      return Code::kOutOfMemory;
    case TROUPE_CUDA_UNSUPPORTED:
      return Code::kUnsupported;
    case TROUPE_CUDA_DEVICE_LOST:
    case TROUPE_CUDA_UNAVAILABLE:
      return Code::kUnavailable;
    case TROUPE_CUDA_PEER:
      return Code::kAborted;
    default:
      return Code::kInternal;
  }
}

// Where the program was built, or, where it is installed, in ../lib/troupe.
std::string of_the_program() {
  std::array<char, 4096> path{};
  const ssize_t size = ::readlink("/proc/self/exe", path.data(), path.size() - 1);
  if (size <= 0) return kFile;
  std::string folder(path.data(), static_cast<std::size_t>(size));
  folder.resize(folder.rfind('/') + 1);
  const std::string installed = folder + kInstalledFolder + kFile;
  if (::access((folder + kFile).c_str(), F_OK) != 0 && ::access(installed.c_str(), F_OK) == 0) {
    return installed;
  }
  return folder + kFile;
}

std::string last_dl_error() {
  const char* text = ::dlerror();
  return text ? text : "no reason given";
}

}  // namespace

Status cuda_status(const TroupeCudaTable& table, int code, std::string_view what) {
  if (code == TROUPE_CUDA_OK) return {};
  TROUPE_CHECK(code != TROUPE_CUDA_NOT_READY, "{}", what);
  const char* text = table.error_text();
  return error(code_of(code), "{}: {}", what, text && *text ? text : "the library gives no reason");
}

Result<std::shared_ptr<const CudaLibrary>> CudaLibrary::load(const Environment& environment) {
  const auto named = environment.get(kVariable);
  const std::string path = named && !named->empty() ? *named : of_the_program();
  void* handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    return error(Code::kUnavailable,
                 "no GPU can be used: {} ({}); 'tools/build release troupe_cuda' builds it where "
                 "the CUDA toolkit is (nvcc 13.0 or later), {} names another one, "
                 "troupe.device=cpu does without",
                 last_dl_error(),
                 named ? "named by " + std::string(kVariable) : "beside the program", kVariable);
  }
  std::shared_ptr<CudaLibrary> library(new CudaLibrary(handle, path, nullptr));
  const auto function =
      reinterpret_cast<TroupeCudaTableFunction>(::dlsym(handle, TROUPE_CUDA_TABLE_SYMBOL));
  if (!function) {
    return error(Code::kFailedPrecondition, "{} is not Troupe's CUDA library: it has no {}", path,
                 TROUPE_CUDA_TABLE_SYMBOL);
  }
  const TroupeCudaTable* table = function(TROUPE_CUDA_TABLE_VERSION);
  if (!table || table->version != TROUPE_CUDA_TABLE_VERSION || table->bytes != sizeof *table) {
    return error(
        Code::kFailedPrecondition,
        "{} is of another version than this program, whose table is version {}: build both "
        "together",
        path, TROUPE_CUDA_TABLE_VERSION);
  }
  library->table_ = table;
  return std::shared_ptr<const CudaLibrary>(std::move(library));
}

std::shared_ptr<const CudaLibrary> CudaLibrary::over(const TroupeCudaTable& table) {
  return std::shared_ptr<const CudaLibrary>(new CudaLibrary(nullptr, "", &table));
}

CudaLibrary::~CudaLibrary() {
  if (handle_) ::dlclose(handle_);
}

}  // namespace troupe::train
