#include "train/tokenizer/unigram_model.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

namespace troupe::train {

TokenTrie::TokenTrie(const TokenMap& vocabulary) {
  std::vector<std::pair<std::string_view, TokenId>> tokens(vocabulary.begin(), vocabulary.end());
  std::sort(tokens.begin(), tokens.end());
  // Level by level: the tokens of each node in turn, and how many bytes lead to it.
  struct Range {
    std::size_t begin, end, depth;
  };
  std::vector<Range> ranges{{0, tokens.size(), 0}};
  nodes_.emplace_back();
  labels_.push_back('\0');
  for (std::size_t at = 0; at < ranges.size(); ++at) {
    auto [begin, end, depth] = ranges[at];
    if (begin < end && tokens[begin].first.size() == depth) {
      if (depth > 0) nodes_[at].id = tokens[begin].second;
      ++begin;
    }
    nodes_[at].first_child = static_cast<std::uint32_t>(ranges.size());
    while (begin < end) {
      const char label = tokens[begin].first[depth];
      std::size_t next = begin;
      while (next < end && tokens[next].first[depth] == label) ++next;
      ranges.push_back({begin, next, depth + 1});
      nodes_.emplace_back();
      labels_.push_back(label);
      begin = next;
    }
    nodes_[at].child_count = static_cast<std::uint32_t>(ranges.size() - nodes_[at].first_child);
  }
}

Result<UnigramModel> UnigramModel::make(std::vector<std::pair<std::string, double>> tokens,
                                        std::int64_t unk_id, bool byte_fallback) {
  if (unk_id < 0 || unk_id >= std::ssize(tokens)) {
    return error(Code::kInvalidArgument, "model.unk_id={} is not in model.vocab of {} tokens",
                 unk_id, tokens.size());
  }
  UnigramModel model;
  model.unk_id_ = static_cast<TokenId>(unk_id);
  double worst = std::numeric_limits<double>::infinity();
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    auto& [token, score] = tokens[id];
    if (!std::isfinite(score)) {
      return error(Code::kInvalidArgument, "model.vocab[{}]: the score is no number", id);
    }
    worst = std::min(worst, score);
    model.scores_.push_back(score);
    model.vocabulary_.insert_or_assign(std::move(token), static_cast<TokenId>(id));
  }
  model.unk_score_ = worst - 10.0;
  model.trie_ = TokenTrie(model.vocabulary_);
  for (int byte = 0; byte_fallback && byte < 256; ++byte) {
    const auto at = model.vocabulary_.find(fmt::format("<0x{:02X}>", byte));
    model.byte_ids_.push_back(at == model.vocabulary_.end() ? -1 : at->second);
  }
  return model;
}

// The best score of every way to reach each place, and the token that leads there.
void UnigramModel::find_cuts(std::string_view piece, UnigramScratch& scratch) const {
  auto& nodes = scratch.nodes;
  nodes.assign(piece.size() + 1, {0, 0, 0});
  const auto reach = [&](std::size_t from, std::size_t length, double score, TokenId id) {
    auto& node = nodes[from + length];
    const double sum = score + nodes[from].score;
    if (node.length == 0 || sum > node.score) node = {sum, id, static_cast<std::uint32_t>(length)};
  };
  for (std::size_t at = 0; at < piece.size();) {
    std::size_t next = at;
    next_code_point(piece, next);
    bool known = false;
    trie_.each_prefix(piece.substr(at), [&](std::size_t length, TokenId id) {
      reach(at, length, scores_[static_cast<std::size_t>(id)], id);
      known = known || length == next - at;
    });
    if (!known) reach(at, next - at, unk_score_, unk_id_);
    at = next;
  }
  scratch.cuts.clear();
  for (std::size_t end = piece.size(); end > 0; end -= nodes[end].length)
    scratch.cuts.emplace_back(end - nodes[end].length, nodes[end].id);
}

void UnigramModel::push_unknown(std::string_view text, std::vector<TokenId>& out) const {
  if (const auto whole = vocabulary_.find(text); whole != vocabulary_.end()) {
    out.push_back(whole->second);
    return;
  }
  const auto id_of = [&](char c) { return byte_ids_[static_cast<unsigned char>(c)]; };
  if (!byte_ids_.empty() &&
      std::all_of(text.begin(), text.end(), [&](char c) { return id_of(c) >= 0; })) {
    for (const char c : text) out.push_back(id_of(c));
  } else {
    out.push_back(unk_id_);
  }
}

void UnigramModel::encode_piece(std::string_view piece, UnigramScratch& scratch,
                                std::vector<TokenId>& out) const {
  if (piece.empty()) return;
  scratch.words.append(piece, out, [&] { encode_uncached(piece, scratch, out); });
}

void UnigramModel::encode_uncached(std::string_view piece, UnigramScratch& scratch,
                                   std::vector<TokenId>& out) const {
  find_cuts(piece, scratch);
  const auto& cuts = scratch.cuts;  // the last one first
  for (std::size_t i = cuts.size(); i > 0;) {
    const auto [begin, id] = cuts[--i];
    if (id != unk_id_) {
      out.push_back(id);
      continue;
    }
    while (i > 0 && cuts[i - 1].second == unk_id_) --i;
    const std::size_t end = i > 0 ? cuts[i - 1].first : piece.size();
    push_unknown(piece.substr(begin, end - begin), out);
  }
}

}  // namespace troupe::train
