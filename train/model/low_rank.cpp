#include "train/model/low_rank.h"

#include <algorithm>

#include "runtime/base/check.h"
#include "train/model/dropout_site.h"

namespace troupe::train {
namespace {

constexpr std::uint32_t kAdaptersOfPlaceMax = 8;

}  // namespace

LowRankAdapters::LowRankAdapters(const ModelLayout& layout, const std::vector<std::string>& modules,
                                 bool transposed, LinearPlace place)
    : place_(place), transposed_(transposed) {
  bool drops = false;
  for (std::size_t i = 0; i < modules.size(); ++i) {
    const ParameterInfo& weight = *layout.find(modules[i] + ".weight");
    const std::int64_t outputs = weight.shape[transposed ? 1 : 0];
    inputs_ = weight.shape[transposed ? 0 : 1];
    if (const LoraModule* lora = layout.adapter(modules[i])) {
      adapters_.push_back(
          {.a = layout.ref(lora_a_name(modules[i])),
           .b = layout.ref(lora_b_name(modules[i])),
           .rank = lora->rank,
           .column = outputs_,
           .outputs = outputs,
           .hidden_column = columns_,
           .scale = static_cast<float>(lora->scale),
           .dropout = lora->dropout,
           .dropout_number = static_cast<std::uint32_t>(place) * kAdaptersOfPlaceMax +
                             static_cast<std::uint32_t>(i)});
      if (lora->dora) {
        adapters_.back().magnitude = layout.ref(lora_magnitude_name(modules[i]));
        adapters_.back().weight = layout.ref(weight.name);
        magnitudes_ = true;
      }
      columns_ += lora->rank;
      drops = drops || lora->dropout > 0;
    }
    outputs_ += outputs;
  }
  TROUPE_CHECK(modules.size() <= kAdaptersOfPlaceMax, "{} layers over one input", modules.size());
  if (drops) return;
  for (const Adapter& adapter : adapters_) {
    const bool follows = !runs_.empty() &&
                         runs_.back().a.offset + runs_.back().columns * inputs_ == adapter.a.offset;
    if (follows)
      runs_.back().columns += adapter.rank;
    else
      runs_.push_back(run_of(adapter));
  }
}

float* LowRankAdapters::hidden(const LayerPass& pass) const {
  TROUPE_CHECK(pass.kept, "a pass without room for adapters");
  float* hidden = pass.kept->adapter_hidden[static_cast<std::size_t>(place_)];
  TROUPE_CHECK(hidden, "activations without room for adapters");
  return hidden;
}

ConstElements LowRankAdapters::dropped(Operators& operators, const Adapter& adapter,
                                       ConstElements x, std::int64_t rows,
                                       const LayerPass& pass) const {
  const Dropout drop = dropout_of(adapter, pass);
  if (!drop) return x;
  operators.dropout(drop, x, nullptr, pass.scratch->adapter_input, rows, inputs_);
  return pass.scratch->adapter_input;
}

Gemm LowRankAdapters::down(const UnitParameters& unit, const Run& run, ConstElements x,
                           std::int64_t rows, const LayerPass& pass) const {
  return {.m = rows,
          .n = run.columns,
          .k = inputs_,
          .a = x.data,
          .a_type = x.type,
          .a_stride = inputs_,
          .b = unit.matrix(run.a),
          .b_type = unit.dtype(run.a),
          .b_stride = inputs_,
          .transpose_b = true,
          .c = hidden(pass) + run.hidden_column,
          .c_stride = columns_,
          .arithmetic = unit.arithmetic(run.a)};
}

void LowRankAdapters::scale(Operators& operators, float* hidden, std::int64_t rows) const {
  for (const Adapter& adapter : adapters_)
    if (adapter.scale != 1.0f)
      operators.scale(hidden + adapter.hidden_column, columns_, adapter.scale, rows, adapter.rank);
}

void LowRankAdapters::forward_hidden(Operators& operators, const UnitParameters& unit,
                                     ConstElements x, std::int64_t rows,
                                     const LayerPass& pass) const {
  if (empty()) return;
  for (const Run& run : runs_) operators.gemm(down(unit, run, x, rows, pass));
  if (runs_.empty())
    for (const Adapter& adapter : adapters_)
      operators.gemm(
          down(unit, run_of(adapter), dropped(operators, adapter, x, rows, pass), rows, pass));
  scale(operators, hidden(pass), rows);
}

Gemm LowRankAdapters::up(const UnitParameters& unit, const Adapter& adapter, std::int64_t first_row,
                         Elements c, std::int64_t c_stride, bool accumulate, std::int64_t rows,
                         const LayerPass& pass) const {
  return {.m = rows,
          .n = adapter.outputs,
          .k = adapter.rank,
          .a = hidden(pass) + first_row * columns_ + adapter.hidden_column,
          .a_stride = columns_,
          .b = unit.matrix(adapter.b),
          .b_type = unit.dtype(adapter.b),
          .b_stride = adapter.rank,
          .transpose_b = true,
          .c = c,
          .c_stride = c_stride,
          .accumulate = accumulate,
          .arithmetic = unit.arithmetic(adapter.b)};
}

Gemm LowRankAdapters::weight_product(const UnitParameters& unit, const Adapter& adapter,
                                     ConstElements x, float* c, std::int64_t rows) const {
  return {.m = rows,
          .n = adapter.outputs,
          .k = inputs_,
          .a = x.data,
          .a_type = x.type,
          .a_stride = inputs_,
          .b = unit.matrix(adapter.weight),
          .b_type = unit.dtype(adapter.weight),
          .b_stride = transposed_ ? adapter.outputs : inputs_,
          .transpose_b = !transposed_ || adapter.weight.quantization,
          .b_quantized = unit.quantized(adapter.weight, adapter.outputs, inputs_),
          .c = c,
          .c_stride = adapter.outputs,
          .arithmetic = unit.arithmetic(adapter.weight)};
}

template <typename F>
void LowRankAdapters::for_row_chunks(std::int64_t rows, F&& fn) {
  for (std::int64_t row = 0; row < rows; row += Activations::kMagnitudeRows)
    fn(row, std::min(Activations::kMagnitudeRows, rows - row));
}

Dropout LowRankAdapters::dropout_of(const Adapter& adapter, const LayerPass& pass) const {
  return adapter_dropout_at(adapter.dropout_number, pass.layer, adapter.dropout, *pass.shape,
                            *pass.scratch);
}

LowRankAdapters::Factors LowRankAdapters::factors_of(const Adapter& adapter,
                                                     const LayerPass& pass) const {
  const auto& factors = pass.scratch->magnitude_factors;
  TROUPE_CHECK(factors[0], "activations without room for magnitudes");
  return {factors[0] + adapter.column, factors[1] + adapter.column, factors[2] + adapter.column};
}

void LowRankAdapters::make_factors(Operators& operators, const UnitParameters& unit,
                                   const Adapter& adapter, const LayerPass& pass) const {
  const Factors to = factors_of(adapter, pass);
  float* update = pass.scratch->magnitude_rows;
  const ConstElements weight(unit.matrix(adapter.weight), unit.dtype(adapter.weight));
  const ConstElements b(unit.matrix(adapter.b), unit.dtype(adapter.b));
  const QuantizedMatrix quantized = unit.quantized(adapter.weight, adapter.outputs, inputs_);
  const bool by_output = !transposed_ || quantized;
  const std::int64_t row_stride = by_output ? inputs_ : 1;
  for_row_chunks(adapter.outputs, [&](std::int64_t output, std::int64_t count) {
    operators.gemm({.m = count,
                    .n = inputs_,
                    .k = adapter.rank,
                    .a = (b + output * adapter.rank).data,
                    .a_type = b.type,
                    .a_stride = adapter.rank,
                    .b = unit.matrix(adapter.a),
                    .b_type = unit.dtype(adapter.a),
                    .b_stride = inputs_,
                    .c = update,
                    .c_stride = inputs_,
                    .arithmetic = unit.arithmetic(adapter.b)});
    ConstElements rows = weight + output * row_stride;
    if (quantized) {
      operators.quantized_values(quantized, output * inputs_, pass.scratch->magnitude_weights,
                                 count * inputs_);
      rows = pass.scratch->magnitude_weights;
    }
    operators.magnitude_factors(rows, row_stride, by_output ? 1 : adapter.outputs, update,
                                adapter.scale, unit.vector(*adapter.magnitude) + output,
                                to.factors + output, to.less_one + output,
                                to.inverse_norms + output, count, inputs_);
  });
}

void LowRankAdapters::forward_scaled(Operators& operators, const UnitParameters& unit,
                                     const Adapter& adapter, ConstElements x, Elements y,
                                     std::int64_t rows, const LayerPass& pass) const {
  make_factors(operators, unit, adapter, pass);
  const Factors by = factors_of(adapter, pass);
  const Elements columns = y + adapter.column;
  if (!dropout_of(adapter, pass)) {
    operators.gemm(up(unit, adapter, 0, columns, outputs_, true, rows, pass));
    operators.scale_columns(columns, outputs_, by.factors, rows, adapter.outputs);
    return;
  }
  const ConstElements input = dropped(operators, adapter, x, rows, pass);
  float* product = pass.scratch->magnitude_rows;
  for_row_chunks(rows, [&](std::int64_t row, std::int64_t count) {
    const Elements to = columns + row * outputs_;
    operators.gemm(weight_product(unit, adapter, input + row * inputs_, product, count));
    operators.add_scaled_columns(to, outputs_, product, by.less_one, count, adapter.outputs);
    operators.gemm(up(unit, adapter, row, product, adapter.outputs, false, count, pass));
    operators.add_scaled_columns(to, outputs_, product, by.factors, count, adapter.outputs);
  });
}

void LowRankAdapters::forward(Operators& operators, const UnitParameters& unit, ConstElements x,
                              Elements y, std::int64_t rows, const LayerPass& pass) const {
  forward_hidden(operators, unit, x, rows, pass);
  for (const Adapter& adapter : adapters_) {
    if (adapter.magnitude)
      forward_scaled(operators, unit, adapter, x, y, rows, pass);
    else
      operators.gemm(up(unit, adapter, 0, y + adapter.column, outputs_, true, rows, pass));
  }
}

ConstElements LowRankAdapters::passed_back(ConstElements dy, const LayerPass& pass) const {
  // All adapters of a layer have one probability of dropout.
  if (!magnitudes_ || dropout_of(adapters_.front(), pass)) return dy;
  return pass.scratch->magnitude_gradient;
}

void LowRankAdapters::backward_hidden(Operators& operators, const UnitParameters& unit,
                                      ConstElements dy, std::int64_t rows,
                                      const LayerPass& pass) const {
  if (magnitudes_) {
    float* scaled = pass.scratch->magnitude_gradient;
    operators.copy_rows(dy, outputs_, scaled, outputs_, rows, outputs_);
    for (const Adapter& adapter : adapters_) {
      if (!adapter.magnitude) continue;
      make_factors(operators, unit, adapter, pass);
      operators.scale_columns(scaled + adapter.column, outputs_, factors_of(adapter, pass).factors,
                              rows, adapter.outputs);
    }
    dy = scaled;
  }
  for (const Adapter& adapter : adapters_)
    operators.gemm({.m = rows,
                    .n = adapter.rank,
                    .k = adapter.outputs,
                    .a = (dy + adapter.column).data,
                    .a_type = dy.type,
                    .a_stride = outputs_,
                    .b = unit.matrix(adapter.b),
                    .b_type = unit.dtype(adapter.b),
                    .b_stride = adapter.rank,
                    .c = pass.scratch->adapter_gradient + adapter.hidden_column,
                    .c_stride = columns_,
                    .arithmetic = unit.arithmetic(adapter.b)});
  scale(operators, pass.scratch->adapter_gradient, rows);
}

void LowRankAdapters::pass_back_scaled(Operators& operators, const UnitParameters& unit,
                                       const Adapter& adapter, ConstElements dy, Elements dx,
                                       std::int64_t rows, const LayerPass& pass) const {
  float* scaled = pass.scratch->magnitude_rows;
  for_row_chunks(rows, [&](std::int64_t row, std::int64_t count) {
    operators.copy_rows(dy + row * outputs_ + adapter.column, outputs_, scaled, adapter.outputs,
                        count, adapter.outputs);
    operators.scale_columns(scaled, adapter.outputs, factors_of(adapter, pass).less_one, count,
                            adapter.outputs);
    operators.gemm({.m = count,
                    .n = inputs_,
                    .k = adapter.outputs,
                    .a = scaled,
                    .a_stride = adapter.outputs,
                    .b = unit.matrix(adapter.weight),
                    .b_type = unit.dtype(adapter.weight),
                    .b_stride = transposed_ ? adapter.outputs : inputs_,
                    .transpose_b = transposed_ && !adapter.weight.quantization,
                    .b_quantized = unit.quantized(adapter.weight, adapter.outputs, inputs_),
                    .c = dx + row * inputs_,
                    .c_stride = inputs_,
                    .arithmetic = unit.arithmetic(adapter.weight)});
  });
}

void LowRankAdapters::backward_input(Operators& operators, const UnitParameters& unit,
                                     ConstElements dy, Elements dx, std::int64_t rows,
                                     const LayerPass& pass) const {
  const auto product = [&](const Run& run, Elements to, bool accumulate) {
    operators.gemm({.m = rows,
                    .n = inputs_,
                    .k = run.columns,
                    .a = pass.scratch->adapter_gradient + run.hidden_column,
                    .a_stride = columns_,
                    .b = unit.matrix(run.a),
                    .b_type = unit.dtype(run.a),
                    .b_stride = inputs_,
                    .c = to,
                    .c_stride = inputs_,
                    .accumulate = accumulate,
                    .arithmetic = unit.arithmetic(run.a)});
  };
  for (const Run& run : runs_) product(run, dx, true);
  if (!runs_.empty()) return;
  for (const Adapter& adapter : adapters_) {
    const Dropout drop = dropout_of(adapter, pass);
    if (!drop) {
      product(run_of(adapter), dx, true);
      continue;
    }
    const Elements input_gradient = pass.scratch->adapter_input;
    if (adapter.magnitude)
      pass_back_scaled(operators, unit, adapter, dy, input_gradient, rows, pass);
    product(run_of(adapter), input_gradient, adapter.magnitude.has_value());
    operators.dropout(drop, pass.scratch->adapter_input, dx, dx, rows, inputs_);
  }
}

void LowRankAdapters::backward_weight(Operators& operators, const UnitParameters& unit,
                                      ConstElements dy, ConstElements x,
                                      const UnitGradient& gradient, std::int64_t rows,
                                      const LayerPass& pass) const {
  const auto for_a = [&](const Run& run, ConstElements input) {
    operators.gemm({.m = run.columns,
                    .n = inputs_,
                    .k = rows,
                    .a = pass.scratch->adapter_gradient + run.hidden_column,
                    .a_stride = columns_,
                    .transpose_a = true,
                    .b = input.data,
                    .b_type = input.type,
                    .b_stride = inputs_,
                    .c = gradient.at(run.a),
                    .c_stride = inputs_,
                    .accumulate = !gradient.fresh,
                    .arithmetic = unit.arithmetic(run.a)});
  };
  for (const Run& run : runs_) for_a(run, x);
  const ConstElements scaled = magnitudes_ ? ConstElements(pass.scratch->magnitude_gradient) : dy;
  for (const Adapter& adapter : adapters_) {
    ConstElements input = x;
    if (runs_.empty()) {
      input = dropped(operators, adapter, x, rows, pass);
      for_a(run_of(adapter), input);
    }
    if (adapter.magnitude)
      backward_magnitude(operators, unit, adapter, dy, input, gradient, rows, pass);
    operators.gemm({.m = adapter.outputs,
                    .n = adapter.rank,
                    .k = rows,
                    .a = (scaled + adapter.column).data,
                    .a_type = scaled.type,
                    .a_stride = outputs_,
                    .transpose_a = true,
                    .b = hidden(pass) + adapter.hidden_column,
                    .b_stride = columns_,
                    .c = gradient.at(adapter.b),
                    .c_stride = adapter.rank,
                    .accumulate = !gradient.fresh,
                    .arithmetic = unit.arithmetic(adapter.b)});
  }
}

void LowRankAdapters::backward_magnitude(Operators& operators, const UnitParameters& unit,
                                         const Adapter& adapter, ConstElements dy,
                                         ConstElements input, const UnitGradient& gradient,
                                         std::int64_t rows, const LayerPass& pass) const {
  // dm = Σ dy ⊙ (W + scale·B·A)·x / n. The products are made again: they are as large as y.
  float* product = pass.scratch->magnitude_rows;
  for_row_chunks(rows, [&](std::int64_t row, std::int64_t count) {
    operators.gemm(weight_product(unit, adapter, input + row * inputs_, product, count));
    operators.gemm(up(unit, adapter, row, product, adapter.outputs, true, count, pass));
    operators.scale_columns(product, adapter.outputs, factors_of(adapter, pass).inverse_norms,
                            count, adapter.outputs);
    operators.add_column_products(dy + row * outputs_ + adapter.column, outputs_, product,
                                  adapter.outputs, gradient.at(*adapter.magnitude), count,
                                  adapter.outputs);
  });
}

void LowRankAdapters::append_written(std::vector<GradientRange>& ranges) const {
  for (const Adapter& adapter : adapters_) {
    ranges.push_back({adapter.a.offset, adapter.a.offset + adapter.rank * inputs_});
    ranges.push_back({adapter.b.offset, adapter.b.offset + adapter.rank * adapter.outputs});
  }
}

}  // namespace troupe::train
