#pragma once
// A model's folder opened for use: generation, evaluation.

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/base/status.h"
#include "train/cpu/arena.h"
#include "train/data/token_dataset.h"
#include "train/model/generator.h"
#include "train/model/model.h"
#include "train/tokenizer/tokenizer.h"

namespace troupe::train {

class LoadedModel {
 public:
  // config.json, weights and tokenizer of `folder`, with `adapters` merged into it in this order,
  // in fp32.
  static Result<std::unique_ptr<LoadedModel>> open(FileSystem& files, const std::string& folder,
                                                   int threads,
                                                   const std::vector<std::string>& adapters = {});

  const ModelConfig& config() const { return model_->config(); }
  const Tokenizer& tokenizer() const { return tokenizer_; }

  enum class GenerationEnd {
    kEndOfText,
    kTokensMax,
    kContext,  // the model has no position for another token
    kStopped,  // `is_stopped` said so
  };
  struct Generation {
    std::vector<TokenId> prompt;
    std::vector<TokenId> stop_ids;  // beside the tokenizer's and the model's end tokens
    SamplingOptions sampling;
    std::int64_t tokens_max = 128;
    std::uint64_t seed = 42;
    std::function<bool()> is_stopped;  // optional, asked behind each token
  };
  // What follows the prompt, given to `on_text` piece by piece. Says what it ended at.
  Result<GenerationEnd> generate(const Generation& wanted,
                                 const std::function<void(const std::string&)>& on_text);
  // The same of a text.
  Result<GenerationEnd> generate(const std::string& prompt, const SamplingOptions& sampling,
                                 std::int64_t tokens_max, std::uint64_t seed,
                                 const std::function<void(const std::string&)>& on_text);

  // The new tokens of each of several prompts, generated together (generator.h). Nothing but what
  // `options` names ends an answer.
  Result<std::vector<std::vector<TokenId>>> generate_all(std::span<const GenerateRequest> prompts,
                                                         const GenerateOptions& options) {
    return train::generate_all(*model_, *operators_, *units_, prompts, options);
  }

  // What the model makes of a data set's labelled tokens.
  struct Likelihood {
    double nll = 0;               // −Σ ln p, all labelled tokens
    std::int64_t tokens = 0;      // labelled
    std::int64_t text_bytes = 0;  // of UTF-8 text that they stand for
    double bits_per_byte() const;
  };
  Result<Likelihood> likelihood(const TokenDataset& dataset);

 private:
  LoadedModel(Tokenizer tokenizer, std::unique_ptr<Arena> arena,
              std::unique_ptr<Operators> operators, std::unique_ptr<Model> model);

  Tokenizer tokenizer_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<Operators> operators_;
  std::unique_ptr<Model> model_;
  std::vector<float> parameters_;
  std::unique_ptr<ResidentUnits> units_;
  std::unique_ptr<Generator> generator_;  // of the last generate(): it keeps what it has read
};

}  // namespace troupe::train
