#include "train/jinja/value.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "train/jinja/characters.h"
#include "train/jinja/failure.h"
#include "train/jinja/print.h"

namespace troupe::train::jinja {

const std::string& Value::text() const { return static_cast<const Text*>(object_)->text; }
bool Value::is_markup() const {
  return kind_ == Kind::kText && static_cast<const Text*>(object_)->markup;
}
Sequence& Value::sequence() const { return *static_cast<Sequence*>(object_); }
Dict& Value::dict() const { return *static_cast<Dict*>(object_); }
Range& Value::range() const { return *static_cast<Range*>(object_); }
Function& Value::function() const { return *static_cast<Function*>(object_); }

Special& Value::special() const { return *static_cast<Special*>(object_); }

Int Range::size() const {
  if (step > 0) return end > begin ? (end - begin + step - 1) / step : 0;
  return begin > end ? (begin - end - step - 1) / -step : 0;
}

void Heap::take(std::size_t bytes) {
  check(bytes);
  bytes_ += bytes;
}

void Heap::check(std::size_t bytes) const {
  if (bytes <= bytes_max_ - bytes_) return;
  fail(kLimitError, "the template makes more than {} bytes of values and text", bytes_max_);
}

void Heap::fail_steps() const {
  fail(kLimitError, "the template takes more than {} steps", steps_max_);
}

Value Heap::text(std::string text, bool markup) {
  auto* const out = make<Text>(text.size());
  out->text = std::move(text);
  out->markup = markup;
  return {Kind::kText, out};
}

Value Heap::sequence(Kind kind, std::vector<Value> items, const char* type) {
  auto* const out = make<Sequence>(items.size() * sizeof(Value));
  out->items = std::move(items);
  out->type = type;
  return {kind, out};
}

const char* type_name(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kText:
      return value.is_markup() ? "Markup" : "str";
    case Kind::kBytes:
      return "bytes";
    case Kind::kDict:
      return "dict";
    case Kind::kNamespace:
      return "Namespace";
    case Kind::kRange:
      return "range";
    case Kind::kFunction:
      return value.function().macro ? "Macro" : "function";
    case Kind::kSpecial:
      return "object";
    default:
      return value.sequence().type;
  }
}

bool is_true(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
      return value.as_bool();
    case Kind::kInt:
      return value.as_int() != 0;
    case Kind::kFloat:
      return value.as_double() != 0;
    case Kind::kText:
    case Kind::kBytes:
      return !value.text().empty();
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kView:
      return !value.sequence().items.empty();
    case Kind::kDict:
      return !value.dict().entries.empty();
    case Kind::kRange:
      return value.range().size() != 0;
    default:
      return true;
  }
}

void fail_undefined(const Value& value) {
  const auto& missing = *static_cast<const Missing*>(value.object());
  const char* type = missing.forbidden ? "SecurityError" : "UndefinedError";
  if (!missing.hint.empty()) fail(type, "{}", missing.hint);
  if (!missing.has_owner) fail(type, "'{}' is undefined", missing.key.text());
  const std::string owner =
      missing.owner.is_none() ? "None" : fmt::format("{} object", type_name(missing.owner));
  if (!missing.key.is(Kind::kText))
    fail(type, "{} has no element {}", owner, repr_in_message(missing.key));
  if (missing.forbidden) {
    fail(type, "access to attribute '{}' of '{}' object is unsafe.", missing.key.text(),
         type_name(missing.owner));
  }
  fail(type, "'{}' has no attribute {}", owner, repr_in_message(missing.key));
}

bool read_int(std::string_view text, int base, Int& out) {
  text = strip(text, std::nullopt, true, true);
  const bool minus = text.starts_with('-');
  if (minus || text.starts_with('+')) text.remove_prefix(1);
  const auto prefixed = [&](char letter) {
    return text.size() > 2 && text[0] == '0' && (text[1] | 32) == letter;
  };
  const int named = prefixed('x') ? 16 : prefixed('o') ? 8 : prefixed('b') ? 2 : 0;
  if (named != 0 && (base == 0 || base == named)) {
    base = named;
    text.remove_prefix(2);
    if (text.starts_with('_')) text.remove_prefix(1);
  }
  if (base == 0) base = 10;
  if (text.empty() || text.back() == '_' || text.front() == '_') return false;
  Int value = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '_') {
      if (text[i + 1] == '_') return false;
      continue;
    }
    const char c = static_cast<char>(text[i] >= 'A' && text[i] <= 'Z' ? text[i] | 32 : text[i]);
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'z' ? c - 'a' + 10 : 99;
    if (digit >= base) return false;
    if (__builtin_mul_overflow(value, Int{base}, &value) ||
        __builtin_add_overflow(value, Int{digit}, &value)) {
      fail("OverflowError", "the integer {} has more than 127 bits", text.substr(0, 60));
    }
  }
  out = minus ? -value : value;
  return true;
}

bool read_float(std::string_view text, double& out) {
  text = strip(text, std::nullopt, true, true);
  std::string digits;
  for (const char c : text) {
    if (c != '_') digits += c;
  }
  if (digits.empty() || digits.find_first_of("xXpP(") != std::string::npos) return false;
  char* end = nullptr;
  out = std::strtod(digits.c_str(), &end);
  return *end == '\0';
}

}  // namespace troupe::train::jinja
