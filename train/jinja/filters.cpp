// Filters of texts and numbers; those of sequences are in filters_sequences.cpp.
#include "train/jinja/filters.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "train/jinja/arguments.h"
#include "train/jinja/characters.h"
#include "train/jinja/failure.h"
#include "train/jinja/filter_table.h"
#include "train/jinja/format.h"
#include "train/jinja/interpreter.h"
#include "train/jinja/methods.h"
#include "train/jinja/operators.h"
#include "train/jinja/print.h"

namespace troupe::train::jinja {
namespace {

Value text_like(Interpreter& in, const Value& from, std::string text) {
  return in.heap.text(std::move(text), from.is_markup());
}

template <std::string (*change)(std::string_view)>
Value changed_case(Interpreter& in, Value self, Arguments& arguments) {
  const Parameters none("filter", arguments, {});
  return text_like(in, self, change(soft_text(in, self)));
}

// Words begin behind blanks, - and opening brackets.
std::string title_words(std::string_view text) {
  std::string out;
  bool inside = false;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    const char32_t c = next_character(text, at);
    const auto character = text.substr(begin, at - begin);
    out += inside ? lower(character) : upper(character);
    inside = !is_blank(c) && std::u32string_view(U"-({[<").find(c) == std::u32string_view::npos;
  }
  return out;
}

Value trim(Interpreter& in, Value self, Arguments& arguments) {
  const Parameters given("trim", arguments, {"chars"});
  std::optional<std::string_view> set;
  if (!given.is_none(0)) set = given.text(0);
  return text_like(in, self, std::string(strip(soft_text(in, self), set, true, true)));
}

Value replace_text(Interpreter& in, Value self, Arguments& arguments) {
  const Parameters given("replace", arguments, {"old", "new", "count"}, 2);
  const Value text = text_like(in, self, soft_text(in, self));
  return replaced(in, text, soft_text(in, given[0]), soft_text(in, given[1]),
                  given.is_none(2) ? -1 : given.integer(2, -1));
}

Value indent(Interpreter& in, Value self, Arguments& arguments) {
  const Parameters given("indent", arguments, {"width", "first", "blank"});
  const std::string by = given.has(0) && given[0].is(Kind::kText)
                             ? given[0].text()
                             : justified(in, "", given.integer(0, 4), " ", '<');
  std::string out = given.flag(1, false) ? by : "";
  const std::string text = soft_text(in, self) + "\n";
  in.heap.take(static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n')) * by.size());
  bool first = true;
  for (std::size_t begin = 0; begin < text.size();) {
    const auto end = text.find('\n', begin);
    if (!first) out += '\n';
    if (!first && (end > begin || given.flag(2, false))) out += by;
    out.append(text, begin, end - begin);
    first = false;
    begin = end + 1;
  }
  return text_like(in, self, std::move(out));
}

Value center(Interpreter& in, Value self, Arguments& arguments) {
  const Parameters given("center", arguments, {"width"});
  return text_like(in, self, justified(in, soft_text(in, self), given.integer(0, 80), " ", '^'));
}

Value truncate(Interpreter& in, Value self, Arguments& arguments) {
  const Parameters given("truncate", arguments, {"length", "killwords", "end", "leeway"});
  const std::string text = soft_text(in, self), end = given.has(2) ? given.text(2) : "...";
  const Int length = given.integer(0, 255), leeway = given.integer(3, 5);
  const auto end_size = static_cast<Int>(character_count(end));
  if (length < end_size) fail("AssertionError", "expected length >= {}, got {}", end_size, length);
  if (static_cast<Int>(character_count(text)) <= length + leeway) return text_like(in, self, text);
  std::string out = text.substr(0, byte_of(text, static_cast<std::size_t>(length - end_size)));
  if (const auto blank = out.rfind(' '); !given.flag(1, false) && blank != std::string::npos)
    out.resize(blank);
  return text_like(in, self, out + end);
}

Value wordcount(Interpreter& in, Value self, Arguments& arguments) {
  const Parameters none("wordcount", arguments, {});
  const std::string text = soft_text(in, self);
  Int count = 0;
  bool inside = false;
  for (std::size_t at = 0; at < text.size();) {
    const char32_t c = next_character(text, at);
    const bool word = c == '_' || is_letter(c) || is_numeric(c);
    count += word && !inside;
    inside = word;
  }
  return count;
}

// --- HTML ----------------------------------------------------------------------------------------

Value escape(Interpreter& in, Value self, Arguments& arguments) {
  const Parameters none("escape", arguments, {});
  return self.is_markup() ? self : in.heap.text(escape_html(str(in.heap, self)), true);
}
Value force_escape(Interpreter& in, Value self, Arguments& arguments) {
  const Parameters none("forceescape", arguments, {});
  return in.heap.text(escape_html(str(in.heap, self)), true);
}
Value safe(Interpreter& in, Value self, Arguments& arguments) {
  const Parameters none("safe", arguments, {});
  return in.heap.text(str(in.heap, self), true);
}

Value striptags(Interpreter& in, Value self, Arguments& arguments) {
  const Parameters none("striptags", arguments, {});
  const std::string text = soft_text(in, self);
  std::string bare, out;
  for (std::size_t at = 0; at < text.size();) {
    const bool comment = text.compare(at, 4, "<!--") == 0;
    const auto end = text[at] != '<' ? std::string::npos : text.find(comment ? "-->" : ">", at);
    if (end == std::string::npos) {
      if (text[at] == '<') {  // no tag ends any more
        bare += text.substr(at);
        break;
      }
      bare += text[at++];
    } else {
      at = end + (comment ? 3 : 1);
    }
  }
  bool blank = false;
  for (const char c : bare) {
    const bool is = is_blank(static_cast<unsigned char>(c)) && c > 0;
    if (!is && blank && !out.empty()) out += ' ';
    blank = is;
    if (!is) out += c;
  }
  for (const auto& [name, character] : {std::pair("&lt;", "<"),
                                        {"&gt;", ">"},
                                        {"&#34;", "\""},
                                        {"&quot;", "\""},
                                        {"&#39;", "'"},
                                        {"&amp;", "&"}})
    out = replace_all(out, name, character);
  return in.heap.text(std::move(out));
}

std::string url_text(std::string_view text, bool is_query) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       std::string_view("_.-~").find(c) != std::string_view::npos ||
                       (c == '/' && !is_query);
    if (plain) {
      out += c;
    } else if (c == ' ' && is_query) {
      out += '+';
    } else {
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return out;
}
Value urlencode(Interpreter& in, Value self, Arguments& arguments) {
  const Parameters none("urlencode", arguments, {});
  if (self.is(Kind::kText) || !(self.is(Kind::kDict) || self.is_sequence()))
    return in.heap.text(url_text(soft_text(in, self), false));
  std::string out;
  const auto add = [&](const Value& key, const Value& value) {
    out += (out.empty() ? "" : "&") + url_text(str(in.heap, key), true) + "=" +
           url_text(str(in.heap, value), true);
  };
  if (self.is(Kind::kDict)) {
    for (const auto& [key, value] : self.dict().entries) add(key, value);
  } else {
    for (const Value& pair : in.items_of(self)) {
      const auto items = in.items_of(pair);
      if (items.size() != 2) fail("ValueError", "not enough values to unpack (expected 2)");
      add(items[0], items[1]);
    }
  }
  return in.heap.text(std::move(out));
}

// --- numbers -------------------------------------------------------------------------------------

Value to_int(Interpreter&, Value self, Arguments& arguments) {
  const Parameters given("int", arguments, {"default", "base"});
  const Value otherwise = given.has(0) ? given[0] : Value(Int{0});
  double number = 0;
  if (self.is(Kind::kUndefined)) fail_undefined(self);
  if (self.is_integer()) return self.as_int();
  if (self.is(Kind::kText)) {
    Int out = 0;
    if (read_int(self.text(), static_cast<int>(std::clamp<Int>(given.integer(1, 10), 0, 36)), out))
      return out;
    if (!read_float(self.text(), number)) return otherwise;
  } else if (self.is(Kind::kFloat)) {
    number = self.as_double();
  } else {
    return otherwise;
  }
  return std::fabs(number) < 1e38 ? Value(static_cast<Int>(number)) : otherwise;
}

Value to_float(Interpreter&, Value self, Arguments& arguments) {
  const Parameters given("float", arguments, {"default"});
  if (self.is(Kind::kUndefined)) fail_undefined(self);
  double number = 0;
  if (self.is_number()) return self.as_double();
  if (self.is(Kind::kText) && read_float(self.text(), number)) return number;
  return given.has(0) ? given[0] : Value(0.0);
}

Value absolute(Interpreter&, Value self, Arguments& arguments) {
  const Parameters none("abs", arguments, {});
  if (self.is(Kind::kFloat)) return std::fabs(self.as_double());
  if (!self.is(Kind::kUndefined) && !self.is_number())
    fail("TypeError", "bad operand type for abs(): '{}'", type_name(self));
  return negative(self, self.is_integer() && self.as_int() < 0);
}

Value round_number(Interpreter& in, Value self, Arguments& arguments) {
  const Parameters given("round", arguments, {"precision", "method"});
  const std::string method = given.has(1) ? given.text(1) : "common";
  if (method != "common" && method != "ceil" && method != "floor")
    fail("FilterArgumentError", "method must be common, ceil or floor");
  if (self.is(Kind::kUndefined)) fail_undefined(self);
  if (!self.is_number())
    fail("TypeError", "type {} doesn't define __round__ method", type_name(self));
  const Int precision = std::clamp<Int>(given.integer(0, 0), -300, 300);
  if (method == "common") {
    if (self.is_integer() && precision >= 0) return self.as_int();
    const double value = self.as_double();
    if (precision >= 0) {
      // Python rounds what the number is in decimal.
      double out = value;
      read_float(fmt::format("{:.{}f}", value, static_cast<int>(precision)), out);
      return out;
    }
    const double scale = std::pow(10.0, static_cast<double>(-precision));
    const double out = std::nearbyint(value / scale) * scale;
    return self.is_integer() ? Value(static_cast<Int>(out)) : Value(out);
  }
  const Value scale = calculate(in.heap, "**", Int{10}, precision);
  const double scaled = self.as_double() * scale.as_double();
  return (method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale.as_double();
}

Value filesizeformat(Interpreter& in, Value self, Arguments& arguments) {
  const Parameters given("filesizeformat", arguments, {"binary"});
  double bytes = 0;
  if (self.is(Kind::kUndefined)) fail_undefined(self);
  if (self.is_number()) {
    bytes = self.as_double();
  } else if (!read_float(soft_text(in, self), bytes)) {
    fail("ValueError", "could not convert string to float: {}", repr_in_message(self));
  }
  const bool binary = given.flag(0, false);
  const double base = binary ? 1024 : 1000;
  if (bytes == 1) return in.heap.text("1 Byte");
  if (bytes < base) return in.heap.text(fmt::format("{:.0f} Bytes", std::trunc(bytes)));
  double unit = base;
  constexpr std::string_view kLetters = "kMGTPEZY";
  for (std::size_t i = 0;; ++i) {
    unit *= base;
    if (bytes >= unit && i + 1 < kLetters.size()) continue;
    const std::string letter = binary && i == 0 ? "K" : std::string(1, kLetters[i]);
    return in.heap.text(
        fmt::format("{:.1f} {}{}B", base * bytes / unit, letter, binary ? "i" : ""));
  }
}

// --- any value -----------------------------------------------------------------------------------

Value to_text(Interpreter& in, Value self, Arguments& arguments) {
  const Parameters none("string", arguments, {});
  return self.is(Kind::kText) ? self : in.heap.text(str(in.heap, self));
}
Value format_text(Interpreter& in, Value self, Arguments& arguments) {
  const Value format = text_like(in, self, soft_text(in, self));
  if (!arguments.named.empty() && !arguments.positional.empty())
    fail("FilterArgumentError", "can't handle positional and keyword arguments at the same time");
  if (arguments.named.empty())
    return percent_format(in, format, in.heap.tuple(arguments.positional));
  auto* const named = in.heap.make<Dict>();
  for (const auto& [name, value] : arguments.named)
    set_entry(in.heap, *named, in.heap.text(name), value);
  return percent_format(in, format, {Kind::kDict, named});
}

Value default_value(Interpreter& in, Value self, Arguments& arguments) {
  const Parameters given("default", arguments, {"default_value", "boolean"});
  const bool replaces = self.is(Kind::kUndefined) || (given.flag(1, false) && !is_true(self));
  return !replaces ? self : given.has(0) ? given[0] : in.heap.text({});
}

Value tojson(Interpreter& in, Value self, Arguments& arguments) {
  const Parameters given("tojson", arguments,
                         {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ascii = given.flag(0, false);
  style.sorted = given.flag(3, false);
  if (!given.is_none(1)) {
    style.lines = true;
    style.between = ",";
    style.indent = given[1].is(Kind::kText)
                       ? given[1].text()
                       : justified(in, "", std::min<Int>(given.integer(1, 0), 100), " ", '<');
  }
  if (!given.is_none(2)) {
    const auto two = in.items_of(given[2]);
    if (two.size() != 2 || !two[0].is(Kind::kText) || !two[1].is(Kind::kText))
      fail("TypeError", "separators must be two texts");
    style.between = two[0].text();
    style.after_key = two[1].text();
  }
  return in.heap.text(to_json(in.heap, self, style));
}

constexpr Filter kFilters[] = {
    {"abs", absolute},
    {"capitalize", changed_case<capitalize>},
    {"center", center},
    {"d", default_value},
    {"default", default_value},
    {"e", escape},
    {"escape", escape},
    {"filesizeformat", filesizeformat},
    {"float", to_float},
    {"forceescape", force_escape},
    {"format", format_text},
    {"indent", indent},
    {"int", to_int},
    {"lower", changed_case<lower>},
    {"replace", replace_text},
    {"round", round_number},
    {"safe", safe},
    {"string", to_text},
    {"striptags", striptags},
    {"title", changed_case<title_words>},
    {"tojson", tojson},
    {"trim", trim},
    {"truncate", truncate},
    {"upper", changed_case<upper>},
    {"urlencode", urlencode},
    {"wordcount", wordcount},
};

}  // namespace

std::string soft_text(Interpreter& in, const Value& value) { return str(in.heap, value); }
std::span<const Filter> text_filters() { return kFilters; }

const Native* find_filter(std::string_view name) {
  for (const auto filters : {text_filters(), sequence_filters()}) {
    for (const Filter& filter : filters)
      if (filter.name == name) return &filter.native;
  }
  return nullptr;
}

}  // namespace troupe::train::jinja
