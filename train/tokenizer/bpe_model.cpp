#include "train/tokenizer/bpe_model.h"

#include <algorithm>
#include <bit>

namespace troupe::train {
namespace {

// Longer words are rarely seen again; the cache holds what a language's vocabulary needs.
constexpr std::size_t kCachedWordBytesMax = 64;
constexpr std::size_t kCachedWordsMax = 200'000;

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

Result<BpeModel> BpeModel::make(TokenMap vocabulary,
                                const std::vector<std::pair<std::string, std::string>>& merges,
                                BpeOptions options) {
  BpeModel model;
  model.merges_ = MergeTable(merges.size());
  for (std::size_t i = 0; i < merges.size(); ++i) {
    const auto& [left, right] = merges[i];
    if (left.empty() || right.empty()) {
      return error(Code::kInvalidArgument, "model.merges[{}] has an empty part", i);
    }
    const auto a = vocabulary.find(left), b = vocabulary.find(right),
               whole = vocabulary.find(left + right);
    for (const auto& [piece, at] :
         {std::pair{left, a}, std::pair{right, b}, std::pair{left + right, whole}}) {
      if (at == vocabulary.end()) {
        return error(Code::kInvalidArgument,
                     "model.merges[{}] ('{}' + '{}') needs '{}', which model.vocab lacks", i, left,
                     right, piece);
      }
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
  return model;
}

void BpeModel::encode_piece(std::string_view piece, BpeScratch& scratch,
                            std::vector<TokenId>& out) const {
  if (piece.empty()) return;
  if (piece.size() > kCachedWordBytesMax) return encode_uncached(piece, scratch, out);
  const auto known = scratch.cache.find(piece);
  if (known != scratch.cache.end()) {
    const auto begin = scratch.cached_ids.begin() + known->second.first;
    out.insert(out.end(), begin, begin + known->second.second);
    return;
  }
  const std::size_t before = out.size();
  encode_uncached(piece, scratch, out);
  if (scratch.cache.size() >= kCachedWordsMax) {
    scratch.cache.clear();
    scratch.cached_ids.clear();
  }
  scratch.cache.emplace(piece, std::pair(static_cast<std::uint32_t>(scratch.cached_ids.size()),
                                         static_cast<std::uint32_t>(out.size() - before)));
  scratch.cached_ids.insert(scratch.cached_ids.end(), out.begin() + before, out.end());
}

void BpeModel::encode_uncached(std::string_view piece, BpeScratch& scratch,
                               std::vector<TokenId>& out) const {
  if (options_.ignore_merges) {
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
  merge(scratch);
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
