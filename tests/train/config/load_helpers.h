#pragma once
// Loading texts in configuration tests.

#include <doctest/doctest.h>

#include "tests/support/text.h"
#include "tests/train/config/memory_files.h"
#include "train/config/load.h"

namespace troupe::train::tests {

using Variables = std::map<std::string, std::string, std::less<>>;

// A small file of Axolotl's.
inline constexpr const char* kAxolotlFile = R"(base_model: tiny
datasets:
  - path: rows.json
    type: alpaca
sequence_len: 64
micro_batch_size: 2
gradient_accumulation_steps: 3
optimizer: adamw_torch_fused
learning_rate: 2e-5
)";

// kGoodYaml with more lines, overrides and variables, over good_files() and `more` ones.
inline Result<LoadedConfig> load_with(std::string_view lines,
                                      std::vector<std::string> arguments = {},
                                      Variables environment = {},
                                      std::map<std::string, std::string> more = {}) {
  auto files = good_files();
  for (auto& [name, text] : more) files.put(name, std::move(text));
  return load_train_config_text(std::string(kGoodYaml) + std::string(lines) + "\n", "x.yaml",
                                arguments, MapEnvironment(std::move(environment)), files);
}

// The configuration that was accepted; fails where it was not.
inline LoadedConfig accepted(const Result<LoadedConfig>& loaded) {
  REQUIRE_MESSAGE(loaded.ok(), loaded.status().to_string());
  return *loaded;
}

// The message of a refusal; fails where there was none.
inline std::string refusal(const Result<LoadedConfig>& loaded) {
  REQUIRE_FALSE(loaded.ok());
  return loaded.status().message();
}

using troupe::tests::contains;

}  // namespace troupe::train::tests
