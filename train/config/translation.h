#pragma once
// Another tool's settings as a document of ours.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/base/file_system.h"
#include "train/config/foreign_keys.h"
#include "train/config/problems.h"
#include "train/config/source.h"

namespace troupe::train {

// Where a file is translated.
struct TranslationContext {
  FileSystem& files;
  std::string tool;            // "Axolotl"
  std::string file;            // its path, for what lies beside it
  std::int64_t gpu_count = 0;  // what `auto` means, and keys of GPUs
};

// The same settings as a document of ours. Each has the place of the key it was made of, and its
// name (Origin::key), so that what is wrong with it is said in the words of the file.
struct Translation {
  SourceDocument document;
  std::vector<std::string> notices;
  std::vector<KeyFact> facts;  // what became of every key

  // What a table of the tool's keys says of checked values: facts and notices.
  void add(const ForeignKeys& keys, const json::Object& values, const ShownName& shown,
           const ForeignKeys::OriginOf& origin);
};

// Puts what is ours in another tool's document into `out`: everything under troupe, and among
// overrides and flags the keys of ours for which the tool has no word. `is_theirs` tells the tool's
// own. The result is what is left: the tool's values alone.
json::Object take_our_settings(const SourceDocument& theirs,
                               const std::function<bool(const std::string& key)>& is_theirs,
                               Translation& out, Problems& problems);

// Every setting of the one into the other, with its place; what stands there is replaced.
void put_over(const SourceDocument& settings, SourceDocument& document);

}  // namespace troupe::train
