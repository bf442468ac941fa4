#include "train/model/mlp.h"

namespace troupe::train {
const Activation kSwiGlu{
    .inputs = 2,
    .is_gelu_epilogue = false,
    .operators = {OperatorName::swiglu_forward, OperatorName::swiglu_backward},
    .forward = [](Operators& operators, ConstElements product, Elements hidden, std::int64_t rows,
                  std::int64_t width) { operators.swiglu_forward(product, hidden, rows, width); },
    .backward =
        [](Operators& operators, Elements product, ConstElements dhidden, Elements hidden,
           std::int64_t rows, std::int64_t width) {
          operators.swiglu_backward(product, dhidden, hidden, rows, width);
        }};

const Activation kGeluTanh{
    .inputs = 1,
    .is_gelu_epilogue = true,
    .operators = {OperatorName::gelu_forward, OperatorName::gelu_backward},
    .forward = [](Operators& operators, ConstElements product, Elements hidden, std::int64_t rows,
                  std::int64_t width) { operators.gelu_forward(product, hidden, rows * width); },
    .backward =
        [](Operators& operators, Elements product, ConstElements dhidden, Elements hidden,
           std::int64_t rows, std::int64_t width) {
          operators.gelu_backward(product, dhidden, hidden, rows * width);
        }};

Mlp::Mlp(const ModelConfig& config, const ModelLayout& layout, const LayerNames& names,
         Operators& operators)
    : config_(config),
      operators_(operators),
      inputs_(layout, names.mlp_inputs, config.transposed_weights, Linear::EightBits::kAllowed,
              LinearPlace::kMlpInputs),
      output_(layout, {names.mlp_output}, config.transposed_weights, Linear::EightBits::kAllowed,
              LinearPlace::kMlpOutput) {}

std::optional<Gemm> Mlp::gelu_product(const UnitParameters& unit, const LayerPass& pass) const {
  const LayerActivations& kept = *pass.kept;
  if (!config_.activation->is_gelu_epilogue) return std::nullopt;
  std::optional<Gemm> gemm =
      inputs_.gelu_product(unit, kept.mlp_input, kept.mlp_product, kept.mlp_hidden, pass.tokens());
  if (gemm && !operators_.fuses(*gemm)) gemm.reset();
  return gemm;
}

void Mlp::expand(const UnitParameters& unit, const LayerPass& pass) const {
  if (const std::optional<Gemm> gemm = gelu_product(unit, pass)) return operators_.gemm(*gemm);
  inputs_.forward(operators_, unit, pass.kept->mlp_input, pass.kept->mlp_product, pass.tokens(),
                  pass);
}

void Mlp::contract(const UnitParameters& unit, const LayerPass& pass, Elements y) const {
  const LayerActivations& kept = *pass.kept;
  const std::int64_t tokens = pass.tokens();
  if (!gelu_product(unit, pass))
    config_.activation->forward(operators_, kept.mlp_product, kept.mlp_hidden, tokens,
                                config_.intermediate_size);
  output_.forward(operators_, unit, kept.mlp_hidden, y, tokens, pass);
}

Elements Mlp::backward_contract(const UnitParameters& unit, const UnitGradient& gradient,
                                const LayerPass& pass, ConstElements dy) const {
  const LayerActivations& kept = *pass.kept;
  const Activations& scratch = *pass.scratch;
  const std::int64_t tokens = pass.tokens();
  const std::int64_t width = config_.intermediate_size;
  if (config_.activation->is_gelu_epilogue) {
    const std::optional<Gemm> gemm =
        output_.gelu_gradient_product(unit, dy, kept.mlp_product, scratch.hidden, tokens);
    if (gemm && operators_.fuses(*gemm)) {
      operators_.gemm(*gemm);
      // scratch.hidden may be kept.mlp_hidden: the product, which has served, makes room for GELU.
      operators_.gelu_forward(kept.mlp_product, kept.mlp_product, tokens * width);
      output_.backward_weight(operators_, unit, dy, kept.mlp_product, gradient, tokens);
      return scratch.hidden;
    }
  }
  output_.begin_backward(operators_, unit, dy, tokens, pass);
  output_.backward_input(operators_, unit, dy, scratch.hidden, tokens, pass);
  // A product that does GELU takes it of sums that are not rounded yet, and only rounded ones are
  // kept. So that the same is multiplied whatever is kept, it is made of those here, always.
  const bool kept_hidden = scratch.keeps_everything() && !gelu_product(unit, pass);
  const Elements again = kept_hidden ? Elements() : kept.mlp_hidden;
  config_.activation->backward(operators_, kept.mlp_product, scratch.hidden, again, tokens, width);
  // A layer that is run again stops before the last product.
  if (scratch.recomputes_layers())
    output_.forward_hidden(operators_, unit, kept.mlp_hidden, tokens, pass);
  output_.backward_weight(operators_, unit, dy, kept.mlp_hidden, gradient, tokens, pass);
  return kept.mlp_product;
}

void Mlp::backward_expand(const UnitParameters& unit, const UnitGradient& gradient,
                          const LayerPass& pass, ConstElements dproduct, Elements dx) const {
  const std::int64_t tokens = pass.tokens();
  inputs_.begin_backward(operators_, unit, dproduct, tokens, pass);
  inputs_.backward_weight(operators_, unit, dproduct, pass.kept->mlp_input, gradient, tokens, pass);
  inputs_.backward_input(operators_, unit, dproduct, dx, tokens, pass);
}

}  // namespace troupe::train
