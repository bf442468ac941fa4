#include "train/jinja/tests.h"

#include <algorithm>
#include <iterator>

#include "train/jinja/arguments.h"
#include "train/jinja/characters.h"
#include "train/jinja/failure.h"
#include "train/jinja/filters.h"
#include "train/jinja/interpreter.h"
#include "train/jinja/operators.h"
#include "train/jinja/print.h"

namespace troupe::train::jinja {
namespace {

const Value& other(Arguments& arguments) {
  if (arguments.positional.size() != 1 || !arguments.named.empty())
    fail("TypeError", "the test takes one argument");
  return arguments.positional.front();
}

Int integer_of(const Value& value) {
  if (value.is(Kind::kUndefined)) fail_undefined(value);
  if (!value.is_integer())
    fail("TypeError", "not all arguments converted during string formatting");
  return value.as_int();
}
Int rest_of(Interpreter& in, const Value& value, Int by) {
  return calculate(in.heap, "%", integer_of(value), by).as_int();
}

template <Kind kind>
bool is_kind(Interpreter&, const Value& value, Arguments&) {
  return value.is(kind);
}
template <bool wanted>
bool is_defined(Interpreter&, const Value& value, Arguments&) {
  return value.is(Kind::kUndefined) != wanted;
}
template <bool wanted>
bool is_bool(Interpreter&, const Value& value, Arguments&) {
  return value.is(Kind::kBool) && value.as_bool() == wanted;
}
bool is_number(Interpreter&, const Value& value, Arguments&) { return value.is_number(); }
bool is_callable(Interpreter&, const Value& value, Arguments&) {
  return value.is(Kind::kFunction) || value.is(Kind::kSpecial) || value.is(Kind::kUndefined);
}
bool is_sequence(Interpreter&, const Value& value, Arguments&) {
  return value.is(Kind::kText) || value.is(Kind::kList) || value.is(Kind::kTuple) ||
         value.is(Kind::kDict) || value.is(Kind::kRange) || value.is(Kind::kUndefined);
}
bool is_iterable(Interpreter& in, const Value& value, Arguments& arguments) {
  return is_sequence(in, value, arguments) || value.is_sequence();
}
bool is_escaped(Interpreter&, const Value& value, Arguments&) { return value.is_markup(); }

template <bool upper>
bool is_of_case(Interpreter& in, const Value& value, Arguments&) {
  return has_case(str(in.heap, value), upper);
}
template <int rest>
bool is_odd(Interpreter& in, const Value& value, Arguments&) {
  return rest_of(in, value, 2) == rest;
}
bool divisible_by(Interpreter& in, const Value& value, Arguments& arguments) {
  return rest_of(in, value, integer_of(other(arguments))) == 0;
}

bool equals(Interpreter& in, const Value& value, Arguments& arguments) {
  return is_equal(in.heap, value, other(arguments));
}
bool differs(Interpreter& in, const Value& value, Arguments& arguments) {
  return !is_equal(in.heap, value, other(arguments));
}
bool less(Interpreter& in, const Value& value, Arguments& arguments) {
  return is_less(in.heap, value, other(arguments));
}
bool greater(Interpreter& in, const Value& value, Arguments& arguments) {
  return is_less(in.heap, other(arguments), value, ">");
}
bool at_most(Interpreter& in, const Value& value, Arguments& arguments) {
  return less(in, value, arguments) || equals(in, value, arguments);
}
bool at_least(Interpreter& in, const Value& value, Arguments& arguments) {
  return greater(in, value, arguments) || equals(in, value, arguments);
}
bool is_in(Interpreter& in, const Value& value, Arguments& arguments) {
  return contains(in.heap, other(arguments), value);
}
bool same_as(Interpreter& in, const Value& value, Arguments& arguments) {
  const Value& one = other(arguments);
  if (value.kind() != one.kind()) return false;
  if (value.is_none() || value.is_number() || value.is(Kind::kText))
    return is_equal(in.heap, value, one);
  return value.object() == one.object();
}
template <bool of_filters>
bool is_known(Interpreter& in, const Value& value, Arguments&) {
  const std::string name = str(in.heap, value);
  return of_filters ? find_filter(name) != nullptr : find_test(name) != nullptr;
}

struct Named {
  std::string_view name;
  Test test;
};
constexpr Named kTests[] = {
    {"!=", differs},
    {"<", less},
    {"<=", at_most},
    {"==", equals},
    {">", greater},
    {">=", at_least},
    {"boolean", is_kind<Kind::kBool>},
    {"callable", is_callable},
    {"defined", is_defined<true>},
    {"divisibleby", divisible_by},
    {"eq", equals},
    {"equalto", equals},
    {"escaped", is_escaped},
    {"even", is_odd<0>},
    {"false", is_bool<false>},
    {"filter", is_known<true>},
    {"float", is_kind<Kind::kFloat>},
    {"ge", at_least},
    {"greaterthan", greater},
    {"gt", greater},
    {"in", is_in},
    {"integer", is_kind<Kind::kInt>},
    {"iterable", is_iterable},
    {"le", at_most},
    {"lessthan", less},
    {"lower", is_of_case<false>},
    {"lt", less},
    {"mapping", is_kind<Kind::kDict>},
    {"ne", differs},
    {"none", is_kind<Kind::kNone>},
    {"number", is_number},
    {"odd", is_odd<1>},
    {"sameas", same_as},
    {"sequence", is_sequence},
    {"string", is_kind<Kind::kText>},
    {"test", is_known<false>},
    {"true", is_bool<true>},
    {"undefined", is_defined<false>},
    {"upper", is_of_case<true>},
};

}  // namespace

const Test* find_test(std::string_view name) {
  const auto found = std::find_if(std::begin(kTests), std::end(kTests),
                                  [&](const Named& one) { return one.name == name; });
  return found == std::end(kTests) ? nullptr : &found->test;
}

}  // namespace troupe::train::jinja
