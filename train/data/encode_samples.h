#pragma once
// From texts and conversations to samples of token ids: pre-training blocks and supervised samples.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "train/data/chat_template.h"
#include "train/data/token_dataset.h"

namespace troupe::train {

// What a data set became. Counts of what was left out are for the person who trains.
// One of the data sets that samples come from.
struct DataSetCount {
  std::string name;
  std::int64_t rows = 0;     // read
  std::int64_t samples = 0;  // that came of them, before they are mixed and packed
  std::int64_t dropped = 0;  // rows or samples that count for nothing
};

struct EncodeReport {
  std::vector<DataSetCount> sets;
  std::int64_t records = 0;             // rows read
  std::int64_t records_dropped = 0;     // rows that are no valid sample
  std::int64_t samples_too_long = 0;    // dropped by packing, longer than cutoff_len
  std::int64_t samples_unlabelled = 0;  // dropped by sample packing, nothing in them is trained
  std::int64_t tokens = 0;              // ids of all texts before packing
  std::int64_t tokens_dropped = 0;      // tails that packing dropped, and what cutoff_len cut off
  std::int64_t text_bytes = 0;          // UTF-8 bytes of the texts (pre-training)
  std::vector<std::string> warnings;    // the first few reasons, and what a person should know
};

// Called after every preprocessing batch with (rows done, rows).
using DataProgress = std::function<void(std::int64_t done, std::int64_t total)>;

struct PretrainOptions {
  std::int64_t cutoff_len = 2048;
  bool packing = true;
  std::int64_t preprocessing_batch_size = 1000;
  std::string eos_token;  // its text is put behind every text
  DataProgress progress;
};

// text + end token. Packed: the ids of every preprocessing_batch_size texts are joined and cut into
// blocks of cutoff_len, the tail is dropped; with the tokenizer's add_bos_token the first id of
// every block becomes bos. Unpacked: bos in front where add_bos_token, cut to cutoff_len.
Status encode_pretrain(std::span<const Conversation> texts, const Tokenizer& tokenizer,
                       const PretrainOptions& options, TokenDataset& out, EncodeReport& report);

struct SupervisedOptions {
  std::int64_t cutoff_len = 2048;  // as the user gave it
  bool packing = false;
  std::int64_t preprocessing_batch_size = 1000;
  bool train_on_prompt = false;
  bool mask_history = false;  // only the last answer is trained
  EncodeOptions encode;
  std::int64_t rows_before = 0;  // of the data set, in front of these; for messages
  DataProgress progress;
};

// Packed (kPacked, kNeatPacked): every preprocessing_batch_size conversations are packed into
// samples of cutoff_len tokens, at least one of them padding.
Status encode_supervised(std::span<const Conversation> conversations, const ChatTemplate& chat,
                         const Tokenizer& tokenizer, const SupervisedOptions& options,
                         TokenDataset& out, EncodeReport& report);

// A question with one answer: ids and labels, cut.
struct AnsweredIds {
  std::vector<TokenId> ids;
  std::vector<std::int32_t> labels;
};

// Ranking data: `conversation` has a rejected answer. Both keep as much of the question.
struct PairSample {
  AnsweredIds chosen, rejected;
};
Result<PairSample> encode_pair(const Conversation& conversation, const ChatTemplate& chat,
                               const Tokenizer& tokenizer, const SupervisedOptions& options);

// Data with judgements. `kl` is the same question with another row's answer, which a divergence is
// estimated from.
struct FeedbackSample {
  AnsweredIds answer, kl;
  bool desirable = false;
};
// `kl_answer`: of the row in front in the preprocessing batch, of the first row the last one's.
Result<FeedbackSample> encode_feedback(const Conversation& conversation, const Message& kl_answer,
                                       const ChatTemplate& chat, const Tokenizer& tokenizer,
                                       const SupervisedOptions& options);

// Samples of `out`'s kind, kPairs or kFeedback. Rows without a token of an answer are left out.
Status encode_preferences(std::span<const Conversation> conversations, const ChatTemplate& chat,
                          const Tokenizer& tokenizer, const SupervisedOptions& options,
                          TokenDataset& out, EncodeReport& report);

// How much of a question and its answer may stay when `budget` tokens are left: (source, target).
std::pair<std::int64_t, std::int64_t> infer_lengths(std::int64_t source, std::int64_t target,
                                                    std::int64_t budget);

// Groups of lengths, each at most `capacity` together: always the largest that fits is taken.
// Every length must be in [0, capacity].
std::vector<std::vector<std::int64_t>> greedy_knapsack(const std::vector<std::int64_t>& lengths,
                                                       std::int64_t capacity);

}  // namespace troupe::train
