#pragma once
// jinja2's filters: functions of the value in front of | and their arguments.

#include <string_view>

#include "train/jinja/value.h"

namespace troupe::train::jinja {

// Null: there is none of this name.
const Native* find_filter(std::string_view name);

}  // namespace troupe::train::jinja
