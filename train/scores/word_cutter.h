#pragma once
// Words as jieba 0.42.1's `cut` finds them (its accurate mode with the hidden Markov model).
//
// Text without Chinese characters is cut by rules and five dictionary words that are known here.
// Chinese text needs jieba's dictionary and its table of probabilities, which are read from a
// folder of the Python package.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/base/status.h"

namespace troupe::train {

// Characters of UTF-8 text; U+FFFD for what is none.
std::u32string characters_of(std::string_view text);

class WordCutter {
 public:
  // For texts without Chinese characters.
  WordCutter();
  // With `dict.txt` and `finalseg/prob_emit.py` of the folder `jieba`. kDataLoss names a line that
  // is none of theirs.
  static Result<WordCutter> load(FileSystem& files, const std::string& jieba);

  // Whether the words of the text depend on jieba's dictionary (U+4E00 to U+9FD5).
  static bool needs_dictionary(std::u32string_view text);
  bool has_dictionary() const { return has_dictionary_; }

  // The words in order; joined they are the text.
  std::vector<std::u32string_view> cut(std::u32string_view text) const;

 private:
  using Words = std::vector<std::u32string_view>;
  // Log probabilities of a character in each state of a word: begin, end, middle, single.
  using Emissions = std::unordered_map<char32_t, std::array<double, 4>>;

  Status add_word(std::u32string_view word, std::int64_t count);
  Status read_dictionary(std::string_view text, const std::string& name);
  Status read_emissions(std::string_view text, const std::string& name);
  std::int64_t count_of(std::u32string_view word) const;
  void cut_block(std::u32string_view block, Words& out) const;
  void cut_unknown(std::u32string_view block, Words& out) const;
  void cut_by_states(std::u32string_view block, Words& out) const;

  bool has_dictionary_ = false;
  // How often each word was seen; 0: only longer words begin so.
  std::unordered_map<std::u32string, std::int64_t> counts_;
  double log_total_ = 0;
  Emissions emissions_;
};

}  // namespace troupe::train
