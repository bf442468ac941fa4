#pragma once
// Where all tensors of a model lie when some are trained and others frozen: two layouts over the
// same units.

#include <cstdint>
#include <string_view>

#include "train/model/model_config.h"
#include "train/model/parameter_layout.h"
#include "train/model/trainables.h"

namespace troupe::train {

// Where a parameter lies in its unit's buffers, whichever type they have.
struct ParameterRef {
  std::int64_t offset = 0;          // ParameterInfo::offset_elements
  std::int64_t vector_offset = -1;  // ParameterInfo::vector_offset
  bool frozen = false;              // in the unit's frozen buffer, else in the trained one
  Quantization quantization = {};   // ParameterInfo::quantization
};

// Immutable. Every tensor lies in one of the two layouts. Gradients, optimizer state, norms and
// what ranks send of gradients exist for the trained layout only.
class ModelLayout {
 public:
  explicit ModelLayout(const ModelConfig& config, const Trainables& trainables = {});
  // As the model's reference sees the same buffers: nothing is trained, there are no adapters, and
  // each of the model's tensors is the reference's. trainables().reference says that there is one.
  ModelLayout of_reference() const;

  const ParameterLayout& trained() const { return trained_; }
  const ParameterLayout& frozen() const { return frozen_; }
  const Trainables& trainables() const { return trainables_; }
  int units() const { return static_cast<int>(trained_.units().size()); }
  bool has_frozen() const { return frozen_.total_elements() > 0; }
  // Whether a unit has tensors that are trained.
  bool trains(int unit) const {
    return trained_.units()[static_cast<std::size_t>(unit)].parameter_count > 0;
  }
  // The first layer that the backward pass must reach: the number of layers where no layer is
  // trained.
  std::int64_t first_trained_layer() const;

  // In either layout; null where there is none.
  const ParameterInfo* find(std::string_view name) const;
  // Of the parameter of this name, which must be there.
  ParameterRef ref(std::string_view name) const;
  // The adapter of a linear layer; null where it has none.
  const LoraModule* adapter(std::string_view module) const;
  // Of both, without padding and without a reference's copies; and those alone.
  std::int64_t parameter_elements() const {
    return trained_.parameter_elements() + frozen_.parameter_elements() - reference_elements();
  }
  std::int64_t reference_elements() const;

 private:
  ModelLayout() = default;

  Trainables trainables_;
  ParameterLayout trained_, frozen_;
  bool is_reference_ = false;
};

}  // namespace troupe::train
