#pragma once
// The model part of a WordPiece tokenizer (BERT): the longest token first, from left to right.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "train/tokenizer/bpe_model.h"
#include "train/tokenizer/word_cache.h"

namespace troupe::train {

struct WordPieceOptions {
  std::string unk_token = "[UNK]";  // of a word that cannot be cut into tokens, as a whole
  std::string continuing_subword_prefix = "##";  // of tokens that do not begin a word
  std::int64_t max_input_chars_per_word = 100;   // longer words are unknown
};

// What one thread needs while it encodes.
struct WordPieceScratch {
  std::string token;
  WordCache words;
};

// Immutable after make.
class WordPieceModel {
 public:
  static Result<WordPieceModel> make(TokenMap vocabulary, WordPieceOptions options);

  const TokenMap& vocabulary() const { return vocabulary_; }
  // Appends the ids of one word of valid UTF-8. Words are remembered in `scratch`.
  void encode_piece(std::string_view piece, WordPieceScratch& scratch,
                    std::vector<TokenId>& out) const;

 private:
  WordPieceModel() = default;
  void encode_uncached(std::string_view piece, WordPieceScratch& scratch,
                       std::vector<TokenId>& out) const;

  TokenMap vocabulary_;
  WordPieceOptions options_;
  TokenId unk_id_ = 0;
  std::size_t longest_ = 0;  // token, in bytes
};

}  // namespace troupe::train
