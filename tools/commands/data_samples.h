#pragma once

#include <cstdint>
#include <ostream>

#include "runtime/base/json.h"
#include "train/data/token_dataset.h"
#include "train/tokenizer/tokenizer.h"

namespace troupe::tools {

// A sample as a model sees it: its text, special tokens included, with what is trained on in green,
// or between ⟦ and ⟧ where `colours` is false. Control characters of the data are shown, not sent.
void print_sample(const train::TokenDataset& data, std::int64_t sample,
                  const train::Tokenizer& tokenizer, bool colours, std::ostream& out);

// input_ids, labels (-100: not trained) and text.
json::Object json_of_sample(const train::TokenDataset& data, std::int64_t sample,
                            const train::Tokenizer& tokenizer);

// How many samples there are of what lengths, and how many of their tokens are trained on.
void print_lengths(const train::TokenDataset& data, std::ostream& out);

}  // namespace troupe::tools
