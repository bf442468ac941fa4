#pragma once
// YAML for configuration: a bounded, strict reading into JSON values.
//
// Scalars are typed as PyYAML does (YAML 1.1: yes/no/on/off are booleans), with the one correction
// that every user expects: 1e-4 is a number. Merge keys (<<) and anchors are understood.
//
// Refused, each with name:line:column: texts over 1 MiB, nesting deeper than 64, documents that
// grow beyond 50,000 values by aliases, an alias inside its own anchor, a key that stands twice in
// one mapping, keys that are no scalars, several documents in one file, tabs as indentation, bytes
// that are not UTF-8.

#include <functional>
#include <string>
#include <string_view>

#include "runtime/base/json.h"
#include "runtime/base/status.h"

namespace troupe::train {

// Called for every mapping key that lies in objects only: dotted path, line and column from 1.
using KeySeen = std::function<void(const std::string& path, int line, int column)>;

// `name` stands in errors. An empty text is null.
Result<json::Value> parse_yaml(std::string_view text, std::string_view name,
                               const KeySeen& key_seen = {});

// One scalar as YAML types it when it stands unquoted: "1e-4" → 0.0001, "yes" → true, "~" → null.
json::Value resolve_yaml_scalar(const std::string& text);

}  // namespace troupe::train
