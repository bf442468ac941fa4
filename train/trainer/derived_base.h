#pragma once
// A base that no file holds: a model's folder with adapters merged into it, with rows for more
// tokens, and without what a new PiSSA adapter takes of it.

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/base/status.h"
#include "train/model/model_config.h"
#include "train/model/model_layout.h"
#include "train/trainer/adapted_model.h"
#include "train/trainer/grown_vocabulary.h"

namespace troupe::train {

struct BaseSource {
  std::string folder;               // a model's
  std::vector<std::string> merged;  // folders of adapters, merged into it in this order
  std::optional<PissaStart> pissa = {};
  std::optional<GrownVocabulary> grown = {};
  bool is_derived() const { return !merged.empty() || pissa || grown; }
};

// Every tensor is computed as a whole, in one thread, by code without variants: the same bits
// wherever and whenever. One rank reads, for all.
class DerivedBase {
 public:
  // Nothing is opened before the first read: only one rank need see the files. `config` and `model`
  // are those of the run, and outlive this.
  DerivedBase(FileSystem& files, BaseSource source, const ModelConfig& config,
              const ModelLayout& model)
      : files_(&files), source_(std::move(source)), config_(&config), model_(&model) {}

  // Opens and checks all files, if that is not done yet.
  Status open();
  // Elements from `begin` on of a tensor of the model or, with PiSSA, of the new adapter's.
  Status read(const ParameterInfo& parameter, std::int64_t begin, std::span<std::byte> out,
              DType dtype);
  bool starts_adapters() const { return source_.pissa.has_value(); }
  // Writes the adapter as it begins, in PEFT's form, for pissa_convert.
  Status write_start(const std::string& folder, AdapterConfig adapter);

 private:
  // The tensor that was read last becomes `parameter`.
  Status compute(const ParameterInfo& parameter);
  Status read_base(const ParameterInfo& parameter, std::span<float> out);
  // Of an embedding or head: the rows that the folder has.
  Status read_rows_before(const ParameterInfo& parameter, std::span<float> out);
  // Of the module that a tensor belongs to, where PiSSA begins it: its weight, A, or B.
  const LoraModule* adapter_of(std::string_view tensor) const;
  PissaMatrix matrix_of(const LoraModule& lora) const;
  // The module with this adapter; its factors are kept.
  Result<const PrincipalFactors*> factors_of(const LoraModule& lora, std::span<const float> weight);

  FileSystem* files_;
  BaseSource source_;
  const ModelConfig* config_;
  const ModelLayout* model_;
  std::optional<AdaptedModel> base_;
  std::map<std::string, PrincipalFactors, std::less<>> factors_;
  std::string name_;
  std::vector<float> values_;
};

}  // namespace troupe::train
