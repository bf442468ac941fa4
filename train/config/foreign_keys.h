#pragma once
// Tables of another tool's keys: what is obeyed, what has no effect and why, what is refused.
//
// A key is known by its dotted path; one that stands in no table is an error, so that nothing is
// passed over silently. A row also says where its key counts at all (only_where): readers do not
// see it elsewhere (counts), and the start of a run says that it has no effect (notices).

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

// Why keys that ask for a log elsewhere have no effect, whoever's keys they are.
inline constexpr const char* kOwnLog =
    "the log is trainer_log.jsonl in output_dir, and TensorBoard's event file with report_to: "
    "tensorboard; no outside service is contacted";

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
  // `nothing` holds the values "a|b" that ask for nothing; null and empty mappings always do. The
  // reason ends with what to do instead.
  ForeignKeys& refused(std::string_view paths, std::string_view nothing, std::string_view reason);
  // Mappings with rows of their own.
  ForeignKeys& section(std::string_view paths);
  // Mappings whose keys without a row say nothing.
  ForeignKeys& open(std::string_view paths, std::string_view reason);
  // Further facts about rows that were added before.
  // The values one may have, "a|b"; letters' case counts for nothing.
  ForeignKeys& one_of(std::string_view path, std::string_view allowed);
  // Values of another type are wrong, wherever the key counts. See word_for_default.
  ForeignKeys& typed(ValueType type, std::string_view paths);
  // The refused keys are sections, which `enabled: false` inside turns off.
  ForeignKeys& sections_with_switch(std::string_view paths);
  // The start of a run says of the inert keys why they have no effect, unless the value is among
  // `nothing`.
  ForeignKeys& said(std::string_view paths, std::string_view nothing = "false|none");
  // The keys count only where `counts` holds of the whole document. Elsewhere they have no effect,
  // for `reason`, and the start of a run says so; what a mapping holds is not looked at there.
  using Condition = std::function<bool(const json::Object& document)>;
  ForeignKeys& only_where(std::string_view paths, Condition counts, std::string_view reason);
  // The paths name one setting: two of them with different values are wrong. They need no rows.
  ForeignKeys& same(std::string_view paths);
  // A word that every typed key takes for its default ("auto").
  ForeignKeys& word_for_default(std::string_view word);

  // The keys that are unknown, mistyped (kInvalidArgument) or refused (kUnsupported), all of them
  // in one message. Keys that begin with '_' and have no row are comments.
  Status check(const json::Object& values, const ShownName& shown) const;
  // The same one by one: the path of a wrong key, and what is wrong with it.
  using WrongKey = std::function<void(const std::string& path, const Status& wrong)>;
  void check_each(const json::Object& values, const ShownName& shown, const WrongKey& wrong) const;
  bool has(std::string_view path) const { return rows_.contains(path); }
  // Whether a key, and each mapping that it lies in, counts in a document. One without a row does.
  bool counts(std::string_view path, const json::Object& document) const {
    return !idle_reason(path, document);
  }
  // One fact for each key of checked values. `origin` is from a path to the place of the key.
  using OriginOf = std::function<std::string(const std::string& path)>;
  std::vector<KeyFact> describe(const json::Object& values, const ShownName& shown,
                                const OriginOf& origin) const;
  std::vector<KeyFact> describe(const json::Object& values, const ShownName& shown,
                                const std::string& origin) const {
    return describe(values, shown, [&](const std::string&) { return origin; });
  }
  // "a, b have no effect: REASON" of the keys of checked values that do not count or are said, one
  // sentence for each reason.
  std::vector<std::string> notices(const json::Object& values, const ShownName& shown) const;
  // The paths of all rows that are no mappings.
  std::vector<std::string> paths() const;
  // The last parts of the paths directly below "a." ("": the outermost ones), mappings too.
  std::vector<std::string> names_under(const std::string& prefix) const;
  // The row of one of them. A refused one's note is its reason.
  struct Treated {
    Treatment treatment = Treatment::kImplemented;
    std::string note;
    std::string allowed;  // "a|b"; empty: any
    ValueType type = ValueType::kAny;
  };
  Treated treated(std::string_view path) const;

 private:
  enum class Kind { kUsed, kInert, kRefused, kSection, kOpen };
  struct Row {
    Kind kind = Kind::kUsed;
    std::string nothing;
    std::string note;
    std::string allowed;
    ValueType type = ValueType::kAny;
    bool has_switch = false;
    bool said = false;
    Condition counts;  // always, where it is empty
    std::string idle_reason;
  };

  void add(Kind kind, std::string_view paths, std::string_view nothing, std::string_view note);
  // Changes earlier rows.
  ForeignKeys& change(std::string_view paths, const std::function<void(Row&)>& how);
  // Why a key does not count in a document; null where it does.
  const std::string* idle_reason(std::string_view path, const json::Object& document) const;

  // The arguments that every step of a walk over a document takes.
  struct Walk;
  void check_level(const Walk& walk, const json::Object& level, const std::string& prefix,
                   bool open) const;
  void check_value(const Walk& walk, const Row& row, const std::string& path,
                   const json::Value& value) const;
  void check_same(const Walk& walk) const;
  void describe_level(const json::Object& document, const json::Object& level,
                      const std::string& prefix, std::string_view reason, const ShownName& shown,
                      const OriginOf& origin, std::vector<KeyFact>& out) const;
  void collect_notices(const json::Object& document, const json::Object& level,
                       const std::string& prefix, const ShownName& shown,
                       std::map<std::string, std::vector<std::string>>& reasons) const;

  std::map<std::string, Row, std::less<>> rows_;
  std::vector<std::vector<std::string>> same_;
  std::string default_word_;
};

// "A, B have no effect: REASON"; "has" for one. `whose` stands before it: "the environment's ".
std::string without_effect(std::string_view whose, const std::vector<std::string>& names,
                           std::string_view reason);

}  // namespace troupe::train
