#pragma once
// The second half of a layer, without its norm: Wdown·activation(Wup·x), where the activation takes
// one product or two side by side, as the configuration says.

#include <cstdint>
#include <initializer_list>
#include <optional>

#include "train/model/activations.h"
#include "train/model/linear.h"
#include "train/model/model_config.h"
#include "train/model/model_family.h"

namespace troupe::train {

// An activation as calls of operators. kSwiGlu, silu(gate)·up, and kGeluTanh, the tanh form of GELU
// of one product, are declared in model_config.h.
struct Activation {
  std::int64_t inputs;  // products that it takes, side by side in `product`: gate first
  // It is what a product with Epilogue::kBiasGelu does.
  bool is_gelu_epilogue;
  std::initializer_list<OperatorName> operators;  // that it calls
  // product (rows, inputs·width) → hidden (rows, width).
  void (*forward)(Operators& operators, ConstElements product, Elements hidden, std::int64_t rows,
                  std::int64_t width);
  // Replaces product by its gradient and writes hidden again, the same bits, unless it is null.
  void (*backward)(Operators& operators, Elements product, ConstElements dhidden, Elements hidden,
                   std::int64_t rows, std::int64_t width);
};

class Mlp {
 public:
  // `names` are those of the layer.
  Mlp(const ModelConfig& config, const ModelLayout& layout, const LayerNames& names,
      Operators& operators);

  // Below, kept and scratch are the pass's.
  // kept.mlp_input → kept.mlp_product; and kept.mlp_hidden, where operators do GELU in the product.
  void expand(const UnitParameters& unit, const LayerPass& pass) const;
  // kept.mlp_product → kept.mlp_hidden → y (N, C).
  void contract(const UnitParameters& unit, const LayerPass& pass, Elements y) const;

  // From dy, the gradient of y, to that of mlp_product. Where that lies is returned: in its place,
  // or in scratch.hidden. Destroys kept.mlp_product.
  Elements backward_contract(const UnitParameters& unit, const UnitGradient& gradient,
                             const LayerPass& pass, ConstElements dy) const;
  // From there to dx, the gradient of kept.mlp_input, which must be there.
  void backward_expand(const UnitParameters& unit, const UnitGradient& gradient,
                       const LayerPass& pass, ConstElements dproduct, Elements dx) const;
  // What the two write in a fresh gradient.
  void append_written(std::vector<GradientRange>& ranges) const {
    inputs_.append_written(ranges);
    output_.append_written(ranges);
  }

 private:
  // The product that does GELU, too, where operators take it.
  std::optional<Gemm> gelu_product(const UnitParameters& unit, const LayerPass& pass) const;

  const ModelConfig& config_;
  Operators& operators_;
  Linear inputs_, output_;
};

}  // namespace troupe::train
