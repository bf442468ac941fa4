#pragma once
// What the file of a training names besides: the model that it begins with is not what it made.

#include <string>

#include "runtime/base/file_system.h"
#include "train/config/load.h"

namespace troupe::tools {

// A notice where the settings have an output_dir in which there is an adapter or a model that they
// do not take; empty where there is none.
std::string trained_before(FileSystem& files, const train::LoadedConfig& loaded);

}  // namespace troupe::tools
