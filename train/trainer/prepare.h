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
#include "train/data/build_dataset.h"
#include "train/data/cached_dataset.h"
#include "train/data/sample_stream.h"
#include "train/data/token_dataset.h"
#include "train/tokenizer/tokenizer.h"
#include "train/trainer/run_bundle.h"
#include "train/trainer/trained_part.h"

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

// What a run begins with, as far as it can be read at once and without changing anything.
struct RunContents {
  // The small files of the model's folder, by name.
  std::map<std::string, std::string> companions;
  std::optional<ModelConfig> model;
  TrainedPart trained;                   // of the model
  std::optional<Tokenizer> tokenizer;    // nothing: one is trained
  std::optional<GrownVocabulary> grown;  // the model has rows that its folder lacks
  std::string resume_path;               // empty: from the beginning
  std::vector<std::string> notes;        // of the search for it
};
struct ContentProblem {
  std::string key;  // of the configuration
  Status status;
  bool of_settings = false;  // settings contradict each other, whatever the files hold
};

// What build_dataset() is told of a configuration.
DataOptions data_options(const TrainConfig& config);

// Where tokenised data are kept, in output_dir.
inline constexpr const char* kTokenCacheFolder = "token_cache";

// What is told where another run writes into the folder; `holder`: what its lock says.
Status output_dir_taken(const std::string& folder, const Status& holder);

// A learned position table ends: a row longer than it would stop the run at its step.
Status check_length(const ModelConfig& model, std::int64_t longest);

// Refuses to go on from `checkpoint` (empty: nothing) with other samples than it was trained on,
// unless troupe.allow_data_change allows it; `notes` tells that then.
Status check_checkpoint_stream(FileSystem& files, const TrainConfig& config,
                               const std::string& checkpoint, const SampleStream& now,
                               std::vector<std::string>& notes);

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

// `say` gets lines about what takes long, `progress` is told how far the tokenising is, which
// `note_stop` lets be ended (cached_dataset.h). Creates output_dir where it is missing. `contents`:
// read before and found good.
Result<PreparedRun> prepare_run(FileSystem& files, const TrainConfig& config,
                                const std::function<void(const std::string&)>& say,
                                RunContents contents, const SampleProgress& progress = {},
                                const NoteStop& note_stop = {});
// With contents that are read now.
Result<PreparedRun> prepare_run(FileSystem& files, const TrainConfig& config,
                                const std::function<void(const std::string&)>& say,
                                const SampleProgress& progress = {},
                                const NoteStop& note_stop = {});

}  // namespace troupe::train
