#pragma once
// Settings on the command line: `key=value` overrides and `--key value` flags.

#include <functional>
#include <optional>
#include <span>
#include <string>

#include "runtime/base/status.h"
#include "train/config/keys.h"
#include "train/config/source.h"

namespace troupe::train {

// Puts arguments into `document`, each replacing what was there. Forms:
//   key=value           dotted keys reach into mappings; the value is YAML ("a=[1, 2]", "a=")
//   --key value         also --key=value; '-' and '_' are equal in the key
//   --key               true;  --no_key: false, for boolean keys
//   --key a b c         a list, for keys that take lists
//   --chaos, --workers  flags reach keys under troupe without their prefix
// What is wrong is left out and named, a line for each argument; the others are put in. Unknown
// keys are not looked at here.
//
// `types`: of the keys of the document, where they are another tool's; kAny where the tool's own
// reading decides. Default: our table.
using KeyTypes = std::function<std::optional<ValueType>(const std::string& key)>;
Status apply_arguments(SourceDocument& document, std::span<const std::string> arguments,
                       const KeyTypes& types = {});

}  // namespace troupe::train
