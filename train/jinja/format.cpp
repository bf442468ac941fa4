#include "train/jinja/format.h"

#include <algorithm>
#include <cmath>

#include "train/jinja/characters.h"
#include "train/jinja/failure.h"
#include "train/jinja/interpreter.h"
#include "train/jinja/operators.h"
#include "train/jinja/print.h"

namespace troupe::train::jinja {
namespace {

constexpr std::size_t kWidthMax = 1 << 20, kPrecisionMax = 400;
constexpr int kFieldDepthMax = 2;

// How one value is written: both languages come down to this.
struct Spec {
  std::string fill = " ";
  char align = '\0';  // < > ^ =
  char sign = '-';
  bool alternate = false, comma = false;
  std::size_t width = 0;
  std::optional<std::size_t> precision;
  char type = '\0';
};

std::size_t number_at(std::string_view text, std::size_t& at, std::size_t most) {
  std::size_t out = 0;
  for (; at < text.size() && text[at] >= '0' && text[at] <= '9'; ++at) {
    out = out * 10 + static_cast<std::size_t>(text[at] - '0');
    if (out > most) fail("ValueError", "a width or precision above {} in a format", most);
  }
  return out;
}

std::string digits_of(Int value, char type) {
  const auto magnitude =
      value < 0 ? -static_cast<unsigned __int128>(value) : static_cast<unsigned __int128>(value);
  switch (type) {
    case 'x':
      return fmt::format("{:x}", magnitude);
    case 'X':
      return fmt::format("{:X}", magnitude);
    case 'o':
      return fmt::format("{:o}", magnitude);
    case 'b':
      return fmt::format("{:b}", magnitude);
    default:
      return fmt::format("{}", magnitude);
  }
}

std::string digits_of(double value, const Spec& spec) {
  const double magnitude = std::fabs(value);
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return "inf";
  const int precision = static_cast<int>(spec.precision.value_or(6));
  switch (spec.type) {
    case 'e':
      return fmt::format("{:.{}e}", magnitude, precision);
    case 'E':
      return fmt::format("{:.{}E}", magnitude, precision);
    case 'g':
    case 'G':
      return fmt::format("{:.{}g}", magnitude, std::max(precision, 1));
    case '%':
      return fmt::format("{:.{}f}%", magnitude * 100, precision);
    case '\0':
      if (!spec.precision) return repr_in_message(magnitude);
      return fmt::format("{:.{}g}", magnitude, std::max(precision, 1));
    default:
      return fmt::format("{:.{}f}", magnitude, precision);
  }
}

std::string with_commas(const std::string& digits) {
  const auto end = std::min(digits.find_first_not_of("0123456789"), digits.size());
  std::string out;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && i < end && (end - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

std::string padded(std::string body, std::string sign, const Spec& spec, char usual_align) {
  const char align = spec.align == '\0' ? usual_align : spec.align;
  const std::size_t size = character_count(body) + sign.size();
  std::string before, behind;
  for (std::size_t i = size; i < spec.width; ++i) {
    const bool front = align == '>' || align == '=' || (align == '^' && (i - size) % 2 == 1);
    (front ? before : behind) += spec.fill;
  }
  if (align == '=') return sign + before + body;
  return before + sign + body + behind;
}

std::string formatted(Heap& heap, const Value& value, const Spec& spec) {
  if (value.is(Kind::kUndefined) && spec.type != 's' && spec.type != '\0') fail_undefined(value);
  const bool wants_number = spec.type != '\0' && spec.type != 's';
  if (!value.is_number() || (value.is(Kind::kBool) && !wants_number)) {
    if (wants_number && value.is(Kind::kText)) {
      fail("ValueError", "Unknown format code '{}' for object of type 'str'", spec.type);
    }
    if (wants_number) fail("TypeError", "unsupported format string passed to {}", type_name(value));
    std::string text = str(heap, value);
    if (spec.precision) text.resize(byte_of(text, *spec.precision));
    return padded(std::move(text), "", spec, '<');
  }
  constexpr std::string_view kOfIntegers = "dxXobnc";
  if (spec.type == 's') fail("ValueError", "Unknown format code 's' for object of type 'int'");
  std::string body;
  bool minus = false;
  if (value.is_integer() &&
      (spec.type == '\0' || kOfIntegers.find(spec.type) != std::string_view::npos)) {
    if (spec.type == 'c') {
      append_character(body, static_cast<char32_t>(std::clamp<Int>(value.as_int(), 0, 0x110000)));
      return padded(std::move(body), "", spec, '<');
    }
    minus = value.as_int() < 0;
    body = digits_of(value.as_int(), spec.type);
  } else {
    if (kOfIntegers.find(spec.type) != std::string_view::npos && spec.type != '\0')
      fail("ValueError", "Unknown format code '{}' for object of type 'float'", spec.type);
    minus = std::signbit(value.as_double());
    body = digits_of(value.as_double(), spec);
  }
  if (spec.comma) body = with_commas(body);
  std::string sign = minus ? "-" : spec.sign == '-' ? "" : std::string(1, spec.sign);
  if (spec.alternate &&
      (spec.type == 'x' || spec.type == 'X' || spec.type == 'o' || spec.type == 'b'))
    sign += std::string("0") + spec.type;
  return padded(std::move(body), std::move(sign), spec, '>');
}

// [[fill]align][sign][#][0][width][,][.precision][type]
Spec spec_of(std::string_view text) {
  Spec out;
  std::size_t at = 0;
  const auto is_align = [](char c) { return c == '<' || c == '>' || c == '^' || c == '='; };
  std::size_t fill = 0;
  if (!text.empty()) next_character(text, fill);
  if (fill < text.size() && is_align(text[fill])) {
    out.fill = text.substr(0, fill);
    out.align = text[fill];
    at = fill + 1;
  } else if (!text.empty() && is_align(text[0])) {
    out.align = text[0];
    at = 1;
  }
  const auto skip = [&](char c) {
    const bool found = at < text.size() && text[at] == c;
    at += found;
    return found;
  };
  for (const char sign : {'+', ' ', '-'})
    if (skip(sign)) out.sign = sign;
  out.alternate = skip('#');
  if (skip('0') && out.align == '\0') {
    out.fill = "0";
    out.align = '=';
  }
  out.width = number_at(text, at, kWidthMax);
  out.comma = skip(',');
  if (skip('.')) out.precision = number_at(text, at, kPrecisionMax);
  if (at < text.size()) out.type = text[at++];
  constexpr std::string_view kTypes = "bcdeEfFgGnosxX%";
  if (at < text.size() || (out.type != '\0' && kTypes.find(out.type) == std::string_view::npos))
    fail("ValueError", "Invalid format specifier '{}'", text);
  return out;
}

class BraceFormat {
 public:
  BraceFormat(Interpreter& in, Arguments& arguments) : in_(in), arguments_(arguments) {}

  std::string text(std::string_view format, int depth) {
    std::string out;
    for (std::size_t at = 0; at < format.size(); ++at) {
      const char c = format[at];
      if ((c == '{' || c == '}') && at + 1 < format.size() && format[at + 1] == c) {
        out += c;
        ++at;
      } else if (c == '}') {
        fail("ValueError", "Single '}}' encountered in format string");
      } else if (c == '{') {
        const auto end = end_of(format, at);
        out += field(format.substr(at + 1, end - at - 1), depth);
        at = end;
      } else {
        out += c;
      }
      if (out.size() > kWidthMax) in_.heap.take(out.size());
    }
    return out;
  }

 private:
  static std::size_t end_of(std::string_view format, std::size_t at) {
    int open = 0;
    for (; at < format.size(); ++at) {
      open += format[at] == '{';
      open -= format[at] == '}';
      if (open == 0) return at;
    }
    fail("ValueError", "expected '}}' before end of string");
  }

  std::string field(std::string_view text, int depth) {
    if (depth > kFieldDepthMax) fail("ValueError", "Max string recursion exceeded");
    const auto colon = text.find(':');
    std::string_view name = text.substr(0, colon);
    const auto spec =
        colon == std::string_view::npos ? "" : this->text(text.substr(colon + 1), depth + 1);
    char conversion = '\0';
    if (const auto mark = name.rfind('!'); mark != std::string_view::npos) {
      if (mark + 2 != name.size()) fail("ValueError", "expected ':' after conversion specifier");
      conversion = name[mark + 1];
      name = name.substr(0, mark);
    }
    Value value = found(name);
    if (conversion == 'r') value = in_.heap.text(repr(in_.heap, value));
    if (conversion == 's') value = in_.heap.text(str(in_.heap, value));
    return formatted(in_.heap, value, spec_of(spec));
  }

  // "0.a[b]": an argument, and what is asked of it.
  Value found(std::string_view name) {
    std::size_t at = std::min(name.find_first_of(".["), name.size());
    Value out = argument(name.substr(0, at));
    while (at < name.size()) {
      const bool bracket = name[at] == '[';
      const auto end =
          bracket ? name.find(']', at) : std::min(name.find_first_of(".[", at + 1), name.size());
      if (end == std::string_view::npos) fail("ValueError", "Missing ']' in format string");
      const auto part = name.substr(at + 1, end - at - 1);
      Int index = 0;
      if (!bracket) {
        out = in_.attribute(out, part);
      } else if (read_int(part, 10, index)) {
        out = in_.item(out, index);
      } else {
        out = in_.item(out, in_.heap.text(std::string(part)));
      }
      at = end + bracket;
    }
    return out;
  }
  Value argument(std::string_view name) {
    Int index = 0;
    if (name.empty() || read_int(name, 10, index)) {
      if (name.empty()) index = next_++;
      if (index < 0 || index >= std::ssize(arguments_.positional))
        fail("IndexError", "Replacement index {} out of range for positional args tuple", index);
      return arguments_.positional[static_cast<std::size_t>(index)];
    }
    for (const auto& [known, value] : arguments_.named)
      if (known == name) return value;
    fail("KeyError", "{}", quoted(name));
  }

  Interpreter& in_;
  Arguments& arguments_;
  Int next_ = 0;
};

}  // namespace

Value brace_format(Interpreter& in, const Value& format, Arguments& arguments) {
  std::string out = BraceFormat(in, arguments).text(format.text(), 0);
  return in.heap.text(std::move(out), format.is_markup());
}

Value percent_format(Interpreter& in, const Value& format, const Value& values) {
  const std::string_view text = format.text();
  const bool many = values.is(Kind::kTuple), named = values.is(Kind::kDict);
  std::size_t next = 0;
  const auto take = [&]() -> Value {
    const std::size_t count = many ? values.sequence().items.size() : 1;
    if (next >= count) fail("TypeError", "not enough arguments for format string");
    return many ? values.sequence().items[next++] : (++next, values);
  };
  std::string out;
  bool used_names = false;
  for (std::size_t at = 0; at < text.size();) {
    if (text[at] != '%') {
      out += text[at++];
      continue;
    }
    if (++at >= text.size()) fail("ValueError", "incomplete format");
    std::optional<Value> value;
    if (text[at] == '(') {
      const auto end = text.find(')', at);
      if (end == std::string_view::npos) fail("ValueError", "incomplete format key");
      if (!named) fail("TypeError", "format requires a mapping");
      const auto key = text.substr(at + 1, end - at - 1);
      const Value* entry = find_entry(in.heap, values.dict(), key);
      if (entry == nullptr) fail("KeyError", "{}", quoted(key));
      value = *entry;
      used_names = true;
      at = end + 1;
    }
    Spec spec;
    spec.align = '>';
    for (; at < text.size() && std::string_view("-+ #0").find(text[at]) != std::string_view::npos;
         ++at) {
      if (text[at] == '-') spec.align = '<';
      if (text[at] == '+' || (text[at] == ' ' && spec.sign != '+')) spec.sign = text[at];
      if (text[at] == '#') spec.alternate = true;
      if (text[at] == '0') spec.fill = "0";
    }
    const auto width = [&](std::size_t most) {
      if (at >= text.size() || text[at] != '*') return number_at(text, at, most);
      ++at;
      const Value given = take();
      if (!given.is_integer()) fail("TypeError", "* wants int");
      return static_cast<std::size_t>(std::clamp<Int>(given.as_int(), 0, static_cast<Int>(most)));
    };
    spec.width = width(kWidthMax);
    if (at < text.size() && text[at] == '.') {
      ++at;
      spec.precision = width(kPrecisionMax);
    }
    if (at >= text.size()) fail("ValueError", "incomplete format");
    const char type = text[at++];
    if (type == '%') {
      out += '%';
      continue;
    }
    if (std::string_view("sradiuoxXeEfFgGc").find(type) == std::string_view::npos) {
      fail("ValueError", "unsupported format character '{}' at index {}", type, at - 1);
    }
    if (!value) value = take();
    if (type == 's' || type == 'r' || type == 'a' || (type == 'c' && value->is(Kind::kText))) {
      spec.fill = " ";
      spec.type = '\0';
      value =
          in.heap.text(type == 's' || type == 'c' ? str(in.heap, *value) : repr(in.heap, *value));
    } else {
      if (value->is(Kind::kUndefined)) fail_undefined(*value);
      if (!value->is_number())
        fail("TypeError", "%{} format: a real number is required, not {}", type, type_name(*value));
      const bool integer = std::string_view("diuoxXc").find(type) != std::string_view::npos;
      if (integer && value->is(Kind::kFloat)) {
        if (!(std::fabs(value->as_double()) < 1e38))
          fail("OverflowError", "cannot convert float to integer");
        value = static_cast<Int>(value->as_double());
      }
      spec.type = type == 'i' || type == 'u' ? 'd' : type;
      if (spec.fill == "0") spec.align = spec.align == '<' ? '<' : '=';
      if (spec.align == '<') spec.fill = " ";
    }
    out += formatted(in.heap, *value, spec);
    if (out.size() > kWidthMax) in.heap.take(out.size());
  }
  if (!used_names && !named && next < (many ? values.sequence().items.size() : std::size_t{1}))
    fail("TypeError", "not all arguments converted during string formatting");
  return in.heap.text(std::move(out), format.is_markup());
}

}  // namespace troupe::train::jinja
