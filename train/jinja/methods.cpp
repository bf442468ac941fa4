#include "train/jinja/methods.h"

#include <algorithm>
#include <iterator>

#include "train/jinja/arguments.h"
#include "train/jinja/characters.h"
#include "train/jinja/failure.h"
#include "train/jinja/format.h"
#include "train/jinja/interpreter.h"
#include "train/jinja/operators.h"
#include "train/jinja/print.h"

namespace troupe::train::jinja {
namespace {

struct Method {
  std::string_view name;
  Native native;
};

// --- texts ---------------------------------------------------------------------------------------

// A text of the kind that `self` is.
Value like(Interpreter& in, const Value& self, std::string text) {
  return in.heap.text(std::move(text), self.is_markup());
}

template <std::string (*change)(std::string_view)>
Value change_case(Interpreter& in, Value self, Arguments& arguments) {
  const Parameters none("str", arguments, {});
  return like(in, self, change(self.text()));
}

template <bool front, bool back>
Value strip_ends(Interpreter& in, Value self, Arguments& arguments) {
  const Parameters given("strip", arguments, {"chars"});
  std::optional<std::string_view> set;
  if (!given.is_none(0)) set = given.text(0);
  return like(in, self, std::string(strip(self.text(), set, front, back)));
}

Value split_text(Interpreter& in, const Value& self, const Parameters& given, bool from_back) {
  const Int most = given.integer(1, -1);
  std::string_view text = self.text();
  std::vector<std::string_view> parts;
  const auto room = [&] { return most < 0 || std::ssize(parts) < most; };
  const auto is_blank_at = [&](std::size_t at) { return is_blank(next_character(text, at)); };
  if (given.is_none(0)) {
    text = strip(text, std::nullopt, !from_back, from_back);
    while (!text.empty() && room()) {
      std::size_t cut = std::string_view::npos;
      for (std::size_t at = 0; at < text.size();) {
        if (is_blank_at(at)) {
          cut = at;
          if (!from_back) break;
        }
        next_character(text, at);
      }
      if (cut == std::string_view::npos) break;
      const auto before = text.substr(0, cut), behind = text.substr(cut);
      if (from_back) {
        parts.push_back(strip(behind, std::nullopt, true, false));
        text = strip(before, std::nullopt, false, true);
        in.heap.work(text.size() / 16);
      } else {
        parts.push_back(before);
        text = strip(behind, std::nullopt, true, false);
      }
    }
    // What is left over keeps the blanks at its far end, as Python's does; blanks alone are
    // nothing.
    if (!strip(text, std::nullopt, true, true).empty()) parts.push_back(text);
  } else {
    const std::string_view separator = given.text(0);
    if (separator.empty()) fail("ValueError", "empty separator");
    while (room()) {
      if (from_back) in.heap.work(text.size() / kBytesPerStep);
      const auto at = from_back ? find_last_in(text, separator) : find_in(text, separator);
      if (at == std::string_view::npos) break;
      parts.push_back(from_back ? text.substr(at + separator.size()) : text.substr(0, at));
      text = from_back ? text.substr(0, at) : text.substr(at + separator.size());
    }
    parts.push_back(text);
  }
  if (from_back) std::reverse(parts.begin(), parts.end());
  std::vector<Value> out;
  for (const auto part : parts) out.push_back(like(in, self, std::string(part)));
  return in.heap.list(std::move(out));
}
template <bool from_back>
Value split(Interpreter& in, Value self, Arguments& arguments) {
  return split_text(in, self, Parameters("split", arguments, {"sep", "maxsplit"}), from_back);
}

Value splitlines(Interpreter& in, Value self, Arguments& arguments) {
  const Parameters given("splitlines", arguments, {"keepends"});
  const std::string_view text = self.text();
  std::vector<Value> out;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = at;
    const char32_t c = next_character(text, at);
    const bool ends =
        (c >= 10 && c <= 13) || (c >= 28 && c <= 30) || c == 0x85 || c == 0x2028 || c == 0x2029;
    if (!ends) continue;
    if (c == '\r' && at < text.size() && text[at] == '\n') ++at;
    out.push_back(
        like(in, self, std::string(text.substr(begin, (given.flag(0, false) ? at : end) - begin))));
    begin = at;
  }
  if (begin < text.size()) out.push_back(like(in, self, std::string(text.substr(begin))));
  return in.heap.list(std::move(out));
}

template <bool from_back>
Value partition(Interpreter& in, Value self, Arguments& arguments) {
  const Parameters given("partition", arguments, {"sep"}, 1);
  const std::string &text = self.text(), &separator = given.text(0);
  if (separator.empty()) fail("ValueError", "empty separator");
  in.heap.work(text.size() / kBytesPerStep);
  const auto at = from_back ? find_last_in(text, separator) : find_in(text, separator);
  const bool found = at != std::string::npos;
  std::string parts[3] = {found       ? text.substr(0, at)
                          : from_back ? ""
                                      : text,
                          found ? separator : "",
                          found       ? text.substr(at + separator.size())
                          : from_back ? text
                                      : ""};
  std::vector<Value> out;
  for (auto& part : parts) out.push_back(like(in, self, std::move(part)));
  return in.heap.tuple(std::move(out));
}

// The part of a text between the characters `begin` and `end`, and where it begins.
std::string_view part_of(const Value& self, const Parameters& given, std::size_t& from) {
  const std::string_view text = self.text();
  const auto count = static_cast<Int>(character_count(text));
  const auto place = [&](std::size_t i, Int otherwise) {
    Int at = given.is_none(i) ? otherwise : given.integer(i, otherwise);
    if (at < 0) at += count;
    return static_cast<std::size_t>(std::clamp<Int>(at, 0, count));
  };
  from = place(1, 0);
  const auto begin = byte_of(text, from), end = byte_of(text, place(2, count));
  return text.substr(begin, end > begin ? end - begin : 0);
}

template <bool at_end>
Value has_end(Interpreter&, Value self, Arguments& arguments) {
  const char* name = at_end ? "endswith" : "startswith";
  const Parameters given(name, arguments, {"prefix", "start", "end"}, 1);
  std::size_t from = 0;
  const std::string_view part = part_of(self, given, from);
  const auto matches = [&](const Value& end) {
    if (!end.is(Kind::kText)) {
      fail("TypeError", "{} first arg must be str or a tuple of str, not {}", name, type_name(end));
    }
    return at_end ? part.ends_with(end.text()) : part.starts_with(end.text());
  };
  if (!given[0].is(Kind::kTuple)) return matches(given[0]);
  const auto& ends = given[0].sequence().items;
  return std::any_of(ends.begin(), ends.end(), matches);
}

template <bool from_back, bool must>
Value find_text(Interpreter& in, Value self, Arguments& arguments) {
  const Parameters given("find", arguments, {"sub", "start", "end"}, 1);
  std::size_t from = 0;
  const std::string_view part = part_of(self, given, from);
  in.heap.work(self.text().size() / kBytesPerStep);
  const auto at = from_back ? find_last_in(part, given.text(0)) : find_in(part, given.text(0));
  if (at != std::string_view::npos)
    return static_cast<Int>(from + character_count(part.substr(0, at)));
  if (must) fail("ValueError", "substring not found");
  return Int{-1};
}

Value count_text(Interpreter& in, Value self, Arguments& arguments) {
  const Parameters given("count", arguments, {"sub", "start", "end"}, 1);
  std::size_t from = 0;
  const std::string_view part = part_of(self, given, from);
  const std::string& sought = given.text(0);
  if (sought.empty()) return static_cast<Int>(character_count(part) + 1);
  in.heap.work(self.text().size() / kBytesPerStep);
  Int count = 0;
  for (auto at = find_in(part, sought); at != std::string_view::npos;
       at = find_in(part, sought, at + sought.size()))
    ++count;
  return count;
}

Value replace(Interpreter& in, Value self, Arguments& arguments) {
  const Parameters given("replace", arguments, {"old", "new", "count"}, 2);
  const Int most = given.integer(2, -1);
  return replaced(in, self, given.text(0), given.text(1), most);
}

Value join(Interpreter& in, Value self, Arguments& arguments) {
  const Parameters given("join", arguments, {"iterable"}, 1);
  std::string out;
  std::size_t i = 0;
  for (const Value& item : in.items_of(given[0])) {
    if (!item.is(Kind::kText)) {
      fail("TypeError", "sequence item {}: expected str instance, {} found", i, type_name(item));
    }
    if (i++ > 0) out += self.text();
    out += item.text();
    if (out.size() > kBytesPerStep) in.heap.take(self.text().size() + item.text().size());
  }
  return like(in, self, std::move(out));
}

template <char align>
Value justify(Interpreter& in, Value self, Arguments& arguments) {
  const Parameters given("just", arguments, {"width", "fillchar"}, 1);
  const std::string fill = given.has(1) ? given.text(1) : " ";
  if (character_count(fill) != 1)
    fail("TypeError", "The fill character must be exactly one character long");
  return like(in, self, justified(in, self.text(), given.integer(0, 0), fill, align));
}

Value zfill(Interpreter& in, Value self, Arguments& arguments) {
  const Parameters given("zfill", arguments, {"width"}, 1);
  const std::string& text = self.text();
  const bool sign = text.starts_with('-') || text.starts_with('+');
  const Int width = given.integer(0, 0) - Int{sign};
  return like(in, self, text.substr(0, sign) + justified(in, text.substr(sign), width, "0", '>'));
}

template <bool at_end>
Value remove_end(Interpreter& in, Value self, Arguments& arguments) {
  const Parameters given("removeprefix", arguments, {"prefix"}, 1);
  std::string_view text = self.text(), end = given.text(0);
  if (at_end && text.ends_with(end)) text.remove_suffix(end.size());
  if (!at_end && text.starts_with(end)) text.remove_prefix(end.size());
  return like(in, self, std::string(text));
}

bool is_alphanumeric(char32_t c) { return is_letter(c) || is_numeric(c); }
bool is_ascii_character(char32_t c) { return c < 128; }

template <bool (*is)(char32_t), bool of_empty = false>
Value all_are(Interpreter&, Value self, Arguments& arguments) {
  const Parameters none("is", arguments, {});
  const std::string_view text = self.text();
  for (std::size_t at = 0; at < text.size();) {
    if (!is(next_character(text, at))) return false;
  }
  return of_empty || !text.empty();
}
template <bool is_upper_wanted>
Value is_case(Interpreter&, Value self, Arguments& arguments) {
  const Parameters none("is", arguments, {});
  return has_case(self.text(), is_upper_wanted);
}
Value isidentifier(Interpreter&, Value self, Arguments& arguments) {
  const Parameters none("isidentifier", arguments, {});
  const std::string_view text = self.text();
  for (std::size_t at = 0; at < text.size();) {
    const bool first = at == 0;
    const char32_t c = next_character(text, at);
    if (c != '_' && !is_letter(c) && (first || !is_decimal(c))) return false;
  }
  return !text.empty();
}

Value encode(Interpreter& in, Value self, Arguments& arguments) {
  const Parameters given("encode", arguments, {"encoding", "errors"});
  const std::string encoding = given.has(0) ? lower(given.text(0)) : "utf-8";
  if (encoding != "utf-8" && encoding != "utf8")
    fail("LookupError", "the encoding {} is not supported: utf-8 is", encoding);
  return {Kind::kBytes, in.heap.text(self.text()).object()};
}

Value format(Interpreter& in, Value self, Arguments& arguments) {
  return brace_format(in, self, arguments);
}

constexpr Method kTextMethods[] = {
    {"capitalize", change_case<capitalize>},
    {"casefold", change_case<lower>},
    {"center", justify<'^'>},
    {"count", count_text},
    {"encode", encode},
    {"endswith", has_end<true>},
    {"find", find_text<false, false>},
    {"format", format},
    {"index", find_text<false, true>},
    {"isalnum", all_are<is_alphanumeric>},
    {"isalpha", all_are<is_letter>},
    {"isascii", all_are<is_ascii_character, true>},
    {"isdecimal", all_are<is_decimal>},
    {"isdigit", all_are<is_decimal>},
    {"isidentifier", isidentifier},
    {"islower", is_case<false>},
    {"isnumeric", all_are<is_numeric>},
    {"isprintable", all_are<is_printable, true>},
    {"isspace", all_are<is_blank>},
    {"isupper", is_case<true>},
    {"join", join},
    {"ljust", justify<'<'>},
    {"lower", change_case<lower>},
    {"lstrip", strip_ends<true, false>},
    {"partition", partition<false>},
    {"removeprefix", remove_end<false>},
    {"removesuffix", remove_end<true>},
    {"replace", replace},
    {"rfind", find_text<true, false>},
    {"rindex", find_text<true, true>},
    {"rjust", justify<'>'>},
    {"rpartition", partition<true>},
    {"rsplit", split<true>},
    {"rstrip", strip_ends<false, true>},
    {"split", split<false>},
    {"splitlines", splitlines},
    {"startswith", has_end<false>},
    {"strip", strip_ends<true, true>},
    {"swapcase", change_case<swap_case>},
    {"title", change_case<title>},
    {"upper", change_case<upper>},
    {"zfill", zfill},
};

// --- lists and dicts -----------------------------------------------------------------------------

Value index_of(Interpreter& in, Value self, Arguments& arguments) {
  const Parameters given("index", arguments, {"value", "start", "stop"}, 1);
  const auto& items = self.sequence().items;
  const auto size = std::ssize(items);
  const auto place = [&](std::size_t i, Int otherwise) {
    Int at = given.integer(i, otherwise);
    return static_cast<std::ptrdiff_t>(std::clamp<Int>(at < 0 ? at + size : at, 0, size));
  };
  for (auto i = place(1, 0); i < place(2, size); ++i) {
    if (is_equal(in.heap, items[static_cast<std::size_t>(i)], given[0])) return Int{i};
  }
  fail("ValueError", "{} is not in list", repr_in_message(given[0]));
}
Value count_of(Interpreter& in, Value self, Arguments& arguments) {
  const Parameters given("count", arguments, {"value"}, 1);
  Int count = 0;
  for (const Value& item : self.sequence().items) count += is_equal(in.heap, item, given[0]);
  return count;
}
Value copy_list(Interpreter& in, Value self, Arguments& arguments) {
  const Parameters none("copy", arguments, {});
  return in.heap.list(self.sequence().items);
}

Value get(Interpreter& in, Value self, Arguments& arguments) {
  const Parameters given("get", arguments, {"key", "default"}, 1);
  const Value* found = find_entry(in.heap, self.dict(), given[0]);
  return found != nullptr ? *found : given[1];
}
enum class Part { kKeys, kValues, kItems };
template <Part part>
Value view(Interpreter& in, Value self, Arguments& arguments) {
  const Parameters none("dict", arguments, {});
  std::vector<Value> out;
  for (const auto& [key, value] : self.dict().entries) {
    out.push_back(part == Part::kKeys     ? key
                  : part == Part::kValues ? value
                                          : in.heap.tuple({key, value}));
  }
  return in.heap.sequence(Kind::kView, std::move(out),
                          part == Part::kKeys     ? "dict_keys"
                          : part == Part::kValues ? "dict_values"
                                                  : "dict_items");
}
Value copy_dict(Interpreter& in, Value self, Arguments& arguments) {
  const Parameters none("copy", arguments, {});
  auto* const out = in.heap.make<Dict>(self.dict().entries.size() * 2 * sizeof(Value));
  out->entries = self.dict().entries;
  return {Kind::kDict, out};
}

Value is_integer(Interpreter&, Value self, Arguments& arguments) {
  const Parameters none("is_integer", arguments, {});
  return self.as_double() == static_cast<double>(static_cast<std::int64_t>(self.as_double()));
}

constexpr Method kListMethods[] = {{"copy", copy_list}, {"count", count_of}, {"index", index_of}};
constexpr Method kTupleMethods[] = {{"count", count_of}, {"index", index_of}};
constexpr Method kDictMethods[] = {{"copy", copy_dict},
                                   {"get", get},
                                   {"items", view<Part::kItems>},
                                   {"keys", view<Part::kKeys>},
                                   {"values", view<Part::kValues>}};
constexpr Method kFloatMethods[] = {{"is_integer", is_integer}};

template <std::size_t count>
const Native* find_in(const Method (&methods)[count], std::string_view name) {
  for (const Method& method : methods)
    if (method.name == name) return &method.native;
  return nullptr;
}

}  // namespace

const Native* find_method(Kind kind, std::string_view name) {
  switch (kind) {
    case Kind::kText:
      return find_in(kTextMethods, name);
    case Kind::kList:
      return find_in(kListMethods, name);
    case Kind::kTuple:
      return find_in(kTupleMethods, name);
    case Kind::kDict:
      return find_in(kDictMethods, name);
    case Kind::kFloat:
      return find_in(kFloatMethods, name);
    default:
      return nullptr;
  }
}

std::string justified(Interpreter& in, const std::string& text, Int width, const std::string& fill,
                      char align) {
  const auto size = static_cast<Int>(character_count(text));
  if (width <= size) return text;
  const auto room = static_cast<std::size_t>(std::min(width - size, Int{1} << 40));
  in.heap.take(room * fill.size());
  // Python puts the odd one in front where the width is odd.
  const std::size_t odd = room & static_cast<std::size_t>(width) & 1;
  const std::size_t front = align == '>' ? room : align == '<' ? 0 : room / 2 + odd;
  std::string out;
  for (std::size_t i = 0; i < front; ++i) out += fill;
  out += text;
  for (std::size_t i = front; i < room; ++i) out += fill;
  return out;
}

Value replaced(Interpreter& in, const Value& text, const std::string& old, const std::string& fresh,
               Int count) {
  const std::string& whole = text.text();
  in.heap.work(whole.size() / kBytesPerStep);
  const auto most = count < 0 ? std::string_view::npos : static_cast<std::size_t>(count);
  if (fresh.size() > old.size()) {  // what it would need, before it is made
    std::size_t times = old.empty() ? whole.size() + 1 : 0;
    for (auto at = find_in(whole, old); !old.empty() && at != std::string::npos && times < most;
         at = find_in(whole, old, at + old.size()))
      ++times;
    in.heap.take(std::min(times, most) * fresh.size());
  }
  return in.heap.text(replace_all(whole, old, fresh, most), text.is_markup());
}

bool changes_owner(Kind kind, std::string_view name) {
  constexpr std::string_view kOfLists[] = {"append", "clear",  "pop",    "reverse",
                                           "insert", "remove", "extend", "sort"};
  constexpr std::string_view kOfDicts[] = {"clear", "pop", "popitem", "setdefault", "update"};
  if (kind == Kind::kList)
    return std::find(std::begin(kOfLists), std::end(kOfLists), name) != std::end(kOfLists);
  return kind == Kind::kDict &&
         std::find(std::begin(kOfDicts), std::end(kOfDicts), name) != std::end(kOfDicts);
}

}  // namespace troupe::train::jinja
