#include "train/model/low_rank.h"

#include "runtime/base/check.h"
#include "train/model/dropout_site.h"

namespace troupe::train {
namespace {

constexpr std::uint32_t kAdaptersOfPlaceMax = 8;

}  // namespace

LowRankAdapters::LowRankAdapters(const ModelLayout& layout, const std::vector<std::string>& modules,
                                 bool transposed, LinearPlace place)
    : place_(place) {
  bool drops = false;
  for (std::size_t i = 0; i < modules.size(); ++i) {
    const ParameterInfo& weight = *layout.find(modules[i] + ".weight");
    const std::int64_t outputs = weight.shape[transposed ? 1 : 0];
    inputs_ = weight.shape[transposed ? 0 : 1];
    if (const LoraModule* lora = layout.adapter(modules[i])) {
      TROUPE_CHECK(!lora->dora, "{}: adapters with magnitudes are computed elsewhere", modules[i]);
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
  const Dropout drop = adapter_dropout_at(adapter.dropout_number, pass.layer, adapter.dropout,
                                          *pass.shape, *pass.scratch);
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

void LowRankAdapters::forward(Operators& operators, const UnitParameters& unit, ConstElements x,
                              Elements y, std::int64_t rows, const LayerPass& pass) const {
  forward_hidden(operators, unit, x, rows, pass);
  for (const Adapter& adapter : adapters_) {
    operators.gemm({.m = rows,
                    .n = adapter.outputs,
                    .k = adapter.rank,
                    .a = hidden(pass) + adapter.hidden_column,
                    .a_stride = columns_,
                    .b = unit.matrix(adapter.b),
                    .b_type = unit.dtype(adapter.b),
                    .b_stride = adapter.rank,
                    .transpose_b = true,
                    .c = y + adapter.column,
                    .c_stride = outputs_,
                    .accumulate = true,
                    .arithmetic = unit.arithmetic(adapter.b)});
  }
}

void LowRankAdapters::backward_hidden(Operators& operators, const UnitParameters& unit,
                                      ConstElements dy, std::int64_t rows,
                                      const LayerPass& pass) const {
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

void LowRankAdapters::backward_input(Operators& operators, const UnitParameters& unit, Elements dx,
                                     std::int64_t rows, const LayerPass& pass) const {
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
    const Dropout drop = adapter_dropout_at(adapter.dropout_number, pass.layer, adapter.dropout,
                                            *pass.shape, *pass.scratch);
    if (!drop) {
      product(run_of(adapter), dx, true);
      continue;
    }
    product(run_of(adapter), pass.scratch->adapter_input, false);
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
  for (const Adapter& adapter : adapters_) {
    if (runs_.empty()) for_a(run_of(adapter), dropped(operators, adapter, x, rows, pass));
    operators.gemm({.m = adapter.outputs,
                    .n = adapter.rank,
                    .k = rows,
                    .a = (dy + adapter.column).data,
                    .a_type = dy.type,
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

void LowRankAdapters::append_written(std::vector<GradientRange>& ranges) const {
  for (const Adapter& adapter : adapters_) {
    ranges.push_back({adapter.a.offset, adapter.a.offset + adapter.rank * inputs_});
    ranges.push_back({adapter.b.offset, adapter.b.offset + adapter.rank * adapter.outputs});
  }
}

}  // namespace troupe::train
