#pragma once
// The optimizers that there are, under the names that configurations give them. A new one is a row
// of the table in optimizers.cpp.

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "train/optimizer/optimizer.h"

namespace troupe::train {

// What configurations say about optimizers. Each takes what it knows.
struct OptimizerSettings {
  double weight_decay = 0.0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
};

struct OptimizerRow {
  std::string_view optim;  // as transformers' TrainingArguments.optim has it
  std::unique_ptr<Optimizer> (*make)(const OptimizerSettings& settings);
};

// The first one is the default.
std::span<const OptimizerRow> optimizer_table();
// "adamw_torch, …", for people.
std::string optimizer_names();
// A name that is in no row is a bug: a configuration with it was refused.
std::unique_ptr<Optimizer> make_optimizer(std::string_view optim,
                                          const OptimizerSettings& settings);

}  // namespace troupe::train
