#pragma once
// A model's folder with adapters over it, opened for reading tensor by tensor: merged, or as the
// base and one adapter beside each of its layers.

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/base/status.h"
#include "train/adapters/adapter_files.h"
#include "train/adapters/pissa.h"
#include "train/checkpoint/quantized_weights.h"
#include "train/checkpoint/tensor_reader.h"
#include "train/model/model_config.h"
#include "train/model/parameter_layout.h"
#include "train/model/trainables.h"

namespace troupe::train {

// Immutable; may be read from any thread.
class AdaptedModel {
 public:
  // `adapters` lie over the base in this order; `adapter_folder` is a folder in each of them, or
  // empty. The weights and every adapter are checked against the base's config.json. For a PiSSA
  // adapter the base is decomposed anew, as PEFT does.
  static Result<AdaptedModel> open(FileSystem& files, const std::string& base,
                                   const std::vector<std::string>& adapters = {},
                                   const std::string& adapter_folder = {});

  // The base's, but for the head: an adapter that trained one of embedding and head, or both,
  // unties them.
  const ModelConfig& config() const { return config_; }
  bool unties_head() const { return unties_head_; }
  // The folder of the adapter that has more tokens than the base; empty: none has. Its tokenizer is
  // the model's.
  const std::string& grown_by() const { return grown_by_; }
  // From now on the head is a matrix of its own, equal to the embedding where adapters did not
  // train it.
  Status untie_head();
  // What the base's files hold a parameter of config() in.
  DType stored_type(const ParameterInfo& parameter) const;
  // What the adapters' files say that has no effect.
  const std::vector<std::string>& notes() const { return notes_; }

  enum class Rounding {
    kNone,
    kStoredType,  // after each adapter, to the type that the base is stored in, as PEFT
  };
  // A parameter of config() with all adapters merged into it, in fp32.
  Status read_merged(const ParameterInfo& parameter, Rounding rounding, std::span<float> out) const;
  // As Rounding::kStoredType.
  Status round_as_stored(const ParameterInfo& parameter, std::span<float> values) const;

  // The adapters as the model computes them beside the base. Those of one layer are one, its rank
  // the sum of theirs. kUnsupported where the model cannot compute them so (DoRA).
  Result<Trainables> beside() const;
  // A parameter of config(), or of one of beside(), in fp32.
  Status read_beside(const ParameterInfo& parameter, std::span<float> out) const;

 private:
  AdaptedModel(ModelConfig base, TensorReader reader, QuantizedWeights quantized)
      : base_(std::move(base)),
        config_(base_),
        reader_(std::move(reader)),
        quantized_(std::move(quantized)) {}

  // An adapter of one layer, its tensors views of an opened adapter.
  struct Update {
    LoraModule lora;
    StoredTensor a, b, magnitude;     // magnitude: with DoRA
    std::optional<PissaStart> pissa;  // the adapter belongs to what this leaves of its base
  };
  // The name in the base's files.
  std::string stored_name(std::string_view name) const;
  // The tensor that an adapter has in place of the base's; null where none has.
  const StoredTensor* replacement(std::string_view name) const;
  std::vector<Update> updates(std::string_view module) const;
  // Takes from the weight, as it is before this adapter, what PiSSA began the adapter with.
  Status take_principal(const Update& update, std::span<float> weight) const;
  // Gives the model as many rows as an adapter's embedding has.
  Status grow(std::int64_t rows, const std::string& adapter);
  Status read_unadapted(const ParameterInfo& parameter, std::span<float> out) const;

  ModelConfig base_;
  ModelConfig config_;
  TensorReader reader_;
  QuantizedWeights quantized_;
  std::vector<OpenedAdapter> adapters_;
  bool unties_head_ = false;
  // The head reads what the embedding does: it is untied, and no adapter has one of its own.
  bool head_is_embedding_ = false;
  std::string grown_by_;
  std::vector<std::string> notes_;
};

}  // namespace troupe::train
