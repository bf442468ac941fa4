#pragma once
// From names of modules to what is trained. Rules and texts in quotes are LLaMA-Factory's and
// PEFT's.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "train/adapters/adapter_config.h"
#include "train/adapters/pissa.h"
#include "train/model/model_config.h"
#include "train/model/trainables.h"

namespace troupe::train {

// A linear module within a layer: y = x·Wᵀ.
struct LinearModule {
  std::string name;  // without ".weight"
  std::int64_t in = 0;
  std::int64_t out = 0;
  bool transposed = false;  // its weight is stored [in, out]
};
// In the model's order, without the head.
std::vector<LinearModule> linear_modules(const ModelConfig& model);

// LLaMA-Factory's lora_* keys.
struct LoraRequest {
  // "all": every linear module but the head; names; or one regular expression.
  std::vector<std::string> targets = {"all"};
  std::vector<std::string> additional_targets;
  std::int64_t rank = 8;
  std::optional<std::int64_t> alpha;  // nothing and 0: 2 · rank
  double dropout = 0.0;
  bool use_rslora = false;
  bool use_dora = false;
  std::optional<PissaStart> pissa = {};
  // use_llama_pro: adapters in every (layers / N)-th layer only.
  std::optional<std::int64_t> llama_pro_layers;
};
// What PEFT would save of it: target_modules are the names that LLaMA-Factory passes on.
// kInvalidArgument for targets that match nothing, naming those that exist; with the context "key"
// where that is another than lora_target.
Result<AdapterConfig> make_adapter_config(const ModelConfig& model, const LoraRequest& request);

// What an adapter trains of its base. Adapters of embeddings and the head are kUnsupported.
Result<Trainables> lora_trainables(const ModelConfig& model, const AdapterConfig& adapter);

// LLaMA-Factory's freeze_* keys.
struct FreezeRequest {
  std::int64_t layers = 2;                     // the last ones; negative: the first ones
  std::vector<std::string> modules = {"all"};  // names directly under a layer
  std::vector<std::string> extra_modules;      // names outside layers
  bool use_llama_pro = false;                  // every (layers of the model / `layers`)-th layer
};
Result<Trainables> freeze_trainables(const ModelConfig& model, const FreezeRequest& request);

// The tensors whose names begin with a match of one of the regular expressions; kInvalidArgument
// where there is none. `notes` receives expressions that match nothing.
Result<Trainables> matching_trainables(const ModelConfig& model,
                                       const std::vector<std::string>& expressions,
                                       std::vector<std::string>& notes);

}  // namespace troupe::train
