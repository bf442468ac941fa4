#pragma once
// JSON as Python's json.dumps(value, ensure_ascii=False) writes it: its reports, and what models
// were trained on.

#include <string>

#include "runtime/base/json.h"

namespace troupe::json {

// One line with ", " and ": "; `indent` above 0: one member a line, as with json.dumps(indent=…).
// Numbers beyond 64 bits, which Python keeps whole, are doubles here.
std::string python_json(const Value& value, int indent = 0);

}  // namespace troupe::json
