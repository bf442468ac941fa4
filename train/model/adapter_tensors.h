#pragma once
// The tensors of low-rank adapters, and what their passes need of memory.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "train/model/model_config.h"
#include "train/model/parameter_layout.h"
#include "train/model/trainables.h"

namespace troupe::train {

// Names of an adapter's tensors, as in PEFT's files without their prefix.
std::string lora_a_name(const std::string& module);          // (rank, in)
std::string lora_b_name(const std::string& module);          // (out, rank)
std::string lora_magnitude_name(const std::string& module);  // (out), with DoRA

// Whether a tensor of this name is an adapter's.
bool is_adapter_tensor(std::string_view name);

// By unit (the embedding, the layers, the head). Those of layers that have one input stand side by
// side, first all A, then all B: so their products with the input are one. Every module must be a
// linear layer of the model.
std::vector<std::vector<TensorSpec>> adapter_tensors(const ModelConfig& config,
                                                     std::span<const LoraModule> adapters);

// The places of a transformer layer at which linear layers take an input.
enum class LinearPlace { kQkv, kAttentionOutput, kMlpInputs, kMlpOutput };
inline constexpr int kLinearPlaces = 4;

// What the adapters of a model need of a pass's memory.
struct AdapterSizes {
  // Ranks of the adapters at each place, summed: the most of any layer.
  std::array<std::int64_t, kLinearPlaces> columns{};
  bool drops = false;  // some adapter's input is dropped out
  // The widest output of a place where an adapter has magnitudes (DoRA); 0: none has.
  std::int64_t magnitudes = 0;
  bool quantized = false;  // the weights beside magnitudes are
  bool any() const { return columns != std::array<std::int64_t, kLinearPlaces>{}; }
  friend bool operator==(const AdapterSizes&, const AdapterSizes&) = default;
};
AdapterSizes adapter_sizes(const ModelConfig& config, const Trainables& trainables);

}  // namespace troupe::train
