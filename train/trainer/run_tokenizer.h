#pragma once
// The tokenizer of a run: read or trained, with the tokens that the configuration adds, and the
// model's rows for them.

#include <functional>
#include <map>
#include <optional>
#include <string>

#include "runtime/base/file_system.h"
#include "train/config/train_config.h"
#include "train/tokenizer/tokenizer.h"
#include "train/trainer/run_contents.h"

namespace troupe::train {

// The tokenizer of the model's folder; nothing where one is to be trained. A SentencePiece
// tokenizer becomes a tokenizer.json among the companions.
Result<std::optional<Tokenizer>> load_tokenizer(FileSystem& files, const TrainConfig& config,
                                                RunContents& contents);

// Trains a tokenizer on the texts that the model is trained on, and no others: what is held out is
// as new to the tokenizer as to the model. Puts its files among the companions.
Result<Tokenizer> train_tokenizer(FileSystem& files, const TrainConfig& config,
                                  std::map<std::string, std::string>& companions,
                                  const std::function<void(const std::string&)>& say);

// The tokens that every trained tokenizer has, whatever its texts: bytes and special tokens.
Result<Tokenizer> untrained_tokenizer();

// kInvalidArgument where the embedding has fewer rows than the tokenizer has tokens.
Status check_vocabulary(std::int64_t tokens, const ModelConfig& model, const TrainConfig& config);

// The tokenizer gets the tokens that the configuration adds, the model rows for all tokens. Returns
// whether the vocabulary counts as resized. `key`: of the configuration that a failure is about.
Result<bool> grow_vocabulary(FileSystem& files, const TrainConfig& config, RunContents& contents,
                             std::string& key);

}  // namespace troupe::train
