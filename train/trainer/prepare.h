#pragma once
// What the driver does before a trainer exists: find every mistake in files and data, tokenise, and
// say where the run starts from.

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/base/status.h"
#include "train/data/cached_dataset.h"
#include "train/data/token_dataset.h"
#include "train/tokenizer/tokenizer.h"
#include "train/trainer/run_bundle.h"
#include "train/trainer/run_contents.h"

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

// A learned position table ends: a row longer than it would stop the run at its step.
Status check_length(const ModelConfig& model, std::int64_t longest);

// The checkpoint to go on from, as the configuration asks; empty: from the beginning. `notes`: what
// was found and refused.
Result<std::string> resume_point(FileSystem& files, const TrainConfig& config,
                                 std::vector<std::string>& notes);

// Looks for everything in the files of model, data and checkpoints that prepare_run() would refuse:
// a model or a template that is not there, a tokenizer that does not fit, data sets of images, rows
// that are none. Of each data set the first rows are read, of checkpoints all that one which is
// gone on from. `--explain`, `plan` and `train` ask the same, before anything else.
RunContents read_contents(FileSystem& files, const TrainConfig& config,
                          std::vector<ContentProblem>& problems);

// `say` gets lines about what takes long, `progress` is told how far the tokenising is. Creates
// output_dir where it is missing. `contents`: read before and found good. `remove_at_signal`:
// cached_dataset.h.
Result<PreparedRun> prepare_run(FileSystem& files, const TrainConfig& config,
                                const std::function<void(const std::string&)>& say,
                                RunContents contents, const SampleProgress& progress = {},
                                const RemoveAtSignal& remove_at_signal = {});
// With contents that are read now.
Result<PreparedRun> prepare_run(FileSystem& files, const TrainConfig& config,
                                const std::function<void(const std::string&)>& say,
                                const SampleProgress& progress = {},
                                const RemoveAtSignal& remove_at_signal = {});

}  // namespace troupe::train
