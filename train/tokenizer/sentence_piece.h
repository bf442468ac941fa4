#pragma once
// SentencePiece's tokenizer.model: read, and said as the tokenizer.json that gives the same ids.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/base/status.h"

namespace troupe::train {

struct SentencePieceModel {
  enum class Type { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };
  struct Piece {
    std::string text;
    double score = 0;
    Type type = Type::kNormal;
  };
  std::vector<Piece> pieces;
  std::int64_t kind = 1;  // 1: unigram, 2: BPE
  bool byte_fallback = false;
  bool add_dummy_prefix = true;                     // a space in front of a text
  bool remove_extra_whitespaces = true;             // at both ends, and all but one of a run
  bool escape_whitespaces = true;                   // a space is written as U+2581
  std::int64_t unk_id = 0, bos_id = 1, eos_id = 2;  // -1: there is none
  std::string unk_piece = "<unk>", bos_piece = "<s>", eos_piece = "</s>";
  std::string charsmap;  // charsmap.h; empty: characters stay

  // The file, in protobuf's wire format. What is damaged is kInvalidArgument; word and character
  // models, and spaces behind words instead of before them, are kUnsupported.
  static Result<SentencePieceModel> parse(std::string_view bytes);
};

// What goes beside the model: tokenizer_config.json, special_tokens_map.json, and added_tokens.json
// (an object from tokens to ids). Empty objects where there are none.
struct SentencePieceCompanions {
  json::Value config, special, added;
};

// As transformers converts such a model: merges by the score of what they make, normalizer and
// decoder as the model says, control pieces and named special tokens as added ones, those of
// `added_tokens_decoder` under their ids. The keys `legacy` (default true: a space also goes in
// front of what follows an added token), `add_prefix_space`, `add_bos_token` (default `add_bos`)
// and `add_eos_token` count. Puts begin, end and unknown token into the config where it names none.
Result<json::Value> tokenizer_json_of(const SentencePieceModel& model,
                                      SentencePieceCompanions& companions, bool add_bos);

}  // namespace troupe::train
