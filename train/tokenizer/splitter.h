#pragma once
// The expressions that nearly all byte-level tokenizers split texts with, as hand-written code: an
// order of magnitude faster than the expression, and the same pieces.

#include <cstddef>
#include <string_view>

namespace troupe::train {

// GPT-2's expression, which ByteLevel with use_regex applies.
extern const std::string_view kGpt2Pattern;
// Those of Llama 3 and of Qwen 2, which differ from each other in how many digits make a piece.
extern const std::string_view kLlama3Pattern;
extern const std::string_view kQwen2Pattern;

// Where the piece that begins at `begin` (< text.size()) ends. `text` must be valid UTF-8, `begin`
// the start of a character. Calling it again and again covers the text without gaps, as matches of
// these expressions do.
using PieceEnd = std::size_t (*)(std::string_view text, std::size_t begin);

// The code for exactly this expression; null where there is none, and the expression itself must be
// matched. What a letter or a number is, is utf8proc's version of Unicode, not PCRE2's.
PieceEnd piece_end_of(std::string_view pattern);

}  // namespace troupe::train
