#pragma once
// ModelScope's cache on this machine: CACHE/models/OWNER/NAME and CACHE/datasets/OWNER/NAME, whole
// files; a dot in a name is written "___".

#include <optional>
#include <string>

#include "runtime/base/file_system.h"
#include "train/hub/repository.h"
#include "train/hub/settings.h"

namespace troupe::train::hub {

std::optional<std::string> find_in_modelscope(FileSystem& files, const Settings& settings,
                                              RepositoryType type, const std::string& name);

}  // namespace troupe::train::hub
