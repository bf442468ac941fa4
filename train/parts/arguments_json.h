#pragma once
// Arguments of parts as a run's bundle and records have them.

#include "runtime/base/json.h"
#include "runtime/base/status.h"
#include "troupe/train/arguments.h"

namespace troupe::train {

json::Object to_json(const Arguments& arguments);
// kInvalidArgument for a value that no argument has.
Result<Arguments> arguments_from_json(const json::Value& value);

}  // namespace troupe::train
