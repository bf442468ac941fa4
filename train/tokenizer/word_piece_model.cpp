#include "train/tokenizer/word_piece_model.h"

#include <algorithm>
#include <span>

namespace troupe::train {

Result<WordPieceModel> WordPieceModel::make(TokenMap vocabulary, WordPieceOptions options) {
  WordPieceModel model;
  const auto unk = vocabulary.find(options.unk_token);
  if (unk == vocabulary.end()) {
    return error(Code::kInvalidArgument, "model.unk_token '{}' is not in model.vocab",
                 options.unk_token);
  }
  if (options.max_input_chars_per_word < 0) {
    return error(Code::kInvalidArgument, "model.max_input_chars_per_word={} must not be negative",
                 options.max_input_chars_per_word);
  }
  model.unk_id_ = unk->second;
  for (const auto& [token, id] : vocabulary)
    model.longest_ = std::max(model.longest_, token.size());
  model.vocabulary_ = std::move(vocabulary);
  model.options_ = std::move(options);
  return model;
}

void WordPieceModel::encode_uncached(std::string_view piece, WordPieceScratch& scratch,
                                     std::vector<TokenId>& out) const {
  const auto characters = std::count_if(piece.begin(), piece.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  });
  const std::size_t before = out.size();
  std::size_t at = characters > options_.max_input_chars_per_word ? piece.size() + 1 : 0;
  while (at < piece.size()) {
    auto& token = scratch.token;
    token.assign(at > 0 ? options_.continuing_subword_prefix : "");
    const std::size_t prefix = token.size();
    token.append(piece.substr(at, longest_));
    auto found = vocabulary_.end();
    while (token.size() > prefix && (found = vocabulary_.find(token)) == vocabulary_.end())
      token.pop_back();
    if (found == vocabulary_.end()) {
      at = piece.size() + 1;
      break;
    }
    out.push_back(found->second);
    at += token.size() - prefix;
  }
  if (at > piece.size()) {
    out.resize(before);
    out.push_back(unk_id_);
  }
}

void WordPieceModel::encode_piece(std::string_view piece, WordPieceScratch& scratch,
                                  std::vector<TokenId>& out) const {
  if (piece.empty()) return;
  scratch.words.append(piece, out, [&] { encode_uncached(piece, scratch, out); });
}

}  // namespace troupe::train
