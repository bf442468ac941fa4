#pragma once
// JSON as Python's json.dumps(value, ensure_ascii=False) writes it: what models were trained on.

#include <string>

#include "runtime/base/json.h"

namespace troupe::train {

// One line with ", " and ": "; `indent` above 0: one member a line, as with json.dumps(indent=…).
// Numbers beyond 64 bits, which Python keeps whole, are doubles here.
std::string python_json(const json::Value& value, int indent = 0);

}  // namespace troupe::train
