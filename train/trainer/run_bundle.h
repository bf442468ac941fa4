#pragma once
// What a run's driver prepares once and every trainer needs: the resolved configuration, the
// model's configuration, the files that go beside saved weights, and the tokenised data set.
//
// It travels as one block of bytes: a sealed memfd on the same node, a stream to others. So only
// the driver reads the data set's files. Samples in a token cache stay there: every process maps
// them.

#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/base/status.h"
#include "train/adapters/pissa.h"
#include "train/config/train_config.h"
#include "train/data/eval_parts.h"
#include "train/data/token_dataset.h"
#include "train/model/model_config.h"
#include "train/model/trainables.h"
#include "train/parts/training_parts.h"
#include "train/trainer/grown_vocabulary.h"

namespace troupe::train {

// What is planned with of a data source of the program's own, the same for all its arguments, or of
// a stream, whose epoch counts as long as the run.
struct SourceFacts {
  std::int64_t samples = 0;
  std::int64_t length_max = 0;
};

struct RunBundle {
  TrainConfig config;
  ModelConfig model;
  Trainables trainables;  // of the model
  // The folder of the adapter that is trained on; empty: none, or a new one.
  std::string adapter;
  // Folders of adapters that are merged into the model's folder first, in this order.
  std::vector<std::string> merged_adapters;
  // How the adapter takes its start from the base, and what is left of that.
  std::optional<PissaStart> pissa;
  // What the model's embedding has beyond its folder's.
  std::optional<GrownVocabulary> grown = {};
  // Name → content of config.json, generation_config.json, the tokenizer's files.
  std::map<std::string, std::string> companions;
  // The text of kSampleStreamFile, which goes into every checkpoint; empty: none.
  std::string sample_stream;
  // Of a stream: Tokenizer::files() as it was loaded, for templates change it.
  std::map<std::string, std::string> stream_tokenizer = {};
  TokenDataset dataset{TokenDataset::Kind::kPretrain, 0};
  // The folder that `dataset` and `eval` are in (train/data/token_cache.h); empty: they are here.
  std::string token_cache;
  // Of the program's own parts those that the run takes; with a data source, or a stream, `dataset`
  // is empty.
  PartChoices parts;
  SourceFacts source;
  // What is evaluated on; absent where nothing is.
  std::optional<TokenDataset> eval;
  // What a reference model says of the samples' labels, where that was worked out before
  // (reference_log_probs.h); decode_bundle() and map_samples() give it to the data sets.
  TokenDataset::Reference reference = {}, eval_reference = {};
  std::vector<EvalPart> eval_parts = {};  // each has a loss of its own; none: all have one
};

// Whether the samples are made while they are trained on: by a source of the program's own, or of a
// stream.
bool makes_samples(const RunBundle& bundle);
// Samples of an epoch; tokens of the longest one as it is collated; whether lengths differ.
std::int64_t sample_count(const RunBundle& bundle);
std::int64_t length_max(const RunBundle& bundle);
bool lengths_differ(const RunBundle& bundle);

// Layout: u64 magic, u64 XXH3 of what follows, u64 size of the JSON, the JSON, the data set's
// arrays each behind its u64 element count, u64 1 and another data set to evaluate on, or u64 0,
// and what a reference says of both, as arrays of f32, empty where there is none.
std::vector<std::byte> encode_bundle(const RunBundle& bundle);
// kDataLoss for bytes that are not as they were encoded.
// Samples in a token cache are not there yet.
Result<RunBundle> decode_bundle(std::span<const std::byte> bytes);
// Maps them. kNotFound, kDataLoss, kFailedPrecondition: what is in the folder is not the samples
// that the bundle was made with.
Status map_samples(FileSystem& files, RunBundle& bundle);

}  // namespace troupe::train
