#include "train/arrow/arrow_rows.h"

#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "train/arrow/array_values.h"
#include "train/arrow/arrow_library.h"

namespace troupe::train {
namespace {

// A structure of the interface, released at the end of the scope.
template <typename Structure>
class Owned {
 public:
  Owned() = default;
  ~Owned() {
    if (value_.release) value_.release(&value_);
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  Structure& operator*() { return value_; }
  Structure* operator->() { return &value_; }
  Structure* get() { return &value_; }

 private:
  Structure value_{};
};

Status damaged(const std::string& name, ArrowKind kind, const char* why) {
  return error(Code::kDataLoss, "{}: it cannot be read as {}: {}", name,
               kind == ArrowKind::kParquet ? "a parquet file" : "an Arrow file or stream",
               why && *why ? why : "Arrow gives no reason");
}

}  // namespace

Status read_arrow_rows(
    std::span<const std::byte> bytes, ArrowKind kind, const std::string& name,
    const std::function<Result<bool>(const json::Object& row, std::int64_t number)>& visit) {
  const TroupeArrowTable* table = nullptr;
  if (auto found = arrow_table(); found.ok()) {
    table = *found;
  } else {
    return found.status().prefixed(name);
  }
  Owned<ArrowArrayStream> stream;
  std::array<char, 1024> reason{};
  const int kind_number = kind == ArrowKind::kParquet ? TROUPE_ARROW_PARQUET : TROUPE_ARROW_IPC;
  if (table->open(bytes.data(), bytes.size(), kind_number, stream.get(), reason.data(),
                  reason.size()) != 0)
    return damaged(name, kind, reason.data());
  Owned<ArrowSchema> schema;
  if (stream->get_schema(stream.get(), schema.get()) != 0)
    return damaged(name, kind, stream->get_last_error(stream.get()));
  std::vector<std::pair<std::string, std::unique_ptr<ArrayReader>>> columns;
  for (std::int64_t i = 0; i < schema->n_children; ++i) {
    const ArrowSchema& column = *schema->children[i];
    columns.emplace_back(column.name ? column.name : "", make_array_reader(column));
  }
  for (std::int64_t number = 0;;) {
    Owned<ArrowArray> batch;
    if (stream->get_next(stream.get(), batch.get()) != 0)
      return damaged(name, kind, stream->get_last_error(stream.get()));
    if (!batch->release) return {};
    for (std::int64_t row = 0; row < batch->length; ++row) {
      json::Object out;
      out.reserve(columns.size());
      for (std::size_t i = 0; i < columns.size(); ++i) {
        const auto& [column, reader] = columns[i];
        if (reader) out[column] = reader->value(*batch->children[i], batch->offset + row);
      }
      if (!TROUPE_TRY(visit(out, number++))) return {};
    }
  }
}

}  // namespace troupe::train
