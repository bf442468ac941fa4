#pragma once
// An adapter's directory: adapter_config.json and adapter_model.safetensors.

#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/base/status.h"
#include "train/adapters/adapter_config.h"
#include "train/checkpoint/safetensors.h"
#include "train/checkpoint/weights.h"
#include "train/model/model_config.h"
#include "train/model/trainables.h"

namespace troupe::train {

// Tensors of an adapter and their shapes: MODULE.lora_A.weight (rank, in), MODULE.lora_B.weight
// (out, rank), with DoRA MODULE.lora_magnitude_vector (out), and the base's tensors that are
// trained whole. In the model's order, adapters first.
std::vector<ExpectedTensor> adapter_tensors(const ModelConfig& model, const Trainables& trainables);

struct OpenedAdapter {
  std::string directory;  // with the adapter_folder
  AdapterConfig config;
  Trainables trainables;
  SafetensorsFile file;  // keeps the tensors' bytes
  // What adapter_tensors() lists, in that order, under its names; types as stored.
  std::vector<StoredTensor> tensors;
  // Embeddings and a head that are stored beside the adapter (PEFT's save_embedding_layers): they
  // take the place of the base's, and are not trained.
  std::vector<StoredTensor> replaced;
  std::vector<std::string> notes;
};

// How many rows the embedding has that is stored in the adapter, where it is; else the base's. A
// model that was trained with more tokens has its embedding and head there.
Result<std::int64_t> adapter_vocabulary(FileSystem& files, const std::string& directory,
                                        const std::string& folder, const ModelConfig& base);

// `folder`: LLaMA-Factory's adapter_folder, a folder in `directory`, or empty. Checked against the
// base before anything is handed out: a missing tensor is kNotFound, listing all; a shape that is
// not the base's kInvalidArgument.
Result<OpenedAdapter> open_adapter(FileSystem& files, const std::string& directory,
                                   const std::string& folder, const ModelConfig& base);

// Writes both files, each synced, into a directory that is there. `tensors` have the names of
// adapter_tensors(), their data any floating-point type, as PEFT: what it wrote is written again
// byte by byte.
Result<std::vector<FileDigest>> write_adapter(FileSystem& files, const std::string& directory,
                                              const AdapterConfig& config,
                                              std::vector<StoredTensor> tensors);

}  // namespace troupe::train
