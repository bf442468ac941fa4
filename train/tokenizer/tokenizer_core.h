#pragma once
// Private to this folder: what a Tokenizer consists of, and how one is read from its files.

#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "runtime/base/json.h"
#include "train/tokenizer/added_tokens.h"
#include "train/tokenizer/bpe_model.h"
#include "train/tokenizer/decoder.h"
#include "train/tokenizer/normalizer.h"
#include "train/tokenizer/pre_tokenizer.h"
#include "train/tokenizer/tokenizer.h"
#include "train/tokenizer/unigram_model.h"
#include "train/tokenizer/word_piece_model.h"

namespace troupe::train {

using TokenModel = std::variant<BpeModel, UnigramModel, WordPieceModel>;

struct Tokenizer::Core {
  explicit Core(TokenModel token_model) : model(std::move(token_model)) {}

  const TokenMap& vocabulary() const {
    return std::visit([](const auto& any) -> const TokenMap& { return any.vocabulary(); }, model);
  }

  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  TokenModel model;
  Decoder decoder;
  std::vector<AddedToken> added;
  bool added_as_read = true;            // `added` is what the file has
  TokenFinder plain_finder;             // added tokens looked for in the text as it comes
  TokenFinder normalized_finder;        // and those looked for in the normalised text
  std::vector<TokenId> before, behind;  // the post_processor's special tokens

  std::vector<std::string> tokens;         // by id; empty where there is none
  std::vector<bool> special;               // by id
  std::vector<std::uint32_t> byte_counts;  // by id
  bool add_bos_token = false;
  std::optional<std::string> chat_template;
  bool chat_template_is_file = false;
  std::optional<std::string> tool_use_template;
  bool tool_use_is_file = false;
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
    UnigramScratch unigram;
    WordPieceScratch word_piece;
    Pieces pieces;

    BpeScratch& scratch_of(const BpeModel&) { return bpe; }
    UnigramScratch& scratch_of(const UnigramModel&) { return unigram; }
    WordPieceScratch& scratch_of(const WordPieceModel&) { return word_piece; }
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
                                     const std::string& name, const char* main_file);

  // `texts` are by the file's name under the tokenizer's directory, as Tokenizer::files() gives
  // them; messages call the text of tokenizer.json `main_file`, which is what it was made of.
  static Result<Tokenizer> from_files(const std::map<std::string, std::string>& texts,
                                      const std::string& name, const char* main_file);
};

}  // namespace troupe::train
