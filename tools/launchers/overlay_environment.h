#pragma once
// An environment with some variables on top, as a launcher would have set them for what it starts.

#include <map>
#include <string>

#include "runtime/base/environment.h"

namespace troupe::tools {

class OverlayEnvironment final : public Environment {
 public:
  // `below` outlives it.
  OverlayEnvironment(const Environment& below, std::map<std::string, std::string> values)
      : below_(below), values_(std::move(values)) {}
  std::optional<std::string> get(std::string_view name) const override {
    const auto found = values_.find(std::string(name));
    return found != values_.end() ? std::optional(found->second) : below_.get(name);
  }

 private:
  const Environment& below_;
  const std::map<std::string, std::string> values_;
};

}  // namespace troupe::tools
