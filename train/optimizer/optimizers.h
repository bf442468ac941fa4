#pragma once
// The optimizers that there are, under the names that configurations give them. A new one is a row
// of a table in optimizers.cpp.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "train/optimizer/optimizer.h"

namespace troupe::train {

// GaLore's and APOLLO's.
struct ProjectionSettings {
  std::string target = "all";  // words of tensors' names, separated by blanks
  std::int64_t rank = 16;
  std::int64_t interval = 200;  // updates with one projection
  double scale = 2.0;
  std::string type = "std";  // std, reverse_std, right, left, full
  // APOLLO's.
  bool scales_gradient = false;
  bool random = false;     // projections, instead of singular vectors
  bool by_tensor = false;  // scaled as a whole, instead of by row or column
  bool scale_front = false;
};

// BAdam's.
struct BlockSettings {
  std::int64_t layers = 0;                // of the model
  std::string switch_mode = "ascending";  // descending, random, fixed
  std::int64_t switch_interval = 50;
  std::optional<std::int64_t> start;  // the first layer
  std::uint64_t seed = 0;
};

// What configurations say about optimizers. Each takes what it knows.
struct OptimizerSettings {
  double weight_decay = 0.0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  // Of the model: Adam-mini's.
  std::int64_t hidden_size = 0, heads = 0;
  ProjectionSettings projection = {};
  BlockSettings blocks = {};
};

struct OptimizerRow {
  // As transformers' TrainingArguments.optim has it; of methods: the word behind LLaMA-Factory's
  // "use_".
  std::string_view optim;
  std::unique_ptr<Optimizer> (*make)(const OptimizerSettings& settings);
};

// The first one is the default.
std::span<const OptimizerRow> optimizer_table();
// Those that have a switch of their own.
std::span<const OptimizerRow> optimizer_method_table();
// "adamw_torch, …", for people.
std::string optimizer_names();
// Of either table. A name that is in no row is a bug: a configuration with it was refused.
std::unique_ptr<Optimizer> make_optimizer(std::string_view optim,
                                          const OptimizerSettings& settings);

}  // namespace troupe::train
