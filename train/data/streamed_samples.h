#pragma once
// Samples that are made while they are trained on: streaming: true. Every rank reads the same
// stream and makes the samples of whole steps, since a step's loss is divided by the labels of all
// ranks; it takes its own batches out of them.
//
// A stream is a pure function of its options and files. A cursor counts the samples of an epoch
// that were given out, whatever the number of ranks: where it goes back, as after a kill or with a
// checkpoint, the epoch is read again from its begin up to there, tokenised only where samples are
// packed.

#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <vector>

#include "train/data/build_dataset.h"
#include "train/data/row_stream.h"
#include "train/data/sample_stream.h"
#include "train/data/sampler.h"

namespace troupe::train {

struct StreamedSamplesOptions {
  DataOptions data;
  StreamOrder order;
  // Of every epoch's first rows so many are kept from training (val_size).
  std::int64_t rows_kept = 0;
  // Counts and drop_last of a step; its number of samples is not known.
  SamplerOptions steps;
  // The data files as the run began with them; one that is another one ends the reading.
  std::vector<StreamFile> files;
};

class StreamedSamples {
 public:
  // `files` outlives it. `beat` is called now and then while much is read.
  static Result<std::unique_ptr<StreamedSamples>> make(FileSystem& files,
                                                       const Tokenizer& tokenizer,
                                                       StreamedSamplesOptions options,
                                                       StreamBeat beat = {});

  // The step that begins at `cursor`. Its batches name samples of dataset(). As LLaMA-Factory's
  // ranks see a stream: rank r has the r-th part of each batch of all ranks; the last one of an
  // epoch is completed to a multiple of the ranks with its own first samples.
  // The samples of the next step are made while this step is computed.
  Result<StepPlan> next_step(const SampleCursor& cursor);
  const TokenDataset& dataset() const { return step_; }
  // Why rows were dropped, since the last call.
  std::vector<std::string> take_warnings() { return std::exchange(warnings_, {}); }

 private:
  StreamedSamples(FileSystem& files, StreamedSamplesOptions options, DatasetModule module,
                  StreamBeat beat);
  void end_ahead();
  void begin_ahead(const SampleCursor& step, std::int64_t samples);
  std::int64_t samples_of_step() const;
  Status begin_epoch(std::int64_t epoch);
  Status check_files() const;
  // Has the samples [first, first + count) of the epoch, or as many as there are; those before are
  // forgotten.
  Status reach(std::int64_t epoch, std::int64_t first, std::int64_t count);
  Status skip_to(std::int64_t sample);
  Status make_some();
  std::int64_t made() const { return first_ + std::ssize(samples_); }

  struct Sample {
    std::vector<TokenId> ids;
    std::vector<std::int32_t> labels, parts;
  };
  FileSystem& files_;
  const StreamedSamplesOptions options_;
  const DatasetModule module_;
  const StreamBeat beat_;
  std::vector<std::string> warnings_;
  // The thread's that works ahead, until end_ahead().
  bool works_ahead_ = false;
  EncodeReport report_;
  std::int64_t epoch_ = -1;
  std::unique_ptr<RowStream> rows_;  // of the epoch
  bool ended_ = false;               // its rows have
  std::int64_t rows_read_ = 0;
  std::int64_t first_ = 0;  // sample of the epoch that samples_ begins with
  std::deque<Sample> samples_;
  TokenDataset step_;
  std::future<Status> ahead_;
};

// What is evaluated on where a stream is trained on: the first rows of the first epoch, all of them
// at once.
Result<TokenDataset> first_samples(FileSystem& files, const Tokenizer& tokenizer,
                                   const StreamedSamplesOptions& options);

// Of a stream, which nobody has read: stamps stand for its files' hashes.
Result<SampleStream> describe_streamed(FileSystem& files, const StreamedSamplesOptions& options,
                                       const StreamOrigin& origin);

}  // namespace troupe::train
