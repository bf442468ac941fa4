#pragma once
// Where a setting came from, and documents whose keys know their line.

#include <map>
#include <string>
#include <string_view>

#include "runtime/base/json.h"
#include "runtime/base/status.h"

namespace troupe::train {

enum class OriginKind { kDefault, kFile, kOverride, kFlag, kEnvironment };

// The place a value was written, for errors and `--explain`.
struct Origin {
  OriginKind kind = OriginKind::kDefault;
  std::string name;  // file, or the variable of the environment
  int line = 0;      // from 1; only for kFile
  int column = 0;    // from 1; only for kFile

  // "x.yaml:12", "override", "flag", "environment NAME", "default".
  std::string to_string() const;
};

// A tree of values with the origin of each key. Keys of nested objects are dotted:
// "troupe.workers".
struct SourceDocument {
  json::Object values;
  std::map<std::string, Origin, std::less<>> origins;

  // The origin of the longest known prefix of a dotted path; kDefault where there is none.
  Origin origin_of(std::string_view path) const;
};

// A YAML or JSON text, by the end of its name (.json is JSON, all else YAML), whose outermost value
// is an object. An empty text is an empty object. Errors: "name:line:column: …", kInvalidArgument;
// see yaml.h for what is refused.
Result<SourceDocument> parse_document(std::string_view text, std::string_view name);

// Puts `value` at a dotted path, making objects on the way; a value that is no object and lies on
// the way is an error that names it. Everything below the path is replaced.
Status set_path(SourceDocument& document, std::string_view path, json::Value value, Origin origin);

}  // namespace troupe::train
