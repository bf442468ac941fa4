#pragma once
// Names on a hub in what commands are given.

#include "tools/commands/command.h"
#include "train/trainer/hub_names.h"

namespace troupe::tools {

// `fetches`: what is not in the cache is downloaded, with its progress on standard error.
inline train::HubNames hub_names(CommandContext& context, bool fetches) {
  return train::HubNames(
      context.files, context.environment,
      {.downloads = fetches,
       .write = [&err = context.err](const std::string& text) { err << text << std::flush; },
       .terminal = context.err_is_terminal});
}

// For train::LoadOptions; `names` outlives it.
inline std::function<void(train::LoadedConfig&, train::Problems&)> locating(
    train::HubNames& names) {
  return [&names](train::LoadedConfig& loaded, train::Problems& problems) {
    names.locate(loaded, problems);
  };
}

}  // namespace troupe::tools
