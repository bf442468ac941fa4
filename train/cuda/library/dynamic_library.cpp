#include "train/cuda/library/dynamic_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>

#include "train/cuda/library/errors.h"

namespace troupe::train::cuda {
namespace {

constexpr const char* kVariable = "TROUPE_CUDA_LIBRARY_PATH";

// With a slash at its end.
std::string own_folder() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&own_folder), &info) == 0 || !info.dli_fname)
    return "";
  const std::string path = info.dli_fname;
  return path.substr(0, path.rfind('/') + 1);
}

std::vector<std::string> folders() {
  std::vector<std::string> all;
  const char* listed = std::getenv(kVariable);
  std::string rest = listed ? listed : "";
  while (!rest.empty()) {
    const std::size_t end = rest.find(':');
    const std::string folder = rest.substr(0, end);
    if (!folder.empty()) all.push_back(folder + "/");
    rest = end == std::string::npos ? "" : rest.substr(end + 1);
  }
  all.push_back("");  // the system's search, or what the process has loaded already
  all.push_back(own_folder());
  // What `tools/setup --cuda` brings: build/cuda/lib, of a library in build/PRESET/bin.
  all.push_back(own_folder() + "../../cuda/lib/");
  all.push_back(std::string(TROUPE_CUDA_TOOLKIT_LIBRARIES) + "/");
  return all;
}

}  // namespace

DynamicLibrary::DynamicLibrary(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    for (const std::string& folder : folders()) {
      handle_ = ::dlopen((folder + name).c_str(), RTLD_NOW | RTLD_LOCAL);
      if (handle_) return;
      // The system's own answer says most.
      const char* text = ::dlerror();
      if (folder.empty() || reason_.empty()) reason_ = text ? text : name + " was not found";
    }
  }
}

void* DynamicLibrary::symbol(const char* name) {
  void* found = handle_ ? ::dlsym(handle_, name) : nullptr;
  if (handle_ && !found) missing_ += (missing_.empty() ? "" : ", ") + std::string(name);
  return found;
}

int DynamicLibrary::status(const char* what, const char* way_out) const {
  if (!handle_)
    return fail(TROUPE_CUDA_UNAVAILABLE,
                fmt::format("{} cannot be loaded: {}; {}, or name its folder in {}", what, reason_,
                            way_out, kVariable));
  if (!missing_.empty())
    return fail(TROUPE_CUDA_UNAVAILABLE,
                fmt::format("the {} found here is of another version: it has no {}; {}, or name "
                            "the folder of a newer one in {}",
                            what, missing_, way_out, kVariable));
  return TROUPE_CUDA_OK;
}

}  // namespace troupe::train::cuda
