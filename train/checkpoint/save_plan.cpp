#include "train/checkpoint/save_plan.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>

#include "runtime/base/json.h"
#include "runtime/base/suggest.h"
#include "train/checkpoint/checkpoint_names.h"
#include "train/checkpoint/safetensors.h"
#include "train/checkpoint/weight_shards.h"

namespace troupe::train {
namespace {

// More dimensions than any tensor has: a bound for what a peer says.
constexpr std::uint64_t kDimensionsMax = 64;

Result<std::int64_t> element_count(const PieceDescription& piece) {
  const auto bytes = tensor_bytes(piece.dtype, piece.shape);
  if (!bytes || *bytes > std::uint64_t{1} << 62) {
    return error(Code::kInvalidArgument, "'{}' has an impossible shape ({})", piece.name,
                 join_numbers(piece.shape));
  }
  return static_cast<std::int64_t>(*bytes / dtype_size(piece.dtype));
}

Result<PieceDescription> describe(const TensorPiece& piece, bool optimizer) {
  PieceDescription description{optimizer,   piece.name,  piece.dtype,
                               piece.shape, piece.begin, piece.end};
  const auto elements = TROUPE_TRY(element_count(description));
  if (piece.begin < 0 || piece.end < piece.begin || piece.end > elements) {
    return error(Code::kInvalidArgument, "'{}' has {} elements, its piece is said to be {} to {}",
                 piece.name, elements, piece.begin, piece.end);
  }
  const auto bytes = static_cast<std::uint64_t>(piece.end - piece.begin) * dtype_size(piece.dtype);
  if (piece.data.size() != bytes) {
    return error(Code::kInvalidArgument, "the piece {} to {} of '{}' has {} bytes instead of {}",
                 piece.begin, piece.end, piece.name, piece.data.size(), bytes);
  }
  return description;
}

std::uint64_t piece_bytes(const PieceDescription& piece) {
  return static_cast<std::uint64_t>(piece.end - piece.begin) * dtype_size(piece.dtype);
}

// --- for sending

class Encoder {
 public:
  void number(std::uint64_t value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void text(std::string_view value) {
    number(value.size());
    bytes_ += value;
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class Decoder {
 public:
  explicit Decoder(std::string_view bytes) : bytes_(bytes) {}
  std::uint64_t number() {
    std::uint64_t value = 0;
    if (bytes_.size() < sizeof value) {
      failed_ = true;
      return 0;
    }
    std::memcpy(&value, bytes_.data(), sizeof value);
    bytes_.remove_prefix(sizeof value);
    return value;
  }
  std::string text() {
    const auto size = number();
    if (failed_ || size > bytes_.size()) {
      failed_ = true;
      return {};
    }
    std::string value(bytes_.substr(0, size));
    bytes_.remove_prefix(size);
    return value;
  }
  bool failed() const { return failed_; }
  bool at_end() const { return bytes_.empty(); }

 private:
  std::string_view bytes_;
  bool failed_ = false;
};

// --- the plan

// A piece among those of all ranks.
struct Place {
  std::size_t rank = 0;
  std::size_t piece = 0;  // in the rank's list
  const PieceDescription* description = nullptr;
};

struct PlannedTensor {
  TensorInfo info;
  std::vector<Place> places;  // by begin, covering the tensor
};
using TensorMap = std::map<std::string, PlannedTensor>;

std::string shape_text(DType dtype, const std::vector<std::int64_t>& shape) {
  return fmt::format("{} ({})", dtype_name(dtype), join_numbers(shape));
}

Status check_covered(PlannedTensor& tensor) {
  std::sort(tensor.places.begin(), tensor.places.end(), [](const auto& a, const auto& b) {
    return a.description->begin < b.description->begin;
  });
  std::int64_t end = 0;
  std::size_t last = 0;
  const auto missing = [&](std::int64_t to) {
    return error(Code::kInvalidArgument, "elements {} to {} of '{}' are given by no rank", end, to,
                 tensor.info.name);
  };
  for (const auto& place : tensor.places) {
    const auto& piece = *place.description;
    if (piece.begin < end) {
      return error(Code::kInvalidArgument,
                   "elements {} to {} of '{}' are given by rank {} and by rank {}", piece.begin,
                   std::min(end, piece.end), piece.name, last, place.rank);
    }
    if (piece.begin > end) return missing(piece.begin);
    end = piece.end;
    last = place.rank;
  }
  return end == tensor.info.elements ? Status() : missing(tensor.info.elements);
}

Result<TensorMap> collect(const std::vector<RankPieces>& ranks, bool optimizer) {
  TensorMap tensors;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    for (std::size_t i = 0; i < ranks[rank].size(); ++i) {
      const auto& piece = ranks[rank][i];
      if (piece.optimizer != optimizer) continue;
      auto& tensor = tensors[piece.name];
      if (tensor.info.name.empty()) {
        tensor.info = {piece.name, piece.dtype, piece.shape, TROUPE_TRY(element_count(piece))};
      }
      if (tensor.info.dtype != piece.dtype || tensor.info.shape != piece.shape) {
        return error(Code::kInvalidArgument, "'{}' is {} on rank {} and {} elsewhere", piece.name,
                     shape_text(piece.dtype, piece.shape), rank,
                     shape_text(tensor.info.dtype, tensor.info.shape));
      }
      // An empty piece says only that the tensor exists.
      if (piece.begin < piece.end) tensor.places.push_back({rank, i, &piece});
    }
  }
  for (auto& [name, tensor] : tensors) TROUPE_RETURN_IF_ERROR(check_covered(tensor));
  return tensors;
}

// A slot's tensors are those of the weights: by its name a reader knows what a tensor is.
Status check_optimizer_names(const TensorMap& weights, const TensorMap& optimizer) {
  for (const auto& [name, tensor] : optimizer) {
    const std::size_t slot = slot_of(name).size();
    if (slot == name.size() || !weights.contains(name.substr(slot + 1)) || weights.contains(name)) {
      return error(Code::kInvalidArgument,
                   "'{}' is given as part of the optimizer state: names there are SLOT.NAME, with "
                   "the name of one of the weights, and no weight has them",
                   name);
    }
  }
  return {};
}

class Planner {
 public:
  Planner(const std::vector<RankPieces>& ranks, std::uint64_t shard_bytes_max)
      : ranks_(ranks), shard_bytes_max_(shard_bytes_max) {
    plan_.ranks.resize(ranks.size());
  }

  // Whole tensors in HF form, written by all ranks into the same files.
  Status add_hf_weights(const TensorMap& tensors) {
    std::vector<StoredTensor> stored;
    for (const auto& [name, tensor] : tensors) {
      stored.push_back({name, tensor.info.dtype, tensor.info.shape, {}});
    }
    auto shards = split_weights(std::move(stored), shard_bytes_max_);
    if (has_index(shards)) plan_.weight_index = weight_index_text(shards);
    for (auto& shard : shards) {
      std::vector<Place> places;
      TROUPE_RETURN_IF_ERROR(begin_file(shard.name, shard.tensors, {{"format", "pt"}}));
      for (const auto& tensor : shard.tensors) {
        const auto& of = tensors.at(tensor.name).places;
        places.insert(places.end(), of.begin(), of.end());
      }
      add_places(places);
    }
    return {};
  }

  // Each rank's pieces in a file of its own; ranks without any have none.
  Status add_rank_files(const TensorMap& tensors,
                        std::string (*name_of)(std::size_t index, std::size_t count)) {
    std::vector<std::vector<Place>> of_rank(ranks_.size());
    for (const auto& [name, tensor] : tensors) {
      for (const auto& place : tensor.places) of_rank[place.rank].push_back(place);
    }
    std::erase_if(of_rank, [](const auto& places) { return places.empty(); });
    for (std::size_t i = 0; i < of_rank.size(); ++i) {
      TROUPE_RETURN_IF_ERROR(add_rank_file(tensors, name_of(i, of_rank.size()), of_rank[i]));
    }
    return {};
  }

  SavePlan take() { return std::move(plan_); }

 private:
  // Starts a file with its header. Puts `tensors` into the order of their data.
  Status begin_file(const std::string& name, std::vector<StoredTensor>& tensors,
                    const Metadata& metadata) {
    PlannedFile file;
    file.name = name;
    file.header = TROUPE_TRY(make_safetensors_header(tensors, metadata, name));
    plan_.files.push_back(std::move(file));
    return {};
  }

  Status add_rank_file(const TensorMap& tensors, const std::string& name,
                       const std::vector<Place>& places) {
    // By tensor: its first piece here, and where the last ends.
    std::map<std::string, std::pair<std::int64_t, std::int64_t>> ranges;
    for (const auto& place : places) {
      const auto& piece = *place.description;
      const auto [it, added] = ranges.try_emplace(piece.name, piece.begin, piece.end);
      if (added) continue;
      if (it->second.second != piece.begin) {
        return error(Code::kInvalidArgument,
                     "rank {} gives elements {} to {} and {} to {} of '{}': what a rank gives of a "
                     "tensor must lie together",
                     place.rank, it->second.first, it->second.second, piece.begin, piece.end,
                     piece.name);
      }
      it->second.second = piece.end;
    }
    std::vector<StoredTensor> stored;
    std::map<std::string, std::int64_t> begins;
    json::Object sharding;
    for (const auto& [tensor_name, range] : ranges) {
      const auto& info = tensors.at(tensor_name).info;
      const bool whole = range.first == 0 && range.second == info.elements;
      json::Array offsets;
      if (whole) {
        stored.push_back({tensor_name, info.dtype, info.shape, {}});
        offsets.resize(info.shape.size(), 0);
      } else {
        stored.push_back({tensor_name, info.dtype, {range.second - range.first}, {}});
        offsets.push_back(range.first);
        begins.emplace(tensor_name, range.first);
        plan_.tensors.emplace(tensor_name, info);
      }
      sharding[tensor_name] = json::Object{{"saved_offsets", std::move(offsets)}};
    }
    TROUPE_RETURN_IF_ERROR(begin_file(
        name, stored,
        {{"format", "pt"}, {"DCP_VERSION", "1.0"}, {"DCP_SHARDING_INFO", json::write(sharding)}}));
    plan_.files.back().pieces = std::move(begins);
    std::vector<Place> ordered;
    for (const auto& tensor : stored) {
      std::copy_if(places.begin(), places.end(), std::back_inserter(ordered),
                   [&](const auto& place) { return place.description->name == tensor.name; });
    }
    add_places(ordered);
    return {};
  }

  // Lays out the file that was begun last: its header, then the pieces one behind the other.
  void add_places(const std::vector<Place>& places) {
    PlannedFile& file = plan_.files.back();
    std::uint64_t size = file.header.size();
    for (const auto& place : places) size += piece_bytes(*place.description);
    part_bytes_ = part_bytes(size);
    add_segment(places.empty() ? 0 : places.front().rank,
                {PlannedSegment::kHeader, 0, file.header.size()});
    for (const auto& place : places)
      add_segment(place.rank, {place.piece, 0, piece_bytes(*place.description)});
  }

  // Appends a rank's bytes to the last file, to its last part where that ends here.
  void add_segment(std::size_t rank, PlannedSegment segment) {
    const std::size_t index = plan_.files.size() - 1;
    PlannedFile& file = plan_.files[index];
    RankPlan& mine = plan_.ranks[rank];
    while (segment.size_bytes > 0) {
      const auto offset = file.size_bytes;
      const auto size = std::min(segment.size_bytes, part_bytes_ - offset % part_bytes_);
      const bool goes_on = !mine.parts.empty() && mine.parts.back().file == index &&
                           mine.parts.back().offset + mine.parts.back().size_bytes == offset &&
                           offset % part_bytes_ != 0;
      if (!goes_on) mine.parts.push_back({index, offset, 0, mine.segments.size(), 0});
      mine.parts.back().size_bytes += size;
      mine.parts.back().segment_count += 1;
      mine.segments.push_back({segment.piece, segment.offset, size});
      segment.offset += size;
      segment.size_bytes -= size;
      file.size_bytes += size;
    }
  }

  const std::vector<RankPieces>& ranks_;
  std::uint64_t shard_bytes_max_;
  std::uint64_t part_bytes_ = kPartBytesMax;  // of the last file
  SavePlan plan_;
};

}  // namespace

std::uint64_t part_bytes(std::uint64_t file_bytes) {
  return std::clamp(std::bit_ceil(file_bytes / 256), kPartBytesMin, kPartBytesMax);
}

std::uint64_t RankPlan::size_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& part : parts) bytes += part.size_bytes;
  return bytes;
}

Result<RankPieces> describe_pieces(std::span<const TensorPiece> weights,
                                   std::span<const TensorPiece> optimizer) {
  RankPieces pieces;
  for (const auto& piece : weights) pieces.push_back(TROUPE_TRY(describe(piece, false)));
  for (const auto& piece : optimizer) pieces.push_back(TROUPE_TRY(describe(piece, true)));
  return pieces;
}

std::string encode_pieces(const RankPieces& pieces) {
  Encoder encoder;
  encoder.number(pieces.size());
  for (const auto& piece : pieces) {
    encoder.number(piece.optimizer);
    encoder.text(piece.name);
    encoder.text(dtype_name(piece.dtype));
    encoder.number(piece.shape.size());
    for (const auto size : piece.shape) encoder.number(static_cast<std::uint64_t>(size));
    encoder.number(static_cast<std::uint64_t>(piece.begin));
    encoder.number(static_cast<std::uint64_t>(piece.end));
  }
  return encoder.take();
}

Result<RankPieces> decode_pieces(std::string_view bytes) {
  const auto unreadable = error(Code::kProtocol, "the list of pieces cannot be read");
  Decoder decoder(bytes);
  RankPieces pieces;
  const auto count = decoder.number();
  for (std::uint64_t i = 0; i < count && !decoder.failed(); ++i) {
    PieceDescription piece;
    piece.optimizer = decoder.number() != 0;
    piece.name = decoder.text();
    const auto dtype = dtype_from_name(decoder.text());
    const auto dimensions = decoder.number();
    if (!dtype || dimensions > kDimensionsMax) return unreadable;
    piece.dtype = *dtype;
    for (std::uint64_t d = 0; d < dimensions; ++d) {
      piece.shape.push_back(static_cast<std::int64_t>(decoder.number()));
    }
    piece.begin = static_cast<std::int64_t>(decoder.number());
    piece.end = static_cast<std::int64_t>(decoder.number());
    pieces.push_back(std::move(piece));
  }
  if (decoder.failed() || !decoder.at_end()) return unreadable;
  return pieces;
}

Result<SavePlan> make_save_plan(const std::vector<RankPieces>& ranks, CheckpointLayout layout,
                                std::uint64_t shard_bytes_max) {
  const auto weights = TROUPE_TRY(collect(ranks, false));
  const auto optimizer = TROUPE_TRY(collect(ranks, true));
  if (weights.empty()) return error(Code::kInvalidArgument, "no rank gives any weights");
  TROUPE_RETURN_IF_ERROR(check_optimizer_names(weights, optimizer));
  Planner planner(ranks, shard_bytes_max);
  TROUPE_RETURN_IF_ERROR(layout == CheckpointLayout::kHf
                             ? planner.add_hf_weights(weights)
                             : planner.add_rank_files(weights, weight_shard_name));
  TROUPE_RETURN_IF_ERROR(planner.add_rank_files(optimizer, optimizer_shard_name));
  return planner.take();
}

}  // namespace troupe::train
