#pragma once
// Texts with places for values: 'a %s' % b, '{}'.format(a).

#include "train/jinja/value.h"

namespace troupe::train::jinja {

Value percent_format(Interpreter& in, const Value& format, const Value& values);
Value brace_format(Interpreter& in, const Value& format, Arguments& arguments);

}  // namespace troupe::train::jinja
