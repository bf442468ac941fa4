#include "train/trainer/run_tokenizer.h"

#include <utility>

#include "runtime/base/limits.h"
#include "train/config/source.h"
#include "train/data/load_conversations.h"
#include "train/tokenizer/bpe_trainer.h"
#include "train/trainer/run_samples.h"

namespace troupe::train {
namespace {

// A padding token of its own: padding is never a target, the end of a text is.
BpeTrainerOptions trainer_options(std::int64_t vocab_size) {
  BpeTrainerOptions trainer;
  trainer.vocab_size = vocab_size;
  trainer.special_tokens = {"<|endoftext|>", "<|pad|>"};
  trainer.pad_token = "<|pad|>";
  return trainer;
}

Result<Tokenizer> tokenizer_of(const TrainedBpe& trained, const BpeTrainerOptions& trainer,
                               std::map<std::string, std::string>& companions) {
  companions["tokenizer.json"] = tokenizer_json_of(trained);
  companions["tokenizer_config.json"] = tokenizer_config_json_of(trainer);
  return Tokenizer::from_text(companions["tokenizer.json"], companions["tokenizer_config.json"], "",
                              "the trained tokenizer");
}

std::vector<std::string> stripped(std::vector<std::string> tokens) {
  for (std::string& token : tokens) {
    const auto begin = token.find_first_not_of(" \t\n");
    token = begin == std::string::npos
                ? std::string()
                : token.substr(begin, token.find_last_not_of(" \t\n") + 1 - begin);
  }
  return tokens;
}

// Tokens with their descriptions, in the file's order.
Result<std::vector<std::pair<std::string, std::string>>> read_described_tokens(
    FileSystem& files, const std::string& path) {
  const std::string text = TROUPE_TRY(files.read(path, limits::kConfigBytesMax));
  const SourceDocument document = TROUPE_TRY(parse_document(text, path));
  std::vector<std::pair<std::string, std::string>> tokens;
  const json::Value& values = document.values;
  if (values.is_object()) {
    for (const auto& member : values.get_object()) {
      if (!member.value().is_string()) break;
      tokens.emplace_back(member.key(), member.value().get_string());
    }
  }
  if (tokens.empty() || tokens.size() != values.get_object().size())
    return error(Code::kInvalidArgument, "{} must have lines \"token: description\"", path);
  return tokens;
}

}  // namespace

Result<Tokenizer> train_tokenizer(FileSystem& files, const TrainConfig& config,
                                  std::map<std::string, std::string>& companions,
                                  const std::function<void(const std::string&)>& say) {
  say(fmt::format("training a tokenizer of {} tokens", *config.troupe.train_tokenizer));
  EncodeReport report;
  const auto texts = TROUPE_TRY(load_training_rows(files, data_options(config), report));
  std::size_t conversation = 0;
  std::size_t message = 0;
  const TextSource next = [&](std::string& text) -> Result<bool> {
    while (conversation < texts.size() && message == texts[conversation].messages.size()) {
      ++conversation;
      message = 0;
    }
    if (conversation == texts.size()) return false;
    text = texts[conversation].messages[message++].content;
    return true;
  };
  const BpeTrainerOptions trainer = trainer_options(*config.troupe.train_tokenizer);
  return tokenizer_of(TROUPE_TRY(train_bpe(next, trainer)), trainer, companions);
}

Result<Tokenizer> untrained_tokenizer() {
  std::map<std::string, std::string> files;
  TrainedBpe bytes;
  const BpeTrainerOptions trainer = trainer_options(0);
  bytes.special_tokens = trainer.special_tokens;
  return tokenizer_of(bytes, trainer, files);
}

Result<std::optional<Tokenizer>> load_tokenizer(FileSystem& files, const TrainConfig& config,
                                                RunContents& contents) {
  const std::string& folder = config.model.model_name_or_path;
  auto& companions = contents.companions;
  if (companions.contains("tokenizer.json"))
    return std::optional(TROUPE_TRY(Tokenizer::load(files, folder)));
  if (companions.contains("tokenizer.model") && !config.troupe.train_tokenizer) {
    auto tokenizer = TROUPE_TRY(Tokenizer::load(files, folder));
    companions["tokenizer.json"] = TROUPE_TRY(tokenizer.tokenizer_json());
    return std::optional(std::move(tokenizer));
  }
  if (config.troupe.train_tokenizer) return std::optional<Tokenizer>();
  return error(Code::kNotFound,
               "{} has no tokenizer.json and no tokenizer.model; put one there, or let one be "
               "trained on the data set with "
               "troupe.train_tokenizer=VOCABULARY_SIZE",
               folder);
}

Status check_vocabulary(std::int64_t tokens, const ModelConfig& model, const TrainConfig& config) {
  const std::string& folder = config.model.model_name_or_path;
  const std::int64_t multiple = config.data.rows.vocabulary_multiple;
  if (const auto rows = (tokens + multiple - 1) / multiple * multiple;
      tokens <= model.vocab_size && rows > model.vocab_size) {
    return error(
        Code::kUnsupported,
        "troupe.vocabulary_multiple={} asks for {} rows of the embedding, the model has {}: "
        "it is taken as the folder has it; leave the key out",
        multiple, rows, model.vocab_size);
  }
  if (tokens <= model.vocab_size) return {};
  return error(Code::kInvalidArgument,
               "the tokenizer has ids up to {}, the model's vocab_size is {}: the embedding has no "
               "rows for all tokens; resize_vocab: true gives it more",
               tokens - 1, model.vocab_size)
      .with("file", join_path(folder, "config.json"));
}

Result<bool> grow_vocabulary(FileSystem& files, const TrainConfig& config, RunContents& contents,
                             std::string& key) {
  const ModelSection& m = config.model;
  Tokenizer& tokenizer = *contents.tokenizer;
  ModelConfig& model = *contents.model;
  if (m.split_special_tokens) tokenizer.set_split_special_tokens(true);
  key = "add_tokens";
  std::int64_t added = TROUPE_TRY(tokenizer.add_tokens(stripped(m.add_tokens), false));
  std::vector<std::string> special = stripped(m.add_special_tokens);
  std::vector<std::pair<std::string, std::string>> described;
  if (m.new_special_tokens_config) {
    key = "new_special_tokens_config";
    described = TROUPE_TRY(read_described_tokens(files, *m.new_special_tokens_config));
    special.clear();
    for (const auto& [token, description] : described) special.push_back(token);
  }
  const std::int64_t first = tokenizer.vocab_size();
  key = "add_special_tokens";
  added += TROUPE_TRY(tokenizer.add_tokens(special, true));
  if (m.adds_tokens())
    contents.companions["tokenizer.json"] = TROUPE_TRY(tokenizer.tokenizer_json());
  const bool resizes = m.resize_vocab || added > 0;
  if (added > 0 && !m.resize_vocab)
    contents.notes.push_back(
        fmt::format("{} new tokens have been added: resize_vocab counts as true", added));
  if (!resizes || tokenizer.vocab_size() <= model.vocab_size) return resizes;
  if (m.quantization_bit || model.quantization) {
    key = m.quantization_bit ? "quantization_bit" : "model_name_or_path";
    return error(Code::kUnsupported, "Cannot resize embedding layers of a quantized model.");
  }
  constexpr std::int64_t kMultiple = 64;
  GrownVocabulary grown{.rows_before = model.vocab_size,
                        .seed = static_cast<std::uint64_t>(config.training.seed),
                        .described = {},
                        .described_noise = m.init_special_tokens == "desc_init_w_noise"};
  if (m.init_special_tokens != "noise_init") {
    for (const auto& [token, description] : described) {
      const TokenId id = *tokenizer.token_id(token);
      if (id < first || id < grown.rows_before) continue;  // it has a row already
      auto& [row, ids] = grown.described.emplace_back();
      row = id;
      for (const TokenId of : TROUPE_TRY(tokenizer.encode(description, false)))
        if (of < grown.rows_before) ids.push_back(of);
    }
  }
  model.vocab_size = (tokenizer.vocab_size() + kMultiple - 1) / kMultiple * kMultiple;
  if (!model.is_part) {
    model.source["vocab_size"] = model.vocab_size;
    contents.companions["config.json"] = json::write_indented(model.to_json(), false) + "\n";
  }
  contents.notes.push_back(
      fmt::format("Resized token embeddings from {} to {}.", grown.rows_before, model.vocab_size));
  if (!m.train_from_scratch) contents.grown = std::move(grown);
  return true;
}

}  // namespace troupe::train
