#pragma once
// The model part of a Unigram tokenizer: the likeliest way to cut a piece into tokens.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/status.h"
#include "train/tokenizer/bpe_model.h"
#include "train/tokenizer/word_cache.h"

namespace troupe::train {

// The tokens of a vocabulary by their bytes. The children of a node lie side by side, so that a
// node is found by its byte among at most 256.
class TokenTrie {
 public:
  TokenTrie() = default;
  explicit TokenTrie(const TokenMap& vocabulary);
  // found(length, id) for every token that `text` begins with, the shortest first.
  template <typename Found>
  void each_prefix(std::string_view text, const Found& found) const {
    if (nodes_.empty()) return;
    const Node* node = &nodes_.front();
    for (std::size_t i = 0; i < text.size() && node->child_count > 0; ++i) {
      const char* labels = labels_.data() + node->first_child;
      const void* at = __builtin_memchr(labels, text[i], node->child_count);
      if (!at) return;
      node = &nodes_[node->first_child +
                     static_cast<std::size_t>(static_cast<const char*>(at) - labels)];
      if (node->id >= 0) found(i + 1, node->id);
    }
  }

 private:
  struct Node {
    std::uint32_t first_child = 0, child_count = 0;
    TokenId id = -1;
  };
  std::vector<Node> nodes_;
  std::string labels_;  // by node: the byte that leads to it
};

// What one thread needs while it encodes.
struct UnigramScratch {
  struct Node {
    double score;
    TokenId id;
    std::uint32_t length;  // of the token that ends here; 0: none does
  };
  std::vector<Node> nodes;
  std::vector<std::pair<std::size_t, TokenId>> cuts;
  WordCache words;
};

// As in Hugging Face's tokenizers: an unknown character scores 10 less than the worst token,
// neighbouring unknown ones are one. Immutable after make.
class UnigramModel {
 public:
  // Tokens with their scores; the index is the id. `unk_id`: of an unknown character.
  static Result<UnigramModel> make(std::vector<std::pair<std::string, double>> tokens,
                                   std::int64_t unk_id, bool byte_fallback);

  const TokenMap& vocabulary() const { return vocabulary_; }
  // Appends the ids of one piece of valid UTF-8. Pieces are remembered in `scratch`.
  void encode_piece(std::string_view piece, UnigramScratch& scratch,
                    std::vector<TokenId>& out) const;

 private:
  void encode_uncached(std::string_view piece, UnigramScratch& scratch,
                       std::vector<TokenId>& out) const;
  UnigramModel() = default;
  void find_cuts(std::string_view piece, UnigramScratch& scratch) const;
  void push_unknown(std::string_view text, std::vector<TokenId>& out) const;

  TokenMap vocabulary_;
  TokenTrie trie_;
  std::vector<double> scores_;
  double unk_score_ = 0;
  TokenId unk_id_ = 0;
  std::vector<TokenId> byte_ids_;  // of <0x00>…<0xFF>, -1 where missing; empty: no byte_fallback
};

}  // namespace troupe::train
