#pragma once
// An adapter's adapter_config.json, as PEFT reads and writes it.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/base/status.h"

namespace troupe::train {

inline constexpr const char* kAdapterConfigFile = "adapter_config.json";

// Which modules: those whose name equals one of `names` or ends with "." and it; or, where
// `expression` is not empty, those whose whole name matches it.
struct ModuleSelection {
  std::vector<std::string> names;
  std::string expression;
  bool empty() const { return names.empty() && expression.empty(); }
  friend bool operator==(const ModuleSelection&, const ModuleSelection&) = default;
};

// Defaults are PEFT's, which differ from LLaMA-Factory's.
struct AdapterConfig {
  std::optional<std::string> base_model_name_or_path;
  std::int64_t rank = 8;    // "r"
  double lora_alpha = 8.0;  // may be fractional in a file
  double lora_dropout = 0.0;
  // The base's matrices are stored [in, out] (GPT-2). What the base's own configuration says
  // counts.
  bool fan_in_fan_out = false;
  ModuleSelection target_modules;
  ModuleSelection exclude_modules;
  // Modules that are copied, trained and saved whole: all whose name ends with one of these.
  std::vector<std::string> modules_to_save;
  // A suffix or regular expression of module names → the value; the first that matches counts.
  json::Object rank_pattern;
  json::Object alpha_pattern;
  bool use_rslora = false;
  bool use_dora = false;
  // true, false, or "pissa" and "pissa_niter_N": the base of such an adapter is what is left of the
  // original one after the decomposition.
  json::Value init_lora_weights = true;
  std::optional<std::string> revision;
  // Keys that are not known and have no effect.
  std::vector<std::string> notes;

  // Absent keys take PEFT's defaults. kUnsupported, naming the key, for everything that would
  // change the computation and is not done; kInvalidArgument for values of a wrong type. `name`
  // stands in errors.
  static Result<AdapterConfig> parse(std::string_view text, std::string_view name);

  // The file's text: all keys of PEFT 0.18.1, sorted, as its save_pretrained writes them.
  std::string to_text() const;
  json::Object to_json() const;
  // The adapter's base is a decomposition's rest: init_lora_weights begins with "pissa".
  bool is_pissa() const;
};

// What adapters of the same tensors compute differently, as a key of LLaMA-Factory's with both
// values; nothing where they are the same.
std::optional<std::string> first_difference(const AdapterConfig& checkpoint,
                                            const AdapterConfig& run);

}  // namespace troupe::train
