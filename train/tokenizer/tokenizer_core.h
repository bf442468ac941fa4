#pragma once
// Private to this folder: what a Tokenizer consists of, and how one is read from its files.

#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/base/json.h"
#include "train/tokenizer/added_tokens.h"
#include "train/tokenizer/bpe_model.h"
#include "train/tokenizer/decoder.h"
#include "train/tokenizer/normalizer.h"
#include "train/tokenizer/pre_tokenizer.h"
#include "train/tokenizer/tokenizer.h"

namespace troupe::train {

struct Tokenizer::Core {
  explicit Core(BpeModel bpe) : model(std::move(bpe)) {}

  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  BpeModel model;
  Decoder decoder;
  std::vector<AddedToken> added;
  std::set<TokenId> special_as_read;    // of `added`: what the file has
  TokenFinder plain_finder;             // added tokens looked for in the text as it comes
  TokenFinder normalized_finder;        // and those looked for in the normalised text
  std::vector<TokenId> before, behind;  // the post_processor's special tokens

  std::vector<std::string> tokens;         // by id; empty where there is none
  std::vector<bool> special;               // by id
  std::vector<std::uint32_t> byte_counts;  // by id
  bool add_bos_token = false;
  std::optional<std::string> chat_template;
  bool chat_template_is_file = false;
  std::string tokenizer_json, tokenizer_config_json;  // as read, for save

  // Fills what is derived from `added` and `model`.
  Status index();
};

// Scratch memory of the threads that encode at this moment.
class Tokenizer::Workspaces {
 public:
  struct Workspace {
    RegexScratch regex;
    BpeScratch bpe;
    Pieces pieces;
  };
  std::unique_ptr<Workspace> take() {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) return std::make_unique<Workspace>();
    auto out = std::move(idle_.back());
    idle_.pop_back();
    return out;
  }
  void give_back(std::unique_ptr<Workspace> workspace) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(workspace));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Workspace>> idle_;
};

struct TokenizerLoader {
  static Result<Tokenizer> from_text(std::string_view tokenizer_json,
                                     std::string_view tokenizer_config_json,
                                     std::string_view special_tokens_map_json,
                                     std::optional<std::string> chat_template,
                                     const std::string& name);
};

}  // namespace troupe::train
