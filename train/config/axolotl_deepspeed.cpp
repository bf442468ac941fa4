// The DeepSpeed files that Axolotl brings along and its examples name.
#include <algorithm>
#include <array>

#include "train/config/axolotl.h"
#include "train/config/values.h"

namespace troupe::train {
namespace {

struct Shipped {
  std::string_view name;
  int stage;
  bool bf16;                // "enabled": true instead of "auto"
  bool offloads_optimizer;  // to the host
  bool offloads_parameters;
};
// Axolotl's zero2.json offloads the optimizer's state.
constexpr std::array kShipped = {
    Shipped{"zero1.json", 1, false, false, false},
    Shipped{"zero2.json", 2, false, true, false},
    Shipped{"zero3.json", 3, false, false, false},
    Shipped{"zero3_bf16.json", 3, true, false, false},
    Shipped{"zero3_bf16_cpuoffload_params.json", 3, true, false, true},
    Shipped{"zero3_bf16_cpuoffload_all.json", 3, true, true, true},
};

}  // namespace

json::Value axolotl_deepspeed(std::string_view path) {
  constexpr std::string_view kFolder = "deepspeed_configs/";
  if (path.starts_with("./")) path.remove_prefix(2);
  if (!path.starts_with(kFolder)) return nullptr;
  const auto found = std::find_if(kShipped.begin(), kShipped.end(), [&](const Shipped& file) {
    return file.name == path.substr(kFolder.size());
  });
  if (found == kShipped.end()) return nullptr;
  json::Object zero = {{"stage", found->stage}, {"overlap_comm", true}};
  if (found->stage >= 2) zero["contiguous_gradients"] = true;
  if (found->offloads_optimizer) zero["offload_optimizer"] = {{"device", "cpu"}};
  if (found->offloads_parameters) zero["offload_param"] = {{"device", "cpu"}};
  if (found->stage == 3) {
    for (const char* key : {"sub_group_size", "max_live_parameters", "max_reuse_distance"})
      zero[key] = 0;
    for (const char* key : {"reduce_bucket_size", "stage3_prefetch_bucket_size",
                            "stage3_param_persistence_threshold"})
      zero[key] = "auto";
    zero["gather_16bit_weights_on_model_save"] = true;
  }
  json::Object out = {{"zero_optimization", std::move(zero)}};
  out["bf16"] = {{"enabled", found->bf16 ? json::Value(true) : json::Value("auto")}};
  for (const char* key : {"gradient_accumulation_steps", "gradient_clipping", "train_batch_size",
                          "train_micro_batch_size_per_gpu"})
    out[key] = "auto";
  out["wall_clock_breakdown"] = false;
  return out;
}

}  // namespace troupe::train
