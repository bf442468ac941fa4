#include "train/tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace troupe::train {
namespace {

// The length of the valid sequence at the front of `text`, or 0, with the number of bytes that a
// maximal invalid sequence spans in `skip` (Unicode 3.9, best practice for U+FFFD).
std::size_t sequence_length(std::string_view text, std::size_t& skip) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  skip = 1;
  if (lead < 0x80) return 1;
  if (lead < 0xc2 || lead > 0xf4) return 0;
  const std::size_t length = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  unsigned char low = 0x80, high = 0xbf;
  if (lead == 0xe0) low = 0xa0;
  if (lead == 0xed) high = 0x9f;
  if (lead == 0xf0) low = 0x90;
  if (lead == 0xf4) high = 0x8f;
  for (std::size_t i = 1; i < length; ++i) {
    if (i >= text.size() || byte(i) < low || byte(i) > high) return 0;
    low = 0x80;
    high = 0xbf;
    skip = i + 1;
  }
  return length;
}

// The first place from `at` on where a byte is not ASCII, eight at a time.
std::size_t ascii_end(std::string_view text, std::size_t at) {
  for (std::uint64_t word = 0; text.size() - at >= sizeof word; at += sizeof word) {
    std::memcpy(&word, text.data() + at, sizeof word);
    if (word & 0x8080808080808080u) break;
  }
  while (at < text.size() && static_cast<unsigned char>(text[at]) < 0x80) ++at;
  return at;
}

}  // namespace

std::size_t valid_utf8_prefix(std::string_view text) {
  std::size_t at = 0, skip = 0;
  while (at < text.size()) {
    at = ascii_end(text, at);
    if (at == text.size()) break;
    const auto length = sequence_length(text.substr(at), skip);
    if (length == 0) return at;
    at += length;
  }
  return at;
}

bool is_valid_utf8(std::string_view text) { return valid_utf8_prefix(text) == text.size(); }

std::string to_valid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  std::size_t at = 0, skip = 0;
  while (at < text.size()) {
    const auto length = sequence_length(text.substr(at), skip);
    if (length > 0) {
      out.append(text.substr(at, length));
      at += length;
    } else {
      out += "\xef\xbf\xbd";
      at += skip;
    }
  }
  return out;
}

char32_t next_code_point(std::string_view text, std::size_t& position) {
  const auto byte = [&](std::size_t i) {
    return i < text.size() ? static_cast<char32_t>(static_cast<unsigned char>(text[i])) : 0;
  };
  const char32_t lead = byte(position);
  if (lead < 0x80) return ++position, lead;
  const std::size_t length = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  char32_t value = lead & (0xff >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) value = value << 6 | (byte(position + i) & 0x3f);
  position = std::min(position + length, text.size());
  return value;
}

std::size_t previous_boundary(std::string_view text, std::size_t position) {
  --position;
  while (position > 0 && (static_cast<unsigned char>(text[position]) & 0xc0) == 0x80) --position;
  return position;
}

void append_utf8(std::string& out, char32_t code_point) {
  const auto push = [&](char32_t value) { out.push_back(static_cast<char>(value)); };
  if (code_point < 0x80) {
    push(code_point);
  } else if (code_point < 0x800) {
    push(0xc0 | code_point >> 6);
    push(0x80 | (code_point & 0x3f));
  } else if (code_point < 0x10000) {
    push(0xe0 | code_point >> 12);
    push(0x80 | (code_point >> 6 & 0x3f));
    push(0x80 | (code_point & 0x3f));
  } else {
    push(0xf0 | code_point >> 18);
    push(0x80 | (code_point >> 12 & 0x3f));
    push(0x80 | (code_point >> 6 & 0x3f));
    push(0x80 | (code_point & 0x3f));
  }
}

bool is_white_space(char32_t c) {
  return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

bool is_word(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:  // Join_Control; circled letters and the like, which are Other_Alphabetic
      return c == 0x200c || c == 0x200d || (c >= 0x24b6 && c <= 0x24e9) ||
             (c >= 0x1f130 && c <= 0x1f149) || (c >= 0x1f150 && c <= 0x1f169) ||
             (c >= 0x1f170 && c <= 0x1f189);
  }
}

bool is_letter(char32_t c) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

bool is_numeric(char32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL ||
         category == UTF8PROC_CATEGORY_NO;
}

bool is_mark(char32_t c) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category >= UTF8PROC_CATEGORY_MN && category <= UTF8PROC_CATEGORY_ME;
}

bool is_nonspacing_mark(char32_t c) {
  return c >= 0x80 && utf8proc_category(static_cast<utf8proc_int32_t>(c)) == UTF8PROC_CATEGORY_MN;
}

bool is_punctuation(char32_t c) {
  if (c < 0x80) {
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
           (c >= '{' && c <= '~');
  }
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
}

bool is_other(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c)) >= UTF8PROC_CATEGORY_CC;
}

void append_lower(std::string& out, char32_t c) {
  if (c < 0x80) {
    out.push_back(static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c));
  } else if (c == 0x130) {
    out += "i\u0307";  // the one character whose lower case is two
  } else {
    append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
  }
}

std::size_t grapheme_end(std::string_view text, std::size_t begin) {
  std::size_t end = begin;
  auto before = static_cast<utf8proc_int32_t>(next_code_point(text, end));
  utf8proc_int32_t state = 0;
  while (end < text.size()) {
    std::size_t next = end;
    const auto behind = static_cast<utf8proc_int32_t>(next_code_point(text, next));
    if (utf8proc_grapheme_break_stateful(before, behind, &state)) break;
    before = behind;
    end = next;
  }
  return end;
}

namespace {

// Appends the normal form of `text`.
Status append_normal_form(std::string_view text, NormalizationForm form, std::string& to) {
  const bool composed = form == NormalizationForm::kNfc || form == NormalizationForm::kNfkc;
  const bool compatible = form == NormalizationForm::kNfkc || form == NormalizationForm::kNfkd;
  const int options = UTF8PROC_STABLE | (composed ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                      (compatible ? UTF8PROC_COMPAT : 0);
  utf8proc_uint8_t* out = nullptr;
  const auto length = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                   static_cast<utf8proc_ssize_t>(text.size()), &out,
                                   static_cast<utf8proc_option_t>(options));
  if (length < 0) {
    return error(Code::kInvalidArgument, "cannot normalise the text: {}", utf8proc_errmsg(length));
  }
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(out, &std::free);
  to.append(reinterpret_cast<const char*>(out), static_cast<std::size_t>(length));
  return {};
}

}  // namespace

// Most of a text is its own normal form. A character below `changed` is, joins nothing that stands
// before it and is reordered with nothing: what lies between two such stretches is normalised for
// itself, with the character before it, which it may compose with. Below U+0300 that is true of
// NFC (Unicode 15 annex 15, detecting normalization forms), of the other forms of ASCII.
Result<std::string> normalize(std::string_view text, NormalizationForm form) {
  const char32_t changed = form == NormalizationForm::kNfc ? 0x300 : 0x80;
  std::string out;
  out.reserve(text.size());
  std::size_t kept = 0;  // before it all is in `out`
  for (std::size_t at = ascii_end(text, 0); at < text.size(); at = ascii_end(text, at)) {
    std::size_t end = at;
    if (next_code_point(text, end) < changed) {
      at = end;
      continue;
    }
    const std::size_t begin = at > kept ? previous_boundary(text, at) : at;
    for (std::size_t next = end; next < text.size(); end = next) {
      if (next_code_point(text, next) < changed) break;
    }
    out.append(text.substr(kept, begin - kept));
    TROUPE_RETURN_IF_ERROR(append_normal_form(text.substr(begin, end - begin), form, out));
    kept = at = end;
  }
  out.append(text.substr(kept));
  return out;
}

ByteAlphabet::ByteAlphabet() {
  bytes_.fill(-1);
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable =
        (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    const char32_t code_point = printable ? static_cast<char32_t>(byte) : next++;
    append_utf8(characters_[byte], code_point);
    bytes_[code_point] = static_cast<std::int16_t>(byte);
  }
}

std::optional<std::string> ByteAlphabet::bytes_of(std::string_view token) const {
  std::string out;
  for (std::size_t at = 0; at < token.size();) {
    const char32_t c = next_code_point(token, at);
    if (c >= bytes_.size() || bytes_[c] < 0) return std::nullopt;
    out.push_back(static_cast<char>(bytes_[c]));
  }
  return out;
}

std::string ByteAlphabet::characters_of(std::string_view bytes) const {
  std::string out;
  for (const char byte : bytes) out += characters_[static_cast<unsigned char>(byte)];
  return out;
}

}  // namespace troupe::train
