#pragma once
// libtroupe_arrow.so, opened when it is first needed.

#include "runtime/base/status.h"
#include "train/arrow/table.h"

namespace troupe::train {

// kUnavailable where it is not there, with the command that brings it. Beside the program, or what
// TROUPE_ARROW_LIBRARY names.
Result<const TroupeArrowTable*> arrow_table();

}  // namespace troupe::train
