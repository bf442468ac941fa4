#pragma once
// Columns of Arrow's C data interface as JSON values.

#include <memory>
#include <string>
#include <vector>

#include "runtime/base/json.h"
#include "train/arrow/table.h"

namespace troupe::train {

// How the values of one type are read. Made once for a schema, used for each of its batches.
class ArrayReader {
 public:
  virtual ~ArrayReader() = default;
  // The value at `row` of the array, which is valid and of the schema's type. Null where it is
  // null.
  json::Value value(const ArrowArray& array, std::int64_t row) const;

 protected:
  // `at`: with the array's offset. The value is not null.
  virtual json::Value read(const ArrowArray& array, std::int64_t at) const = 0;
  bool has_validity_ = true;
};

// Texts, booleans, numbers, and lists and structures of them, dictionary-encoded or not. Null for
// types that no column of a text data set has (bytes, times, decimals, maps, …).
std::unique_ptr<ArrayReader> make_array_reader(const ArrowSchema& schema);

}  // namespace troupe::train
