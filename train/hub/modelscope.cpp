#include "train/hub/modelscope.h"

namespace troupe::train::hub {

std::optional<std::string> find_in_modelscope(FileSystem& files, const Settings& settings,
                                              RepositoryType type, const std::string& name) {
  std::string written;
  for (const char c : name) written += c == '.' ? "___" : std::string(1, c);
  // Older versions have models directly in the cache.
  const char* kind = type == RepositoryType::kModel ? "models" : "datasets";
  for (const auto& folder :
       {join_path(settings.modelscope_cache, kind), settings.modelscope_cache}) {
    for (const auto& last : {name, written}) {
      auto path = join_path(folder, last);
      const auto there = files.list(path);
      if (there.ok() && !there->empty()) return path;
    }
  }
  return std::nullopt;
}

}  // namespace troupe::train::hub
