#include "tools/commands/trained_before.h"

#include <fmt/format.h>

#include "runtime/base/json.h"

namespace troupe::tools {

std::string trained_before(FileSystem& files, const train::LoadedConfig& loaded) {
  const auto named = json::find_string(json::Value(loaded.source.values), "output_dir");
  if (!named) return {};
  const std::string folder(*named);
  const auto has = [&](const char* file) { return files.exists(join_path(folder, file)); };
  if (has("adapter_config.json")) {
    if (!loaded.config.finetuning.adapter_name_or_path.empty()) return {};
    return fmt::format(
        "notice: the adapter in {0} is not used; adapter_name_or_path={0} takes it\n", folder);
  }
  if (!has("config.json") || loaded.config.model.model_name_or_path == folder) return {};
  return fmt::format(
      "notice: the model that was trained into {0} is not used; model_name_or_path={0} takes it\n",
      folder);
}

}  // namespace troupe::tools
