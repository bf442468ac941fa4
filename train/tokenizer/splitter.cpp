#include "train/tokenizer/splitter.h"

#include <array>
#include <cstdint>

#include "train/tokenizer/unicode.h"

namespace troupe::train {
namespace {

// The classes that the expressions tell apart; they exclude each other.
enum class Class : std::uint8_t { kOther, kLetter, kNumber, kSpace, kNewline };

constexpr std::array<Class, 128> kAscii = [] {
  std::array<Class, 128> out{};
  for (int c = 0; c < 128; ++c) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    out[static_cast<std::size_t>(c)] = letter                            ? Class::kLetter
                                       : c >= '0' && c <= '9'            ? Class::kNumber
                                       : c == '\n' || c == '\r'          ? Class::kNewline
                                       : c == ' ' || (c >= 9 && c <= 13) ? Class::kSpace
                                                                         : Class::kOther;
  }
  return out;
}();

struct Character {
  Class kind;
  std::size_t end;  // the place behind it
};

// Out of line: rare in most texts.
[[gnu::noinline]] Character wide_at(std::string_view text, std::size_t at) {
  const char32_t c = next_code_point(text, at);
  const Class kind = is_white_space(c) ? Class::kSpace
                     : is_letter(c)    ? Class::kLetter
                     : is_numeric(c)   ? Class::kNumber
                                       : Class::kOther;
  return {kind, at};
}

inline Character at(std::string_view text, std::size_t position) {
  const auto lead = static_cast<unsigned char>(text[position]);
  if (lead < 0x80) return {kAscii[lead], position + 1};
  return wide_at(text, position);
}

inline bool is(std::string_view text, std::size_t position, Class kind) {
  return position < text.size() && at(text, position).kind == kind;
}

// The end of the longest run of a class from `position`.
inline std::size_t run_end(std::string_view text, std::size_t position, Class kind) {
  while (position < text.size()) {
    const Character next = at(text, position);
    if (next.kind != kind) break;
    position = next.end;
  }
  return position;
}

inline char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }

// 's|'t|'re|'ve|'m|'ll|'d at an apostrophe: its end, or 0. Without case, 's is also an apostrophe
// and U+017F, the long s.
template <bool kAnyCase>
inline std::size_t contraction_end(std::string_view text, std::size_t begin) {
  const std::size_t left = text.size() - begin;
  const auto letter = [&](std::size_t i) {
    const char c = i < left ? text[begin + i] : '\0';
    return kAnyCase ? lower(c) : c;
  };
  const char first = letter(1), second = letter(2);
  switch (first) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return begin + 2;
    case 'r':
    case 'v':
      return second == 'e' ? begin + 3 : 0;
    case 'l':
      return second == 'l' ? begin + 3 : 0;
    default:
      return kAnyCase && text.substr(begin + 1).starts_with("\xc5\xbf") ? begin + 3 : 0;
  }
}

// \s+(?!\S)|\s+ at white space: a run leaves its last character to what follows, if anything does.
std::size_t spaces_end(std::string_view text, std::size_t begin) {
  std::size_t last = begin, end = begin;
  while (end < text.size()) {
    const Character next = at(text, end);
    if (next.kind != Class::kSpace && next.kind != Class::kNewline) break;
    last = end;
    end = next.end;
  }
  return end == text.size() || last == begin ? end : last;
}

std::size_t gpt2_end(std::string_view text, std::size_t begin) {
  if (text[begin] == '\'') {
    if (const auto end = contraction_end<false>(text, begin)) return end;
  }
  Character first = at(text, begin);
  // " ?" before letters, numbers and others.
  if (text[begin] == ' ' && first.end < text.size()) {
    const Character behind = at(text, first.end);
    if (behind.kind != Class::kSpace && behind.kind != Class::kNewline) first = behind;
  }
  if (first.kind == Class::kSpace || first.kind == Class::kNewline) return spaces_end(text, begin);
  return run_end(text, first.end, first.kind);
}

// At white space: \s*[\r\n]+ takes all up to the last line end of the run, else as in GPT-2.
std::size_t lines_end(std::string_view text, std::size_t begin) {
  std::size_t behind_newline = 0;
  for (std::size_t position = begin; position < text.size();) {
    const Character next = at(text, position);
    if (next.kind == Class::kNewline) behind_newline = next.end;
    if (next.kind != Class::kNewline && next.kind != Class::kSpace) break;
    position = next.end;
  }
  return behind_newline != 0 ? behind_newline : spaces_end(text, begin);
}

template <int kDigits>
std::size_t llama3_end(std::string_view text, std::size_t begin) {
  if (text[begin] == '\'') {
    if (const auto end = contraction_end<true>(text, begin)) return end;
  }
  const Character first = at(text, begin);
  switch (first.kind) {
    case Class::kLetter:
      return run_end(text, first.end, Class::kLetter);
    case Class::kNumber: {
      std::size_t end = first.end;
      for (int i = 1; i < kDigits && is(text, end, Class::kNumber); ++i) end = at(text, end).end;
      return end;
    }
    case Class::kNewline:
      return lines_end(text, begin);
    case Class::kSpace:
    case Class::kOther:
      break;
  }
  // One character that is none of these goes with the letters behind it.
  if (first.end < text.size()) {
    const Character behind = at(text, first.end);
    if (behind.kind == Class::kLetter) return run_end(text, behind.end, Class::kLetter);
    // ` ?[^\s\p{L}\p{N}]+[\r\n]*`
    if (text[begin] == ' ' && behind.kind == Class::kOther) {
      return run_end(text, run_end(text, behind.end, Class::kOther), Class::kNewline);
    }
  }
  if (first.kind == Class::kSpace) return lines_end(text, begin);
  return run_end(text, run_end(text, first.end, Class::kOther), Class::kNewline);
}

}  // namespace

const std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
const std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

PieceEnd piece_end_of(std::string_view pattern) {
  if (pattern == kGpt2Pattern) return gpt2_end;
  if (pattern == kLlama3Pattern) return llama3_end<3>;
  if (pattern == kQwen2Pattern) return llama3_end<1>;
  return nullptr;
}

}  // namespace troupe::train
