#pragma once
// NVIDIA's libraries, loaded when they are first needed: libtroupe_cuda.so itself loads without
// them, so that what is missing is told in a sentence.

#include <string>
#include <vector>

#include "train/cuda/device/table.h"

namespace troupe::train::cuda {

// Never unloaded: these libraries leave threads and handlers behind.
class DynamicLibrary {
 public:
  // Tries, for each name in turn: the folders of TROUPE_CUDA_LIBRARY_PATH, the system's own search,
  // the folder of libtroupe_cuda.so, what `tools/setup --cuda` brought, the toolkit it was built
  // with.
  explicit DynamicLibrary(const std::vector<std::string>& names);

  bool loaded() const { return handle_ != nullptr; }
  // Why not, in the loader's words.
  const std::string& reason() const { return reason_; }

  // Null where it has no such function; missing() names them then.
  template <class F>
  void find(const char* name, F& function) {
    function = reinterpret_cast<F>(symbol(name));
  }
  // UNAVAILABLE, with what is missing and `way_out`; OK where everything was found.
  int status(const char* what, const char* way_out) const;

 private:
  void* symbol(const char* name);

  void* handle_ = nullptr;
  std::string reason_;
  std::string missing_;
};

}  // namespace troupe::train::cuda
