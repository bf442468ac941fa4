#include "train/trainer/state_io.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "runtime/base/check.h"
#include "runtime/base/hash.h"
#include "runtime/base/sort_by.h"
#include "train/adapters/adapter_merge.h"
#include "train/checkpoint/checkpoint_finder.h"
#include "train/checkpoint/manifest.h"
#include "train/checkpoint/quantized_weights.h"
#include "train/checkpoint/weights.h"
#include "train/model/adapter_tensors.h"
#include "train/model/initialize.h"
#include "train/model/model_family.h"
#include "train/sharding/tensor_ranges.h"
#include "train/tensor/convert.h"
#include "train/trainer/stored_name.h"

namespace troupe::train {
namespace {

// Of a list of tensors that do not fit: its beginning says what is wrong.
constexpr std::size_t kMismatchBytesMax = 400;

bool is_of_value_head(std::string_view name) { return name.starts_with(kValueHeadPrefix); }

// The name that a trained tensor has in PEFT's files; a value head lies beside them.
std::string adapter_file_name(std::string_view name) {
  return is_of_value_head(name) ? std::string(name)
                                : std::string(kAdapterPrefix) + std::string(name);
}

// A region, its buffer, and the prefix of its tensors' names.
struct Part {
  Region region;
  std::span<std::byte> buffer;
  std::string prefix;
  const SlotBuffer* slot = nullptr;  // that it is, where that has a place of its own
  SlotUse use = {};                  // of slots that parameters have in turn

  // What the slot holds of a tensor.
  std::optional<StoredSlot> held(const ParameterInfo& parameter) const {
    return slot->place->is_used(parameter.group.treatment, use) ? slot->place->stored(parameter)
                                                                : std::nullopt;
  }
};

Part parameters_of(const StateBuffers& buffers) {
  return {buffers.parameters_region, buffers.parameters, ""};
}
Part frozen_of(const StateBuffers& buffers) { return {Region::kParameters, buffers.frozen, ""}; }

// After so many updates of them.
std::vector<Part> slots_of(const StateBuffers& buffers, std::int64_t updates) {
  std::vector<Part> parts;
  for (const SlotBuffer& slot : buffers.slots)
    parts.push_back({Region::kOptimizer, slot.data, optimizer_tensor_name(slot.name, ""),
                     slot.place ? &slot : nullptr, SlotUse::in(updates)});
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
  // `expected`: of a model, or of the adapters that a checkpoint holds.
  static Result<StateReader> open(FileSystem& files, const StateSource& source,
                                  const ModelConfig& config,
                                  std::span<const ParameterInfo* const> expected,
                                  bool unties_head = false, bool passes_over_others = false) {
    StateReader reader(config, TROUPE_TRY(open_source(files, source)));
    reader.unties_head_ = unties_head;
    reader.quantized_ = TROUPE_TRY(QuantizedWeights::find(reader.tensors_));
    std::vector<ExpectedTensor> tensors;
    for (const ParameterInfo* parameter : expected)
      tensors.push_back({reader.stored_name(parameter->name), parameter->shape});
    TROUPE_RETURN_IF_ERROR(
        check_weights(reader.quantized_.weights(), tensors, [&](std::string_view name) {
          return passes_over_others || ignored_in_weights(config, name);
        }));
    return reader;
  }

  Status read(const std::string& prefix, std::string_view name, std::int64_t begin,
              std::span<std::byte> out, DType dtype) const {
    const std::string stored = prefix + stored_name(name);
    if (dtype == DType::kU8) {
      const TensorInfo* info = tensors_.find(stored);
      if (!info || info->dtype != dtype)
        return error(Code::kDataLoss, "{} is not kept in bytes there", stored);
      return tensors_.read_bytes(stored, begin, out);
    }
    if (const StoredMatrix* matrix = quantized_.matrix(stored)) {
      TROUPE_RETURN_IF_ERROR(hold(stored));
      std::vector<float> values(out.size() / dtype_size(dtype));
      TROUPE_RETURN_IF_ERROR(QuantizedWeights::values(*matrix, held_bytes_, begin, values));
      return convert_from_float(values, dtype, out);
    }
    if (dtype == DType::kBF16) {
      return tensors_.read_bf16(stored, begin,
                                {reinterpret_cast<std::uint16_t*>(out.data()), out.size() / 2});
    }
    return tensors_.read(stored, begin, {reinterpret_cast<float*>(out.data()), out.size() / 4});
  }

  // The bytes of a tensor that the files hold quantised as `wanted`, until the next call; empty
  // where they hold its values.
  Result<std::span<const std::byte>> quantized(const ParameterInfo& wanted) const {
    const std::string stored = stored_name(wanted.name);
    const StoredMatrix* matrix = quantized_.matrix(stored);
    if (!matrix) return std::span<const std::byte>();
    if (matrix->quantization != wanted.quantization)
      return error(Code::kInvalidArgument,
                   "{} is kept in another form than the quantization_config of config.json says",
                   stored);
    TROUPE_RETURN_IF_ERROR(hold(stored));
    return std::span<const std::byte>(held_bytes_);
  }

 private:
  // Reads a quantised tensor as a whole, for all its ranges.
  Status hold(const std::string& stored) const {
    if (held_ == stored) return {};
    held_.clear();
    held_bytes_ = TROUPE_TRY(quantized_.read(tensors_, stored));
    held_ = stored;
    return {};
  }

  StateReader(const ModelConfig& config, TensorReader tensors)
      : config_(&config), tensors_(std::move(tensors)) {}

  std::string stored_name(std::string_view name) const {
    std::string of_adapter = adapter_file_name(name);
    if (!tensors_.find(name) && tensors_.find(of_adapter)) return of_adapter;
    return train::stored_name(tensors_, *config_, name, unties_head_);
  }

  const ModelConfig* config_;
  TensorReader tensors_;
  QuantizedWeights quantized_;
  bool unties_head_ = false;  // the files' model has its head tied to the embedding
  mutable std::string held_;
  mutable std::vector<std::byte> held_bytes_;
};

bool is_of_reference(std::string_view name) { return name.starts_with(kReferencePrefix); }

// The tensor that a reference has a copy of.
ParameterInfo copied_by(ParameterInfo copy) {
  copy.name.erase(0, kReferencePrefix.size());
  return copy;
}

// The tensors that the files of a model's folder hold: all but those of adapters, a reference's
// copies, and a value head, which may be there.
std::vector<const ParameterInfo*> of_model(const ModelLayout& model) {
  std::vector<const ParameterInfo*> tensors;
  for (const ParameterLayout* layout : {&model.trained(), &model.frozen()})
    for (const ParameterInfo& parameter : layout->parameters())
      if (!is_adapter_tensor(parameter.name) && !is_of_reference(parameter.name) &&
          !is_of_value_head(parameter.name))
        tensors.push_back(&parameter);
  return tensors;
}

std::vector<const ParameterInfo*> all_but_value_head(const ParameterLayout& layout) {
  std::vector<const ParameterInfo*> tensors;
  for (const ParameterInfo& parameter : layout.parameters())
    if (!is_of_value_head(parameter.name)) tensors.push_back(&parameter);
  return tensors;
}

std::vector<const ParameterInfo*> value_head_of(const ParameterLayout& layout) {
  std::vector<const ParameterInfo*> tensors;
  for (const ParameterInfo& parameter : layout.parameters())
    if (is_of_value_head(parameter.name)) tensors.push_back(&parameter);
  return tensors;
}

// Elements [begin, …) of a DoRA adapter's magnitudes as they begin: the norms of an output's row of
// W + scale·B·A each; `adapter`: null where B·A is zero. read(parameter, begin, values) gives
// elements of any of the three.
struct InitialAdapter {
  const ParameterInfo &a, &b;
  double scale;
};
template <typename Read>
Status initial_magnitudes(const ParameterInfo& weight, bool transposed,
                          const InitialAdapter* adapter, std::int64_t begin, std::span<float> out,
                          const Read& read) {
  const std::int64_t outputs = weight.shape[transposed ? 1 : 0];
  const std::int64_t inputs = weight.shape[transposed ? 0 : 1];
  // Rows that lie side by side are read alone.
  const std::int64_t first = transposed ? 0 : begin;
  const std::int64_t rows = transposed ? outputs : std::ssize(out);
  const std::int64_t rank = adapter ? adapter->a.shape[0] : 1;
  std::vector<float> w(static_cast<std::size_t>(rows * inputs)),
      a(static_cast<std::size_t>(rank * inputs)), b(static_cast<std::size_t>(rows * rank));
  TROUPE_RETURN_IF_ERROR(read(weight, first * inputs, std::span(w)));
  if (adapter) {
    TROUPE_RETURN_IF_ERROR(read(adapter->a, 0, std::span(a)));
    TROUPE_RETURN_IF_ERROR(read(adapter->b, first * rank, std::span(b)));
  }
  const std::vector<float> norms = adapted_row_norms(w, {.rank = rank,
                                                         .in = inputs,
                                                         .out = rows,
                                                         .scale = adapter ? adapter->scale : 0,
                                                         .a = a,
                                                         .b = b,
                                                         .magnitude = {},
                                                         .transposed = transposed});
  if (const auto zero = std::ranges::find(norms, 0.0f); zero != norms.end())
    return error(
        Code::kInvalidArgument,
        "{}: output {} has weights of zero alone, which no magnitude (use_dora) can scale: "
        "leave the module out of lora_target, or use_dora out",
        weight.name, first + (zero - norms.begin()));
  std::ranges::copy(std::span(norms).subspan(static_cast<std::size_t>(begin - first), out.size()),
                    out.begin());
  return {};
}

// The module whose magnitudes a parameter is; nothing: it is none.
std::optional<std::string> module_of_magnitudes(std::string_view name) {
  const std::string suffix = lora_magnitude_name("");
  if (!name.ends_with(suffix)) return std::nullopt;
  return std::string(name.substr(0, name.size() - suffix.size()));
}

// Columns as rows: of a matrix of `width` columns.
void turn(std::vector<float>& values, std::int64_t width) {
  const auto columns = static_cast<std::size_t>(width), rows = values.size() / columns;
  std::vector<float> turned(values.size());
  for (std::size_t row = 0; row < rows; ++row)
    for (std::size_t column = 0; column < columns; ++column)
      turned[column * rows + row] = values[row * columns + column];
  values = std::move(turned);
}

// A weight's bytes as it is kept, of its values.
void quantize_weight(const ParameterInfo& weight, std::vector<float>& values,
                     std::vector<std::byte>& bytes) {
  if (weight.turns) turn(values, weight.shape[1]);
  const std::int64_t width = weight.quantized_width();
  bytes.resize(QuantizedParts(weight.quantization, std::ssize(values) / width, width).bytes);
  quantize(values, width, weight.quantization, bytes);
}

// The frozen parameters that a rank holds, in memory.
struct FrozenInMemory {
  const RankLayout* layout = nullptr;  // null: they are not there
  std::span<const std::byte> bytes;
  std::size_t element_bytes = 0;

  // Where a quantised weight lies; null: not here, or not all of it.
  const std::byte* find(const ParameterInfo& weight) const {
    if (!layout) return nullptr;
    for (const TensorRange& range : held_ranges(*layout, Region::kParameters))
      if (range.parameter->name == weight.name && range.begin == 0 && range.end == weight.elements)
        return bytes.data() + static_cast<std::size_t>(range.offset) * element_bytes;
    return nullptr;
  }
};

// What a state's trained tensors are read from: a checkpoint; or a model's folder, an adapter's for
// what that does not hold, and initial values for what neither does.
class TrainedSource {
 public:
  static Result<TrainedSource> open(FileSystem& files, const StateSource& source,
                                    const ModelConfig& config, const ModelLayout& model,
                                    std::uint64_t seed, const FrozenInMemory& frozen = {}) {
    TrainedSource opened(config, model, seed);
    opened.frozen_ = frozen;
    if (!source.checkpoint) opened.base_ = source.base;
    const bool adapters_alone = source.checkpoint && model.trainables().adapters_only();
    auto expected = adapters_alone ? all_but_value_head(model.trained()) : of_model(model);
    const auto value_head = value_head_of(model.trained());
    if (source.checkpoint) expected.insert(expected.end(), value_head.begin(), value_head.end());
    if (opened.base_)
      TROUPE_RETURN_IF_ERROR(opened.base_->open());
    else
      opened.state_.emplace(TROUPE_TRY(StateReader::open(
          files, source, config, expected, model.trainables().unties_head && !adapters_alone)));
    opened.holds_adapters_ = source.checkpoint;
    if (!source.checkpoint && !source.adapter.empty()) {
      opened.adapter_.emplace(
          TROUPE_TRY(StateReader::open(files,
                                       {.path = source.adapter,
                                        .checkpoint = false,
                                        .optimizer = false,
                                        .adapter = {},
                                        .base = nullptr},
                                       config, all_but_value_head(model.trained()), false, true)));
    }
    // A reward model goes on with the head of the adapter, else of the model.
    if (!value_head.empty() && !source.checkpoint) {
      for (const std::string& folder : {source.adapter, source.path}) {
        if (folder.empty() || !files.exists(join_path(folder, kValueHeadFile))) continue;
        opened.value_head_.emplace(TROUPE_TRY(StateReader::open(files, StateSource{.path = folder},
                                                                config, value_head, false, true)));
        break;
      }
    }
    return opened;
  }

  Status read(const std::string& prefix, const ParameterInfo& parameter, std::int64_t begin,
              std::span<std::byte> out, DType dtype) const {
    if (is_of_value_head(parameter.name) && !holds_adapters_) {
      if (value_head_) return value_head_->read(prefix, parameter.name, begin, out, dtype);
      std::vector<float> values(out.size() / dtype_size(dtype));
      initialize_parameter(parameter, config_->initializer_range, seed_, begin, values);
      return convert_from_float(values, dtype, out);
    }
    if (adapter_ && prefix.empty())
      return adapter_->read(prefix, parameter.name, begin, out, dtype);
    const auto magnitudes = module_of_magnitudes(parameter.name);
    if (base_ && !magnitudes && (base_->starts_adapters() || !is_adapter_tensor(parameter.name)))
      return base_->read(parameter, begin, out, dtype);
    if (holds_adapters_ || !is_adapter_tensor(parameter.name))
      return state_->read(prefix, parameter.name, begin, out, dtype);
    std::vector<float> values(out.size() / dtype_size(dtype));
    if (magnitudes) {
      const InitialAdapter adapter{*model_->find(lora_a_name(*magnitudes)),
                                   *model_->find(lora_b_name(*magnitudes)),
                                   model_->adapter(*magnitudes)->scale};
      TROUPE_RETURN_IF_ERROR(initial_magnitudes(
          *model_->find(*magnitudes + ".weight"), config_->transposed_weights,
          base_ && base_->starts_adapters() ? &adapter : nullptr, begin, values,
          [&](const ParameterInfo& of, std::int64_t first, std::span<float> elements) {
            if (of.quantization) return read_as_kept(of, first, elements);
            return read("", of, first, std::as_writable_bytes(elements), DType::kF32);
          }));
    } else {
      initialize_parameter(parameter, config_->initializer_range, seed_, begin, values);
    }
    return convert_from_float(values, dtype, out);
  }

 private:
  TrainedSource(const ModelConfig& config, const ModelLayout& model, std::uint64_t seed)
      : config_(&config), model_(&model), seed_(seed) {}

  // Elements of a weight that is kept quantised, as its codes have them: adapters are beside those.
  Status read_as_kept(const ParameterInfo& weight, std::int64_t begin, std::span<float> out) const {
    if (!TROUPE_TRY(state_->quantized(weight)).empty())
      return read("", weight, begin, std::as_writable_bytes(out), DType::kF32);
    std::vector<float> values(static_cast<std::size_t>(weight.values()));
    std::vector<std::byte> made;
    const std::byte* bytes = frozen_.find(weight);
    if (!bytes) {
      TROUPE_RETURN_IF_ERROR(read("", weight, std::int64_t{0},
                                  std::as_writable_bytes(std::span(values)), DType::kF32));
      quantize_weight(weight, values, made);
      bytes = made.data();
    }
    const std::int64_t width = weight.quantized_width();
    dequantize({weight.quantization, bytes, weight.values() / width, width}, 0, std::span(values));
    if (weight.turns) turn(values, weight.shape[0]);
    std::ranges::copy(std::span(values).subspan(static_cast<std::size_t>(begin), out.size()),
                      out.begin());
    return {};
  }

  const ModelConfig* config_;
  const ModelLayout* model_;
  std::uint64_t seed_;
  std::optional<StateReader> state_, adapter_, value_head_;
  DerivedBase* base_ = nullptr;  // in place of `state_`
  FrozenInMemory frozen_;
  bool holds_adapters_ = false;
};

// Reads, by `read`, what is kept quantised, too: such a tensor as a whole, whose bytes are there
// for its other ranges then. What `files` hold quantised is taken as it is; null: they hold nothing
// so.
template <typename Read>
class QuantizingReader {
 public:
  QuantizingReader(const Read& read, const StateReader* files) : read_(read), files_(files) {}

  Status operator()(const std::string& prefix, const ParameterInfo& parameter, std::int64_t begin,
                    std::span<std::byte> out, DType dtype) const {
    if (!parameter.quantization) return read_(prefix, parameter, begin, out, dtype);
    if (held_ != &parameter) {
      TROUPE_RETURN_IF_ERROR(take(prefix, parameter));
      held_ = &parameter;
    }
    std::ranges::copy(
        std::span(bytes_).subspan(static_cast<std::size_t>(begin) * dtype_size(dtype), out.size()),
        out.begin());
    return {};
  }

 private:
  Status take(const std::string& prefix, const ParameterInfo& parameter) const {
    if (files_) {
      const auto bytes = TROUPE_TRY(files_->quantized(parameter));
      if (!bytes.empty()) {
        bytes_.assign(bytes.begin(), bytes.end());
        return {};
      }
    }
    // From what the files hold, whatever the rest is kept in.
    std::vector<float> values(static_cast<std::size_t>(parameter.values()));
    TROUPE_RETURN_IF_ERROR(read_(prefix, parameter, std::int64_t{0},
                                 std::as_writable_bytes(std::span(values)), DType::kF32));
    // No code stands for what is no number: the nearest one would hide it.
    if (!std::ranges::all_of(values, [](float value) { return std::isfinite(value); }))
      return error(Code::kDataLoss,
                   "{} has values that are not finite, which cannot be kept in {} bits",
                   parameter.name, parameter.quantization.bits());
    quantize_weight(parameter, values, bytes_);
    return {};
  }

  const Read& read_;
  const StateReader* files_;
  mutable const ParameterInfo* held_ = nullptr;
  mutable std::vector<std::byte> bytes_;
};

// Of a part's buffer.
std::span<std::byte> place_of(const Part& part, const TensorRange& range, std::size_t size) {
  return part.buffer.subspan(static_cast<std::size_t>(range.offset) * size,
                             static_cast<std::size_t>(range.end - range.begin) * size);
}

// What a part holds of a tensor, or of a range of it.
struct Stored {
  DType dtype;
  std::vector<std::int64_t> shape;  // of what it holds of all of the tensor
  std::int64_t begin = 0;           // in that
  std::span<std::byte> place;

  std::size_t whole_bytes() const {
    std::size_t bytes = dtype_size(dtype);
    for (const std::int64_t size : shape) bytes *= static_cast<std::size_t>(size);
    return bytes;
  }
};
// Of all of a tensor, without a place; nothing where the part holds nothing of it.
std::optional<Stored> stored_shape(const Part& part, const ParameterInfo& parameter, DType dtype) {
  if (!part.slot)
    return Stored{
        dtype, parameter.quantization ? std::vector{parameter.elements} : parameter.shape, 0, {}};
  const auto held = part.held(parameter);
  if (!held) return std::nullopt;
  return Stored{held->dtype, held->shape, 0, {}};
}
// Of a range of it: of what is kept by tensor all, with the tensor's first element.
std::optional<Stored> stored_of(const Part& part, const TensorRange& range, DType dtype) {
  auto whole = stored_shape(part, *range.parameter, dtype);
  if (!whole) return std::nullopt;
  Stored& stored = *whole;
  if (!part.slot) {
    stored.begin = range.begin;
    stored.place = place_of(part, range, dtype_size(dtype));
    return whole;
  }
  const std::int64_t each = part.held(*range.parameter)->elements_each;
  if (each == 0 && range.begin > 0) return std::nullopt;
  std::size_t bytes = stored.whole_bytes();
  if (each > 0) {
    stored.begin = range.begin / each;
    bytes = static_cast<std::size_t>((range.end + each - 1) / each - stored.begin) *
            dtype_size(stored.dtype);
  }
  stored.place = part.buffer.subspan(part.slot->place->position(range.offset), bytes);
  return whole;
}

template <typename Read>
Status read_ranges(const Read& read, const Part& part, const RankLayout& layout, DType dtype,
                   HostAccess& access) {
  TROUPE_RETURN_IF_ERROR(access.zero(part.buffer));
  for (const TensorRange& range : held_ranges(layout, part.region)) {
    const auto stored = stored_of(part, range, dtype);
    if (!stored) continue;
    const std::size_t size = dtype_size(stored->dtype);
    TROUPE_RETURN_IF_ERROR(
        access.write(stored->place, [&](std::size_t at, std::span<std::byte> out) {
          return read(part.prefix, *range.parameter,
                      stored->begin + static_cast<std::int64_t>(at / size), out, stored->dtype);
        }));
  }
  return {};
}

// Rank 0 reads tensor by tensor, everybody takes what it holds.
template <typename Read>
Status read_for_all(const Read& read, const Part& part, const RankLayout& layout, DType dtype,
                    HostAccess& access, collective::Communicator& world) {
  TROUPE_RETURN_IF_ERROR(access.zero(part.buffer));
  const auto held = held_ranges(layout, part.region);
  auto mine = held.begin();
  std::vector<std::byte> whole;
  for (const ParameterInfo& parameter : layout.layout().parameters()) {
    const auto all = stored_shape(part, parameter, dtype);
    if (all) {
      whole.resize(all->whole_bytes());
      if (world.rank() == 0)
        TROUPE_RETURN_IF_ERROR(
            read(part.prefix, parameter, std::int64_t{0}, std::span(whole), all->dtype));
      TROUPE_RETURN_IF_ERROR(world.broadcast(std::span(whole), 0));
    }
    for (; mine != held.end() && mine->parameter == &parameter; ++mine) {
      const auto stored = stored_of(part, *mine, dtype);
      if (!stored) continue;
      TROUPE_RETURN_IF_ERROR(access.write(
          stored->place, std::span<const std::byte>(whole).subspan(
                             static_cast<std::size_t>(stored->begin) * dtype_size(stored->dtype),
                             stored->place.size())));
    }
  }
  return {};
}

template <typename Read>
Status read_part(const Read& read, const Part& part, const RankLayout& layout, DType dtype,
                 HostAccess& access, bool everybody_sees, collective::Communicator& world) {
  return everybody_sees ? read_ranges(read, part, layout, dtype, access)
                        : read_for_all(read, part, layout, dtype, access, world);
}

// Hashes of blocks of a file, evenly spread, so many that no layer of a large model lies between
// two of them: a copy of which a part was not written, or was trained on, is told from the others.
// Hashes of all bytes would have every rank read the files twice.
Status append_samples(FileSystem& files, const std::string& path, std::string& text) {
  constexpr std::uint64_t kBlock = 4096, kApart = 1 << 20, kBlocksMin = 16, kBlocksMax = 1 << 14;
  const auto file = TROUPE_TRY(files.open_readable(path));
  const std::uint64_t size = file->size();
  const std::uint64_t blocks = std::clamp(size / kApart, kBlocksMin, kBlocksMax);
  std::array<std::byte, kBlock> block{};
  for (std::uint64_t i = 0; i < blocks && size > 0; ++i) {
    const std::uint64_t at = size > kBlock ? (size - kBlock) / (blocks - 1) * i : 0;
    const auto read = std::span(block).first(static_cast<std::size_t>(std::min(kBlock, size)));
    TROUPE_RETURN_IF_ERROR(file->read_at(at, read));
    text += fmt::format("{:016x}", xxh3_64(read));
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

Status initialize_part(const ModelConfig& config, std::uint64_t seed, const RankLayout& layout,
                       const Part& part, DType type, HostAccess& access, Arena& arena) {
  // Equal shares of work: an element's value depends on its index alone.
  constexpr std::int64_t kShareElements = 1 << 16;
  const std::size_t size = dtype_size(type);
  const ParameterLayout whole(config);  // with the weights that magnitudes are the norms of
  const auto make_floats = [&](const ParameterInfo& parameter, std::int64_t begin,
                               std::span<float> values) {
    TROUPE_CHECK(!parameter.quantization, "{} has no stored values to quantise", parameter.name);
    const auto initialize = [&](const ParameterInfo& of, std::int64_t first,
                                std::span<float> elements) {
      // Values follow from the name: a reference begins as the model does.
      if (is_of_reference(of.name))
        initialize_parameter(copied_by(of), config.initializer_range, seed, first, elements);
      else
        initialize_parameter(of, config.initializer_range, seed, first, elements);
      return Status();
    };
    const auto module = module_of_magnitudes(parameter.name);
    const Status made =
        module ? initial_magnitudes(*whole.find(*module + ".weight"), config.transposed_weights,
                                    nullptr, begin, values, initialize)
               : initialize(parameter, begin, values);
    TROUPE_CHECK(made.ok(), "{}", made.to_string());
  };
  // `count` elements of the parameter from `begin` on, in the part's type.
  const auto make = [&](const ParameterInfo& parameter, std::int64_t begin, std::size_t count,
                        std::span<std::byte> target) {
    if (type == DType::kF32)
      return make_floats(parameter, begin, {reinterpret_cast<float*>(target.data()), count});
    std::vector<float> values(count);
    make_floats(parameter, begin, values);
    const Status converted = convert_from_float(values, type, target);
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
  for (const TensorRange& range : held_ranges(layout, part.region)) {
    const auto place = place_of(part, range, size);
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

std::vector<TensorPiece> pieces_of(const RankLayout& layout, const Part& part, DType dtype) {
  std::vector<TensorPiece> pieces;
  for (const TensorRange& range : saved_ranges(layout, part.region)) {
    auto stored = stored_of(part, range, dtype);
    if (!stored) continue;
    const std::size_t count = stored->place.size() / dtype_size(stored->dtype);
    pieces.push_back({.name = part.prefix + range.parameter->name,
                      .dtype = stored->dtype,
                      .shape = std::move(stored->shape),
                      .begin = stored->begin,
                      .end = stored->begin + static_cast<std::int64_t>(count),
                      .data = stored->place});
  }
  return pieces;
}

}  // namespace

Status broadcast_pieces(collective::Communicator& group, int root, std::span<std::byte> bytes) {
  for (std::size_t at = 0; at < bytes.size(); at += HostAccess::kPieceBytes) {
    const std::size_t size = std::min(HostAccess::kPieceBytes, bytes.size() - at);
    TROUPE_RETURN_IF_ERROR(group.broadcast(bytes.subspan(at, size), root));
  }
  return {};
}

Status broadcast_text(collective::Communicator& world, std::string& text, int root) {
  auto size = static_cast<std::int64_t>(text.size());
  TROUPE_RETURN_IF_ERROR(world.broadcast(std::span(&size, 1), root));
  text.resize(static_cast<std::size_t>(size));
  if (text.empty()) return {};
  return world.broadcast(std::span(text.data(), text.size()), root);
}

Status load_state(FileSystem& files, const StateSource& source, const ModelConfig& config,
                  const ModelLayout& model, std::uint64_t seed, const RankLayout& layout,
                  const StateBuffers& buffers, HostAccess& access, bool zeroed,
                  collective::Communicator& world) {
  const bool derived = source.base && !source.checkpoint;
  FrozenInMemory frozen;
  // Quantised ones are in the host's memory.
  if (source.has_frozen && access.in_place())
    frozen = {layout.frozen(), buffers.frozen,
              buffers.frozen.size() / static_cast<std::size_t>(std::max<std::int64_t>(
                                          1, layout.frozen()->elements(Region::kParameters)))};
  // What is derived rank 0 reads alone.
  auto trained = derived && world.rank() != 0
                     ? Result<TrainedSource>(error(Code::kFailedPrecondition, "rank 0 reads"))
                     : TrainedSource::open(files, source, config, model, seed, frozen);
  if (world.rank() == 0) TROUPE_RETURN_IF_ERROR(trained);
  bool everybody_sees = !derived && TROUPE_TRY(all_see(files, source.path, trained.ok(), world));
  if (!derived && !source.adapter.empty() && !source.checkpoint)
    everybody_sees =
        TROUPE_TRY(all_see(files, source.adapter, trained.ok(), world)) && everybody_sees;
  std::vector<Part> parts{parameters_of(buffers)};
  for (Part& slot : slots_of(buffers, source.moment_updates)) {
    if (source.optimizer)
      parts.push_back(std::move(slot));
    else if (!zeroed)
      TROUPE_RETURN_IF_ERROR(access.zero(slot.buffer));
  }
  const auto read = [&](const auto&... what) { return trained->read(what...); };
  for (const Part& part : parts)
    TROUPE_RETURN_IF_ERROR(
        read_part(read, part, layout, buffers.state, access, everybody_sees, world));
  return {};
}

Status check_checkpoint_fits(FileSystem& files, const std::string& checkpoint,
                             const ModelConfig& config, const ModelLayout& model) {
  const auto opened = TrainedSource::open(
      files, StateSource{.path = checkpoint, .checkpoint = true}, config, model, 0);
  if (opened.ok()) return {};
  return error(
      Code::kInvalidArgument,
      "{} is not of this run: its model, finetuning_type, rank or targets were others; go on "
      "with what it was trained with, or begin anew with overwrite_output_dir: true or "
      "another output_dir. {}",
      checkpoint, opened.status().message().substr(0, kMismatchBytesMax));
}

Status check_model_fits(FileSystem& files, const std::string& folder, const ModelConfig& config,
                        const ModelLayout& model) {
  return StateReader::open(files, StateSource{.path = folder}, config, of_model(model),
                           model.trainables().unties_head)
      .status();
}

Status load_frozen(FileSystem& files, const StateSource& source, const StateSource& reference,
                   const ModelConfig& config, const ModelLayout& model, const RankLayout& layout,
                   const StateBuffers& buffers, DType type, HostAccess& access,
                   collective::Communicator& world) {
  const bool derived = source.base || reference.base;
  TROUPE_CHECK(!source.base || !model.trainables().base.quantization,
               "a derived base is not quantised");
  const auto open = [&](const StateSource& from, std::optional<StateReader>& reader) -> Status {
    if (from.path.empty()) return {};
    if (from.base) return from.base->open();
    reader.emplace(TROUPE_TRY(StateReader::open(files, StateSource{.path = from.path}, config,
                                                of_model(model), model.trainables().unties_head)));
    return {};
  };
  std::optional<StateReader> own, other;
  Status opened;
  // What is derived rank 0 reads alone, for all.
  if (!derived || world.rank() == 0) {
    opened = open(source, own);
    if (opened.ok()) opened = open(reference, other);
  }
  if (world.rank() == 0) TROUPE_RETURN_IF_ERROR(opened);
  bool everybody_sees = !derived;
  for (const StateSource* from : {&source, &reference})
    if (!derived && !from->path.empty())
      everybody_sees = TROUPE_TRY(all_see(files, from->path, opened.ok(), world)) && everybody_sees;
  ParameterInfo copied;
  const auto read = [&](const std::string& prefix, const ParameterInfo& parameter,
                        std::int64_t begin, std::span<std::byte> out, DType dtype) {
    const bool is_copy = is_of_reference(parameter.name);
    const bool from_other = is_copy && !reference.path.empty();
    const ParameterInfo* wanted = &parameter;
    if (is_copy) wanted = &(copied = copied_by(parameter));
    DerivedBase* base = from_other ? reference.base : source.base;
    if (base) return base->read(*wanted, begin, out, dtype);
    return (from_other ? *other : *own).read(prefix, wanted->name, begin, out, dtype);
  };
  return read_part(QuantizingReader(read, own ? &*own : nullptr), frozen_of(buffers),
                   *layout.frozen(), type, access, everybody_sees, world);
}

Status initialize_state(const ModelConfig& config, std::uint64_t seed, const RankLayout& layout,
                        const StateBuffers& buffers, HostAccess& access, bool zeroed,
                        Arena& arena) {
  if (!zeroed) {
    TROUPE_RETURN_IF_ERROR(access.zero(buffers.parameters));
    for (const SlotBuffer& slot : buffers.slots) TROUPE_RETURN_IF_ERROR(access.zero(slot.data));
  }
  return initialize_part(config, seed, layout, parameters_of(buffers), buffers.state, access,
                         arena);
}

Status initialize_frozen(const ModelConfig& config, std::uint64_t seed, const RankLayout& layout,
                         const StateBuffers& buffers, DType type, HostAccess& access,
                         Arena& arena) {
  TROUPE_RETURN_IF_ERROR(access.zero(buffers.frozen));
  return initialize_part(config, seed, *layout.frozen(), frozen_of(buffers), type, access, arena);
}

std::vector<TensorPiece> weight_pieces(const ModelLayout& model, const RankLayout& layout,
                                       const StateBuffers& buffers, DType frozen) {
  auto pieces = pieces_of(layout, parameters_of(buffers), buffers.state);
  if (model.trainables().adapters_only()) {
    for (TensorPiece& piece : pieces) piece.name = adapter_file_name(piece.name);
  } else if (layout.frozen()) {
    for (TensorPiece& piece : pieces_of(*layout.frozen(), frozen_of(buffers), frozen))
      if (!is_of_reference(piece.name)) pieces.push_back(std::move(piece));
  }
  return pieces;
}

std::vector<TensorPiece> optimizer_pieces(const ModelLayout& model, const RankLayout& layout,
                                          const StateBuffers& buffers, std::int64_t updates) {
  const bool adapters = model.trainables().adapters_only();
  std::vector<TensorPiece> pieces;
  for (const Part& slot : slots_of(buffers, updates)) {
    for (TensorPiece& piece : pieces_of(layout, slot, buffers.state)) {
      if (adapters)
        piece.name = slot.prefix + adapter_file_name(piece.name.substr(slot.prefix.size()));
      pieces.push_back(std::move(piece));
    }
  }
  return pieces;
}

}  // namespace troupe::train
