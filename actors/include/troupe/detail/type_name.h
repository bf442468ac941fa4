#pragma once
// Names of classes and methods at compile time, from the compiler's own spelling of a template's
// argument: no macro repeats them.

#include <string_view>

namespace troupe::detail {

// The text of the argument in "… [with auto Value = &ns::Counter::add; …]" (GCC) or
// "… [Value = &ns::Counter::add]" (Clang).
constexpr std::string_view argument_in_signature(std::string_view signature,
                                                 std::string_view parameter) {
  const auto start = signature.find(parameter) + parameter.size();
  int depth = 0;
  for (auto end = start; end < signature.size(); ++end) {
    const char c = signature[end];
    if (c == '<' || c == '(' || c == '{' || c == '[') ++depth;
    if (depth == 0 && (c == ';' || c == ']')) return signature.substr(start, end - start);
    if (c == '>' || c == ')' || c == '}' || c == ']') --depth;
  }
  return signature.substr(start);
}

// What follows the last "::" that is not inside template arguments.
constexpr std::string_view last_component(std::string_view name) {
  while (!name.empty() && (name.back() == ')' || name.back() == ' ')) name.remove_suffix(1);
  int depth = 0;
  for (auto i = name.size(); i > 0; --i) {
    const char c = name[i - 1];
    if (c == '>') ++depth;
    if (c == '<') --depth;
    if (depth == 0 && (c == ':' || c == '&' || c == ' ')) return name.substr(i);
  }
  return name;
}

template <typename TheType>
constexpr std::string_view full_type_name() {
  return argument_in_signature(__PRETTY_FUNCTION__, "TheType = ");
}
template <auto TheValue>
constexpr std::string_view full_value_name() {
  return argument_in_signature(__PRETTY_FUNCTION__, "TheValue = ");
}

// "Counter" of ns::Counter.
template <typename T>
inline constexpr std::string_view kTypeName = last_component(full_type_name<T>());
// "add" of &ns::Counter::add.
template <auto Method>
inline constexpr std::string_view kMethodName = last_component(full_value_name<Method>());

}  // namespace troupe::detail
