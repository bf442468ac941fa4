#pragma once
// The `pre_tokenizer` part of tokenizer.json: cuts a text into the pieces that BPE merges within.

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/json.h"
#include "train/tokenizer/regex.h"
#include "train/tokenizer/splitter.h"

namespace troupe::train {

// A text and the ranges of its pieces, in order. Steps that insert characters rewrite the text.
// Used again and again, so that its memory stays.
struct Pieces {
  using Range = std::pair<std::size_t, std::size_t>;  // [begin, end)
  std::string text;
  std::vector<Range> ranges;
  std::vector<Range> next;                   // what a step makes of `ranges`
  std::vector<std::pair<Range, bool>> cuts;  // of one piece; whether the pattern matched there
  std::string_view piece(std::size_t i) const {
    return std::string_view(text).substr(ranges[i].first, ranges[i].second - ranges[i].first);
  }
};

// ByteLevel, Split, Digits, Punctuation, Whitespace, WhitespaceSplit, BertPreTokenizer, Metaspace
// and sequences of them. Immutable.
//
// The byte-level mapping itself is not applied here: pieces stay plain bytes and byte_level() says
// that the model is to read them as such.
class PreTokenizer {
 public:
  // `value` is the member of tokenizer.json (null: one piece). Another type is kUnsupported.
  static Result<PreTokenizer> from_json(const json::Value* value);

  bool byte_level() const { return byte_level_; }
  // Where all there is to do is to split by a known expression, the code that does: pieces then
  // need no list. Null otherwise.
  PieceEnd only_splitter() const;
  // Cuts `pieces`, which hold one valid UTF-8 text. `at_start`: it begins with the first character
  // of its text, which Metaspace's prepend_scheme "first" asks for.
  Status apply(Pieces& pieces, bool at_start, RegexScratch& scratch) const;

 private:
  enum class Kind { kSplit, kPrefixSpace, kMetaspace };
  enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };
  enum class Prepend { kAlways, kFirst, kNever };
  struct Step {
    Kind kind = Kind::kSplit;
    std::vector<Regex> regex;              // one, or none for a literal or a class
    bool (*is_match)(char32_t) = nullptr;  // a class: each character of it is a match
    PieceEnd piece_end = nullptr;          // does what `regex` does, where that is known
    std::string literal;                   // Split's string, Metaspace's replacement
    Behavior behavior = Behavior::kIsolated;
    bool invert = false;
    Prepend prepend = Prepend::kAlways;
    bool split = true;  // Metaspace
  };
  Status add(const json::Value& value, const std::string& key, int depth);
  void add_class(bool (*is_match)(char32_t), Behavior behavior);
  Status add_byte_level(const json::Value& value);
  Status add_split(const json::Value& value, const std::string& key);
  static Result<Behavior> behavior_of(const json::Value& value, const std::string& key);
  Status add_metaspace(const json::Value& value, const std::string& key);

  static Status split(const Step& step, Pieces& pieces, RegexScratch& scratch);
  static Status cut(const Step& step, std::string_view piece, std::size_t offset,
                    RegexScratch& scratch, std::vector<std::pair<Pieces::Range, bool>>& cuts);
  static bool takes_matches(const Step& step);
  static void join(Behavior behavior, const std::vector<std::pair<Pieces::Range, bool>>& cuts,
                   std::vector<Pieces::Range>& out);
  static void prefix_space(Pieces& pieces);
  static Status metaspace(const Step& step, Pieces& pieces, bool at_start, RegexScratch& scratch);

  std::vector<Step> steps_;
  bool byte_level_ = false;
};

}  // namespace troupe::train
