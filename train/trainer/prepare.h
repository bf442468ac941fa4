#pragma once
// What the driver does before a trainer exists: find every mistake in files and data, tokenise, and
// say where the run starts from.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/base/status.h"
#include "train/data/token_dataset.h"
#include "train/tokenizer/tokenizer.h"
#include "train/trainer/run_bundle.h"

namespace troupe::train {

struct PreparedRun {
  RunBundle bundle;
  Tokenizer tokenizer;
  // The documents of troupe.held_out, packed as the training data are.
  std::optional<TokenDataset> held_out;
  // The checkpoint to go on from; empty: none.
  std::string resume_path;
  // For the user, before the run: what was found, chosen, dropped.
  std::vector<std::string> notes;
};

// `say` gets lines about what takes long. Creates output_dir where it is missing.
Result<PreparedRun> prepare_run(FileSystem& files, const TrainConfig& config,
                                const std::function<void(const std::string&)>& say);

}  // namespace troupe::train
