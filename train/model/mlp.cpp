#include "train/model/mlp.h"

namespace troupe::train {

Mlp::Mlp(const ModelConfig& config, const ParameterLayout& layout, const BlockNames& names,
         Operators& operators)
    : config_(config),
      operators_(operators),
      inputs_(layout, names.mlp_inputs, config.transposed_weights, Linear::EightBits::kAllowed),
      output_(layout, {names.mlp_output}, config.transposed_weights, Linear::EightBits::kAllowed) {}

void Mlp::expand(const UnitParameters& unit, const BlockActivations& kept,
                 std::int64_t tokens) const {
  inputs_.forward(operators_, unit, kept.mlp_input, kept.mlp_product, tokens);
}

void Mlp::contract(const UnitParameters& unit, const BlockActivations& kept, Elements y,
                   std::int64_t tokens) const {
  const std::int64_t width = config_.intermediate_size;
  if (config_.mlp == MlpKind::kSwiGlu)
    operators_.swiglu_forward(kept.mlp_product, kept.mlp_hidden, tokens, width);
  else
    operators_.gelu_forward(kept.mlp_product, kept.mlp_hidden, tokens * width);
  output_.forward(operators_, unit, kept.mlp_hidden, y, tokens);
}

void Mlp::backward_contract(const UnitParameters& unit, const UnitGradient& gradient,
                            const BlockActivations& kept, const Activations& scratch,
                            ConstElements dy, std::int64_t tokens) const {
  const std::int64_t width = config_.intermediate_size;
  output_.backward_input(operators_, unit, dy, scratch.hidden, tokens);
  const Elements again = scratch.keeps_everything() ? Elements() : kept.mlp_hidden;
  if (config_.mlp == MlpKind::kSwiGlu)
    operators_.swiglu_backward(kept.mlp_product, scratch.hidden, again, tokens, width);
  else
    operators_.gelu_backward(kept.mlp_product, scratch.hidden, again, tokens * width);
  output_.backward_weight(operators_, unit.arithmetic(), dy, kept.mlp_hidden, gradient, tokens);
}

void Mlp::backward_expand(const UnitParameters& unit, const UnitGradient& gradient,
                          const BlockActivations& kept, Elements dx, std::int64_t tokens) const {
  inputs_.backward_weight(operators_, unit.arithmetic(), kept.mlp_product, kept.mlp_input, gradient,
                          tokens);
  inputs_.backward_input(operators_, unit, kept.mlp_product, dx, tokens);
}

}  // namespace troupe::train
