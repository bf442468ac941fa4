#pragma once
// Regular expressions of tokenizer files, over PCRE2 with Unicode properties.
//
// The reference implementation uses Oniguruma; the patterns found in tokenizers mean the same in
// both. Matching is bounded: an expression that backtracks without end is an error, not a hang.

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/base/status.h"

namespace troupe::train {

// What one thread needs while it matches. Made once, used for any expressions.
class RegexScratch {
 public:
  RegexScratch();
  ~RegexScratch();
  RegexScratch(RegexScratch&&) noexcept;
  RegexScratch& operator=(RegexScratch&&) noexcept;

 private:
  friend class Regex;
  struct State;
  std::unique_ptr<State> state_;
};

// A compiled expression. Immutable, shared between threads.
class Regex {
 public:
  using Range = std::pair<std::size_t, std::size_t>;  // [begin, end) in bytes

  static Result<Regex> compile(std::string_view pattern);

  // The first match at or after `from`; nothing when there is none. `text` must be valid UTF-8.
  Result<std::optional<Range>> find(std::string_view text, std::size_t from,
                                    RegexScratch& scratch) const;

 private:
  Regex() = default;
  std::shared_ptr<void> code_;
  std::string pattern_;
};

}  // namespace troupe::train
