#include "train/arrow/arrow_library.h"

#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <string>

namespace troupe::train {
namespace {

constexpr const char* kVariable = "TROUPE_ARROW_LIBRARY";
constexpr const char* kFile = "libtroupe_arrow.so";

std::string beside_the_program() {
  std::array<char, 4096> path{};
  const ssize_t size = ::readlink("/proc/self/exe", path.data(), path.size() - 1);
  if (size <= 0) return kFile;
  std::string folder(path.data(), static_cast<std::size_t>(size));
  folder.resize(folder.rfind('/') + 1);
  return folder + kFile;
}

Result<const TroupeArrowTable*> load() {
  const char* named = std::getenv(kVariable);
  const std::string path = named && *named ? named : beside_the_program();
  // Never closed: Arrow has threads that know of it.
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char* why = ::dlerror();
    return error(Code::kUnavailable,
                 "parquet and arrow files need Apache Arrow's library: 'tools/setup --arrow', then "
                 "'tools/build', bring it ({})",
                 why ? why : "no reason given");
  }
  const auto function =
      reinterpret_cast<TroupeArrowTableFunction>(::dlsym(library, TROUPE_ARROW_TABLE_SYMBOL));
  const TroupeArrowTable* table = function ? function(TROUPE_ARROW_TABLE_VERSION) : nullptr;
  if (!table || table->bytes != sizeof *table) {
    return error(Code::kFailedPrecondition,
                 "{} is of another version than this program: build both together", path);
  }
  return table;
}

}  // namespace

Result<const TroupeArrowTable*> arrow_table() {
  static const Result<const TroupeArrowTable*> table = load();
  return table;
}

}  // namespace troupe::train
