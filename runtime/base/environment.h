#pragma once
// Environment variables as an interface, so that tests do not change the process.

#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace troupe {

class Environment {
 public:
  virtual ~Environment() = default;
  virtual std::optional<std::string> get(std::string_view name) const = 0;
  // LLaMA-Factory's rule: on when the lower-case value is true, y or 1 (training-semantics, A).
  bool enabled(std::string_view name) const;
};

class SystemEnvironment final : public Environment {
 public:
  std::optional<std::string> get(std::string_view name) const override;
};

class MapEnvironment final : public Environment {
 public:
  MapEnvironment() = default;
  explicit MapEnvironment(std::map<std::string, std::string, std::less<>> values)
      : values_(std::move(values)) {}
  std::optional<std::string> get(std::string_view name) const override;

 private:
  std::map<std::string, std::string, std::less<>> values_;
};

}  // namespace troupe
