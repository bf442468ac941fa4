#pragma once
// A training that takes a fraction of a second: model, text and settings, made up on the spot.

#include <map>
#include <string>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/base/status.h"

namespace troupe::tools {

// Two layers of 32, 120 lines of text (the data set "tiny"), 40 pairs of answers ("pairs");
// everything under `folder`.
Status write_tiny_training(FileSystem& files, const std::string& folder);

// What follows `troupe train`: three steps, an evaluation and a checkpoint after the second. `more`
// sets keys, and leaves out those that it gives an empty value.
std::vector<std::string> tiny_training_arguments(const std::string& folder,
                                                 const std::string& output_dir,
                                                 const std::map<std::string, std::string>& more);

}  // namespace troupe::tools
