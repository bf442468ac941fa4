#pragma once
// A run with streaming: true: what is settled before it, and each rank's stream.

#include <functional>
#include <memory>
#include <string>

#include "train/config/train_config.h"
#include "train/data/streamed_samples.h"
#include "train/tokenizer/tokenizer.h"
#include "train/trainer/run_bundle.h"

namespace troupe::train {

// The stream of a configuration, `files` being what it is to read.
StreamedSamplesOptions stream_options(const TrainConfig& config, std::vector<StreamFile> files);

// An epoch as long as the run, and samples as long as they may be.
SourceFacts stream_facts(const TrainConfig& config, int world_size);

// Looks at the files and makes what is evaluated on (`eval`). Nothing is read that is trained on.
Result<SampleStream> settle_streamed(FileSystem& files, const TrainConfig& config,
                                     const Tokenizer& tokenizer, const StreamOrigin& origin,
                                     DatasetModule& module);

// A rank's stream of the run in `bundle`, whose steps are those of so many ranks.
Result<std::unique_ptr<StreamedSamples>> open_stream(FileSystem& files, const RunBundle& bundle,
                                                     int batch_world, StreamBeat beat);

}  // namespace troupe::train
