#include "train/jinja/operators.h"

#include <algorithm>
#include <cmath>

#include "train/jinja/characters.h"
#include "train/jinja/failure.h"
#include "train/jinja/print.h"

namespace troupe::train::jinja {
namespace {

constexpr int kValuesWithinMax = 200;

void check_depth(int depth) {
  if (depth > kValuesWithinMax)
    fail("RecursionError", "maximum recursion depth exceeded in comparison");
}

void check_key(const Value& key) {
  if (key.is(Kind::kList) || key.is(Kind::kDict))
    fail("TypeError", "unhashable type: '{}'", type_name(key));
}

[[noreturn]] void fail_operands(std::string_view sign, const Value& a, const Value& b) {
  fail("TypeError", "unsupported operand type(s) for {}: '{}' and '{}'", sign, type_name(a),
       type_name(b));
}

// By reference: the number is made by what says whether it overflows.
Int checked(bool overflows, const Int& value) {
  if (overflows) fail("OverflowError", "an integer has more than 127 bits");
  return value;
}

Int floor_div(Int a, Int b) {
  if (b == 0) fail("ZeroDivisionError", "integer division or modulo by zero");
  if (b == -1) {
    Int out = 0;
    return checked(__builtin_sub_overflow(Int{0}, a, &out), out);
  }
  const Int out = a / b;
  return out * b != a && (a < 0) != (b < 0) ? out - 1 : out;
}

Value power(Int base, Int exponent) {
  if (exponent < 0) {
    if (base == 0) fail("ZeroDivisionError", "0.0 cannot be raised to a negative power");
    return std::pow(static_cast<double>(base), static_cast<double>(exponent));
  }
  if (base == 0 || base == 1) return exponent == 0 ? Int{1} : base;
  if (base == -1) return exponent % 2 == 0 ? Int{1} : Int{-1};
  Int out = 1;
  for (; exponent > 0; --exponent) out = checked(__builtin_mul_overflow(out, base, &out), out);
  return out;
}

Value of_integers(std::string_view sign, Int a, Int b) {
  Int out = 0;
  if (sign == "+") return checked(__builtin_add_overflow(a, b, &out), out);
  if (sign == "-") return checked(__builtin_sub_overflow(a, b, &out), out);
  if (sign == "*") return checked(__builtin_mul_overflow(a, b, &out), out);
  if (sign == "//") return floor_div(a, b);
  if (sign == "%") return a - floor_div(a, b) * b;
  if (sign == "**") return power(a, b);
  if (b == 0) fail("ZeroDivisionError", "division by zero");
  return static_cast<double>(a) / static_cast<double>(b);
}

Value of_floats(std::string_view sign, double a, double b) {
  if (sign == "+") return a + b;
  if (sign == "-") return a - b;
  if (sign == "*") return a * b;
  if (sign == "**") return std::pow(a, b);
  if (b == 0) fail("ZeroDivisionError", "float division by zero");
  if (sign == "/") return a / b;
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
  if (sign == "%") return rest == 0 ? std::copysign(0.0, b) : rest;
  return std::floor((a - rest) / b + 0.5);
}

// A text or list `count` times.
Value repeated(Heap& heap, const Value& value, Int count) {
  const std::size_t size =
      value.is(Kind::kText) ? value.text().size() : value.sequence().items.size() * sizeof(Value);
  if (count < 0 || size == 0) count = 0;
  if (count > Int{1} << 40) count = Int{1} << 40;  // too much in any case
  const std::size_t whole = size * static_cast<std::size_t>(count);
  if (count > 0) heap.take(whole);
  heap.work(static_cast<std::uint64_t>(count) + whole / kBytesPerStep);
  if (value.is(Kind::kText)) {
    std::string out;
    out.reserve(whole);
    for (Int i = 0; i < count; ++i) out += value.text();
    return heap.text(std::move(out), value.is_markup());
  }
  std::vector<Value> out;
  const auto& items = value.sequence().items;
  for (Int i = 0; i < count; ++i) out.insert(out.end(), items.begin(), items.end());
  return heap.sequence(value.kind(), std::move(out), value.sequence().type);
}

Value sum_of(Heap& heap, const Value& a, const Value& b) {
  if (a.is(Kind::kText)) {
    if (!b.is(Kind::kText))
      fail("TypeError", "can only concatenate str (not \"{}\") to str", type_name(b));
    if (!a.is_markup() && !b.is_markup()) return heap.text(a.text() + b.text());
    const auto safe = [](const Value& value) {
      return value.is_markup() ? value.text() : escape_html(value.text());
    };
    return heap.text(safe(a) + safe(b), true);
  }
  if (a.is(Kind::kList) || a.is(Kind::kTuple)) {
    if (b.kind() != a.kind()) {
      fail("TypeError", "can only concatenate {0} (not \"{1}\") to {0}", type_name(a),
           type_name(b));
    }
    auto items = a.sequence().items;
    items.insert(items.end(), b.sequence().items.begin(), b.sequence().items.end());
    return heap.sequence(a.kind(), std::move(items), a.sequence().type);
  }
  fail_operands("+", a, b);
}

// The place of a number in a sequence of `size`; negative ones count from the end.
bool position_of(Int index, Int size, std::size_t& out) {
  if (index < 0) index += size;
  if (index < 0 || index >= size) return false;
  out = static_cast<std::size_t>(index);
  return true;
}

// The positions that a slice chooses: from `first`, by `by`, before `last`.
struct Chosen {
  Int first, last, by;
};
Chosen chosen_of(Int size, const Value& begin, const Value& end, const Value& step) {
  const auto number = [](const Value& value, Int otherwise) {
    if (value.is_none()) return otherwise;
    if (value.is(Kind::kUndefined)) fail_undefined(value);
    if (!value.is_integer()) {
      fail("TypeError", "slice indices must be integers or None or have an __index__ method");
    }
    return std::clamp<Int>(value.as_int(), -(Int{1} << 62), Int{1} << 62);
  };
  const Int by = number(step, 1);
  if (by == 0) fail("ValueError", "slice step cannot be zero");
  const auto bound = [&](const Value& value, Int otherwise) {
    Int at = number(value, otherwise);
    if (value.is_none()) return at;
    if (at < 0) at += size;
    return by > 0 ? std::clamp<Int>(at, 0, size) : std::clamp<Int>(at, -1, size - 1);
  };
  return {bound(begin, by > 0 ? 0 : size - 1), bound(end, by > 0 ? size : -1), by};
}
std::vector<std::size_t> positions_of(Int size, const Value& begin, const Value& end,
                                      const Value& step) {
  const auto [first, last, by] = chosen_of(size, begin, end, step);
  std::vector<std::size_t> out;
  for (Int at = first; by > 0 ? at < last : at > last; at += by)
    out.push_back(static_cast<std::size_t>(at));
  return out;
}

}  // namespace

bool is_equal(Heap& heap, const Value& a, const Value& b, int depth) {
  check_depth(depth);
  heap.work(1);
  if (a.is_number() && b.is_number()) {
    if (a.is_integer() && b.is_integer()) return a.as_int() == b.as_int();
    return a.as_double() == b.as_double();
  }
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kText:
    case Kind::kBytes:
      heap.work(a.text().size() / kBytesPerStep);
      return a.text() == b.text();
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kView: {
      const auto &left = a.sequence().items, &right = b.sequence().items;
      if (&left == &right) return true;
      return left.size() == right.size() && std::equal(left.begin(), left.end(), right.begin(),
                                                       [&](const Value& x, const Value& y) {
                                                         return is_equal(heap, x, y, depth + 1);
                                                       });
    }
    case Kind::kDict: {
      if (a.object() == b.object()) return true;
      const auto& left = a.dict().entries;
      if (left.size() != b.dict().entries.size()) return false;
      return std::all_of(left.begin(), left.end(), [&](const auto& entry) {
        const Value* other = find_entry(heap, b.dict(), entry.first);
        return other != nullptr && is_equal(heap, entry.second, *other, depth + 1);
      });
    }
    case Kind::kRange: {
      const Range &x = a.range(), &y = b.range();
      return x.size() == y.size() && (x.size() == 0 || x.begin == y.begin) &&
             (x.size() <= 1 || x.step == y.step);
    }
    default:
      return a.object() == b.object();
  }
}

bool is_less(Heap& heap, const Value& a, const Value& b, const char* sign, int depth) {
  check_depth(depth);
  heap.work(1);
  if (a.is(Kind::kUndefined)) fail_undefined(a);
  if (b.is(Kind::kUndefined)) fail_undefined(b);
  if (a.is_number() && b.is_number()) {
    if (a.is_integer() && b.is_integer()) return a.as_int() < b.as_int();
    return a.as_double() < b.as_double();
  }
  if (a.kind() == b.kind() && a.is(Kind::kText)) {
    heap.work(a.text().size() / kBytesPerStep);
    return a.text() < b.text();
  }
  if (a.kind() == b.kind() && (a.is(Kind::kList) || a.is(Kind::kTuple))) {
    const auto &left = a.sequence().items, &right = b.sequence().items;
    for (std::size_t i = 0; i < std::min(left.size(), right.size()); ++i) {
      if (!is_equal(heap, left[i], right[i], depth + 1))
        return is_less(heap, left[i], right[i], sign, depth + 1);
    }
    return left.size() < right.size();
  }
  fail("TypeError", "'{}' not supported between instances of '{}' and '{}'", sign, type_name(a),
       type_name(b));
}

Value calculate(Heap& heap, std::string_view sign, const Value& a, const Value& b) {
  if (a.is(Kind::kUndefined)) fail_undefined(a);
  if (b.is(Kind::kUndefined)) fail_undefined(b);
  if (a.is_number() && b.is_number()) {
    if (a.is_integer() && b.is_integer()) return of_integers(sign, a.as_int(), b.as_int());
    return of_floats(sign, a.as_double(), b.as_double());
  }
  const auto repeats = [](const Value& value) {
    return value.is(Kind::kText) || value.is(Kind::kList) || value.is(Kind::kTuple);
  };
  if (sign == "+") return sum_of(heap, a, b);
  if (sign == "*" && repeats(a) && b.is_integer()) return repeated(heap, a, b.as_int());
  if (sign == "*" && repeats(b) && a.is_integer()) return repeated(heap, b, a.as_int());
  fail_operands(sign, a, b);
}

Value negative(const Value& value, bool minus) {
  if (value.is(Kind::kUndefined)) fail_undefined(value);
  if (!value.is_number()) {
    fail("TypeError", "bad operand type for unary {}: '{}'", minus ? '-' : '+', type_name(value));
  }
  if (value.is(Kind::kFloat)) return minus ? -value.as_double() : value.as_double();
  return minus ? of_integers("-", 0, value.as_int()) : Value(value.as_int());
}

bool find_item(Heap& heap, const Value& owner, const Value& key, Value& out) {
  if (owner.is(Kind::kDict)) {
    if (key.is(Kind::kList) || key.is(Kind::kDict)) return false;
    const Value* found = find_entry(heap, owner.dict(), key);
    if (found != nullptr) out = *found;
    return found != nullptr;
  }
  if (!key.is_integer()) return false;
  std::size_t at = 0;
  if (owner.is(Kind::kList) || owner.is(Kind::kTuple)) {
    const auto& items = owner.sequence().items;
    if (!position_of(key.as_int(), static_cast<Int>(items.size()), at)) return false;
    out = items[at];
    return true;
  }
  if (owner.is(Kind::kRange)) {
    const Range& range = owner.range();
    if (!position_of(key.as_int(), range.size(), at)) return false;
    out = range.begin + range.step * static_cast<Int>(at);
    return true;
  }
  if (!owner.is(Kind::kText)) return false;
  const std::string_view text = owner.text();
  if (!position_of(key.as_int(), static_cast<Int>(character_count(text)), at)) return false;
  const auto from = byte_of(text, at);
  auto behind = from;
  next_character(text, behind);
  out = heap.text(std::string(text.substr(from, behind - from)), owner.is_markup());
  return true;
}

Value slice_of(Heap& heap, const Value& owner, const Value& begin, const Value& end,
               const Value& step) {
  if (owner.is(Kind::kText)) {
    const std::string_view text = owner.text();
    heap.work(text.size() / kBytesPerStep);
    const auto count = static_cast<Int>(character_count(text));
    if (const auto chosen = chosen_of(count, begin, end, step); chosen.by == 1) {
      const auto from = byte_of(text, static_cast<std::size_t>(chosen.first));
      const auto to = byte_of(text, static_cast<std::size_t>(chosen.last));
      const std::string_view part = text.substr(from, to > from ? to - from : 0);
      return heap.text(std::string(part), owner.is_markup());
    }
    heap.take(text.size() + 2 * static_cast<std::size_t>(count) * sizeof(std::size_t));
    std::vector<std::size_t> starts;  // of characters
    for (std::size_t at = 0; at < text.size();) {
      starts.push_back(at);
      next_character(text, at);
    }
    std::string out;
    for (const auto at : positions_of(static_cast<Int>(starts.size()), begin, end, step)) {
      const auto behind = at + 1 < starts.size() ? starts[at + 1] : text.size();
      out += text.substr(starts[at], behind - starts[at]);
    }
    return heap.text(std::move(out), owner.is_markup());
  }
  std::vector<Value> out;
  if (owner.is(Kind::kRange)) {
    const Range& range = owner.range();
    for (const auto at : positions_of(range.size(), begin, end, step))
      out.emplace_back(range.begin + range.step * static_cast<Int>(at));
    return heap.list(std::move(out));
  }
  const auto& items = owner.sequence().items;
  for (const auto at : positions_of(static_cast<Int>(items.size()), begin, end, step))
    out.push_back(items[at]);
  return heap.sequence(owner.kind(), std::move(out), owner.sequence().type);
}

bool contains(Heap& heap, const Value& owner, const Value& item) {
  if (owner.is(Kind::kText)) {
    if (item.is(Kind::kUndefined) || !item.is(Kind::kText)) {
      fail("TypeError", "'in <string>' requires string as left operand, not {}", type_name(item));
    }
    heap.work(owner.text().size() / kBytesPerStep);
    return find_in(owner.text(), item.text()) != std::string::npos;
  }
  if (owner.is(Kind::kDict)) return find_entry(heap, owner.dict(), item) != nullptr;
  if (owner.is(Kind::kUndefined)) return false;
  if (owner.is(Kind::kRange)) {
    const Range& range = owner.range();
    if (!item.is_number() || item.as_double() != std::floor(item.as_double())) return false;
    const Int at = static_cast<Int>(item.as_double()) - range.begin;
    return at % range.step == 0 && at / range.step >= 0 && at / range.step < range.size();
  }
  if (!owner.is_sequence())
    fail("TypeError", "argument of type '{}' is not iterable", type_name(owner));
  const auto& items = owner.sequence().items;
  return std::any_of(items.begin(), items.end(),
                     [&](const Value& one) { return is_equal(heap, one, item); });
}

Value* find_entry(Heap& heap, Dict& dict, const Value& key) {
  check_key(key);
  for (auto& [known, value] : dict.entries) {
    if (is_equal(heap, known, key)) return &value;
  }
  return nullptr;
}

Value* find_entry(Heap& heap, Dict& dict, std::string_view key) {
  heap.work(dict.entries.size() / 8);
  for (auto& [known, value] : dict.entries) {
    if (known.is(Kind::kText) && known.text() == key) return &value;
  }
  return nullptr;
}

void set_entry(Heap& heap, Dict& dict, const Value& key, const Value& value) {
  if (Value* known = find_entry(heap, dict, key)) {
    *known = value;
    return;
  }
  heap.take(2 * sizeof(Value));
  dict.entries.emplace_back(key, value);
}

}  // namespace troupe::train::jinja
