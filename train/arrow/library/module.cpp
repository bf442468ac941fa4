// libtroupe_arrow.so: the functions of table.h over Apache Arrow's C++ library.

#include <arrow/c/bridge.h>
#include <arrow/io/memory.h>
#include <arrow/ipc/options.h>
#include <arrow/ipc/reader.h>
#include <arrow/memory_pool.h>
#include <arrow/record_batch.h>
#include <arrow/result.h>
#include <arrow/status.h>
#include <parquet/arrow/reader.h>
#include <parquet/properties.h>

#include <cstring>
#include <exception>
#include <memory>
#include <string>

#include "train/arrow/table.h"

namespace {

// Rows that are decoded at a time: memory is that of so many, however many a row group has.
constexpr int64_t kBatchRows = 1024;

// Arrow's own pool keeps much of what is given back to it.
arrow::MemoryPool* pool() { return arrow::system_memory_pool(); }

// Batches as they come from a file, refused where they are not what they say: whoever reads them
// trusts offsets and texts.
class CheckedReader final : public arrow::RecordBatchReader {
 public:
  explicit CheckedReader(std::shared_ptr<arrow::RecordBatchReader> inner)
      : inner_(std::move(inner)) {}
  std::shared_ptr<arrow::Schema> schema() const override { return inner_->schema(); }
  arrow::Status ReadNext(std::shared_ptr<arrow::RecordBatch>* batch) override {
    try {
      ARROW_RETURN_NOT_OK(inner_->ReadNext(batch));
      return *batch ? (*batch)->ValidateFull() : arrow::Status::OK();
    } catch (const std::exception& failure) {
      return arrow::Status::Invalid(failure.what());
    }
  }

 private:
  const std::shared_ptr<arrow::RecordBatchReader> inner_;
};

// The batches of the IPC file format, one after another.
class FileBatches final : public arrow::RecordBatchReader {
 public:
  explicit FileBatches(std::shared_ptr<arrow::ipc::RecordBatchFileReader> file)
      : file_(std::move(file)) {}
  std::shared_ptr<arrow::Schema> schema() const override { return file_->schema(); }
  arrow::Status ReadNext(std::shared_ptr<arrow::RecordBatch>* batch) override {
    batch->reset();
    if (next_ < file_->num_record_batches()) {
      ARROW_ASSIGN_OR_RAISE(*batch, file_->ReadRecordBatch(next_++));
    }
    return arrow::Status::OK();
  }

 private:
  const std::shared_ptr<arrow::ipc::RecordBatchFileReader> file_;
  int next_ = 0;
};

using ReaderResult = arrow::Result<std::shared_ptr<arrow::RecordBatchReader>>;

ReaderResult open_parquet(const std::shared_ptr<arrow::io::BufferReader>& input) {
  parquet::ArrowReaderProperties properties(/*use_threads=*/false);
  properties.set_batch_size(kBatchRows);
  properties.set_pre_buffer(false);
  parquet::arrow::FileReaderBuilder builder;
  ARROW_RETURN_NOT_OK(builder.Open(input, parquet::ReaderProperties(pool())));
  builder.properties(properties);
  builder.memory_pool(pool());
  std::unique_ptr<parquet::arrow::FileReader> file;
  ARROW_RETURN_NOT_OK(builder.Build(&file));
  ARROW_ASSIGN_OR_RAISE(auto batches, file->GetRecordBatchReader());
  // The batches need the file, which nothing else keeps.
  struct Both {
    std::unique_ptr<parquet::arrow::FileReader> file;
    std::unique_ptr<arrow::RecordBatchReader> batches;
  };
  auto both = std::make_shared<Both>();
  both->file = std::move(file);
  both->batches = std::move(batches);
  arrow::RecordBatchReader* reader = both->batches.get();
  return std::shared_ptr<arrow::RecordBatchReader>(std::move(both), reader);
}

ReaderResult open_ipc(const std::shared_ptr<arrow::io::BufferReader>& input, const char* data,
                      uint64_t size) {
  constexpr char kFileMagic[] = "ARROW1";
  auto options = arrow::ipc::IpcReadOptions::Defaults();
  options.memory_pool = pool();
  options.use_threads = false;
  if (size >= sizeof(kFileMagic) && std::memcmp(data, kFileMagic, sizeof(kFileMagic) - 1) == 0) {
    ARROW_ASSIGN_OR_RAISE(auto file, arrow::ipc::RecordBatchFileReader::Open(input, options));
    return std::make_shared<FileBatches>(std::move(file));
  }
  return arrow::ipc::RecordBatchStreamReader::Open(input, options);
}

arrow::Status open_stream(const void* data, uint64_t size, int kind, ArrowArrayStream* out) {
  auto input = std::make_shared<arrow::io::BufferReader>(std::make_shared<arrow::Buffer>(
      static_cast<const uint8_t*>(data), static_cast<int64_t>(size)));
  ARROW_ASSIGN_OR_RAISE(auto reader, kind == TROUPE_ARROW_PARQUET
                                         ? open_parquet(input)
                                         : open_ipc(input, static_cast<const char*>(data), size));
  return arrow::ExportRecordBatchReader(std::make_shared<CheckedReader>(std::move(reader)), out);
}

int open(const void* data, uint64_t size, int kind, ArrowArrayStream* out, char* reason,
         uint64_t reason_bytes) {
  std::string why;
  try {
    const arrow::Status status = open_stream(data, size, kind, out);
    if (status.ok()) return 0;
    why = status.ToString();
  } catch (const std::exception& failure) {
    why = failure.what();
  }
  const uint64_t kept = why.size() < reason_bytes ? why.size() : reason_bytes - 1;
  std::memcpy(reason, why.data(), kept);
  reason[kept] = 0;
  return 1;
}

constexpr TroupeArrowTable kTable = {TROUPE_ARROW_TABLE_VERSION, sizeof(TroupeArrowTable), &open};

}  // namespace

extern "C" __attribute__((visibility("default"))) const TroupeArrowTable* troupe_arrow_table(
    uint32_t version) {
  return version == TROUPE_ARROW_TABLE_VERSION ? &kTable : nullptr;
}
