#pragma once
// The rows of parquet files and of Arrow's own, as JSON objects: what Hugging Face's datasets gives
// of them.

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "runtime/base/json.h"
#include "runtime/base/status.h"

namespace troupe::train {

enum class ArrowKind { kParquet, kIpc };

// Visits the rows in order until `visit` returns false or fails; a batch of them is in memory at a
// time. Columns of types that no text has (bytes, times, decimals, …) are left out of the rows.
// kUnavailable: Arrow's library is not here; kDataLoss: the bytes are damaged, or are no such file.
// `name` stands in errors.
Status read_arrow_rows(
    std::span<const std::byte> bytes, ArrowKind kind, const std::string& name,
    const std::function<Result<bool>(const json::Object& row, std::int64_t number)>& visit);

}  // namespace troupe::train
