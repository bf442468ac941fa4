#pragma once
// Which bytes of which files each rank writes: worked out on every rank alike from what all of them
// hold. Private to this folder.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "train/checkpoint/checkpoint_layout.h"
#include "train/checkpoint/tensor_piece.h"

namespace troupe::train {

// A rank's pieces, without their bytes.
struct PieceDescription {
  bool optimizer = false;  // of optimizer state, not of weights
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};
using RankPieces = std::vector<PieceDescription>;

// Weights, then optimizer state, in the order given. kInvalidArgument for a piece that is wrong in
// itself: a range outside of the tensor, another number of bytes than the range has, a name of the
// other kind.
Result<RankPieces> describe_pieces(std::span<const TensorPiece> weights,
                                   std::span<const TensorPiece> optimizer);

// For sending. The inverse refuses what it cannot read (kProtocol).
std::string encode_pieces(const RankPieces& pieces);
Result<RankPieces> decode_pieces(std::string_view bytes);

// Bytes of one source.
struct PlannedSegment {
  static constexpr std::size_t kHeader = ~std::size_t{0};
  std::size_t piece = kHeader;  // index into the rank's pieces; kHeader: the file's header
  std::uint64_t offset = 0;     // within the source
  std::uint64_t size_bytes = 0;
};

// A range of a file that one rank writes and that has a hash of its own.
struct PlannedPart {
  std::size_t file = 0;
  std::uint64_t offset = 0;
  std::uint64_t size_bytes = 0;
  std::size_t first_segment = 0;
  std::size_t segment_count = 0;
};

struct RankPlan {
  std::vector<PlannedPart> parts;  // by file, then by offset
  std::vector<PlannedSegment> segments;
  std::uint64_t size_bytes() const;
};

struct PlannedFile {
  std::string name;
  std::uint64_t size_bytes = 0;
  std::string header;                          // its first bytes
  std::map<std::string, std::int64_t> pieces;  // as ManifestFile::pieces
};

struct SavePlan {
  std::vector<PlannedFile> files;
  std::vector<RankPlan> ranks;
  std::map<std::string, TensorInfo> tensors;  // as Manifest::tensors
  std::string weight_index;                   // model.safetensors.index.json; empty where none
};

// A file's parts are cut at multiples of this offset, so that damage is found in parallel and told
// closely: a power of two that makes about 200 of a file, within bounds. Smaller ones would cost
// more system calls than they tell, larger ones would leave verifying to few threads.
std::uint64_t part_bytes(std::uint64_t file_bytes);
inline constexpr std::uint64_t kPartBytesMin = 4u << 10;
inline constexpr std::uint64_t kPartBytesMax = 64u << 20;

// kInvalidArgument, naming ranks, tensor and elements, where the pieces of all ranks do not give
// every element of every tensor exactly once, or disagree on a tensor's type or shape.
Result<SavePlan> make_save_plan(const std::vector<RankPieces>& ranks, CheckpointLayout layout,
                                std::uint64_t shard_bytes_max);

}  // namespace troupe::train
