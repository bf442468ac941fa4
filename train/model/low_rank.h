#pragma once
// The low-rank adapters (LoRA) of linear layers over one input. Private to this folder.
//
//   y += scale·(dropout(x)·Aᵀ)·Bᵀ        for each adapter, in its columns of y
//
// What is between the two products, scale·x·Aᵀ (rows, rank), is kept for the backward pass: so
// small that making it again would save nothing. It is scaled where it is smallest; PEFT scales the
// second product's result, which differs by rounding alone.

#include <cstdint>
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
  // Adds to dx.
  void backward_input(Operators& operators, const UnitParameters& unit, Elements dx,
                      std::int64_t rows, const LayerPass& pass) const;
  // The gradients of A and B; see Linear::backward_weight.
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
  Run run_of(const Adapter& adapter) const {
    return {adapter.a, adapter.hidden_column, adapter.rank};
  }

  LinearPlace place_ = LinearPlace::kQkv;
  std::int64_t inputs_ = 0, outputs_ = 0, columns_ = 0;
  std::vector<Adapter> adapters_;
  std::vector<Run> runs_;  // none where an input is dropped out
};

}  // namespace troupe::train
