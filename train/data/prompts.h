#pragma once
// Rows that a model answers by itself, with the answers that were expected: what LLaMA-Factory's
// predict_with_generate makes of eval_dataset.

#include <string>
#include <vector>

#include "train/data/build_dataset.h"

namespace troupe::train {

struct PromptRow {
  std::vector<TokenId> prompt;
  std::vector<TokenId> expected;  // empty but for the template's end where the row has no answer
};

struct PromptModule {
  std::vector<PromptRow> rows;
  EncodeReport report;
  Tokenizer tokenizer;            // with the template's end and padding tokens
  std::vector<TokenId> stop_ids;  // the end token, the template's stop words
  std::vector<std::string> notes;
};

// Of options.eval_dataset. All turns but the last are the prompt; both are cut to cutoff_len.
// Errors as of build_dataset().
Result<PromptModule> build_prompts(FileSystem& files, DataOptions options,
                                   const Tokenizer& tokenizer);

}  // namespace troupe::train
