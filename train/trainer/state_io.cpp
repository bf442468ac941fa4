#include "train/trainer/state_io.h"

#include <algorithm>
#include <array>

#include "runtime/base/check.h"
#include "runtime/base/hash.h"
#include "runtime/base/sort_by.h"
#include "train/checkpoint/checkpoint_finder.h"
#include "train/checkpoint/manifest.h"
#include "train/checkpoint/weights.h"
#include "train/model/initialize.h"
#include "train/model/model_family.h"
#include "train/sharding/tensor_ranges.h"
#include "train/tensor/convert.h"

namespace troupe::train {
namespace {

constexpr std::uint64_t kManifestBytesMax = 64u << 20;

// A region, its buffer, and the prefix of its tensors' names.
struct Part {
  Region region;
  std::span<std::byte> buffer;
  std::string prefix;
};

Part parameters_of(const StateBuffers& buffers) {
  return {buffers.parameters_region, buffers.parameters, ""};
}

std::vector<Part> slots_of(const StateBuffers& buffers) {
  std::vector<Part> parts;
  for (const SlotBuffer& slot : buffers.slots)
    parts.push_back({Region::kOptimizer, slot.data, optimizer_tensor_name(slot.name, "")});
  return parts;
}

// The manifest is read, not verified: rank 0 has verified the checkpoint before it was chosen.
Result<GoodCheckpoint> trusted_checkpoint(FileSystem& files, const StateSource& source) {
  GoodCheckpoint good{.path = source.path, .has_optimizer = source.optimizer, .foreign = true};
  const std::string path = join_path(source.path, kManifestFile);
  if (!files.exists(path)) return good;
  good.manifest = TROUPE_TRY(parse_manifest(TROUPE_TRY(files.read(path, kManifestBytesMax)), path));
  good.step = good.manifest.step;
  good.foreign = false;
  return good;
}

Result<TensorReader> open_source(FileSystem& files, const StateSource& source) {
  if (!source.checkpoint) return TensorReader::open_model(files, source.path);
  return TensorReader::open(files, TROUPE_TRY(trusted_checkpoint(files, source)));
}

// Reads tensors by the model's names, whichever of their names the files have.
class StateReader {
 public:
  static Result<StateReader> open(FileSystem& files, const StateSource& source,
                                  const ModelConfig& config, const ParameterLayout& layout) {
    StateReader reader(config, TROUPE_TRY(open_source(files, source)));
    std::vector<ExpectedTensor> expected;
    for (const auto& parameter : layout.parameters())
      expected.push_back({reader.stored_name(parameter.name), parameter.shape});
    TROUPE_RETURN_IF_ERROR(
        check_weights(reader.tensors_.weights(), expected,
                      [&](std::string_view name) { return ignored_in_weights(config, name); }));
    return reader;
  }

  Status read(const std::string& prefix, std::string_view name, std::int64_t begin,
              std::span<std::byte> out, DType dtype) const {
    const std::string stored = prefix.empty() ? stored_name(name) : prefix + std::string(name);
    if (dtype == DType::kBF16) {
      return tensors_.read_bf16(stored, begin,
                                {reinterpret_cast<std::uint16_t*>(out.data()), out.size() / 2});
    }
    return tensors_.read(stored, begin, {reinterpret_cast<float*>(out.data()), out.size() / 4});
  }

 private:
  StateReader(const ModelConfig& config, TensorReader tensors)
      : config_(&config), tensors_(std::move(tensors)) {}

  std::string stored_name(std::string_view name) const {
    if (!tensors_.find(name)) {
      const auto other = base_model_name(*config_, name);
      if (other && tensors_.find(*other)) return *other;
    }
    return std::string(name);
  }

  const ModelConfig* config_;
  TensorReader tensors_;
};

// Of a part's buffer.
std::span<std::byte> place_of(const Part& part, const TensorRange& range, std::size_t size) {
  return part.buffer.subspan(static_cast<std::size_t>(range.offset) * size,
                             static_cast<std::size_t>(range.end - range.begin) * size);
}

Status read_ranges(const StateReader& reader, const Part& part, const RankLayout& layout,
                   DType dtype, HostAccess& access) {
  const std::size_t size = dtype_size(dtype);
  TROUPE_RETURN_IF_ERROR(access.zero(part.buffer));
  for (const TensorRange& range : held_ranges(layout, part.region)) {
    TROUPE_RETURN_IF_ERROR(
        access.write(place_of(part, range, size), [&](std::size_t at, std::span<std::byte> out) {
          return reader.read(part.prefix, range.parameter->name,
                             range.begin + static_cast<std::int64_t>(at / size), out, dtype);
        }));
  }
  return {};
}

// Rank 0 reads tensor by tensor, everybody takes what it holds.
Status read_for_all(const StateReader* reader, const Part& part, const RankLayout& layout,
                    DType dtype, HostAccess& access, collective::Communicator& world) {
  const std::size_t size = dtype_size(dtype);
  TROUPE_RETURN_IF_ERROR(access.zero(part.buffer));
  const auto held = held_ranges(layout, part.region);
  auto mine = held.begin();
  std::vector<std::byte> whole;
  for (const ParameterInfo& parameter : layout.layout().parameters()) {
    whole.resize(static_cast<std::size_t>(parameter.elements) * size);
    if (reader) {
      TROUPE_RETURN_IF_ERROR(reader->read(part.prefix, parameter.name, 0, whole, dtype));
    }
    TROUPE_RETURN_IF_ERROR(world.broadcast(std::span(whole), 0));
    for (; mine != held.end() && mine->parameter == &parameter; ++mine) {
      const auto place = place_of(part, *mine, size);
      TROUPE_RETURN_IF_ERROR(
          access.write(place, std::span<const std::byte>(whole).subspan(
                                  static_cast<std::size_t>(mine->begin) * size, place.size())));
    }
  }
  return {};
}

// Some blocks of a file, evenly spread: other weights differ everywhere.
Status append_samples(FileSystem& files, const std::string& path, std::string& text) {
  constexpr std::uint64_t kBlock = 4096, kBlocks = 16;
  const auto file = TROUPE_TRY(files.open_readable(path));
  const std::uint64_t size = file->size();
  for (std::uint64_t i = 0; i < kBlocks && size > 0; ++i) {
    const std::uint64_t at = size > kBlock ? (size - kBlock) / (kBlocks - 1) * i : 0;
    std::string block(static_cast<std::size_t>(std::min(kBlock, size)), '\0');
    TROUPE_RETURN_IF_ERROR(file->read_at(at, std::as_writable_bytes(std::span(block))));
    text += block;
    if (size <= kBlock) break;
  }
  return {};
}

// What tells a source from another one at the same path of another machine: a checkpoint's marker,
// which has the run and the hashes of all files; else names, sizes and samples of the files.
Result<std::uint64_t> fingerprint(FileSystem& files, const std::string& path) {
  const std::string marker = join_path(path, kManifestFile);
  std::string text;
  if (files.exists(marker)) {
    text = TROUPE_TRY(files.read(marker, kManifestBytesMax));
  } else {
    auto entries = TROUPE_TRY(files.list(path));
    stable_sort_by(entries, [](const auto& a, const auto& b) { return a.name < b.name; });
    for (const auto& entry : entries) {
      if (!entry.name.ends_with(".safetensors") && !entry.name.ends_with(".json")) continue;
      text += fmt::format("{} {}\n", entry.name, entry.size_bytes);
      TROUPE_RETURN_IF_ERROR(append_samples(files, join_path(path, entry.name), text));
    }
  }
  return xxh3_64(std::as_bytes(std::span(text)));
}

// Whether all ranks have the source that rank 0 has.
Result<bool> all_see(FileSystem& files, const std::string& path, bool opened,
                     collective::Communicator& world) {
  const auto mine = fingerprint(files, path);
  std::int64_t leader = mine.ok() ? static_cast<std::int64_t>(*mine) : 0;
  TROUPE_RETURN_IF_ERROR(world.broadcast(std::span(&leader, 1), 0));
  std::int32_t everybody =
      opened && mine.ok() && static_cast<std::int64_t>(*mine) == leader ? 1 : 0;
  TROUPE_RETURN_IF_ERROR(world.all_reduce(std::span(&everybody, 1), collective::ReduceOp::kMin));
  return everybody == 1;
}

std::vector<TensorPiece> pieces_of(const RankLayout& layout, const Part& part, DType dtype) {
  const std::size_t size = dtype_size(dtype);
  std::vector<TensorPiece> pieces;
  for (const TensorRange& range : saved_ranges(layout, part.region)) {
    pieces.push_back({.name = part.prefix + range.parameter->name,
                      .dtype = dtype,
                      .shape = range.parameter->shape,
                      .begin = range.begin,
                      .end = range.end,
                      .data = place_of(part, range, size)});
  }
  return pieces;
}

}  // namespace

Status broadcast_text(collective::Communicator& world, std::string& text) {
  auto size = static_cast<std::int64_t>(text.size());
  TROUPE_RETURN_IF_ERROR(world.broadcast(std::span(&size, 1), 0));
  text.resize(static_cast<std::size_t>(size));
  if (text.empty()) return {};
  return world.broadcast(std::span(text.data(), text.size()), 0);
}

Status load_state(FileSystem& files, const StateSource& source, const ModelConfig& config,
                  const RankLayout& layout, const StateBuffers& buffers, HostAccess& access,
                  bool zeroed, collective::Communicator& world) {
  auto reader = StateReader::open(files, source, config, layout.layout());
  if (world.rank() == 0) TROUPE_RETURN_IF_ERROR(reader);
  const bool everybody_sees = TROUPE_TRY(all_see(files, source.path, reader.ok(), world));
  std::vector<Part> parts{parameters_of(buffers)};
  for (Part& slot : slots_of(buffers)) {
    if (source.optimizer)
      parts.push_back(std::move(slot));
    else if (!zeroed)
      TROUPE_RETURN_IF_ERROR(access.zero(slot.buffer));
  }
  for (const Part& part : parts) {
    if (everybody_sees) {
      TROUPE_RETURN_IF_ERROR(read_ranges(*reader, part, layout, buffers.state, access));
    } else {
      TROUPE_RETURN_IF_ERROR(read_for_all(world.rank() == 0 ? &*reader : nullptr, part, layout,
                                          buffers.state, access, world));
    }
  }
  return {};
}

Status read_model(FileSystem& files, const std::string& folder, const ModelConfig& config,
                  const ParameterLayout& layout, std::span<float> parameters) {
  const auto reader = TROUPE_TRY(StateReader::open(files, {.path = folder}, config, layout));
  for (const ParameterInfo& parameter : layout.parameters()) {
    TROUPE_RETURN_IF_ERROR(reader.read("", parameter.name, 0,
                                       std::as_writable_bytes(parameters.subspan(
                                           static_cast<std::size_t>(layout.flat_offset(parameter)),
                                           static_cast<std::size_t>(parameter.elements))),
                                       DType::kF32));
  }
  return {};
}

Status initialize_state(const ModelConfig& config, std::uint64_t seed, const RankLayout& layout,
                        const StateBuffers& buffers, HostAccess& access, bool zeroed,
                        Arena& arena) {
  // Equal shares of work: an element's value depends on its index alone.
  constexpr std::int64_t kShareElements = 1 << 16;
  if (!zeroed) {
    TROUPE_RETURN_IF_ERROR(access.zero(buffers.parameters));
    for (const SlotBuffer& slot : buffers.slots) TROUPE_RETURN_IF_ERROR(access.zero(slot.data));
  }
  const std::size_t size = dtype_size(buffers.state);
  // `count` elements of the parameter from `begin` on, in the state's type.
  const auto make = [&](const ParameterInfo& parameter, std::int64_t begin, std::size_t count,
                        std::span<std::byte> target) {
    if (buffers.state == DType::kF32) {
      initialize_parameter(parameter, config.initializer_range, seed, begin,
                           {reinterpret_cast<float*>(target.data()), count});
      return;
    }
    std::vector<float> values(count);
    initialize_parameter(parameter, config.initializer_range, seed, begin, values);
    const Status converted = convert_from_float(values, buffers.state, target);
    TROUPE_CHECK(converted.ok(), "{}", converted.to_string());
  };
  struct Share {
    const ParameterInfo* parameter;
    std::int64_t begin;
    std::span<std::byte> target;
  };
  std::vector<Share> shares;
  const auto add_shares = [&](const TensorRange& range, std::int64_t first,
                              std::span<std::byte> target) {
    const std::size_t share_bytes = kShareElements * size;
    for (std::size_t at = 0; at < target.size(); at += share_bytes)
      shares.push_back({range.parameter, first + static_cast<std::int64_t>(at / size),
                        target.subspan(at, std::min(share_bytes, target.size() - at))});
  };
  const auto make_shares = [&] {
    arena.parallel_for(std::ssize(shares), [&](std::int64_t number, int) {
      const Share& share = shares[static_cast<std::size_t>(number)];
      make(*share.parameter, share.begin, share.target.size() / size, share.target);
    });
    shares.clear();
  };
  const Part parameters = parameters_of(buffers);
  for (const TensorRange& range : held_ranges(layout, parameters.region)) {
    const auto place = place_of(parameters, range, size);
    if (access.in_place()) {
      add_shares(range, range.begin, place);
      continue;
    }
    TROUPE_RETURN_IF_ERROR(access.write(place, [&](std::size_t at, std::span<std::byte> out) {
      add_shares(range, range.begin + static_cast<std::int64_t>(at / size), out);
      make_shares();
      return Status();
    }));
  }
  make_shares();
  return {};
}

std::vector<TensorPiece> weight_pieces(const RankLayout& layout, const StateBuffers& buffers) {
  return pieces_of(layout, parameters_of(buffers), buffers.state);
}

std::vector<TensorPiece> optimizer_pieces(const RankLayout& layout, const StateBuffers& buffers) {
  std::vector<TensorPiece> pieces;
  for (const Part& slot : slots_of(buffers))
    for (TensorPiece& piece : pieces_of(layout, slot, buffers.state))
      pieces.push_back(std::move(piece));
  return pieces;
}

}  // namespace troupe::train
