#pragma once
// Reading ranges of tensors out of a checkpoint, whatever wrote it: HF form or shards by rank, of
// any world size, of another program.
//
//   auto reader = TensorReader::open(files, good_checkpoint);
//   reader->read("model.norm.weight", begin, std::span<float>(shard));
//
// Files are read, not mapped: beside the caller's memory it takes a few MiB.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/base/status.h"
#include "train/checkpoint/checkpoint_finder.h"
#include "train/checkpoint/tensor_piece.h"
#include "train/checkpoint/weights.h"

namespace troupe::train {

// Immutable; may be read from any thread.
class TensorReader {
 public:
  // A checkpoint that validate_checkpoint() accepted. Reads headers, not data. kDataLoss where the
  // pieces of a tensor overlap or do not cover it, naming tensor, elements and files.
  static Result<TensorReader> open(FileSystem& files, const GoodCheckpoint& checkpoint);
  // The weights of a model's directory; model.safetensors goes before shards, as in transformers.
  // Errors name the file and the tensor: kNotFound where there are no weights or a shard is
  // missing, kDataLoss where a file is cut off or the index and the shards disagree.
  static Result<TensorReader> open_model(FileSystem& files, const std::string& directory);

  TensorReader(TensorReader&&) noexcept;
  TensorReader& operator=(TensorReader&&) noexcept;
  ~TensorReader();

  // Sorted by name.
  const std::vector<TensorInfo>& weights() const;
  // SLOT.NAME; sorted by name; empty where there are none.
  const std::vector<TensorInfo>& optimizer() const;
  bool has_optimizer() const { return !optimizer().empty(); }
  // Of either; nullptr where there is none.
  const TensorInfo* find(std::string_view name) const;

  // Elements [begin, begin + out.size()) of a tensor's row-major order, converted from the stored
  // type. kNotFound for an unknown name; a range beyond the tensor is kInvalidArgument; kDataLoss
  // where the file is shorter than its header said.
  Status read(std::string_view name, std::int64_t begin, std::span<float> out) const;
  // The same as bfloat16 (bits): exact where it is stored so, else rounded to nearest even.
  Status read_bf16(std::string_view name, std::int64_t begin, std::span<std::uint16_t> out) const;
  // The same as it is stored: out.size() is a whole number of elements.
  Status read_bytes(std::string_view name, std::int64_t begin, std::span<std::byte> out) const;

 private:
  struct Contents;
  explicit TensorReader(std::unique_ptr<const Contents> contents);
  template <typename Take>
  Status for_each_range(std::string_view name, std::int64_t begin, std::size_t count,
                        Take take) const;
  template <typename T, typename Convert>
  Status read_converted(std::string_view name, std::int64_t begin, std::span<T> out,
                        Convert convert) const;
  std::unique_ptr<const Contents> contents_;
};

}  // namespace troupe::train
