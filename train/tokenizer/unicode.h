#pragma once
// UTF-8, Unicode categories, and the byte alphabet of byte-level BPE.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/status.h"

namespace troupe::train {

// The length of the longest valid prefix of `text` as UTF-8 (RFC 3629: no surrogates, no overlong
// forms, at most U+10FFFF).
std::size_t valid_utf8_prefix(std::string_view text);
bool is_valid_utf8(std::string_view text);
// `text` with every maximal invalid sequence replaced by U+FFFD: what Rust's from_utf8_lossy and
// Python's errors="replace" do.
std::string to_valid_utf8(std::string_view text);

// The code point at `position` of valid UTF-8, and `position` moved behind it.
char32_t next_code_point(std::string_view text, std::size_t& position);
// The first byte of the code point that ends before `position` (> 0).
std::size_t previous_boundary(std::string_view text, std::size_t position);
void append_utf8(std::string& out, char32_t code_point);

bool is_white_space(char32_t code_point);      // property White_Space
bool is_word(char32_t code_point);             // \w: letters, marks, digits, connectors
bool is_letter(char32_t code_point);           // categories Lu, Ll, Lt, Lm, Lo
bool is_numeric(char32_t code_point);          // categories Nd, Nl, No
bool is_mark(char32_t code_point);             // categories Mn, Mc, Me
bool is_nonspacing_mark(char32_t code_point);  // category Mn
bool is_punctuation(char32_t code_point);      // ASCII's, and categories Pc, Pd, Ps, Pe, Pi, Pf, Po
bool is_other(char32_t code_point);            // categories Cc, Cf, Cs, Co

// Appends the lower case of one character, whatever stands beside it.
void append_lower(std::string& out, char32_t code_point);
// Where the grapheme (what a reader takes for one character) that begins at `begin` ends.
std::size_t grapheme_end(std::string_view text, std::size_t begin);

enum class NormalizationForm { kNfc, kNfd, kNfkc, kNfkd };
// `text` must be valid UTF-8.
Result<std::string> normalize(std::string_view text, NormalizationForm form);

// GPT-2's bytes_to_unicode: every byte stands for a printable character, so that vocabularies are
// readable text. Printable Latin-1 bytes stand for themselves, the others for U+0100 onwards.
class ByteAlphabet {
 public:
  ByteAlphabet();
  // The character of a byte, as UTF-8.
  const std::string& character(unsigned char byte) const { return characters_[byte]; }
  // The text whose byte-level form is `token`; nothing when a character is not of the alphabet.
  std::optional<std::string> bytes_of(std::string_view token) const;
  // The byte-level form of any bytes.
  std::string characters_of(std::string_view bytes) const;

 private:
  std::array<std::string, 256> characters_;
  std::array<std::int16_t, 0x144> bytes_;  // by code point; -1 where there is none
};

}  // namespace troupe::train
