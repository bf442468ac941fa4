#include "train/jinja/characters.h"

#include <string.h>
#include <utf8proc.h>

#include "train/jinja/failure.h"

namespace troupe::train::jinja {
namespace {

bool is_ascii(char32_t c) { return c < 128; }
bool continues(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }
utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

template <typename Change>
std::string changed(std::string_view text, Change change) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const char32_t c = next_character(text, at);
    change(c, out);
  }
  return out;
}

void append_upper(std::string& out, char32_t c) {
  if (c == U'ß') {
    out += "SS";
  } else {
    append_character(out, static_cast<char32_t>(utf8proc_toupper(static_cast<int>(c))));
  }
}
void append_title(std::string& out, char32_t c) {
  if (c == U'ß') {
    out += "Ss";
  } else {
    append_character(out, static_cast<char32_t>(utf8proc_totitle(static_cast<int>(c))));
  }
}
void append_lower(std::string& out, char32_t c) {
  append_character(out, static_cast<char32_t>(utf8proc_tolower(static_cast<int>(c))));
}

}  // namespace

bool is_utf8(std::string_view text) {
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  for (std::size_t at = 0; at < text.size();) {
    utf8proc_int32_t c = 0;
    const auto size =
        utf8proc_iterate(bytes + at, static_cast<utf8proc_ssize_t>(text.size() - at), &c);
    if (size <= 0) return false;
    at += static_cast<std::size_t>(size);
  }
  return true;
}

std::size_t character_count(std::string_view text) {
  std::size_t count = 0;
  for (const char c : text) count += !continues(c);
  return count;
}

char32_t next_character(std::string_view text, std::size_t& at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(at++);
  if (first < 0x80) return first;
  const int more = first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : 1;
  char32_t c = first & (0x3fu >> more);
  for (int i = 0; i < more && at < text.size(); ++i) c = c << 6 | (byte(at++) & 0x3fu);
  return c;
}

void append_character(std::string& out, char32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
    return;
  }
  if (c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) {
    fail("UnicodeEncodeError", "U+{:04X} is no character", static_cast<unsigned>(c));
  }
  utf8proc_uint8_t bytes[4];
  const auto size = utf8proc_encode_char(static_cast<utf8proc_int32_t>(c), bytes);
  out.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(size));
}

std::size_t byte_of(std::string_view text, std::size_t index) {
  std::size_t at = 0;
  for (; at < text.size(); ++at) {
    if (continues(text[at])) continue;
    if (index-- == 0) break;
  }
  return at;
}

bool is_blank(char32_t c) {
  return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}
bool is_printable(char32_t c) {
  if (is_ascii(c)) return c >= 32 && c < 127;
  switch (category(c)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    default:
      return true;
  }
}
bool is_letter(char32_t c) {
  const auto kind = category(c);
  return kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_LO;
}
bool is_decimal(char32_t c) { return category(c) == UTF8PROC_CATEGORY_ND; }
bool is_numeric(char32_t c) {
  const auto kind = category(c);
  return kind >= UTF8PROC_CATEGORY_ND && kind <= UTF8PROC_CATEGORY_NO;
}
bool is_upper(char32_t c) { return category(c) == UTF8PROC_CATEGORY_LU; }
bool is_lower(char32_t c) { return category(c) == UTF8PROC_CATEGORY_LL; }

bool has_case(std::string_view text, bool upper) {
  bool any = false;
  for (std::size_t at = 0; at < text.size();) {
    const char32_t c = next_character(text, at);
    if (upper ? is_lower(c) : is_upper(c)) return false;
    any |= upper ? is_upper(c) : is_lower(c);
  }
  return any;
}

std::string lower(std::string_view text) {
  return changed(text, [](char32_t c, std::string& out) { append_lower(out, c); });
}
std::string upper(std::string_view text) {
  return changed(text, [](char32_t c, std::string& out) { append_upper(out, c); });
}
std::string capitalize(std::string_view text) {
  return changed(text, [first = true](char32_t c, std::string& out) mutable {
    first ? append_title(out, c) : append_lower(out, c);
    first = false;
  });
}
std::string title(std::string_view text) {
  return changed(text, [inside = false](char32_t c, std::string& out) mutable {
    inside ? append_lower(out, c) : append_title(out, c);
    inside = is_letter(c);
  });
}
std::string swap_case(std::string_view text) {
  return changed(text, [](char32_t c, std::string& out) {
    is_upper(c) ? append_lower(out, c) : append_upper(out, c);
  });
}

std::string_view strip(std::string_view text, std::optional<std::string_view> set, bool front,
                       bool back) {
  const auto goes = [&](std::string_view character) {
    std::size_t at = 0;
    return set ? set->find(character) != std::string_view::npos
               : is_blank(next_character(character, at));
  };
  while (front && !text.empty()) {
    std::size_t size = 0;
    next_character(text, size);
    if (!goes(text.substr(0, size))) break;
    text.remove_prefix(size);
  }
  while (back && !text.empty()) {
    std::size_t begin = text.size() - 1;
    while (begin > 0 && continues(text[begin])) --begin;
    if (!goes(text.substr(begin))) break;
    text = text.substr(0, begin);
  }
  return text;
}

std::size_t find_in(std::string_view text, std::string_view sought, std::size_t from) {
  if (from > text.size()) return std::string_view::npos;
  if (sought.empty()) return from;
  const void* const found =
      ::memmem(text.data() + from, text.size() - from, sought.data(), sought.size());
  return found == nullptr ? std::string_view::npos
                          : static_cast<std::size_t>(static_cast<const char*>(found) - text.data());
}

std::size_t find_last_in(std::string_view text, std::string_view sought) {
  constexpr std::size_t kShort = 64;
  if (sought.size() <= kShort) return text.rfind(sought);
  const std::string back(text.rbegin(), text.rend()), key(sought.rbegin(), sought.rend());
  const auto at = find_in(back, key);
  return at == std::string_view::npos ? at : text.size() - at - sought.size();
}

std::string replace_all(std::string_view text, std::string_view old, std::string_view fresh,
                        std::size_t count_max) {
  std::string out;
  std::size_t at = 0, count = 0;
  if (old.empty()) {  // between all characters, too
    while (count < count_max) {
      out += fresh;
      ++count;
      if (at >= text.size()) break;
      const std::size_t begin = at;
      next_character(text, at);
      out += text.substr(begin, at - begin);
    }
    return out.append(text.substr(at));
  }
  for (; count < count_max; ++count) {
    const auto found = find_in(text, old, at);
    if (found == std::string_view::npos) break;
    out.append(text.substr(at, found - at)).append(fresh);
    at = found + old.size();
  }
  return out.append(text.substr(at));
}

}  // namespace troupe::train::jinja
