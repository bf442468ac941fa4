#include "scheduler/node/package_place.h"

#include "runtime/base/file_system.h"
#include "scheduler/packages/package_file.h"

namespace troupe::scheduler {

std::string PackagePlace::here(const std::string& path) const {
  if (package.empty()) return path;
  // Every node's folder of a package is called by its hash.
  const std::string marker = "/" + package.sha256 + "/";
  const std::size_t at = path.find(marker);
  if (at == std::string::npos) return path;
  return join_path(directory, path.substr(at + marker.size()));
}

std::string PackagePlace::working_folder() const {
  return package.empty() ? std::string() : join_path(directory, kPackageWork);
}

void PackagePlace::tell(std::map<std::string, std::string>& environment,
                        const Environment& daemon) const {
  if (package.empty()) return;
  const std::string libraries = join_path(directory, kPackageLibraries);
  constexpr const char* kVariable = "LD_LIBRARY_PATH";
  const auto own = environment.find(kVariable);
  const std::string others =
      own != environment.end() ? own->second : daemon.get(kVariable).value_or("");
  environment[kVariable] = others.empty() ? libraries : libraries + ":" + others;
}

}  // namespace troupe::scheduler
