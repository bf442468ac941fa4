#pragma once
// The model part of a BPE tokenizer: from the pieces of a pre-tokenized text to token ids.

#include <array>
#include <bitset>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/base/status.h"
#include "train/tokenizer/unicode.h"
#include "train/tokenizer/word_cache.h"

namespace troupe::train {

using TokenId = std::int32_t;

// A vocabulary has at most this many ids: ten times the largest in use, so that an id damaged in a
// file does not become an allocation of gigabytes.
inline constexpr TokenId kVocabularySizeMax = 1 << 24;

struct StringHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const {
    return std::hash<std::string_view>()(text);
  }
};
using TokenMap = std::unordered_map<std::string, TokenId, StringHash, std::equal_to<>>;

struct BpeOptions {
  bool byte_level = false;     // pieces are bytes, written in the ByteAlphabet in the vocabulary
  bool byte_fallback = false;  // unknown characters become <0x00>…<0xFF>
  bool fuse_unk = false;       // neighbouring unknown characters become one unknown token
  bool ignore_merges = false;  // a piece that is a token is taken whole
  std::string unk_token;       // empty: unknown characters are dropped
};

// Open addressing from a pair of ids to (rank, id of the merged token).
class MergeTable {
 public:
  struct Entry {
    std::uint64_t key = kEmpty;
    std::uint32_t rank = 0;
    TokenId merged = 0;
  };
  explicit MergeTable(std::size_t count = 0);
  // False where the pair is there already.
  bool insert(TokenId left, TokenId right, std::uint32_t rank, TokenId merged);
  const Entry* find(TokenId left, TokenId right) const;

 private:
  static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};
  static std::uint64_t key_of(TokenId left, TokenId right) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
           static_cast<std::uint32_t>(right);
  }
  std::size_t slot_of(std::uint64_t key) const {
    return static_cast<std::size_t>((key * 0x9e3779b97f4a7c15ULL) >> shift_);
  }
  std::vector<Entry> entries_;
  unsigned shift_ = 63;
};

// Pairs of characters, first and second.
class CharacterPairs {
 public:
  explicit CharacterPairs(std::size_t count = 0);
  void insert(char32_t first, char32_t second);
  bool contains(char32_t first, char32_t second) const {
    if (first < 0x80 && second < 0x80) return ascii_[first * 0x80 + second];
    return find(first, second);
  }

 private:
  static std::uint64_t key_of(char32_t first, char32_t second) {
    return static_cast<std::uint64_t>(first) << 32 | second;
  }
  std::size_t slot_of(std::uint64_t key) const {
    return static_cast<std::size_t>((key * 0x9e3779b97f4a7c15ULL) >> shift_);
  }
  bool find(char32_t first, char32_t second) const;

  std::bitset<std::size_t{0x80} * 0x80> ascii_;
  std::vector<std::uint64_t> slots_;  // open addressing; 0: none, as U+0000 is ASCII
  unsigned shift_ = 63;
};

// What one thread needs while it encodes.
struct BpeScratch {
  struct Symbol {
    TokenId id;
    std::int32_t previous, next;  // -1 at the ends
    bool gone;
  };
  struct Candidate {
    std::uint32_t rank;
    std::int32_t position;
    TokenId merged;
  };
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
  WordCache words;
};

// Immutable after make; any number of threads, each with its own scratch.
class BpeModel {
 public:
  // `vocabulary` maps tokens to distinct ids in [0, kVocabularySizeMax). A merge whose parts or
  // whole are not tokens, that is empty or stands twice, is kInvalidArgument and named.
  static Result<BpeModel> make(TokenMap vocabulary,
                               const std::vector<std::pair<std::string, std::string>>& merges,
                               BpeOptions options);

  const TokenMap& vocabulary() const { return vocabulary_; }
  const BpeOptions& options() const { return options_; }

  // Appends the ids of one piece of valid UTF-8. Words are remembered in `scratch`.
  void encode_piece(std::string_view piece, BpeScratch& scratch, std::vector<TokenId>& out) const {
    if (!cuts_pieces_) return encode_word(piece, scratch, out);
    if (options_.ignore_merges && piece.size() <= longest_) {
      const auto whole = vocabulary_.find(piece);
      if (whole != vocabulary_.end()) return out.push_back(whole->second);
    }
    for (std::size_t at = 0; at < piece.size();) {
      const std::size_t end = word_end(piece, at);
      encode_word(piece.substr(at, end - at), scratch, out);
      at = end;
    }
  }

 private:
  BpeModel() = default;
  void find_cuts(const std::vector<std::pair<std::string, std::string>>& merges);
  std::size_t word_end(std::string_view piece, std::size_t begin) const;
  void encode_word(std::string_view word, BpeScratch& scratch, std::vector<TokenId>& out) const {
    if (word.empty()) return;
    if (word.size() <= WordCache::kWordBytesMax) {
      const auto known = scratch.words.find(word);
      if (!known.empty()) {
        out.insert(out.end(), known.begin(), known.end());
        return;
      }
    }
    encode_new(word, scratch, out);
  }
  void encode_new(std::string_view word, BpeScratch& scratch, std::vector<TokenId>& out) const;
  void encode_uncached(std::string_view piece, BpeScratch& scratch,
                       std::vector<TokenId>& out) const;
  void split_bytes(std::string_view piece, std::vector<BpeScratch::Symbol>& symbols) const;
  void split_characters(std::string_view piece, std::vector<BpeScratch::Symbol>& symbols) const;
  void merge(BpeScratch& scratch) const;
  void merge_short(BpeScratch& scratch) const;

  BpeOptions options_;
  TokenMap vocabulary_;
  TokenMap whole_pieces_;  // raw bytes of every byte-level token, with ignore_merges
  MergeTable merges_;
  std::array<TokenId, 256> byte_ids_;  // of one byte: byte-level or fallback; -1 where missing
  TokenId unk_id_ = -1;
  // Where pieces are whole texts (SentencePiece's kind): the characters between which merges join.
  // Between others a piece falls into words that have nothing to do with each other.
  bool cuts_pieces_ = false;
  std::size_t longest_ = 0;  // token, in bytes
  CharacterPairs joined_;
};

}  // namespace troupe::train
