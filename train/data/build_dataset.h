#pragma once
// From the data keys of a training configuration to data sets of token ids.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/base/json.h"
#include "train/data/chat_template.h"
#include "train/data/encode_samples.h"
#include "train/data/eval_parts.h"
#include "train/data/token_dataset.h"
#include "train/tokenizer/tokenizer.h"

namespace troupe::train {

// Data sets by their paths instead of names in dataset_info.json (row_dataset.h).
struct RowOptions {
  json::Array datasets, eval_datasets;  // entries: row_source.h
  std::int64_t min_sample_len = 2;
  std::string excess_length = "drop";  // drop, truncate, raise
  bool shuffle = true;
  bool train_on_inputs = false;
  // Samples without a label are dropped, before val_size keeps some: what Axolotl does where it
  // packs samples.
  bool drop_unlabelled = false;
  json::Object special_tokens;
  std::vector<std::string> tokens;
};

// The keys of LLaMA-Factory's data arguments, with its defaults.
struct DataOptions {
  enum class Stage { kPretrain, kSupervised, kPairs, kFeedback };
  Stage stage = Stage::kSupervised;
  std::vector<std::string> dataset;
  std::vector<std::string> eval_dataset;
  std::string dataset_dir = "data";
  std::map<std::string, std::vector<std::string>> hub_files;  // dataset_info.h
  std::optional<std::string> template_name;
  std::int64_t cutoff_len = 2048;
  std::optional<bool> packing;  // not given: packs in pre-training
  bool neat_packing = false;    // implies packing; SFT only
  bool train_on_prompt = false;
  bool mask_history = false;
  std::optional<std::int64_t> max_samples;  // the first N rows of each data set
  // Above 1 a count, else a fraction (rounded up) of the rows, taken out for evaluation as Hugging
  // Face's train_test_split does: the first ones of numpy_permutation(rows, seed); the others
  // train, in the permutation's order.
  double val_size = 0;
  // The same for DatasetModule::held_out, neither trained on nor evaluated, by
  // random_permutation(rows, seed). Not together with val_size.
  double held_out = 0;
  std::string mix_strategy = "concat";        // interleave_under, interleave_over, interleave_once
  std::vector<std::string> interleave_probs;  // numbers, one for each data set
  std::int64_t preprocessing_batch_size = 1000;
  std::uint32_t seed = 42;
  std::optional<std::string> default_system;
  std::optional<bool> enable_thinking = true;  // of reasoning templates: EncodeOptions
  bool preserve_thinking = false;
  std::optional<std::string> tool_format;  // instead of the template's
  bool answers_optional = false;           // a row without an answer is one (prompts.h)
  RowOptions rows;         // used where it names data sets; then val_size keeps the last samples
  bool eval_each = false;  // the data sets of eval_dataset are not mixed: DatasetModule::eval_parts
};

struct DatasetModule {
  TokenDataset train;
  std::optional<TokenDataset> eval;
  std::optional<TokenDataset> held_out;
  std::vector<EvalPart> eval_parts = {};  // of eval; none: it is one
  EncodeReport train_report, eval_report, held_out_report;
  // The tokenizer with the template's end and padding tokens: generation and the files written
  // beside the weights use it.
  Tokenizer tokenizer;
  ChatTemplate chat;
  std::vector<std::string> notes;  // what was changed or chosen, for the log
};

// Whether samples are packed, given what packing and neat_packing say or leave to the stage.
bool packs(const DataOptions& options);

// Contradicting keys, with LLaMA-Factory's words where it has some.
Status check_data_options(const DataOptions& options);

// How many of `count` rows val_size or held_out keep from training. kInvalidArgument where none is
// left.
Result<std::size_t> rows_kept_back(const DataOptions& options, std::size_t count);
// With fewer rows than these it may be that none is left.
std::int64_t rows_to_judge_split(const DataOptions& options);

// interleave_probs as numbers; kInvalidArgument where they are none, or not of so many data sets.
Result<std::vector<double>> interleave_shares(const DataOptions& options, std::size_t sets);

// The rows that are trained on: valid ones, without those that val_size and held_out keep from it.
Result<std::vector<Conversation>> load_training_rows(FileSystem& files, const DataOptions& options,
                                                     EncodeReport& report);

// The samples of some rows that follow each other, `before` being in front of them: whole
// preprocessing batches, where samples are packed.
Result<TokenDataset> encode_rows(std::span<const Conversation> rows, std::int64_t before,
                                 const DataOptions& options, const DatasetModule& module,
                                 EncodeReport& report);

// Takes samples in order as they are made, some at a time; one call at a time, from any thread. A
// failure ends the making with it.
using SampleSink = std::function<Status(const TokenDataset& samples)>;
struct SampleSinks {
  SampleSink train, eval, held_out;
};

// How far the making is, of "train", "eval" or "held_out". Called from another thread.
struct SamplesMade {
  std::string_view set;
  std::int64_t rows = 0, tokens = 0, text_bytes = 0;
  std::int64_t file_bytes = 0;  // of all data files, which hold a little more than the texts
};
using SampleProgress = std::function<void(const SamplesMade& made)>;

// The tokenizer with its template, before any row is read; no samples.
Result<DatasetModule> prepare_module(const DataOptions& options, const Tokenizer& tokenizer);

// Reads, converts, tokenises and packs. Rows are read beside the tokenising, on as many threads as
// there are cores, and no more of them are held than are worked on. Where they are not wanted in
// the order in which they are read (load_conversations.h), all of them are read first and kept in a
// file in the folder `scratch`, or in memory where it is empty. The module has no samples: the
// sinks have them. Errors: see check_data_options, dataset_info.h, records.h; a data set without a
// valid sample is kInvalidArgument "Cannot find valid samples: …".
Result<DatasetModule> make_samples(FileSystem& files, const DataOptions& options,
                                   const Tokenizer& tokenizer, const SampleSinks& sinks,
                                   const SampleProgress& progress = {},
                                   const std::string& scratch = {});

// The same, with the samples in the module.
Result<DatasetModule> build_dataset(FileSystem& files, const DataOptions& options,
                                    const Tokenizer& tokenizer);

}  // namespace troupe::train
