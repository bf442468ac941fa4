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
  // File, the variable of the environment, or of kDefault the program whose default it is.
  std::string name = {};
  int line = 0;    // from 1; only for kFile
  int column = 0;  // from 1; only for kFile
  // What the user wrote, where a setting of ours was made of another tool's key; else empty.
  std::string key = {};

  // "x.yaml:12", "command line", "flag", "environment NAME", "default", "Axolotl's default".
  std::string to_string() const;
};

// A tree of values with the origin of each key. Keys of nested objects are dotted:
// "troupe.workers".
struct SourceDocument {
  json::Object values;
  std::map<std::string, Origin, std::less<>> origins;

  // The origin of the longest known prefix of a dotted path; kDefault where there is none.
  Origin origin_of(std::string_view path) const;

  // The name by which the user knows a key: Origin::key, or the key itself.
  std::string shown(std::string_view key) const;
  // A message with every key that the user wrote otherwise under the name that the user wrote. Keys
  // that are plain English words (dataset, packing) are changed at the message's begin only, where
  // `key` stands.
  std::string in_words_of_user(std::string_view message, std::string_view key) const;
};

// A YAML or JSON text, by the end of its name (.json is JSON, all else YAML), whose outermost value
// is an object. An empty text is an empty object. Errors: "name:line:column: …", kInvalidArgument;
// see yaml.h for what is refused.
Result<SourceDocument> parse_document(std::string_view text, std::string_view name);

// Puts `value` at a dotted path, making objects on the way; a value that is no object and lies on
// the way is an error that names it. Everything below the path is replaced.
Status set_path(SourceDocument& document, std::string_view path, json::Value value, Origin origin);

}  // namespace troupe::train
