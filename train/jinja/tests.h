#pragma once
// jinja2's tests: what stands behind `is`.

#include <string_view>

#include "train/jinja/value.h"

namespace troupe::train::jinja {

using Test = bool (*)(Interpreter&, const Value&, Arguments&);
// Null: there is none of this name.
const Test* find_test(std::string_view name);

}  // namespace troupe::train::jinja
