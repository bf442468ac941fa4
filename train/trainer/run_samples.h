#pragma once
// The samples of a run: what decides them, made or taken out of a cache, and whether they are those
// of the checkpoint that is gone on from.

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "runtime/base/file_system.h"
#include "train/config/train_config.h"
#include "train/data/cached_dataset.h"
#include "train/data/sample_stream.h"
#include "train/tokenizer/tokenizer.h"

namespace troupe::train {

// What build_dataset() is told of a configuration.
DataOptions data_options(const TrainConfig& config);

// Where tokenised data are kept, in output_dir.
inline constexpr const char* kTokenCacheFolder = "token_cache";

// What is told where another run writes into the folder; `holder`: what its lock says.
Status output_dir_taken(const std::string& folder, const Status& holder);

// Tokenised now or before; or of a stream, whose `data` have those to evaluate on alone.
struct RunSamples {
  CachedDataset data;
  SampleStream stream;
};
// `companions`: the files of the tokenizer. The others: see prepare_run().
Result<RunSamples> samples_of(FileSystem& files, const TrainConfig& config,
                              const Tokenizer& tokenizer,
                              const std::map<std::string, std::string>& companions,
                              const std::function<void(const std::string&)>& say,
                              const SampleProgress& progress,
                              const RemoveAtSignal& remove_at_signal);

// What can be said of `checkpoint` before anything is tokenised, which would take the place of the
// samples that it was trained on.
Status check_settings_of_samples(FileSystem& files, const TrainConfig& config,
                                 const std::map<std::string, std::string>& companions,
                                 const std::string& checkpoint);

// Refuses to go on from `checkpoint` (empty: nothing) with other samples than it was trained on,
// unless troupe.allow_data_change allows it; `notes` tells that then.
Status check_checkpoint_stream(FileSystem& files, const TrainConfig& config,
                               const std::string& checkpoint, const SampleStream& now,
                               std::vector<std::string>& notes);

// The same, and of a trained tokenizer. Keeps the stream in output_dir, and returns its text.
Result<std::string> settle_stream(FileSystem& files, const TrainConfig& config,
                                  const SampleStream& now, const std::string& checkpoint,
                                  std::vector<std::string>& notes);

}  // namespace troupe::train
