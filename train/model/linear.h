#pragma once
// One or several linear layers over the same input.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "train/model/gradient_rest.h"
#include "train/model/low_rank.h"
#include "train/model/model_layout.h"
#include "train/model/unit_access.h"
#include "train/tensor/operators.h"

namespace troupe::train {

// Outputs of all layers stand side by side in a row. Layers whose weights are neighbours in memory
// become one product. A layer has a bias where the layout has one, and a low-rank adapter where the
// layout has one for it. Frozen weights and biases have no gradient, and none is computed.
class Linear {
 public:
  Linear() = default;
  enum class EightBits { kNever, kAllowed };  // of the layers' products; see Narrow

  // The layers' names, without ".weight"; they belong to one unit. Weights are [out, in], or
  // [in, out] when `transposed`. `place`: where they have adapters.
  Linear(const ModelLayout& layout, const std::vector<std::string>& modules, bool transposed,
         EightBits eight_bits = EightBits::kNever, std::optional<LinearPlace> place = std::nullopt);

  // What products with the (first) weight are computed in.
  Arithmetic arithmetic(const UnitParameters& unit) const {
    return unit.arithmetic(weights_.front().parameter);
  }
  // y = x·Wᵀ + b. x: (rows, in) dense, y: (rows, out) dense. `unit` holds the weights: what type
  // they are of says what is computed in. bf16 activations want it to be bf16.
  void forward(Operators& operators, const UnitParameters& unit, ConstElements x, Elements y,
               std::int64_t rows, const LayerPass& pass = {}) const;
  // gelu_input = x·Wᵀ + b, y = GELU(gelu_input), in the product itself: for operators that fuse it.
  // Nothing where the layers are no single product with biases, or have adapters. y, gelu_input:
  // (rows, out) dense.
  std::optional<Gemm> gelu_product(const UnitParameters& unit, ConstElements x, Elements gelu_input,
                                   Elements y, std::int64_t rows) const;
  // What forward() keeps for the adapters' backward pass, the same bits.
  void forward_hidden(Operators& operators, const UnitParameters& unit, ConstElements x,
                      std::int64_t rows, const LayerPass& pass) const {
    adapters_.forward_hidden(operators, unit, x, rows, pass);
  }
  // Before the two below: what both want of the adapters.
  void begin_backward(Operators& operators, const UnitParameters& unit, ConstElements dy,
                      std::int64_t rows, const LayerPass& pass) const {
    adapters_.backward_hidden(operators, unit, dy, rows, pass);
  }
  // dx = dy·W.
  void backward_input(Operators& operators, const UnitParameters& unit, ConstElements dy,
                      Elements dx, std::int64_t rows, const LayerPass& pass = {}) const;
  // dx = dy·W · GELU′(gelu_input), in the product itself, of a layer whose inputs are GELUs.
  // Nothing where the layers are no single product, or have adapters.
  std::optional<Gemm> gelu_gradient_product(const UnitParameters& unit, ConstElements dy,
                                            Elements gelu_input, Elements dx,
                                            std::int64_t rows) const;
  // dW += dyᵀ·x and db += Σ dy in the unit's gradient, products in the arithmetic of the forward
  // pass. In a fresh gradient dW is written, db still added to: the values of adding to zeros, and
  // its bits but for a sum that is −0 (it underflowed), which norms and AdamW take for 0.
  void backward_weight(Operators& operators, const UnitParameters& unit, ConstElements dy,
                       ConstElements x, const UnitGradient& gradient, std::int64_t rows,
                       const LayerPass& pass = {}) const;
  // What backward_weight writes in a fresh gradient: all trained weights.
  void append_written(std::vector<GradientRange>& ranges) const;

 private:
  struct Part {
    ParameterRef parameter;   // of the first layer in it
    std::int64_t column = 0;  // of the first output
    std::int64_t outputs = 0;
  };
  // y = x·Wᵀ of one part, and dx = dy·W.
  Gemm product(const Part& part, const UnitParameters& unit, ConstElements x, Elements y,
               std::int64_t rows) const;
  Gemm gradient_product(const Part& part, const UnitParameters& unit, ConstElements dy, Elements dx,
                        std::int64_t rows) const;
  // The part's biases as one vector: where all of them are there, one behind another.
  std::optional<ParameterRef> bias_of(const Part& part) const;
  // Whether a row of a part's weight has what an output needs: [out, in].
  bool by_output(const Part& part) const { return !transposed_ || part.parameter.quantization; }
  // Distance of two rows of a part's weight.
  std::int64_t weight_stride(const Part& part) const {
    return transposed_ ? part.outputs : inputs_;
  }
  LowRankAdapters adapters_;
  std::vector<Part> weights_, biases_;
  std::vector<std::optional<ParameterRef>> part_biases_;  // by part of weights_
  bool transposed_ = false;
  Narrow value_ = Narrow::kNot, passed_back_ = Narrow::kNot;
  std::int64_t inputs_ = 0;
  std::int64_t outputs_ = 0;
};

}  // namespace troupe::train
