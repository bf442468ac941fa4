#pragma once
// From a row of a data set to samples of ids and labels, by the data set's type.

#include <memory>
#include <string>
#include <vector>

#include "train/data/records.h"
#include "train/data/row_source.h"
#include "train/tokenizer/tokenizer.h"

namespace troupe::train {

struct TokenRow {
  std::vector<TokenId> ids;
  std::vector<std::int32_t> labels;  // kIgnoredLabel where not trained
};

class RowEncoder {
 public:
  virtual ~RowEncoder() = default;
  // Appends the row's samples. A column that is missing or of another kind is kInvalidArgument.
  virtual Status encode(const Record& row, std::vector<TokenRow>& out) const = 0;
};

// Of the types in RowSource, with samples of up to `sequence_len` where the type itself cuts.
//
//   alpaca        the prompt (with its system text) and the answer, each tokenised by itself with
//                 the tokenizer's special tokens and cut; the answer loses its begin token and gets
//                 an end token. Labels: the answer.
//   completion    a text and an end token, in pieces of sequence_len; all of it is trained.
//   pretrain      a text in windows that overlap, each with an end token.
//   input_output  `segments` of text, each with its own label; no token is added.
//   chat_template a conversation (conversation_encoder.h).
//   text          a text and the end token's word; all of it is trained.
//   text_or_messages  where the column holds messages, a conversation; else a text.
//
// `notes` receives what a person should know. kUnsupported, kInvalidArgument: the type or the
// template is not there.
Result<std::unique_ptr<RowEncoder>> make_row_encoder(const RowSource& source,
                                                     const Tokenizer& tokenizer,
                                                     std::int64_t sequence_len,
                                                     std::vector<std::string>& notes);

// A column's text; a row without it, or with null, has none.
Result<std::optional<std::string>> text_column(const Record& row, const std::string& name);

}  // namespace troupe::train
