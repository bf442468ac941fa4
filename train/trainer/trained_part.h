#pragma once
// What of a model a run trains, as its configuration and the adapters that it goes on with say.

#include <optional>
#include <string>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/base/status.h"
#include "train/adapters/base_record.h"
#include "train/adapters/pissa.h"
#include "train/config/train_config.h"
#include "train/model/model_config.h"
#include "train/model/trainables.h"

namespace troupe::train {

struct TrainedPart {
  Trainables trainables;
  // The folder of the adapter that is trained on, absolute; empty: none, or a new one.
  std::string adapter;
  // Folders of the adapters that are merged into the model's folder first, absolute.
  std::vector<std::string> merged;
  // The adapter takes its start from the base.
  std::optional<PissaStart> pissa;
  // The text of the adapter_config.json that goes beside saved adapters; empty without adapters.
  std::string adapter_config;
  // Beside which base adapters are trained; nothing without adapters or without such a base.
  std::optional<BaseRecord> base;
  std::vector<std::string> notes;
};

// Unties the head of `model` where embedding and head are trained apart. `key`: of the
// configuration that a failure is about.
Result<TrainedPart> trained_part(FileSystem& files, const TrainConfig& config, ModelConfig& model,
                                 std::string& key);

// kUnsupported, with the way out, where GPUs are to train a part of a model.
Status check_trained_part(const Trainables& trainables, bool on_gpus);

}  // namespace troupe::train
