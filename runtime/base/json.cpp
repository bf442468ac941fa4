#include "runtime/base/json.h"

#include <algorithm>
#include <boost/json/basic_parser_impl.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/parser.hpp>
#include <boost/json/serialize.hpp>
#include <charconv>
#include <cmath>
#include <set>
#include <vector>

namespace troupe::json {
namespace {

namespace bj = boost::json;

bj::parse_options boost_options(const ParseOptions& options) {
  bj::parse_options out;
  out.max_depth = options.depth_max;
  out.allow_comments = options.relaxed;
  out.allow_trailing_commas = options.relaxed;
  return out;
}

// A parser that stops at a sequence may stop at any byte of it.
constexpr std::size_t kUtf8SequenceBytesMax = 4;

// Where the first sequence begins that is not UTF-8 (RFC 3629); npos where there is none. `cut`: a
// sequence may be cut at the text's end.
std::size_t first_byte_not_utf8(std::string_view text, bool cut) {
  const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(text[at]); };
  for (std::size_t at = 0; at < text.size();) {
    const unsigned char lead = byte(at);
    const std::size_t length = lead < 0x80   ? 1
                               : lead < 0xc2 ? 0
                               : lead < 0xe0 ? 2
                               : lead < 0xf0 ? 3
                               : lead < 0xf5 ? 4
                                             : 0;
    if (length > text.size() - at && cut) return std::string_view::npos;
    if (length == 0 || length > text.size() - at) return at;
    for (std::size_t i = 1; i < length; ++i) {
      if ((byte(at + i) & 0xc0) != 0x80) return at;
    }
    // Overlong forms, surrogates, and what is beyond U+10FFFF.
    if (length == 3 &&
        ((lead == 0xe0 && byte(at + 1) < 0xa0) || (lead == 0xed && byte(at + 1) > 0x9f)))
      return at;
    if (length == 4 &&
        ((lead == 0xf0 && byte(at + 1) < 0x90) || (lead == 0xf4 && byte(at + 1) > 0x8f)))
      return at;
    at += length;
  }
  return std::string_view::npos;
}

std::string position(std::string_view text, std::size_t offset, const ParseOptions& options) {
  offset = std::min(offset, text.size());
  const auto before = text.substr(0, offset);
  const auto newlines = static_cast<std::size_t>(std::count(before.begin(), before.end(), '\n'));
  const auto newline = before.rfind('\n');
  const auto column =
      newline == std::string_view::npos ? offset + options.column : offset - newline;
  return fmt::format("{}:{}", options.line + newlines, column);
}

// Follows the structure only as far as to see what the value itself would hide: a key twice in one
// object, a number that is no finite one.
struct HiddenFaultsHandler {
  explicit HiddenFaultsHandler(bool reject) : reject_duplicates(reject) {}

  static constexpr std::size_t max_object_size = std::size_t(-1);
  static constexpr std::size_t max_array_size = std::size_t(-1);
  static constexpr std::size_t max_key_size = std::size_t(-1);
  static constexpr std::size_t max_string_size = std::size_t(-1);

  std::vector<std::set<std::string>> open;
  std::string key;
  const bool reject_duplicates;
  std::string duplicate;
  bool infinite = false;

  bool on_document_begin(bj::error_code&) { return true; }
  bool on_document_end(bj::error_code&) { return true; }
  bool on_object_begin(bj::error_code&) {
    open.emplace_back();
    return true;
  }
  bool on_object_end(std::size_t, bj::error_code&) {
    open.pop_back();
    return true;
  }
  bool on_array_begin(bj::error_code&) { return true; }
  bool on_array_end(std::size_t, bj::error_code&) { return true; }
  bool on_key_part(bj::string_view part, std::size_t, bj::error_code&) {
    key.append(part.data(), part.size());
    return true;
  }
  bool on_key(bj::string_view part, std::size_t, bj::error_code& ec) {
    key.append(part.data(), part.size());
    if (reject_duplicates && !open.back().insert(key).second) {
      duplicate = key;
      ec = bj::error::syntax;
      return false;
    }
    key.clear();
    return true;
  }
  bool on_string_part(bj::string_view, std::size_t, bj::error_code&) { return true; }
  bool on_string(bj::string_view, std::size_t, bj::error_code&) { return true; }
  bool on_number_part(bj::string_view, bj::error_code&) { return true; }
  bool on_int64(std::int64_t, bj::string_view, bj::error_code&) { return true; }
  bool on_uint64(std::uint64_t, bj::string_view, bj::error_code&) { return true; }
  bool on_double(double value, bj::string_view, bj::error_code& ec) {
    if (std::isfinite(value)) return true;
    infinite = true;
    ec = bj::error::syntax;
    return false;
  }
  bool on_bool(bool, bj::error_code&) { return true; }
  bool on_null(bj::error_code&) { return true; }
  bool on_comment_part(bj::string_view, bj::error_code&) { return true; }
  bool on_comment(bj::string_view, bj::error_code&) { return true; }
};

// A number too large for a double has become one that is not finite.
bool is_finite(const Value& value) {
  if (const auto* number = value.if_double()) return std::isfinite(*number);
  if (const auto* array = value.if_array()) return std::ranges::all_of(*array, is_finite);
  if (const auto* object = value.if_object())
    return std::ranges::all_of(*object,
                               [](const auto& member) { return is_finite(member.value()); });
  return true;
}

void write_string(std::string& out, std::string_view text) {
  out += bj::serialize(bj::string_view(text.data(), text.size()));
}

void write_node(std::string& out, const Value& value, bool sort_keys, std::size_t indent) {
  const auto newline = [&](std::size_t depth) { out += '\n' + std::string(2 * depth, ' '); };
  if (const auto* object = value.if_object()) {
    if (object->empty()) {
      out += "{}";
      return;
    }
    std::vector<const bj::key_value_pair*> members;
    for (const auto& member : *object) members.push_back(&member);
    if (sort_keys) {
      std::sort(members.begin(), members.end(),
                [](const auto* a, const auto* b) { return a->key() < b->key(); });
    }
    out += '{';
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (i > 0) out += ',';
      newline(indent + 1);
      write_string(out, {members[i]->key().data(), members[i]->key().size()});
      out += ": ";
      write_node(out, members[i]->value(), sort_keys, indent + 1);
    }
    newline(indent);
    out += '}';
  } else if (const auto* array = value.if_array()) {
    if (array->empty()) {
      out += "[]";
      return;
    }
    out += '[';
    for (std::size_t i = 0; i < array->size(); ++i) {
      if (i > 0) out += ',';
      newline(indent + 1);
      write_node(out, (*array)[i], sort_keys, indent + 1);
    }
    newline(indent);
    out += ']';
  } else if (const auto* number = value.if_double()) {
    out += python_float(*number);
  } else {
    out += bj::serialize(value);
  }
}

// What is wrong with the text, which is read once more for that; `alone`: nothing may follow its
// value.
Status fault_of(std::string_view text, bool alone, std::string_view name,
                const ParseOptions& options) {
  bj::error_code ec;
  bj::basic_parser<HiddenFaultsHandler> checker(boost_options(options),
                                                options.reject_duplicate_keys);
  const auto used = checker.write_some(false, text.data(), text.size(), ec);
  if (!ec && (used == text.size() || !alone)) return {};
  const auto at = [&](std::size_t offset) { return position(text, offset, options); };
  const bool incomplete = ec == bj::error::incomplete;
  // Also a number that ends in its middle.
  if (!alone && (incomplete || used >= text.size()))
    return error(Code::kDataLoss, "{}:{}: not valid JSON: the text ends in the middle", name,
                 at(used));
  const auto& handler = checker.handler();
  if (!handler.duplicate.empty()) {
    return error(Code::kInvalidArgument, "{}:{}: the key '{}' stands twice in one object", name,
                 at(used), handler.duplicate);
  }
  if (const auto bad = first_byte_not_utf8(text, !alone); bad <= used + kUtf8SequenceBytesMax) {
    return error(Code::kInvalidArgument,
                 "{}:{}: the byte 0x{:02x} is not part of UTF-8 text, which JSON has to be", name,
                 at(bad), static_cast<unsigned char>(text[bad]));
  }
  const std::string why = handler.infinite ? "a number too large for a double"
                          : ec == bj::error::too_deep
                              ? fmt::format("nested deeper than {}", options.depth_max)
                          : incomplete ? "the text ends in the middle"
                          : ec         ? ec.message()
                                       : "text after the end of the value";
  return error(Code::kInvalidArgument, "{}:{}: not valid JSON: {}", name, at(used), why);
}

Status check_size(std::string_view text, std::string_view name, const ParseOptions& options) {
  if (text.size() <= options.bytes_max) return {};
  return error(Code::kInvalidArgument, "{}: {} bytes of JSON, the limit is {}", name, text.size(),
               options.bytes_max);
}

}  // namespace

Result<Value> parse(std::string_view text, std::string_view name, const ParseOptions& options) {
  TROUPE_RETURN_IF_ERROR(check_size(text, name, options));
  bj::error_code ec;
  // Most texts are what they should be, and are read once. What is wrong with others is looked for
  // then.
  if (!options.reject_duplicate_keys) {
    Value value =
        bj::parse(bj::string_view(text.data(), text.size()), ec, {}, boost_options(options));
    if (!ec && is_finite(value)) return value;
    ec = {};
  }
  TROUPE_RETURN_IF_ERROR(fault_of(text, true, name, options));
  Value value =
      bj::parse(bj::string_view(text.data(), text.size()), ec, {}, boost_options(options));
  if (ec) return error(Code::kInvalidArgument, "{}: not valid JSON: {}", name, ec.message());
  return value;
}

Result<Value> parse_first(std::string_view text, std::size_t& used, std::string_view name,
                          const ParseOptions& options) {
  if (options.reject_duplicate_keys) TROUPE_RETURN_IF_ERROR(fault_of(text, false, name, options));
  bj::error_code ec;
  bj::parser parser({}, boost_options(options));
  used = parser.write_some(text.data(), text.size(), ec);
  if (!ec) {
    // Blanks behind the value are the caller's.
    while (used > 0 && std::string_view(" \t\r\n").find(text[used - 1]) != std::string_view::npos)
      --used;
    TROUPE_RETURN_IF_ERROR(check_size(text.substr(0, used), name, options));
    Value value = parser.release();
    if (is_finite(value)) return value;
  }
  TROUPE_RETURN_IF_ERROR(fault_of(text, false, name, options));
  return error(Code::kInvalidArgument, "{}: not valid JSON: {}", name, ec.message());
}

std::string write(const Value& value) { return bj::serialize(value); }

std::string write_indented(const Value& value, bool sort_keys) {
  std::string out;
  write_node(out, value, sort_keys, 0);
  return out;
}

std::string python_float(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  // repr: shortest round-trip digits; exponent form below 1e-4 and from 1e16.
  const double magnitude = std::fabs(value);
  char buffer[64];
  const bool fixed = magnitude == 0 || (magnitude >= 1e-4 && magnitude < 1e16);
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value,
                                 fixed ? std::chars_format::fixed : std::chars_format::scientific)
                       .ptr;
  std::string text(buffer, end);
  if (fixed && text.find('.') == std::string::npos) text += ".0";
  return text;
}

const Value* find(const Value& value, std::string_view key) {
  const auto* object = value.if_object();
  return object ? object->if_contains({key.data(), key.size()}) : nullptr;
}

std::optional<std::string> find_string(const Value& value, std::string_view key) {
  const auto* member = find(value, key);
  if (!member || !member->is_string()) return std::nullopt;
  const auto& text = member->get_string();
  return std::string(text.data(), text.size());
}

std::optional<double> find_number(const Value& value, std::string_view key) {
  const auto* member = find(value, key);
  if (!member || !member->is_number()) return std::nullopt;
  return member->to_number<double>();
}

std::optional<std::int64_t> find_integer(const Value& value, std::string_view key) {
  const auto* member = find(value, key);
  if (!member) return std::nullopt;
  if (member->is_int64()) return member->get_int64();
  if (member->is_uint64()) return static_cast<std::int64_t>(member->get_uint64());
  return std::nullopt;
}

std::optional<bool> find_bool(const Value& value, std::string_view key) {
  const auto* member = find(value, key);
  if (!member || !member->is_bool()) return std::nullopt;
  return member->get_bool();
}

}  // namespace troupe::json
