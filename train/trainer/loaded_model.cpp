#include "train/trainer/loaded_model.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "train/cpu/cpu_operators.h"
#include "train/trainer/adapted_model.h"
#include "train/trainer/batch_view.h"

namespace troupe::train {

Result<std::unique_ptr<LoadedModel>> LoadedModel::open(FileSystem& files, const std::string& folder,
                                                       int threads,
                                                       const std::vector<std::string>& adapters) {
  const auto source = TROUPE_TRY(AdaptedModel::open(files, folder, adapters));
  const ModelConfig& config = source.config();
  const std::string& grown_by = source.grown_by();
  auto tokenizer = TROUPE_TRY(Tokenizer::load(files, grown_by.empty() ? folder : grown_by));
  if (tokenizer.vocab_size() > config.vocab_size) {
    return error(Code::kInvalidArgument,
                 "the tokenizer has ids up to {}, the model's vocab_size is {}",
                 tokenizer.vocab_size() - 1, config.vocab_size)
        .with("file", join_path(folder, "config.json"));
  }
  auto arena = std::make_unique<Arena>(threads);
  auto operators = make_cpu_operators(*arena);
  auto model = make_model(config, *operators);
  std::unique_ptr<LoadedModel> loaded(new LoadedModel(std::move(tokenizer), std::move(arena),
                                                      std::move(operators), std::move(model)));
  const ParameterLayout& layout = loaded->model_->layout();
  for (const ParameterInfo& parameter : layout.parameters()) {
    TROUPE_RETURN_IF_ERROR(
        source.read_merged(parameter, AdaptedModel::Rounding::kNone,
                           std::span(loaded->parameters_)
                               .subspan(static_cast<std::size_t>(layout.flat_offset(parameter)),
                                        static_cast<std::size_t>(parameter.elements))));
  }
  return loaded;
}

LoadedModel::LoadedModel(Tokenizer tokenizer, std::unique_ptr<Arena> arena,
                         std::unique_ptr<Operators> operators, std::unique_ptr<Model> model)
    : tokenizer_(std::move(tokenizer)),
      arena_(std::move(arena)),
      operators_(std::move(operators)),
      model_(std::move(model)),
      parameters_(static_cast<std::size_t>(model_->layout().total_elements())),
      units_(std::make_unique<ResidentUnits>(model_->layout(), parameters_, std::span<float>())) {}

Result<LoadedModel::GenerationEnd> LoadedModel::generate(
    const std::string& prompt, const SamplingOptions& sampling, std::int64_t tokens_max,
    std::uint64_t seed, const std::function<void(const std::string&)>& on_text) {
  auto ids = TROUPE_TRY(tokenizer_.encode(prompt, true));
  if (ids.empty() && tokenizer_.bos_id()) ids.push_back(*tokenizer_.bos_id());
  return generate({.prompt = std::move(ids),
                   .stop_ids = {},
                   .sampling = sampling,
                   .tokens_max = tokens_max,
                   .seed = seed,
                   .is_stopped = {}},
                  on_text);
}

Result<LoadedModel::GenerationEnd> LoadedModel::generate(
    const Generation& wanted, const std::function<void(const std::string&)>& on_text) {
  const auto& ids = wanted.prompt;
  const auto context = std::min(model_->config().max_position_embeddings,
                                static_cast<std::int64_t>(ids.size()) + wanted.tokens_max);
  if (static_cast<std::int64_t>(ids.size()) >= model_->config().max_position_embeddings) {
    return error(Code::kInvalidArgument, "the prompt has {} tokens, the model's context is {}",
                 ids.size(), model_->config().max_position_embeddings);
  }
  // The prompt goes before: whether a space stands at the begin of the continuation depends on it.
  IncrementalDecoder decoder(tokenizer_, true);
  for (const auto id : ids) static_cast<void>(decoder.push(id));
  bool stopped = false;
  GenerateOptions options;
  options.sampling = wanted.sampling;
  options.tokens_max = wanted.tokens_max;
  options.stop_ids.assign(wanted.stop_ids.begin(), wanted.stop_ids.end());
  if (tokenizer_.eos_id()) options.stop_ids.push_back(*tokenizer_.eos_id());
  for (const auto id : model_->config().eos_token_ids) options.stop_ids.push_back(id);
  options.on_token = [&](std::int32_t id) { on_text(decoder.push(static_cast<TokenId>(id))); };
  options.is_stopped = [&] { return stopped = wanted.is_stopped && wanted.is_stopped(); };
  options.keeps_prefix = true;
  SeededRandom random(wanted.seed);
  // A conversation grows: with room for twice as much its cache is seldom made anew.
  if (!generator_ || generator_->capacity() < context)
    generator_ = std::make_unique<Generator>(
        *model_, *operators_, *units_,
        generator_ ? std::min(2 * context, model_->config().max_position_embeddings) : context);
  const auto made = TROUPE_TRY(generator_->generate(ids, options, random));
  on_text(decoder.finish());
  if (stopped) return GenerationEnd::kStopped;
  if (std::ssize(made) >= wanted.tokens_max) return GenerationEnd::kTokensMax;
  return std::ssize(ids) + std::ssize(made) > context ? GenerationEnd::kContext
                                                      : GenerationEnd::kEndOfText;
}

double LoadedModel::Likelihood::bits_per_byte() const {
  return nll / std::log(2.0) / static_cast<double>(std::max<std::int64_t>(1, text_bytes));
}

Result<LoadedModel::Likelihood> LoadedModel::likelihood(const TokenDataset& dataset) {
  constexpr std::int64_t kRows = 8;
  std::int64_t longest = 1;
  for (std::int64_t i = 0; i < dataset.size(); ++i) {
    longest = std::max(longest, static_cast<std::int64_t>(dataset.ids(i).size()));
  }
  Activations activations(
      model_->config(), {.rows_max = kRows, .length_max = (longest + 7) / 8 * 8, .training = false},
      *operators_);
  Likelihood result;
  const CrossEntropyLoss loss;
  for (std::int64_t begin = 0; begin < dataset.size(); begin += kRows) {
    const auto rows = static_cast<std::size_t>(std::min(kRows, dataset.size() - begin));
    std::vector<std::uint32_t> samples(rows);
    std::iota(samples.begin(), samples.end(), static_cast<std::uint32_t>(begin));
    const TokenBatch batch = collate(dataset, samples);
    const LossSum sum = TROUPE_TRY(model_->forward(view_of(batch), *units_, loss, activations));
    result.nll += sum.loss_sum;
    result.tokens += sum.target_count;
    for (std::int64_t i = 0; i < batch.rows * batch.length; ++i) {
      const std::int32_t label = batch.labels[static_cast<std::size_t>(i)];
      if (i % batch.length != 0 && label != kIgnoredLabel) {
        result.text_bytes += static_cast<std::int64_t>(tokenizer_.byte_count(label));
      }
    }
  }
  return result;
}

}  // namespace troupe::train
