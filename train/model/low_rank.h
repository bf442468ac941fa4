#pragma once
// The low-rank adapters (LoRA) of linear layers over one input. Private to this folder.
//
//   y += scale·(dropout(x)·Aᵀ)·Bᵀ        for each adapter, in its columns of y
//
// What is between the two products, scale·x·Aᵀ (rows, rank), is kept for the backward pass: so
// small that making it again would save nothing. It is scaled where it is smallest; PEFT scales the
// second product's result, which differs by rounding alone.
//
// With magnitudes (DoRA: Liu et al., 2024, and PEFT's tuners/lora/dora.py), an output's row of the
// weight has the direction of W + scale·B·A and a trained length m:
//
//   y = f ⊙ (W·x + scale·B·A·x) + bias,  f = m/n,  n the rows' norms, constant for the gradient
//   y = W·x + (f − 1) ⊙ W·x' + f ⊙ scale·B·A·x' + bias,  where an input is dropped out: x'

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "train/model/adapter_tensors.h"
#include "train/model/gradient_rest.h"
#include "train/model/layer_pass.h"
#include "train/model/model_layout.h"
#include "train/model/unit_access.h"
#include "train/tensor/operators.h"

namespace troupe::train {

class LowRankAdapters {
 public:
  LowRankAdapters() = default;
  // Of those of `modules`, whose outputs stand side by side in this order, that have adapters.
  LowRankAdapters(const ModelLayout& layout, const std::vector<std::string>& modules,
                  bool transposed, LinearPlace place);

  bool empty() const { return adapters_.empty(); }

  // Whether outputs are scaled, so that y is without biases when it is given to forward().
  bool scales_outputs() const { return magnitudes_; }

  // x: (rows, in), y: (rows, out of all modules), both dense, fp32.
  void forward(Operators& operators, const UnitParameters& unit, ConstElements x, Elements y,
               std::int64_t rows, const LayerPass& pass) const;
  // The first half of that alone, the same bits: for a backward pass of a layer whose forward pass
  // was not run again to its end.
  void forward_hidden(Operators& operators, const UnitParameters& unit, ConstElements x,
                      std::int64_t rows, const LayerPass& pass) const;
  // The first of the backward pass: the gradient of what is between the two products, from dy, that
  // of y. The two below take it.
  void backward_hidden(Operators& operators, const UnitParameters& unit, ConstElements dy,
                       std::int64_t rows, const LayerPass& pass) const;
  // What the layers' own weights pass back to their input: dy, or by the factors of magnitudes.
  ConstElements passed_back(ConstElements dy, const LayerPass& pass) const;
  // Adds to dx.
  void backward_input(Operators& operators, const UnitParameters& unit, ConstElements dy,
                      Elements dx, std::int64_t rows, const LayerPass& pass) const;
  // The gradients of A, B and magnitudes; see Linear::backward_weight.
  void backward_weight(Operators& operators, const UnitParameters& unit, ConstElements dy,
                       ConstElements x, const UnitGradient& gradient, std::int64_t rows,
                       const LayerPass& pass) const;
  void append_written(std::vector<GradientRange>& ranges) const;

 private:
  struct Adapter {
    ParameterRef a, b;
    std::int64_t rank = 0;
    std::int64_t column = 0;  // of its first output in y
    std::int64_t outputs = 0;
    std::int64_t hidden_column = 0;
    float scale = 1.0f;
    double dropout = 0.0;
    std::uint32_t dropout_number = 0;  // among the layer's adapters
    // With magnitudes: they, and the layer's own weight.
    std::optional<ParameterRef> magnitude;
    ParameterRef weight;
  };
  // Adapters whose A lie side by side and take x as it is: one product.
  struct Run {
    ParameterRef a;
    std::int64_t hidden_column = 0, columns = 0;
  };
  float* hidden(const LayerPass& pass) const;
  // Each adapter's input: x, or what its dropout leaves of it.
  ConstElements dropped(Operators& operators, const Adapter& adapter, ConstElements x,
                        std::int64_t rows, const LayerPass& pass) const;
  // Each adapter's columns of what is between the products, by its scale.
  void scale(Operators& operators, float* hidden, std::int64_t rows) const;
  Gemm down(const UnitParameters& unit, const Run& run, ConstElements x, std::int64_t rows,
            const LayerPass& pass) const;
  // c (rows, outputs) = or += what is between the products, from a row on, times Bᵀ.
  Gemm up(const UnitParameters& unit, const Adapter& adapter, std::int64_t first_row, Elements c,
          std::int64_t c_stride, bool accumulate, std::int64_t rows, const LayerPass& pass) const;
  // c (rows, outputs) = x·Wᵀ with the layer's own weight.
  Gemm weight_product(const UnitParameters& unit, const Adapter& adapter, ConstElements x, float* c,
                      std::int64_t rows) const;

  // The pass's factors of an adapter's magnitudes, made of its present tensors.
  struct Factors {
    float *factors, *less_one, *inverse_norms;  // (outputs) each
  };
  Factors factors_of(const Adapter& adapter, const LayerPass& pass) const;
  void make_factors(Operators& operators, const UnitParameters& unit, const Adapter& adapter,
                    const LayerPass& pass) const;
  void forward_scaled(Operators& operators, const UnitParameters& unit, const Adapter& adapter,
                      ConstElements x, Elements y, std::int64_t rows, const LayerPass& pass) const;
  // dx (rows, in) = ((f − 1) ⊙ dy)·W: what the layer's own weight had of an input that was dropped
  // out.
  void pass_back_scaled(Operators& operators, const UnitParameters& unit, const Adapter& adapter,
                        ConstElements dy, Elements dx, std::int64_t rows,
                        const LayerPass& pass) const;
  void backward_magnitude(Operators& operators, const UnitParameters& unit, const Adapter& adapter,
                          ConstElements dy, ConstElements input, const UnitGradient& gradient,
                          std::int64_t rows, const LayerPass& pass) const;
  // fn(first row, rows) for as many rows at a time as there is room for.
  template <typename F>
  static void for_row_chunks(std::int64_t rows, F&& fn);
  // Of the adapter's input in this pass; none outside of training.
  Dropout dropout_of(const Adapter& adapter, const LayerPass& pass) const;
  Run run_of(const Adapter& adapter) const {
    return {adapter.a, adapter.hidden_column, adapter.rank};
  }

  LinearPlace place_ = LinearPlace::kQkv;
  std::int64_t inputs_ = 0, outputs_ = 0, columns_ = 0;
  std::vector<Adapter> adapters_;
  std::vector<Run> runs_;  // none where an input is dropped out
  bool transposed_ = false, magnitudes_ = false;
};

}  // namespace troupe::train
