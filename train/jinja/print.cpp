#include "train/jinja/print.h"

#include <algorithm>
#include <cmath>

#include "runtime/base/json.h"
#include "train/jinja/characters.h"
#include "train/jinja/failure.h"
#include "train/jinja/operators.h"

namespace troupe::train::jinja {
namespace {

// Deeper values are a RecursionError, as in Python; it is far below what a stack holds.
constexpr int kValueDepthMax = 200;

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  return json::python_float(value);
}

void append_bytes(std::string& out, std::string_view bytes) {
  out += "b'";
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\'' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte >= 32 && byte < 127) {
      out += c;
    } else {
      out += c == '\n'   ? "\\n"
             : c == '\r' ? "\\r"
             : c == '\t' ? "\\t"
                         : fmt::format("\\x{:02x}", byte);
    }
  }
  out += '\'';
}

// For a value that is about to be printed behind so many bytes of the same text.
void pay_for(Heap& heap, const Value& value, std::size_t bytes) {
  const bool is_text = value.is(Kind::kText) || value.is(Kind::kBytes);
  heap.work(1 + (is_text ? value.text().size() / kBytesPerStep : 0));
  heap.check(bytes);
}

// `heap` may be null: then the text ends soon after `bytes_max`.
class Printer {
 public:
  explicit Printer(Heap* heap, std::size_t bytes_max = 0) : heap_(heap), bytes_max_(bytes_max) {}
  std::string out;

  void append(const Value& value, int depth) {
    if (!heap_ && out.size() > bytes_max_) return;
    if (heap_) pay_for(*heap_, value, out.size());
    if (depth > kValueDepthMax) fail("RecursionError", "a value contains itself, or is too deep");
    switch (value.kind()) {
      case Kind::kUndefined:
        out += "Undefined";
        break;
      case Kind::kNone:
        out += "None";
        break;
      case Kind::kBool:
        out += value.as_bool() ? "True" : "False";
        break;
      case Kind::kInt:
        out += fmt::format("{}", value.as_int());
        break;
      case Kind::kFloat:
        out += float_text(value.as_double());
        break;
      case Kind::kText:
        out += value.is_markup() ? "Markup(" + quoted(value.text()) + ")" : quoted(value.text());
        break;
      case Kind::kBytes:
        append_bytes(out, value.text());
        break;
      case Kind::kList:
        append_items(value, "[", "]", depth);
        break;
      case Kind::kTuple:
        append_items(value, "(", value.sequence().items.size() == 1 ? ",)" : ")", depth);
        break;
      case Kind::kView:
        out += value.sequence().type;
        append_items(value, "([", "])", depth);
        break;
      case Kind::kDict:
        append_entries(value, depth);
        break;
      case Kind::kNamespace:
        out += "<Namespace ";
        append_entries(value, depth);
        out += '>';
        break;
      case Kind::kRange: {
        const Range& range = value.range();
        out += fmt::format("range({}, {}", range.begin, range.end);
        out += range.step == 1 ? ")" : fmt::format(", {})", range.step);
        break;
      }
      case Kind::kFunction:
        out += value.function().macro ? fmt::format("<Macro '{}'>", value.function().name)
                                      : fmt::format("<function {}>", value.function().name);
        break;
      default:
        out += fmt::format("<{} object>", type_name(value));
    }
  }

 private:
  void append_items(const Value& value, const char* open, const char* close, int depth) {
    out += open;
    bool first = true;
    for (const Value& item : value.sequence().items) {
      if (!first) out += ", ";
      first = false;
      append(item, depth + 1);
    }
    out += close;
  }
  void append_entries(const Value& value, int depth) {
    out += '{';
    bool first = true;
    for (const auto& [key, item] : value.dict().entries) {
      if (!first) out += ", ";
      first = false;
      append(key, depth + 1);
      out += ": ";
      append(item, depth + 1);
    }
    out += '}';
  }

  Heap* const heap_;
  const std::size_t bytes_max_;
};

class JsonWriter {
 public:
  JsonWriter(Heap& heap, const JsonStyle& style) : heap_(heap), style_(style) {}
  std::string out;

  void append(const Value& value, int depth) {
    pay_for(heap_, value, out.size());
    if (depth > kValueDepthMax) fail("RecursionError", "a value contains itself, or is too deep");
    switch (value.kind()) {
      case Kind::kNone:
        out += "null";
        break;
      case Kind::kBool:
        out += value.as_bool() ? "true" : "false";
        break;
      case Kind::kInt:
        out += fmt::format("{}", value.as_int());
        break;
      case Kind::kFloat:
        out += json::python_float(value.as_double());
        break;
      case Kind::kText:
        append_text(value.text());
        break;
      case Kind::kList:
      case Kind::kTuple:
        append_list(value.sequence().items, depth);
        break;
      case Kind::kDict:
        append_dict(value.dict(), depth);
        break;
      default:
        fail("TypeError", "Object of type {} is not JSON serializable", type_name(value));
    }
  }

 private:
  void line(int depth) {
    if (!style_.lines) return;
    out += '\n';
    for (int i = 0; i < depth; ++i) out += style_.indent;
  }
  void append_list(const std::vector<Value>& items, int depth) {
    out += '[';
    bool first = true;
    for (const Value& item : items) {
      if (!first) out += style_.between;
      first = false;
      line(depth + 1);
      append(item, depth + 1);
    }
    if (!first) line(depth);
    out += ']';
  }
  std::string key_text(const Value& key) {
    if (key.is(Kind::kText)) return key.text();
    if (!key.is_none() && !key.is_number()) {
      fail("TypeError", "keys must be str, int, float, bool or None, not {}", type_name(key));
    }
    return to_json(heap_, key, {});
  }
  void append_dict(const Dict& dict, int depth) {
    auto entries = dict.entries;
    if (style_.sorted) {
      std::stable_sort(entries.begin(), entries.end(), [this](const auto& a, const auto& b) {
        return is_less(heap_, a.first, b.first);
      });
    }
    out += '{';
    bool first = true;
    for (const auto& [key, value] : entries) {
      if (!first) out += style_.between;
      first = false;
      line(depth + 1);
      append_text(key_text(key));
      out += style_.after_key;
      append(value, depth + 1);
    }
    if (!first) line(depth);
    out += '}';
  }
  void append_unit(std::uint32_t unit) { out += fmt::format("\\u{:04x}", unit); }
  void append_text(std::string_view text) {
    out += '"';
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t begin = at;
      const char32_t c = next_character(text, at);
      constexpr std::string_view kShort = "\"\\\n\r\t\b\f", kLetters = "\"\\nrtbf";
      if (const auto i = kShort.find(static_cast<char>(c)); c < 128 && i != kShort.npos) {
        out += '\\';
        out += kLetters[i];
      } else if (c < 32 || (style_.ascii && c > 126 && c < 0x10000)) {
        append_unit(c);
      } else if (style_.ascii && c >= 0x10000) {
        append_unit(0xd800 + ((c - 0x10000) >> 10));
        append_unit(0xdc00 + ((c - 0x10000) & 0x3ff));
      } else {
        out += text.substr(begin, at - begin);
      }
    }
    out += '"';
  }

  Heap& heap_;
  const JsonStyle& style_;
};

}  // namespace

std::string quoted(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char quote = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  std::string out(1, quote);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    const char32_t c = next_character(text, at);
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n' || c == '\r' || c == '\t') {
      out += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if (is_printable(c)) {
      out += text.substr(begin, at - begin);
    } else {
      const auto code = static_cast<std::uint32_t>(c);
      out += code < 0x100     ? fmt::format("\\x{:02x}", code)
             : code < 0x10000 ? fmt::format("\\u{:04x}", code)
                              : fmt::format("\\U{:08x}", code);
    }
  }
  return out + quote;
}

std::string str(Heap& heap, const Value& value) {
  if (value.is(Kind::kText)) return value.text();
  if (value.is(Kind::kUndefined)) return {};
  return repr(heap, value);
}

std::string repr(Heap& heap, const Value& value) {
  Printer printer(&heap);
  printer.append(value, 0);
  heap.work(printer.out.size() / kBytesPerStep);
  return std::move(printer.out);
}

std::string repr_in_message(const Value& value) {
  constexpr std::size_t kMessageBytes = 1000;
  Printer printer(nullptr, kMessageBytes);
  printer.append(value, 0);
  if (printer.out.size() <= kMessageBytes) return std::move(printer.out);
  std::size_t end = kMessageBytes;
  while ((static_cast<unsigned char>(printer.out[end]) & 0xc0) == 0x80) --end;  // no part of one
  return printer.out.substr(0, end) + "…";
}

std::string escape_html(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&#34;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string to_json(Heap& heap, const Value& value, const JsonStyle& style) {
  JsonWriter writer(heap, style);
  writer.append(value, 0);
  heap.work(writer.out.size() / kBytesPerStep);
  return std::move(writer.out);
}

}  // namespace troupe::train::jinja
