#pragma once
// Trains a byte-level BPE tokenizer of the GPT-2 kind and writes it as tokenizer.json.
//
// The same texts in any order give the same file: words are counted, and among pairs of equal count
// the one whose bytes are greater, left part first, is merged (as in the reference trainer of
// Stanford's CS336; Hugging Face's own trainer breaks ties by ids instead).

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/base/status.h"

namespace troupe::train {

struct BpeTrainerOptions {
  // Ids in the end: special tokens, 256 bytes, merges. Fewer where the texts give no more pairs.
  std::int64_t vocab_size = 8192;
  // Get the first ids, in this order. Where they occur in a text, they split it and are not
  // counted.
  std::vector<std::string> special_tokens = {"<|endoftext|>"};
  // Pairs seen less often are not merged.
  std::uint64_t frequency_min = 2;
  // The roles in tokenizer_config.json; each must be one of special_tokens, or empty.
  std::string bos_token, eos_token = "<|endoftext|>", pad_token, unk_token;
  // Called now and then with (merges done, merges wanted).
  std::function<void(std::int64_t done, std::int64_t wanted)> progress;
};

// Gives the next text, or false behind the last one.
using TextSource = std::function<Result<bool>(std::string& text)>;

struct TrainedBpe {
  std::vector<std::string> special_tokens;
  // In order of rank; the parts are plain bytes.
  std::vector<std::pair<std::string, std::string>> merges;
  std::uint64_t word_count = 0;  // different words
  std::uint64_t bytes = 0;       // of text
};

// Errors: kInvalidArgument for options that contradict each other and for texts without a word.
Result<TrainedBpe> train_bpe(const TextSource& next_text, const BpeTrainerOptions& options);

// The text of tokenizer.json.
std::string tokenizer_json_of(const TrainedBpe& trained);
// The text of tokenizer_config.json.
std::string tokenizer_config_json_of(const BpeTrainerOptions& options);
// Both, each atomically, into `directory`, which is made where missing.
Status write_trained_tokenizer(FileSystem& files, const std::string& directory,
                               const TrainedBpe& trained, const BpeTrainerOptions& options);

}  // namespace troupe::train
