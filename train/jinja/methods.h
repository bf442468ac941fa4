#pragma once
// The methods of Python's built-in types that templates may call.

#include <string>
#include <string_view>

#include "train/jinja/value.h"

namespace troupe::train::jinja {

// Null: values of this kind have no such method.
const Native* find_method(Kind kind, std::string_view name);
// A method that changes its owner: the sandbox forbids it.
bool changes_owner(Kind kind, std::string_view name);

// `text` in a field of `width` characters, aligned by < > ^ as str.ljust, rjust, center do it.
std::string justified(Interpreter& in, const std::string& text, Int width, const std::string& fill,
                      char align);
// str.replace; a negative `count` is none.
Value replaced(Interpreter& in, const Value& text, const std::string& old, const std::string& fresh,
               Int count);

}  // namespace troupe::train::jinja
