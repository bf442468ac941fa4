#pragma once
// The `normalizer` part of tokenizer.json.

#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/json.h"
#include "train/tokenizer/charsmap.h"
#include "train/tokenizer/regex.h"
#include "train/tokenizer/unicode.h"

namespace troupe::train {

// NFC, NFD, NFKC, NFKD, Prepend, Replace, Strip, Lowercase, StripAccents, BertNormalizer, Nmt,
// Precompiled and sequences of them. Immutable.
class Normalizer {
 public:
  // `value` is the member of tokenizer.json (null: nothing to do). Another type is kUnsupported.
  static Result<Normalizer> from_json(const json::Value* value);

  bool empty() const { return steps_.empty(); }
  // `text` must be valid UTF-8; so is what comes back. `front_dropped`: set where the text's first
  // character vanished without another in its place.
  Result<std::string> apply(std::string_view text, RegexScratch& scratch,
                            bool* front_dropped = nullptr) const;

 private:
  enum class Kind { kForm, kPrepend, kReplaceText, kReplaceRegex, kStrip, kCharacters, kCharsmap };
  // Appends what one character becomes.
  using Change = void (*)(char32_t character, std::string& out);
  struct Step {
    Kind kind;
    NormalizationForm form{};
    std::string pattern, content;
    std::vector<Regex> regex;  // one, for kReplaceRegex
    bool strip_left = false, strip_right = false;
    Change change = nullptr;
    std::vector<Charsmap> charsmap;  // one, for kCharsmap
  };
  void add_change(Change change);
  void add_form(NormalizationForm form);
  void add_bert(const json::Value& value);
  Status add(const json::Value& value, const std::string& key, int depth);
  Status add_replace(const json::Value& value, const std::string& key);

  std::vector<Step> steps_;
};

// `text` with every occurrence of `from` (not empty) replaced.
std::string replace_all(std::string_view text, std::string_view from, std::string_view to);

}  // namespace troupe::train
