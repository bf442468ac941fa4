#pragma once
// The `added_tokens` part of tokenizer.json: strings that are taken out of a text before anything
// else sees it.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/json.h"
#include "train/tokenizer/bpe_model.h"

namespace troupe::train {

struct AddedToken {
  TokenId id = 0;
  std::string content;
  bool single_word = false;  // only where no word character stands beside it
  bool lstrip = false;       // swallows white space before it
  bool rstrip = false;       // and behind it
  bool normalized = false;   // looked for in the normalised text
  bool special = false;      // left out by decode(skip_special_tokens)

  static Result<AddedToken> from_json(const json::Value& value, std::size_t index);
  json::Value to_json() const;
};

// Finds tokens in a text: leftmost first, the longest of those that begin at the same place.
class TokenFinder {
 public:
  struct Part {
    std::size_t begin, end;
    std::int32_t token;  // the id, or -1 for the text between
  };
  // `content` is what is looked for: the token's own, or its normalised form.
  void add(std::string_view content, const AddedToken& token);
  bool empty() const { return contents_.empty(); }
  // Covers `text` (valid UTF-8) with parts, without empty ones. `split_special`: special tokens are
  // text like any other.
  std::vector<Part> find(std::string_view text, bool split_special = false) const;

 private:
  struct Entry {
    std::string content;
    AddedToken token;
  };
  std::size_t next_lead(std::string_view text, std::size_t at) const;
  const Entry* match_at(std::string_view text, std::size_t at) const;

  std::vector<Entry> contents_;
  // By first byte, longest first.
  std::map<unsigned char, std::vector<std::size_t>> by_first_byte_;
  bool first_[256] = {};
};

}  // namespace troupe::train
