#pragma once
// The safetensors container: reading (mapped, fully validated before anything is handed out) and
// writing (streaming, the same tensors always give the same bytes).
//
// Format: u64 little-endian N; N bytes of JSON that may be padded with white space; data.
// An entry is name: {"dtype", "shape", "data_offsets": [begin, end)} relative to the data's start;
// entries tile the data without hole or overlap. "__metadata__" maps strings to strings.
// Source: github.com/huggingface/safetensors (README, safetensors/src/tensor.rs); a file is
// accepted or refused as that implementation does.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/base/hash.h"
#include "runtime/base/status.h"
#include "train/tensor/dtype.h"

namespace troupe::train {

// A tensor's name, type and shape, and its bytes wherever they lie. The span is borrowed: of a
// mapped file when read, of the caller's memory when written.
struct StoredTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;  // empty: a scalar
  std::span<const std::byte> data;  // little-endian, row-major, dtype_size × product of shape

  std::int64_t element_count() const;
  // In fp32. kUnsupported for a type that is no floating-point number's.
  Result<std::vector<float>> floats() const;
};

// What is known of a written file: enough to notice any later damage.
struct FileDigest {
  std::string name;  // without the directory
  std::uint64_t size_bytes = 0;
  std::uint64_t xxh3 = 0;
};

using Metadata = std::map<std::string, std::string>;

// Bytes of `shape` in `dtype`; an error where a dimension is negative or the product overflows.
Result<std::uint64_t> tensor_bytes(DType dtype, std::span<const std::int64_t> shape);

// Where a tensor lies in a file.
struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0, end = 0;  // bytes, from the file's beginning
};

// A file's header, validated against the file's size.
struct SafetensorsHeader {
  std::vector<SafetensorsEntry> tensors;  // sorted by name
  Metadata metadata;
  std::uint64_t data_begin = 0;

  // Errors as SafetensorsFile::open.
  static Result<SafetensorsHeader> read(ReadableFile& file, const std::string& path);
  // The entry, or nullptr.
  const SafetensorsEntry* find(std::string_view name) const;
};

// What stands before the data of a file that holds `tensors`, whose data is not looked at: length
// and header. Puts them into the order in which their data must follow: wide types first (so that
// every tensor is aligned), then by name, as the reference implementation does. kInvalidArgument,
// naming `path`, for a name that stands twice or "__metadata__", or where it gets too long.
Result<std::string> make_safetensors_header(std::vector<StoredTensor>& tensors,
                                            const Metadata& metadata, const std::string& path);

// An opened file. Immutable, may be read from any thread; keeps its mapping, and so the spans of
// its tensors, alive.
class SafetensorsFile {
 public:
  // Maps and validates. kDataLoss where the file is shorter or longer than its header says (the
  // first tensor that is cut off is named); kInvalidArgument for any other fault of the header;
  // kUnsupported for a type that Troupe does not know. All name `path`.
  static Result<SafetensorsFile> open(FileSystem& files, const std::string& path);
  // The same for bytes in memory, which must outlive the object.
  static Result<SafetensorsFile> parse(std::span<const std::byte> bytes, std::string path);

  // Sorted by name.
  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  // The tensor, or nullptr.
  const StoredTensor* find(std::string_view name) const;
  const Metadata& metadata() const { return metadata_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::shared_ptr<MappedFile> mapping_;
  std::vector<StoredTensor> tensors_;
  Metadata metadata_;
};

// Writes one file: declare the tensors, then append their bytes in order(). Not thread-safe.
class SafetensorsWriter {
 public:
  // Writes the header to `path`. Of `tensors` only name, dtype and shape count; the data may come
  // later, in pieces. kInvalidArgument for a name that stands twice or "__metadata__".
  static Result<SafetensorsWriter> create(FileSystem& files, const std::string& path,
                                          std::vector<StoredTensor> tensors,
                                          const Metadata& metadata);

  // In which the data must be appended, see make_safetensors_header. With one type it is the order
  // of names.
  const std::vector<StoredTensor>& order() const { return tensors_; }
  // The next bytes of the data: any pieces.
  Status append(std::span<const std::byte> data);
  // Syncs and closes. A failed check if what was appended is not exactly what was declared.
  Result<FileDigest> finish();

 private:
  std::unique_ptr<WritableFile> file_;
  std::string path_;
  std::vector<StoredTensor> tensors_;
  std::unique_ptr<Xxh3Stream> hash_;
  std::uint64_t size_bytes_ = 0;
  std::uint64_t expected_bytes_ = 0;
};

// create, append of every tensor's data, finish. The file is synced; its name in the directory is
// not, and a failure may leave part of a file: callers write under a temporary name.
Result<FileDigest> write_safetensors(FileSystem& files, const std::string& path,
                                     const std::vector<StoredTensor>& tensors,
                                     const Metadata& metadata);

}  // namespace troupe::train
