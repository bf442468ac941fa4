#include "train/optimizer/optimizers.h"

#include <algorithm>
#include <array>

#include "runtime/base/check.h"
#include "train/optimizer/adamw.h"

namespace troupe::train {

// sgd.cpp, elementwise.cpp, eight_bits.cpp, and files of their names.
std::unique_ptr<Optimizer> make_sgd(const OptimizerSettings& settings);
std::unique_ptr<Optimizer> make_adam(const OptimizerSettings& settings);
std::unique_ptr<Optimizer> make_lion(const OptimizerSettings& settings);
std::unique_ptr<Optimizer> make_adagrad(const OptimizerSettings& settings);
std::unique_ptr<Optimizer> make_rmsprop(const OptimizerSettings& settings);
std::unique_ptr<Optimizer> make_ademamix(const OptimizerSettings& settings);
std::unique_ptr<Optimizer> make_adamw_8bit(const OptimizerSettings& settings);
std::unique_ptr<Optimizer> make_lion_8bit(const OptimizerSettings& settings);
std::unique_ptr<Optimizer> make_adafactor(const OptimizerSettings& settings);
std::unique_ptr<Optimizer> make_adam_mini(const OptimizerSettings& settings);
std::unique_ptr<Optimizer> make_muon(const OptimizerSettings& settings);
std::unique_ptr<Optimizer> make_projected(const OptimizerSettings& settings);
std::unique_ptr<Optimizer> make_block_adamw(const OptimizerSettings& settings);

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
    OptimizerRow{"adafactor", make_adafactor},
    // Blocks of 8 bits as bitsandbytes has them; "paged" is where it keeps them, and changes
    // nothing.
    OptimizerRow{"adamw_bnb_8bit", make_adamw_8bit},
    OptimizerRow{"adamw_8bit", make_adamw_8bit},
    OptimizerRow{"paged_adamw_8bit", make_adamw_8bit},
    OptimizerRow{"paged_adamw_32bit", make_adamw},
    OptimizerRow{"lion_32bit", make_lion},
    OptimizerRow{"paged_lion_32bit", make_lion},
    OptimizerRow{"lion_8bit", make_lion_8bit},
    OptimizerRow{"paged_lion_8bit", make_lion_8bit},
    OptimizerRow{"ademamix", make_ademamix},
    OptimizerRow{"paged_ademamix_32bit", make_ademamix},
    OptimizerRow{"sgd", make_sgd},
    OptimizerRow{"adagrad", make_adagrad},
    OptimizerRow{"rmsprop", make_rmsprop},
    OptimizerRow{"galore_adamw", make_projected},
    OptimizerRow{"apollo_adamw", make_projected},
};

// "adam": DeepSpeed's Adam with adam_w_mode: false.
constexpr std::array kMethods{
    OptimizerRow{"galore", make_projected},  OptimizerRow{"apollo", make_projected},
    OptimizerRow{"badam", make_block_adamw}, OptimizerRow{"adam_mini", make_adam_mini},
    OptimizerRow{"muon", make_muon},         OptimizerRow{"adam", make_adam},
};

}  // namespace

std::span<const OptimizerRow> optimizer_table() { return kTable; }

std::span<const OptimizerRow> optimizer_method_table() { return kMethods; }

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
  for (const auto table : {optimizer_table(), optimizer_method_table()})
    for (const OptimizerRow& row : table)
      if (row.optim == optim) return row.make(settings);
  TROUPE_CHECK(false, "optim: {} is none of {}", optim, optimizer_names());
  return nullptr;
}

}  // namespace troupe::train
