#include "train/jinja/lexer.h"

#include <algorithm>
#include <iterator>

#include "train/jinja/characters.h"
#include "train/jinja/failure.h"

namespace troupe::train::jinja {
namespace {

// Line ends become \n; one at the end goes.
std::string normal_lines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
    } else if (i + 1 == source.size() || source[i + 1] != '\n') {
      out += '\n';
    }
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_word_byte(char c) {
  return is_digit(c) || c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c < 0;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normal_lines(source)), rest_(source_) {}

  std::vector<Token> read() {
    while (!rest_.empty()) read_data();
    out_.push_back({.type = Token::Type::kEnd, .text = {}, .line = line_});
    return std::move(out_);
  }

 private:
  using Type = Token::Type;

  [[noreturn]] void fail_here(std::string message) const {
    throw Failure{kSyntaxError, std::move(message), line_};
  }
  std::size_t place() const { return character_count(std::string_view(source_).substr(0, at())); }
  std::size_t at() const { return source_.size() - rest_.size(); }
  void skip(std::size_t size) {
    line_ +=
        static_cast<int>(std::count(rest_.begin(), rest_.begin() + std::ptrdiff_t(size), '\n'));
    line_starting_ = size > 0 && rest_[size - 1] == '\n';
    rest_.remove_prefix(size);
  }
  void skip_blanks() { skip(rest_.size() - strip(rest_, std::nullopt, true, false).size()); }
  void add(Type type, std::string text = {}) {
    out_.push_back({.type = type, .text = std::move(text), .line = line_});
  }

  // The text in front of a tag, with what its sign or lstrip_blocks takes off the end.
  std::string_view before_tag(std::string_view text, char sign, bool is_variable) const {
    if (sign == '-') return strip(text, std::nullopt, false, true);
    if (sign == '+' || is_variable) return text;
    const auto newline = text.rfind('\n');
    if (newline == std::string_view::npos && !line_starting_) return text;
    const auto begin = newline == std::string_view::npos ? 0 : newline + 1;
    return strip(text.substr(begin), std::nullopt, true, false).empty() ? text.substr(0, begin)
                                                                        : text;
  }

  static char sign_at(std::string_view text, std::size_t at) {
    return at < text.size() && (text[at] == '-' || text[at] == '+') ? text[at] : '\0';
  }

  // Text up to the next tag, and the tag.
  void read_data() {
    std::size_t begin = 0;
    do {
      begin = rest_.find('{', begin);
      if (begin == std::string_view::npos || begin + 1 >= rest_.size()) {
        add(Type::kData, std::string(rest_));
        return skip(rest_.size());
      }
      if (const char next = rest_[begin + 1]; next == '{' || next == '%' || next == '#') break;
      ++begin;
    } while (true);
    const char kind = rest_[begin + 1];
    const char sign = sign_at(rest_, begin + 2);
    const auto text = before_tag(rest_.substr(0, begin), sign, kind == '{');
    if (!text.empty()) add(Type::kData, std::string(text));
    skip(begin + 2 + (sign != '\0'));
    if (kind == '#') return skip_comment();
    if (kind == '{') {
      add(Type::kVariableBegin);
      return read_tag(false);
    }
    if (skip_raw_begin()) return read_raw();
    add(Type::kBlockBegin);
    read_tag(true);
  }

  // Past "%}" or "#}" at the front, with the blanks that go with it.
  bool skip_end(std::string_view end, bool is_block) {
    const char sign = sign_at(rest_, 0);
    if (sign == '+' && !is_block) return false;
    if (!rest_.substr(sign != '\0').starts_with(end)) return false;
    skip(end.size() + (sign != '\0'));
    if (sign == '-') {
      skip_blanks();
    } else if (is_block && sign == '\0' && rest_.starts_with('\n')) {
      skip(1);
    }
    return true;
  }

  void skip_comment() {
    const auto end = rest_.find("#}");
    if (end == std::string_view::npos) fail_here("Missing end of comment tag");
    const char sign = end > 0 ? sign_at(rest_, end - 1) : '\0';
    skip(end - (sign != '\0'));
    skip_end("#}", true);
  }

  // Behind "{%": the rest of a raw tag.
  bool skip_raw_begin() {
    auto text = strip(rest_, std::nullopt, true, false);
    if (!text.starts_with("raw")) return false;
    text = strip(text.substr(3), std::nullopt, true, false);
    const bool minus = text.starts_with('-');
    if (!text.substr(minus).starts_with("%}")) return false;
    skip(rest_.size() - text.size() + 2 + minus);
    if (minus) skip_blanks();
    return true;
  }

  void read_raw() {
    for (std::size_t begin = 0;;) {
      begin = rest_.find("{%", begin);
      if (begin == std::string_view::npos) fail_here("Missing end of raw directive");
      const char sign = sign_at(rest_, begin + 2);
      const auto tag = strip(rest_.substr(begin + 2 + (sign != '\0')), std::nullopt, true, false);
      const auto end =
          strip(tag.substr(std::min<std::size_t>(6, tag.size())), std::nullopt, true, false);
      if (tag.starts_with("endraw") && end.substr(sign_at(end, 0) != '\0').starts_with("%}")) {
        const auto text = before_tag(rest_.substr(0, begin), sign, false);
        if (!text.empty()) add(Type::kData, std::string(text));
        skip(rest_.size() - end.size());
        skip_end("%}", true);
        return;
      }
      begin += 2;
    }
  }

  void read_tag(bool is_block) {
    std::string open;  // the brackets that are open
    while (true) {
      skip_blanks();
      if (rest_.empty()) return;
      if (open.empty() && skip_end(is_block ? "%}" : "}}", is_block)) {
        return add(is_block ? Type::kBlockEnd : Type::kVariableEnd);
      }
      const char c = rest_.front();
      if (is_digit(c)) {
        read_number();
      } else if (is_word_byte(c)) {
        read_name();
      } else if (c == '\'' || c == '"') {
        read_text(c);
      } else {
        read_sign(open);
      }
    }
  }

  // Digits with single underscores between them.
  static std::size_t digits(std::string_view text, std::size_t from, bool (*is)(char)) {
    std::size_t at = from;
    while (at < text.size() && (is(text[at]) || (at > from && text[at] == '_' &&
                                                 at + 1 < text.size() && is(text[at + 1])))) {
      ++at;
    }
    return at;
  }

  void read_number() {
    std::size_t end = digits(rest_, 0, is_digit);
    const std::size_t whole = end;
    const bool behind_dot = at() > 0 && source_[at() - 1] == '.';
    if (!behind_dot) {
      if (end + 1 < rest_.size() && rest_[end] == '.' && is_digit(rest_[end + 1]))
        end = digits(rest_, end + 1, is_digit);
      if (end < rest_.size() && (rest_[end] | 32) == 'e') {
        const auto power =
            end + 1 + (end + 1 < rest_.size() && (rest_[end + 1] == '-' || rest_[end + 1] == '+'));
        if (power < rest_.size() && is_digit(rest_[power])) end = digits(rest_, power, is_digit);
      }
    }
    add(end > whole ? Type::kFloat : Type::kInteger);
    Token& token = out_.back();
    if (end > whole) {
      read_float(rest_.substr(0, end), token.number);
      return skip(end);
    }
    if (rest_.front() == '0' && rest_.size() > 1) {
      const char kind = static_cast<char>(rest_[1] | 32);
      const auto is =
          kind == 'x'   ? [](char c) { return is_digit(c) || ((c | 32) >= 'a' && (c | 32) <= 'f'); }
          : kind == 'o' ? [](char c) { return c >= '0' && c <= '7'; }
          : kind == 'b' ? [](char c) { return c == '0' || c == '1'; }
                        : static_cast<bool (*)(char)>(nullptr);
      if (is != nullptr) {
        const std::size_t from = 2 + (rest_.size() > 2 && rest_[2] == '_');
        if (const auto behind = digits(rest_, from, is); behind > from) end = behind;
      }
      // A number does not begin with zeros.
      if (end == whole)
        end = static_cast<std::size_t>(std::min(rest_.find_first_not_of("0_"), whole));
    }
    read_int(rest_.substr(0, end), 0, token.integer);
    skip(end);
  }

  void read_name() {
    std::size_t end = 0;
    while (end < rest_.size() && is_word_byte(rest_[end])) ++end;
    for (std::size_t i = 0; i < end;) {
      const char32_t c = next_character(rest_, i);
      if (c >= 128 && !is_letter(c) && !is_numeric(c)) {
        fail_here(fmt::format("unexpected char {} at {}", static_cast<unsigned>(c), place()));
      }
    }
    add(Type::kName, std::string(rest_.substr(0, end)));
    skip(end);
  }

  void read_text(char quote) {
    std::size_t end = 1;
    while (end < rest_.size() && rest_[end] != quote) end += 1 + (rest_[end] == '\\');
    if (end >= rest_.size()) fail_here(fmt::format("unexpected char {:?} at {}", quote, place()));
    add(Type::kText, unescaped(rest_.substr(1, end - 1)));
    skip(end + 1);
  }

  // As Python reads a text's escapes; an unknown one stays as it is.
  std::string unescaped(std::string_view text) const {
    std::string out;
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '\\' || i + 1 >= text.size()) {
        out += text[i];
        continue;
      }
      const char c = text[++i];
      constexpr std::string_view kLetters = "abfnrtv\\'\"", kMeant = "\a\b\f\n\r\t\v\\'\"";
      if (const auto at = kLetters.find(c); at != kLetters.npos) {
        out += kMeant[at];
      } else if (c == 'x' || c == 'u' || c == 'U') {
        const std::size_t size = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        out += escaped_character(text.substr(i + 1, size), size);
        i += size;
      } else if (c >= '0' && c <= '7') {
        char32_t code = 0;
        for (int n = 0; n < 3 && i < text.size() && text[i] >= '0' && text[i] <= '7'; ++n)
          code = code * 8 + static_cast<char32_t>(text[i++] - '0');
        --i;
        append_character(out, code);
      } else if (c == 'N') {
        fail_here("characters are not known by names: write \\N{…} as \\u and its number");
      } else if (c != '\n') {
        out += '\\';
        out += c;
      }
    }
    return out;
  }

  std::string escaped_character(std::string_view digits, std::size_t size) const {
    Int code = 0;
    std::string out;
    const bool plain = digits.size() == size && digits.find_first_of("_+- \n\t") == digits.npos;
    if (!plain || !read_int(digits, 16, code) || code > 0x10ffff ||
        (code >= 0xd800 && code < 0xe000)) {
      fail_here(fmt::format("(unicode error) the escape of '{}' is no character", digits));
    }
    append_character(out, static_cast<char32_t>(code));
    return out;
  }

  void read_sign(std::string& open) {
    constexpr std::string_view kTwo[] = {"//", "**", "==", "!=", ">=", "<="};
    constexpr std::string_view kOne = "+-/*%~[](){}><=.:|,;";
    const auto two = std::find(std::begin(kTwo), std::end(kTwo), rest_.substr(0, 2));
    std::string sign(two != std::end(kTwo) ? *two : rest_.substr(0, 1));
    if (sign.size() == 1 && kOne.find(sign) == std::string_view::npos)
      fail_here(fmt::format("unexpected char '{}' at {}", sign, place()));
    constexpr std::string_view kOpen = "([{", kClose = ")]}";
    if (const auto at = kOpen.find(sign); at != kOpen.npos) open += kClose[at];
    if (kClose.find(sign) != kClose.npos) {
      if (open.empty()) fail_here(fmt::format("unexpected '{}'", sign));
      if (open.back() != sign.front())
        fail_here(fmt::format("unexpected '{}', expected '{}'", sign, open.back()));
      open.pop_back();
    }
    const auto size = sign.size();
    add(Type::kSign, std::move(sign));
    skip(size);
  }

  std::string source_;
  std::string_view rest_;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> out_;
};

}  // namespace

std::vector<Token> tokens_of(std::string_view source) { return Lexer(source).read(); }

}  // namespace troupe::train::jinja
