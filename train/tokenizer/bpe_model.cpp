#include "train/tokenizer/bpe_model.h"

#include <algorithm>
#include <bit>
#include <span>

namespace troupe::train {
namespace {

// Up to here looking through all pairs costs less than keeping a heap of them.
constexpr std::size_t kShortSymbolsMax = 32;
constexpr std::uint32_t kNoRank = ~std::uint32_t{0};

using Symbol = BpeScratch::Symbol;
using Candidate = BpeScratch::Candidate;

// Order of a heap that gives the smallest rank first, the leftmost of equals.
bool later(const Candidate& a, const Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
}

void push_symbol(std::vector<Symbol>& symbols, TokenId id) {
  const auto at = static_cast<std::int32_t>(symbols.size());
  if (at > 0) symbols.back().next = at;
  symbols.push_back({id, at - 1, -1, false});
}

}  // namespace

MergeTable::MergeTable(std::size_t count) {
  const std::size_t slots = std::bit_ceil(std::max<std::size_t>(2 * count, 16));
  entries_.resize(slots);
  shift_ = 64 - static_cast<unsigned>(std::countr_zero(slots));
}

bool MergeTable::insert(TokenId left, TokenId right, std::uint32_t rank, TokenId merged) {
  const auto key = key_of(left, right);
  std::size_t slot = slot_of(key);
  while (entries_[slot].key != kEmpty) {
    if (entries_[slot].key == key) return false;
    slot = (slot + 1) & (entries_.size() - 1);
  }
  entries_[slot] = {key, rank, merged};
  return true;
}

const MergeTable::Entry* MergeTable::find(TokenId left, TokenId right) const {
  const auto key = key_of(left, right);
  std::size_t slot = slot_of(key);
  while (entries_[slot].key != kEmpty) {
    if (entries_[slot].key == key) return &entries_[slot];
    slot = (slot + 1) & (entries_.size() - 1);
  }
  return nullptr;
}

CharacterPairs::CharacterPairs(std::size_t count) {
  const std::size_t slots = std::bit_ceil(std::max<std::size_t>(2 * count, 16));
  slots_.resize(slots);
  shift_ = 64 - static_cast<unsigned>(std::countr_zero(slots));
}

void CharacterPairs::insert(char32_t first, char32_t second) {
  if (first < 0x80 && second < 0x80) {
    ascii_[first * 0x80 + second] = true;
    return;
  }
  const auto key = key_of(first, second);
  std::size_t slot = slot_of(key);
  while (slots_[slot] != 0 && slots_[slot] != key) slot = (slot + 1) & (slots_.size() - 1);
  slots_[slot] = key;
}

bool CharacterPairs::find(char32_t first, char32_t second) const {
  const auto key = key_of(first, second);
  std::size_t slot = slot_of(key);
  while (slots_[slot] != 0 && slots_[slot] != key) slot = (slot + 1) & (slots_.size() - 1);
  return slots_[slot] == key;
}

Result<BpeModel> BpeModel::make(TokenMap vocabulary,
                                const std::vector<std::pair<std::string, std::string>>& merges,
                                BpeOptions options) {
  BpeModel model;
  model.merges_ = MergeTable(merges.size());
  std::string joined;
  for (std::size_t i = 0; i < merges.size(); ++i) {
    const auto& [left, right] = merges[i];
    if (left.empty() || right.empty()) {
      return error(Code::kInvalidArgument, "model.merges[{}] has an empty part", i);
    }
    joined.assign(left).append(right);
    const auto a = vocabulary.find(left), b = vocabulary.find(right),
               whole = vocabulary.find(joined);
    if (a == vocabulary.end() || b == vocabulary.end() || whole == vocabulary.end()) {
      return error(Code::kInvalidArgument,
                   "model.merges[{}] ('{}' + '{}') needs '{}', which model.vocab lacks", i, left,
                   right,
                   a == vocabulary.end()   ? left
                   : b == vocabulary.end() ? right
                                           : joined);
    }
    if (!model.merges_.insert(a->second, b->second, static_cast<std::uint32_t>(i), whole->second)) {
      return error(Code::kInvalidArgument, "model.merges[{}] ('{}' + '{}') stands twice", i, left,
                   right);
    }
  }
  const ByteAlphabet alphabet;
  for (int byte = 0; byte < 256; ++byte) {
    const auto token = options.byte_level ? alphabet.character(static_cast<unsigned char>(byte))
                                          : fmt::format("<0x{:02X}>", byte);
    const auto at = vocabulary.find(token);
    model.byte_ids_[byte] = at == vocabulary.end() ? -1 : at->second;
  }
  if (!options.unk_token.empty()) {
    const auto at = vocabulary.find(options.unk_token);
    if (at == vocabulary.end()) {
      return error(Code::kInvalidArgument, "model.unk_token '{}' is not in model.vocab",
                   options.unk_token);
    }
    model.unk_id_ = at->second;
  }
  if (options.ignore_merges && options.byte_level) {
    for (const auto& [token, id] : vocabulary) {
      if (auto bytes = alphabet.bytes_of(token)) model.whole_pieces_.emplace(*bytes, id);
    }
  }
  model.vocabulary_ = std::move(vocabulary);
  model.options_ = std::move(options);
  model.find_cuts(merges);
  return model;
}

// A merge joins the last character of its left part and the first of its right part, and no other
// neighbours: all others within a token were joined by the merges that made its parts. So between
// two characters that no merge joins, no token ever reaches, and what stands on one side changes
// nothing on the other. That holds where symbols are the characters they stand for, all of them.
void BpeModel::find_cuts(const std::vector<std::pair<std::string, std::string>>& merges) {
  if (options_.byte_level) return;
  const bool all_bytes =
      std::all_of(byte_ids_.begin(), byte_ids_.end(), [](TokenId id) { return id >= 0; });
  const bool whole_alphabet = options_.byte_fallback && all_bytes;
  // Else unknown characters vanish, and their neighbours become neighbours of each other, or join.
  if (!whole_alphabet && (unk_id_ < 0 || options_.fuse_unk)) return;
  std::vector<TokenId> others(byte_ids_.begin(), byte_ids_.end());  // not what they are written as
  others.push_back(unk_id_);
  std::sort(others.begin(), others.end());
  CharacterPairs joined(merges.size());
  for (const auto& [left, right] : merges) {
    for (const auto* part : {&left, &right}) {
      if (std::binary_search(others.begin(), others.end(), vocabulary_.find(*part)->second)) return;
    }
    std::size_t last = previous_boundary(left, left.size()), first = 0;
    const char32_t before = next_code_point(left, last);
    joined.insert(before, next_code_point(right, first));
  }
  for (const auto& [token, id] : vocabulary_) longest_ = std::max(longest_, token.size());
  joined_ = std::move(joined);
  cuts_pieces_ = true;
}

std::size_t BpeModel::word_end(std::string_view piece, std::size_t begin) const {
  std::size_t end = begin;
  char32_t before = next_code_point(piece, end);
  while (end < piece.size()) {
    std::size_t next = end;
    const char32_t behind = next_code_point(piece, next);
    if (!joined_.contains(before, behind)) break;
    before = behind;
    end = next;
  }
  return end;
}

void BpeModel::encode_new(std::string_view word, BpeScratch& scratch,
                          std::vector<TokenId>& out) const {
  const std::size_t before = out.size();
  encode_uncached(word, scratch, out);
  if (word.size() > WordCache::kWordBytesMax || out.size() == before) return;
  scratch.words.insert(word, std::span(out).subspan(before));
}

void BpeModel::encode_uncached(std::string_view piece, BpeScratch& scratch,
                               std::vector<TokenId>& out) const {
  if (options_.ignore_merges && !cuts_pieces_) {  // where it cuts, the piece was looked up
    const auto& whole = options_.byte_level ? whole_pieces_ : vocabulary_;
    const auto at = whole.find(piece);
    if (at != whole.end()) {
      out.push_back(at->second);
      return;
    }
  }
  scratch.symbols.clear();
  options_.byte_level ? split_bytes(piece, scratch.symbols)
                      : split_characters(piece, scratch.symbols);
  scratch.symbols.size() <= kShortSymbolsMax ? merge_short(scratch) : merge(scratch);
  for (const auto& symbol : scratch.symbols) {
    if (!symbol.gone) out.push_back(symbol.id);
  }
}

void BpeModel::split_bytes(std::string_view piece, std::vector<Symbol>& symbols) const {
  // A missing byte stands for a character of the mapped text: unknown, or dropped.
  bool open_unk = false;
  for (const char c : piece) {
    const TokenId id = byte_ids_[static_cast<unsigned char>(c)];
    if (id >= 0) {
      push_symbol(symbols, id);
      open_unk = false;
    } else if (unk_id_ >= 0) {
      if (!open_unk || !options_.fuse_unk) push_symbol(symbols, unk_id_);
      open_unk = true;
    }
  }
}

void BpeModel::split_characters(std::string_view piece, std::vector<Symbol>& symbols) const {
  bool open_unk = false;
  for (std::size_t at = 0; at < piece.size();) {
    const std::size_t begin = at;
    next_code_point(piece, at);
    const auto character = piece.substr(begin, at - begin);
    const auto known = vocabulary_.find(character);
    if (known != vocabulary_.end()) {
      push_symbol(symbols, known->second);
      open_unk = false;
      continue;
    }
    const bool all_bytes =
        options_.byte_fallback && std::all_of(character.begin(), character.end(), [&](char c) {
          return byte_ids_[static_cast<unsigned char>(c)] >= 0;
        });
    if (all_bytes) {
      for (const char c : character) push_symbol(symbols, byte_ids_[static_cast<unsigned char>(c)]);
      open_unk = false;
    } else if (unk_id_ >= 0) {
      if (!open_unk || !options_.fuse_unk) push_symbol(symbols, unk_id_);
      open_unk = true;
    }
  }
}

// The same as merge(): all pairs stand in an array, and the smallest rank is looked for.
void BpeModel::merge_short(BpeScratch& scratch) const {
  auto& symbols = scratch.symbols;
  struct Pair {
    std::uint32_t rank = kNoRank;
    TokenId merged = 0;
  };
  std::array<Pair, kShortSymbolsMax> pairs;  // of each symbol with the one behind it
  std::size_t count = symbols.size();
  const auto look_up = [&](std::size_t left) {
    const auto* entry = merges_.find(symbols[left].id, symbols[left + 1].id);
    pairs[left] = entry ? Pair{entry->rank, entry->merged} : Pair{};
  };
  for (std::size_t i = 0; i + 1 < count; ++i) look_up(i);
  while (count > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < count; ++i) {
      if (pairs[i].rank < pairs[best].rank) best = i;
    }
    if (pairs[best].rank == kNoRank) break;
    symbols[best].id = pairs[best].merged;
    --count;
    for (std::size_t i = best + 1; i < count; ++i) {
      symbols[i].id = symbols[i + 1].id;
      pairs[i] = pairs[i + 1];
    }
    if (best > 0) look_up(best - 1);
    if (best + 1 < count) look_up(best);
  }
  symbols.resize(count);
}

// Applies the merge of the lowest rank, leftmost first, until none applies. A heap holds the
// candidates; those whose symbols have changed meanwhile are recognised when they come up.
void BpeModel::merge(BpeScratch& scratch) const {
  auto& symbols = scratch.symbols;
  auto& heap = scratch.heap;
  heap.clear();
  const auto consider = [&](std::int32_t left) {
    const std::int32_t right = left < 0 ? -1 : symbols[left].next;
    if (right < 0) return false;
    const auto* entry = merges_.find(symbols[left].id, symbols[right].id);
    if (!entry) return false;
    heap.push_back({entry->rank, left, entry->merged});
    return true;
  };
  for (std::size_t i = 0; i + 1 < symbols.size(); ++i) consider(static_cast<std::int32_t>(i));
  std::make_heap(heap.begin(), heap.end(), later);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const Candidate top = heap.back();
    heap.pop_back();
    auto& left = symbols[top.position];
    if (left.gone || left.next < 0) continue;
    auto& right = symbols[left.next];
    const auto* entry = merges_.find(left.id, right.id);
    if (!entry || entry->merged != top.merged) continue;  // an older state of these symbols
    left.id = entry->merged;
    right.gone = true;
    left.next = right.next;
    if (right.next >= 0) symbols[right.next].previous = top.position;
    if (consider(left.previous)) std::push_heap(heap.begin(), heap.end(), later);
    if (consider(top.position)) std::push_heap(heap.begin(), heap.end(), later);
  }
}

}  // namespace troupe::train
