#pragma once
// Where each parameter lies: units, tiles, offsets.
//
// A unit — the embedding, one transformer layer, or the final norm with the output head — has one
// flat buffer. Parameters lie in it at fixed offsets, aligned to 64 bytes; the buffer is padded
// with zeros to whole tiles of kTileElements. A bf16 copy of a unit has the same offsets in
// elements; its 1-D parameters, which are computed with in fp32, are copied out beside it.
// Sharding, reduction, norms and the optimizer work on tiles. A layout follows from a list of
// tensors alone: a model has one layout for the tensors that are trained and one for those that are
// frozen (model_layout.h).

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/base/status.h"
#include "train/model/model_config.h"
#include "train/tensor/parameter_groups.h"
#include "train/tensor/quantized.h"
#include "train/tensor/update_rule.h"

namespace troupe::train {

// 64 KiB of fp32: the granule of ownership. Sums over a tile stay in a core's cache.
inline constexpr std::int64_t kTileElements = 16384;
// 64 bytes.
inline constexpr std::int64_t kParameterAlignElements = 16;

// What a parameter is before training, by HF's _init_weights or by PEFT's.
struct InitialValue {
  enum class Kind { kNormal, kOnes, kZeros, kUniform };
  Kind kind = Kind::kNormal;
  // kNormal: times the configuration's initializer_range gives the standard deviation. kUniform:
  // values lie in [−scale, scale).
  double scale = 1.0;
};

// A tensor of a model, before it has a place.
struct TensorSpec {
  std::string name;  // as in HF's state dict
  std::vector<std::int64_t> shape;
  InitialValue initial = {};
  bool decays = false;  // weight decay applies: see parameter_decays
  double learning_rate_factor = 1.0;
  bool is_layer_product = false;  // the weight of a linear module within a layer
  // What it is kept in, if not in the layout's type, of elements of so many bytes.
  Quantization quantization = {};
  std::size_t element_bytes = 0;
  bool turns = false;         // its shape is [in, out]: see ParameterInfo
  bool never_decays = false;  // whatever an optimizer's rule says
};

// The tensors of a unit in the order in which they lie.
struct UnitSpec {
  std::string name;  // "embedding", "layers.3", "head"
  std::vector<TensorSpec> tensors;
};

struct ParameterInfo {
  std::string name;
  std::vector<std::int64_t> shape;
  int unit = 0;
  std::int64_t offset_elements = 0;  // within the unit
  // That it takes in the unit: of a tensor that is kept quantised not the shape's.
  std::int64_t elements = 0;
  Quantization quantization = {};
  // Its shape is [in, out]; quantised it lies as [out, in], since that is what bitsandbytes keeps.
  bool turns = false;
  // Of a 1-D parameter (a norm's weight, a bias) in the unit's fp32 copies of them; −1 for others.
  std::int64_t vector_offset = -1;
  ParameterGroup group;
  UpdateUnit update_unit = UpdateUnit::kElement;
  InitialValue initial;

  // The shape's.
  std::int64_t values() const;
  // Columns of a matrix as it is quantised.
  std::int64_t quantized_width() const { return shape[turns ? 0 : 1]; }
};

struct UnitInfo {
  std::string name;         // "embedding", "layers.3", "head"
  int first_parameter = 0;  // in ParameterLayout::parameters()
  int parameter_count = 0;
  std::int64_t elements = 0;     // whole tiles, padding included
  std::int64_t flat_offset = 0;  // of the unit in the concatenation of all units
  // Of the unit's 1-D parameters one after another, each aligned as in the unit.
  std::int64_t vector_elements = 0;
};

// No decay for names that match bias|layernorm|rmsnorm|(^|\.)norm($|\.)|_norm($|\.), as HF's
// Trainer, which also spares every torch.nn.LayerNorm, whatever its name: ParameterInfo::decays
// says both.
bool parameter_decays(std::string_view name);

class ParameterLayout {
 public:
  ParameterLayout() = default;  // no units
  // Units in forward order; a unit without tensors has no elements. With a rule every tensor begins
  // at a multiple of kUpdateBlockElements, and one that is updated as a whole lies within a tile or
  // begins one.
  explicit ParameterLayout(const std::vector<UnitSpec>& units, const UpdateRule* rule = nullptr);
  // Of all tensors of a model (model_tensors.h).
  explicit ParameterLayout(const ModelConfig& config);

  const std::vector<UnitInfo>& units() const { return units_; }
  // By unit, then by offset.
  const std::vector<ParameterInfo>& parameters() const { return parameters_; }
  std::span<const ParameterInfo> parameters(int unit) const;
  // Null where there is none.
  const ParameterInfo* find(std::string_view name) const;

  // Of all units, padding included.
  std::int64_t total_elements() const { return total_elements_; }
  std::int64_t tile_count() const { return total_elements_ / kTileElements; }
  // Without padding: the number people quote.
  std::int64_t parameter_elements() const;
  std::int64_t flat_offset(const ParameterInfo& parameter) const {
    return units_[static_cast<std::size_t>(parameter.unit)].flat_offset + parameter.offset_elements;
  }
  // The parameter at a position of the flat concatenation, or null in padding: names the tensor in
  // which something was found.
  const ParameterInfo* at_flat_offset(std::int64_t offset) const;
  // Whether any tensor is updated as a whole.
  bool has_whole_tensors() const { return has_whole_tensors_; }
  // Where a unit may be cut between ranks: its begin, its end and the ends of tiles between them,
  // in elements, but for those within a tensor that is updated as a whole.
  std::vector<std::int64_t> cuts(int unit) const;
  // Cover [0, total_elements()); padding is of its left neighbour's group.
  const ParameterGroups& groups() const { return groups_; }

 private:
  void add(const TensorSpec& tensor, const UpdateRule* rule);
  void collect_groups();

  std::vector<UnitInfo> units_;
  std::vector<ParameterInfo> parameters_;
  std::unordered_map<std::string, std::size_t> by_name_;
  ParameterGroups groups_;
  std::int64_t total_elements_ = 0;
  bool has_whole_tensors_ = false;
};

// The unit's 1-D parameters from its bf16 buffer (whole unit) to fp32: `vectors` has
// UnitInfo::vector_elements.
void expand_vectors(const ParameterLayout& layout, int unit,
                    std::span<const std::uint16_t> unit_bf16, std::span<float> vectors);

}  // namespace troupe::train
