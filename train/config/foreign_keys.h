#pragma once
// Tables of another tool's keys: what is obeyed, what has no effect and why, what is refused.
//
// A key is known by its dotted path; one that stands in no table is an error, so that nothing is
// passed over silently.

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/base/status.h"
#include "train/config/keys.h"

namespace troupe::train {

// The note of a refused key whose value wants nothing.
inline constexpr std::string_view kAsksForNothing = "asks for nothing";

// The fate of one key of another tool's file, for `--explain`.
struct KeyFact {
  std::string key;     // as the user finds it: "deepspeed.zero_optimization.stage"
  std::string value;   // as it is used
  std::string origin;  // the file, the key or the variable
  Treatment treatment = Treatment::kImplemented;
  std::string note;  // the meaning, or why it has no effect
};

// From a path of the table to the name in messages ("fsdp_config.offload_params", "FSDP_VERSION").
using ShownName = std::function<std::string(const std::string& path)>;

class ForeignKeys {
 public:
  // Each call adds rows for the paths "a|b.c|…".
  ForeignKeys& used(std::string_view paths, std::string_view meaning);
  ForeignKeys& inert(std::string_view paths, std::string_view reason);
  // `nothing` holds the values "a|b" that ask for nothing; null, empty mappings and such with
  // enabled: false always do. The reason ends with what to do instead.
  ForeignKeys& refused(std::string_view paths, std::string_view nothing, std::string_view reason);
  // Mappings with rows of their own.
  ForeignKeys& section(std::string_view paths);
  // Mappings whose keys without a row say nothing.
  ForeignKeys& open(std::string_view paths, std::string_view reason);
  // The values an earlier row may have, "a|b"; letters' case counts for nothing.
  ForeignKeys& one_of(std::string_view path, std::string_view allowed);

  // The keys that are unknown, mistyped (kInvalidArgument) or refused (kUnsupported), all of them
  // in one message. Keys that begin with '_' are comments.
  Status check(const json::Object& values, const ShownName& shown) const;
  // The same one by one: the path of a wrong key, and what is wrong with it.
  using WrongKey = std::function<void(const std::string& path, const Status& wrong)>;
  void check_each(const json::Object& values, const ShownName& shown, const WrongKey& wrong) const;
  bool has(std::string_view path) const { return rows_.contains(path); }
  // One fact for each key of checked values.
  std::vector<KeyFact> describe(const json::Object& values, const ShownName& shown,
                                const std::string& origin) const;
  // The paths of all rows that are no mappings.
  std::vector<std::string> paths() const;
  // The last parts of the paths directly below "a." ("": the outermost ones), mappings too.
  std::vector<std::string> names_under(const std::string& prefix) const;
  // The row of one of them. A refused one's note is its reason.
  struct Treated {
    Treatment treatment = Treatment::kImplemented;
    std::string note;
    std::string allowed;  // "a|b"; empty: any
  };
  Treated treated(std::string_view path) const;

 private:
  enum class Kind { kUsed, kInert, kRefused, kSection, kOpen };
  struct Row {
    Kind kind = Kind::kUsed;
    std::string nothing;
    std::string note;
    std::string allowed;
  };

  void add(Kind kind, std::string_view paths, std::string_view nothing, std::string_view note);
  void check_level(const json::Object& level, const std::string& prefix, bool open,
                   const ShownName& shown, const WrongKey& wrong) const;
  void check_value(const Row& row, const std::string& path, const json::Value& value,
                   const ShownName& shown, const WrongKey& wrong) const;
  void describe_level(const json::Object& level, const std::string& prefix, std::string_view reason,
                      const ShownName& shown, const std::string& origin,
                      std::vector<KeyFact>& out) const;
  std::map<std::string, Row, std::less<>> rows_;
};

}  // namespace troupe::train
