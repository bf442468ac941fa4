#include "train/optimizer/optimizers.h"

#include <algorithm>
#include <array>

#include "runtime/base/check.h"
#include "train/optimizer/adamw.h"

namespace troupe::train {

std::unique_ptr<Optimizer> make_sgd(const OptimizerSettings& settings);  // sgd.cpp

namespace {

std::unique_ptr<Optimizer> make_adamw(const OptimizerSettings& settings) {
  return std::make_unique<AdamW>(AdamWStep{.beta1 = settings.beta1,
                                           .beta2 = settings.beta2,
                                           .epsilon = settings.epsilon,
                                           .weight_decay = settings.weight_decay});
}

constexpr std::array kTable{
    OptimizerRow{"adamw_torch", make_adamw},
    OptimizerRow{"adamw_torch_fused", make_adamw},
    OptimizerRow{"sgd", make_sgd},
};

}  // namespace

std::span<const OptimizerRow> optimizer_table() { return kTable; }

std::string optimizer_names() {
  std::string names;
  for (const OptimizerRow& row : kTable) {
    if (!names.empty()) names += ", ";
    names += row.optim;
  }
  return names;
}

std::unique_ptr<Optimizer> make_optimizer(std::string_view optim,
                                          const OptimizerSettings& settings) {
  const auto row = std::find_if(kTable.begin(), kTable.end(),
                                [&](const OptimizerRow& r) { return r.optim == optim; });
  TROUPE_CHECK(row != kTable.end(), "optim: {} is none of {}", optim, optimizer_names());
  return row->make(settings);
}

}  // namespace troupe::train
