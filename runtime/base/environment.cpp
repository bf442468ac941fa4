#include "runtime/base/environment.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>

namespace troupe {

bool Environment::enabled(std::string_view name) const {
  auto value = get(name).value_or("");
  std::transform(value.begin(), value.end(), value.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return value == "true" || value == "y" || value == "1";
}

std::optional<std::string> SystemEnvironment::get(std::string_view name) const {
  const char* value = std::getenv(std::string(name).c_str());
  return value ? std::optional<std::string>(value) : std::nullopt;
}

std::optional<std::string> MapEnvironment::get(std::string_view name) const {
  const auto found = values_.find(name);
  return found == values_.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace troupe
