#include "train/trainer/prepare.h"

#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "runtime/base/file_lock.h"
#include "runtime/base/limits.h"
#include "runtime/base/suggest.h"
#include "runtime/base/text.h"
#include "train/adapters/adapter_config.h"
#include "train/checkpoint/checkpoint_directory.h"
#include "train/checkpoint/checkpoint_finder.h"
#include "train/checkpoint/tensor_reader.h"
#include "train/checkpoint/weights.h"
#include "train/config/rules.h"
#include "train/config/source.h"
#include "train/data/build_dataset.h"
#include "train/data/cached_dataset.h"
#include "train/data/load_conversations.h"
#include "train/data/row_dataset.h"
#include "train/data/row_source.h"
#include "train/data/sample_stream.h"
#include "train/model/model_layout.h"
#include "train/report/format.h"
#include "train/report/run_registry.h"
#include "train/tokenizer/bpe_trainer.h"
#include "train/trainer/adapted_model.h"
#include "train/trainer/sharding_setup.h"
#include "train/trainer/state_io.h"
#include "train/trainer/stream_setup.h"

namespace troupe::train {
namespace {

DataOptions::Stage stage_of(TrainingStage stage) {
  switch (stage) {
    case TrainingStage::kPretrain:
      return DataOptions::Stage::kPretrain;
    case TrainingStage::kReward:
    case TrainingStage::kDpo:
      return DataOptions::Stage::kPairs;
    case TrainingStage::kKto:
      return DataOptions::Stage::kFeedback;
    case TrainingStage::kSupervised:
      break;
  }
  return DataOptions::Stage::kSupervised;
}

}  // namespace

DataOptions data_options(const TrainConfig& config) {
  const auto& data = config.data;
  DataOptions options;
  options.stage = stage_of(config.method.stage);
  options.dataset = data.dataset;
  options.eval_dataset = config.evaluation.eval_dataset;
  options.eval_each = config.evaluation.on_each_dataset;
  options.dataset_dir = data.dataset_dir;
  options.hub_files = data.hub_files;
  options.template_name = data.template_name;
  options.cutoff_len = data.cutoff_len;
  options.packing = data.packing;
  options.neat_packing = data.neat_packing;
  options.train_on_prompt = data.train_on_prompt;
  options.mask_history = data.mask_history;
  options.max_samples = data.max_samples;
  options.mix_strategy = data.mix_strategy;
  options.interleave_probs = data.interleave_probs;
  options.val_size = config.evaluation.val_size;
  options.held_out = config.troupe.held_out;
  options.preprocessing_batch_size = data.preprocessing_batch_size;
  options.seed = static_cast<std::uint32_t>(config.training.seed);
  options.default_system = data.default_system;
  options.enable_thinking = data.enable_thinking;
  options.preserve_thinking = data.preserve_thinking;
  options.tool_format = data.tool_format;
  options.rows = {.datasets = data.rows.datasets,
                  .eval_datasets = data.rows.eval_datasets,
                  .min_sample_len = data.rows.min_sample_len,
                  .excess_length = data.rows.excess_length,
                  .shuffle = data.rows.shuffle_merged_datasets,
                  .train_on_inputs = data.rows.train_on_inputs,
                  .drop_unlabelled = data.sample_packing.on,
                  .special_tokens = data.rows.special_tokens,
                  .tokens = data.rows.tokens};
  return options;
}

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

// Trains a tokenizer on the texts that the model is trained on, and no others: what is held out is
// as new to the tokenizer as to the model. Puts its files among the companions.
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

// The tokens that every trained tokenizer has, whatever its texts: bytes and special tokens.
Result<Tokenizer> untrained_tokenizer() {
  std::map<std::string, std::string> files;
  TrainedBpe bytes;
  const BpeTrainerOptions trainer = trainer_options(0);
  bytes.special_tokens = trainer.special_tokens;
  return tokenizer_of(bytes, trainer, files);
}

// The tokenizer of the model's folder; nothing where one is to be trained.
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

// The tokenizer gets the tokens that the configuration adds, the model rows for all tokens. Returns
// whether the vocabulary counts as resized. `key`:
// of the configuration that a failure is about.
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

// The model's folder.
Status read_model(FileSystem& files, const TrainConfig& config, RunContents& contents) {
  const std::string& folder = config.model.model_name_or_path;
  contents.companions = TROUPE_TRY(read_companions(files, folder));
  const auto found = contents.companions.find("config.json");
  if (found == contents.companions.end()) {
    return error(Code::kNotFound, "{} has no config.json: it is not a model's folder", folder);
  }
  contents.model = TROUPE_TRY(ModelConfig::parse(found->second, join_path(folder, "config.json")));
  if (config.model.train_from_scratch) return {};
  // Opened here only to find damage before anything is started.
  const Status weights = TensorReader::open_model(files, folder).status();
  return weights.code() == Code::kPermissionDenied ? unreadable_model(folder, weights) : weights;
}

// The template of SFT, and whether the tokenizer (nothing: one is trained) has its tokens.
Status look_at_template(const DataOptions& options, const std::optional<Tokenizer>& tokenizer) {
  if (options.stage == DataOptions::Stage::kPretrain && !options.template_name) return {};
  if (!options.rows.datasets.empty()) return {};  // its data sets name their templates
  Tokenizer prepared = tokenizer ? *tokenizer : TROUPE_TRY(untrained_tokenizer());
  auto chat = TROUPE_TRY(choose_template(options.template_name, prepared));
  if (options.tool_format) TROUPE_RETURN_IF_ERROR(set_tool_format(chat, *options.tool_format));
  std::vector<std::string> notes;
  TROUPE_RETURN_IF_ERROR(fix_special_tokens(chat, prepared, notes));
  if (options.stage != DataOptions::Stage::kPretrain) {
    const Conversation probe{
        .messages = {{Role::kUser, "a"}, {Role::kAssistant, "b"}}, .system = {}, .tools = {}};
    TROUPE_RETURN_IF_ERROR(encode_conversation(chat, prepared, probe,
                                               {.default_system = options.default_system,
                                                .enable_thinking = options.enable_thinking})
                               .status());
  }
  if (options.train_on_prompt && chat.efficient_eos)
    return error(Code::kInvalidArgument, "Current template does not support `train_on_prompt`.");
  return {};
}

// The template may have given the tokenizer another end-of-text or padding token: what is saved
// beside the weights says so.
Status refresh_companions(const Tokenizer& tokenizer,
                          std::map<std::string, std::string>& companions) {
  for (auto& [name, content] : TROUPE_TRY(tokenizer.files()))
    if (name.find('/') == std::string::npos) companions[name] = std::move(content);
  return {};
}

// The base model's config.json names the type of the base's weights: what is saved says in which
// type it was saved, as transformers' save_pretrained does.
std::string config_json_saying(DType dtype, const ModelConfig& model, std::string text) {
  if (model.dtype == dtype) return model.saved_text(std::move(text));
  json::Object config = model.is_part ? model.to_json() : model.source;
  const char* key = config.contains("dtype") ? "dtype" : "torch_dtype";
  config.erase("torch_dtype");
  config[key] = torch_name(dtype);
  return json::write_indented(config, false) + "\n";
}

// Whether the tokenizer's chat_template decides what the samples are.
bool renders_own_template(const DataOptions& options) {
  if (options.stage == DataOptions::Stage::kPretrain) return false;
  if (options.rows.datasets.empty()) return !options.template_name;
  return std::ranges::any_of(options.rows.datasets, [](const json::Value& entry) {
    const auto source = parse_row_source(entry, false);
    return source.ok() && (source->type == "chat_template" || source->type == "text_or_messages") &&
           source->chat_template.starts_with("tokenizer_default");
  });
}

std::string tokenizer_text_of(const std::map<std::string, std::string>& companions,
                              const DataOptions& options) {
  std::string text;
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}) {
    if (name == std::string_view("chat_template.jinja") && !renders_own_template(options)) continue;
    if (const auto found = companions.find(name); found != companions.end()) text += found->second;
  }
  return text;
}

// All of the tokenizer's files: any of them may decide what ids texts become.
std::string cache_tokenizer_text(const std::map<std::string, std::string>& companions,
                                 const ModelSection& model) {
  std::string text = model.split_special_tokens ? "split_special_tokens" : "";
  for (const auto& [name, content] : companions)
    if (name != "config.json" && name != "generation_config.json")
      text += fmt::format("{} {}\n{}", name, content.size(), content);
  return text;
}

// The cache of a run that goes on must stay what it is.
Status check_nobody_trains(const std::string& output_dir) {
  const auto lock = FileLock::take(join_path(output_dir, kOutputLockFile), "a run that begins");
  if (lock.status().code() != Code::kAlreadyExists) return {};
  return output_dir_taken(output_dir, lock.status());
}

// The run's samples: kept in the folder that the configuration names, else in output_dir.
Result<CachedDataset> tokenised(FileSystem& files, const TrainConfig& config,
                                const Tokenizer& tokenizer, std::string tokenizer_text,
                                const std::function<void(const std::string&)>& say,
                                const SampleProgress& progress, const NoteStop& note_stop) {
  const std::string& output_dir = config.training.output_dir;
  CacheRequest request{.folder = join_path(output_dir, kTokenCacheFolder),
                       .named = config.data.tokenized_path.has_value(),
                       .overwrite = config.data.overwrite_cache,
                       .tokenizer = std::move(tokenizer_text),
                       .holder = fmt::format("process {}", ::getpid()),
                       .say = say,
                       .progress = progress,
                       .note_stop = note_stop};
  if (request.named) {
    request.folder = *config.data.tokenized_path;
    while (request.folder.size() > 1 && request.folder.ends_with('/')) request.folder.pop_back();
  } else {
    TROUPE_RETURN_IF_ERROR(check_nobody_trains(output_dir));
  }
  auto out = TROUPE_TRY(cached_dataset(files, data_options(config), tokenizer, request));
  out.module.notes.push_back(out.made
                                 ? fmt::format("Tokenized dataset is saved at {}.", request.folder)
                                 : fmt::format("tokenised before: {}", request.folder));
  return out;
}

// Nothing where the file is missing. What is damaged is worth no more than that.
std::optional<SampleStream> read_stream(FileSystem& files, const std::string& directory) {
  const std::string path = join_path(directory, kSampleStreamFile);
  const auto text = files.read(path, limits::kJsonFileBytesMax);
  if (!text.ok()) return std::nullopt;
  auto stream = SampleStream::parse(*text, path);
  if (!stream.ok()) return std::nullopt;
  return std::move(*stream);
}

// Rotary positions go on for ever, and a model knows those that it was trained on. `longest`: of
// the rows.
void note_untaught_positions(const ModelConfig& model, const TokenDataset& rows,
                             std::int64_t longest, std::vector<std::string>& notes) {
  // With scaling others are known, too.
  if (model.positions != PositionKind::kRotary ||
      model.rope.scaling.kind != RopeScaling::Kind::kNone ||
      longest <= model.max_position_embeddings)
    return;
  // Positions begin anew with each part of packed rows.
  if (rows.kind() == TokenDataset::Kind::kPacked || rows.kind() == TokenDataset::Kind::kNeatPacked)
    longest = longest_part(rows);
  if (longest <= model.max_position_embeddings) return;
  notes.push_back(fmt::format(
      "warning: rows have up to {} tokens, and max_position_embeddings of the model's config.json "
      "is {}: it may not have been taught what comes behind; cutoff_len: {} keeps rows within",
      longest, model.max_position_embeddings, model.max_position_embeddings));
}

// Refuses to go on from a checkpoint with other samples than those that its cursor counts.
Status check_stream(const std::string& checkpoint, const std::optional<SampleStream>& before,
                    const SampleStream& now, bool allowed, std::vector<std::string>& notes) {
  if (checkpoint.empty()) return {};
  if (!before) {
    notes.push_back(fmt::format(
        "{} has no {} that can be read: whether it was trained on these samples, in this order, is "
        "not known",
        checkpoint, kSampleStreamFile));
    return {};
  }
  const auto found = differences(*before, now);
  if (found.empty()) return {};
  const std::string text = join_words(found, "; ");
  if (allowed) {
    notes.push_back(
        fmt::format("warning: going on with other samples than {}: {}", checkpoint, text));
    return {};
  }
  return error(Code::kFailedPrecondition,
               "{} was trained on other samples than this run would go on with: {}. Restore them, "
               "or go on with the new samples from the same place of their order with "
               "troupe.allow_data_change=true, or begin anew in another output_dir",
               checkpoint, text);
}

// A tokenizer that is trained anew on other data gives other meanings to the ids that the
// checkpoint's weights know: no key makes that a resume.
Status check_trained_tokenizer(const std::string& checkpoint,
                               const std::optional<SampleStream>& before, const SampleStream& now) {
  constexpr const char* kSetting = "tokenizer";
  if (!before) return {};
  const auto* was = before->settings.if_contains(kSetting);
  const auto* is = now.settings.if_contains(kSetting);
  if (was == nullptr || is == nullptr || *was == *is) return {};
  return error(Code::kFailedPrecondition,
               "{} was trained with another tokenizer than troupe.train_tokenizer makes of these "
               "data: its weights would read the ids as other words. Restore the data, or train "
               "its model on as a run of its own, in another output_dir, with "
               "model_name_or_path={} and without troupe.train_tokenizer and "
               "train_from_scratch",
               checkpoint, checkpoint);
}

// What decides which samples are packed together.
std::string packing_text(const TrainConfig& config) {
  const auto packing = packing_of(config);
  if (!packing) return {};
  return fmt::format("{} bins of {} tokens and {} samples, groups of {}{}", packing->batch_bins,
                     packing->capacity, packing->bin_size, packing->group_size,
                     packing->sequentially ? ", next fit" : "");
}

StreamOrigin origin_of(const TrainConfig& config, const std::string& tokenizer) {
  return {.tokenizer = tokenizer,
          .order_seed = static_cast<std::uint32_t>(config.training.order_seed()),
          .shuffle = !config.data.disable_shuffling,
          .group_by_length = config.data.group_by_length,
          .packing = packing_text(config)};
}

// The run's stream of samples must be the checkpoint's. Kept in output_dir, too.
Result<std::string> settle_stream(FileSystem& files, const TrainConfig& config,
                                  const SampleStream& now, const std::string& checkpoint,
                                  std::vector<std::string>& notes) {
  const auto before = checkpoint.empty() ? std::nullopt : read_stream(files, checkpoint);
  TROUPE_RETURN_IF_ERROR(
      check_stream(checkpoint, before, now, config.troupe.allow_data_change, notes));
  if (config.troupe.train_tokenizer)
    TROUPE_RETURN_IF_ERROR(check_trained_tokenizer(checkpoint, before, now));
  const std::string text = now.to_text();
  TROUPE_RETURN_IF_ERROR(
      write_file_atomically(files, join_path(config.training.output_dir, kSampleStreamFile), text));
  return text;
}

// The samples of a run: tokenised now or before, or of a stream, which has those to evaluate on
// alone.
struct RunSamples {
  CachedDataset data;
  SampleStream stream;
};
Result<RunSamples> samples_of(FileSystem& files, const TrainConfig& config,
                              const Tokenizer& tokenizer,
                              const std::map<std::string, std::string>& companions,
                              const std::function<void(const std::string&)>& say,
                              const SampleProgress& progress, const NoteStop& note_stop) {
  const DataOptions options = data_options(config);
  const std::string text = tokenizer_text_of(companions, options);
  const StreamOrigin origin = origin_of(config, text);
  if (config.data.streaming) {
    RunSamples out{.data = {.module = TROUPE_TRY(prepare_module(options, tokenizer))},
                   .stream = {}};
    out.stream = TROUPE_TRY(settle_streamed(files, config, tokenizer, origin, out.data.module));
    return out;
  }
  RunSamples out{.data = TROUPE_TRY(tokenised(files, config, tokenizer,
                                              cache_tokenizer_text(companions, config.model), say,
                                              progress, note_stop)),
                 .stream = {}};
  const TokenDataset& train = out.data.module.train;
  out.stream = out.data.as_it_is
                   ? taken_stream(origin, train, out.data.files)
                   : TROUPE_TRY(describe_stream(files, options, origin, train, out.data.files));
  return out;
}

// What can be said before anything is tokenised, which would take the place of the samples that the
// checkpoint was trained on.
Status check_settings_of_samples(FileSystem& files, const TrainConfig& config,
                                 const std::map<std::string, std::string>& companions,
                                 const std::string& checkpoint) {
  const auto before = checkpoint.empty() ? std::nullopt : read_stream(files, checkpoint);
  if (!before || config.data.streaming || config.data.tokenized_path ||
      config.troupe.allow_data_change)
    return {};
  const DataOptions options = data_options(config);
  const std::string text = tokenizer_text_of(companions, options);
  const StreamOrigin origin = origin_of(config, text);
  const auto settings = stream_settings(files, options, origin);
  if (!settings.ok()) return {};  // the tokenising says why
  SampleStream now = *before;
  now.settings = *settings;
  std::vector<std::string> notes;
  return check_stream(checkpoint, before, now, false, notes);
}

void describe(const CachedDataset& data, std::vector<std::string>& notes) {
  const DatasetModule& module = data.module;
  if (module.train.size() == 0) {
    notes.emplace_back("streaming: rows are tokenised while they are trained on");
  } else {
    notes.push_back(fmt::format("{} became {} of {} tokens", count_of(data.records, "row"),
                                count_of(module.train.size(), "sample"),
                                format_count(static_cast<double>(module.train.token_count()))));
  }
  if (module.eval) {
    notes.push_back(fmt::format("evaluation data: {} of {} tokens",
                                count_of(module.eval->size(), "sample"),
                                format_count(static_cast<double>(module.eval->token_count()))));
    for (const EvalPart& part : module.eval_parts)
      notes.push_back(
          fmt::format("evaluation data {}: {}", part.name, count_of(part.samples, "sample")));
  }
  notes.insert(notes.end(), module.notes.begin(), module.notes.end());
}

// "4 bits (nf4, scales in 8 bits)".
std::string quantization_words(std::optional<std::int64_t> bits, std::string_view type,
                               bool nested) {
  if (!bits) return "no quantisation";
  if (*bits == 8) return "8 bits (int8)";  // which the other keys do not change
  return fmt::format("{} bits ({}{})", *bits, type, nested ? ", scales in 8 bits" : "");
}

void describe(const ModelConfig& model, const Trainables& trainables,
              std::vector<std::string>& notes) {
  if (trainables.everything) return;
  const ModelLayout layout(model, trainables);
  const auto trained = static_cast<double>(layout.trained().parameter_elements());
  const auto all = static_cast<double>(layout.parameter_elements());
  notes.push_back(fmt::format("trainable params: {} || all params: {} || trainable%: {:.4f}",
                              layout.trained().parameter_elements(), layout.parameter_elements(),
                              100 * trained / all));
  const Quantization& kept = trainables.base.quantization;
  if (!kept) return;
  std::int64_t weights = 0;
  for (const ParameterInfo& parameter : layout.frozen().parameters())
    if (parameter.quantization) weights += parameter.values();
  notes.push_back(
      fmt::format("{} frozen weights are kept in {}", weights,
                  quantization_words(kept.bits(), weight_code_name(kept.code), kept.nested)));
}

// Adapters that are trained on beside another base than they were trained beside are not resumed.
// A checkpoint without the keys was written by a version that quantised nothing.
Status check_checkpoint_quantization(FileSystem& files, const std::string& checkpoint,
                                     const ModelSection& model) {
  const auto saved = TROUPE_TRY(saved_arguments(files, checkpoint));
  if (!saved || !json::find(*saved, "quantization_bit")) return {};
  const std::string theirs =
      quantization_words(json::find_integer(*saved, "quantization_bit"),
                         json::find_string(*saved, "quantization_type").value_or("nf4"),
                         json::find_bool(*saved, "double_quantization").value_or(true));
  const std::string ours = quantization_words(model.quantization_bit, model.quantization_type,
                                              model.double_quantization);
  if (theirs == ours) return {};
  return error(Code::kInvalidArgument,
               "{} was trained beside a base with {}, and quantization_bit, quantization_type and "
               "double_quantization say {} now; go on with the settings that it was trained with, "
               "or train in another output_dir",
               checkpoint, theirs, ours);
}

// An adapter goes on as what it was: another scale or base would make another model of its tensors.
Status check_checkpoint_adapter(FileSystem& files, const std::string& checkpoint,
                                const std::string& run) {
  const std::string path = join_path(checkpoint, kAdapterConfigFile);
  if (!files.exists(path)) return {};
  const AdapterConfig theirs =
      TROUPE_TRY(AdapterConfig::parse(TROUPE_TRY(files.read(path, limits::kConfigBytesMax)), path));
  const AdapterConfig ours = TROUPE_TRY(AdapterConfig::parse(run, kAdapterConfigFile));
  const auto difference = first_difference(theirs, ours);
  if (!difference) return {};
  return error(Code::kInvalidArgument,
               "{} is of another adapter: {}; go on with the settings that it was trained with, or "
               "train in another output_dir",
               checkpoint, *difference);
}

Status check_writable(FileSystem& files, const std::string& directory) {
  if (const Status made = files.create_directories(directory); !made.ok()) {
    return made.prefixed("output_dir cannot be written");
  }
  const std::string probe = join_path(directory, ".troupe-write-test");
  auto file = files.create(probe);
  if (!file.ok()) return file.status().prefixed("output_dir cannot be written");
  TROUPE_RETURN_IF_ERROR((*file)->close());
  return files.remove(probe);
}

// What a run writes must not be what it, or somebody else, reads.
Status check_output_dir(const TrainConfig& config) {
  namespace fs = std::filesystem;
  std::error_code failed;
  const fs::path out = fs::weakly_canonical(config.training.output_dir, failed);
  const fs::path model = fs::weakly_canonical(config.model.model_name_or_path, failed);
  if (failed || config.model.model_name_or_path.empty()) return {};
  if (out == model) {
    return error(Code::kInvalidArgument,
                 "output_dir is the folder of model_name_or_path, {}, and the run would write over "
                 "the model that it begins with; use another output_dir",
                 model.string());
  }
  if (config.training.overwrite_output_dir && model.parent_path() == out &&
      checkpoint_step(model.filename().string())) {
    return error(Code::kInvalidArgument,
                 "model_name_or_path, {}, is a checkpoint in output_dir, and overwrite_output_dir "
                 "removes those; use another output_dir, or overwrite_output_dir: false and "
                 "resume_from_checkpoint",
                 model.string());
  }
  return {};
}

Status check_second_output_dir(FileSystem& files, const TrainConfig& config) {
  if (!config.troupe.second_output_dir) return {};
  namespace fs = std::filesystem;
  const std::string& folder = *config.troupe.second_output_dir;
  const auto refused = [&](std::string_view why) {
    return error(Code::kInvalidArgument, "troupe.second_output_dir={}: {}", folder, why);
  };
  std::error_code failed;
  if (folder.empty()) return refused("it names no folder; leave it out");
  if (fs::exists(folder, failed) && !fs::is_directory(folder, failed))
    return refused("it is no folder");
  if (fs::weakly_canonical(folder, failed) ==
      fs::weakly_canonical(config.training.output_dir, failed))
    return refused("it is output_dir; name one on another disk");
  if (holds_weights(files, folder))
    return refused("it holds a model, which the run would write over; name a new folder");
  return {};
}

// The shell leaves the ~ of output_dir=~/x as it is.
Status check_home(const TrainConfig& config) {
  const std::pair<const char*, std::string> paths[] = {
      {"output_dir", config.training.output_dir},
      {"model_name_or_path", config.model.model_name_or_path},
      {"dataset_dir", config.data.dataset_dir},
      {"tokenized_path", config.data.tokenized_path.value_or("")},
      {"troupe.second_output_dir", config.troupe.second_output_dir.value_or("")}};
  for (const auto& [key, path] : paths) {
    if (path != "~" && !path.starts_with("~/")) continue;
    return error(Code::kInvalidArgument, "{}={}: write the home directory out, or use $HOME", key,
                 path);
  }
  return {};
}

}  // namespace

Status output_dir_taken(const std::string& folder, const Status& holder) {
  return error(Code::kAlreadyExists,
               "output_dir {} is that of a run which goes on ({}): give this one another "
               "output_dir, or end that one first with troupe stop",
               folder, holder.message());
}

Status check_length(const ModelConfig& model, std::int64_t longest) {
  const auto limit = model.length_limit();
  if (!limit || longest <= *limit) return {};
  return error(Code::kInvalidArgument,
               "rows have up to {} tokens, the model's position table has {}; use cutoff_len: {}, "
               "or shorter samples where they are the program's own",
               longest, *limit, *limit / 8 * 8)
      .with("key", "cutoff_len");
}

Status check_checkpoint_stream(FileSystem& files, const TrainConfig& config,
                               const std::string& checkpoint, const SampleStream& now,
                               std::vector<std::string>& notes) {
  const auto before = checkpoint.empty() ? std::nullopt : read_stream(files, checkpoint);
  return check_stream(checkpoint, before, now, config.troupe.allow_data_change, notes);
}

Result<std::string> resume_point(FileSystem& files, const TrainConfig& config,
                                 std::vector<std::string>& notes) {
  const ResumeFrom& from = config.training.resume_from_checkpoint;
  ResumeRequest request{.output_dir = config.training.output_dir,
                        .overwrite_output_dir = config.training.overwrite_output_dir};
  if (from.mode == ResumeFrom::Mode::kNever) request.resume_from_checkpoint = "false";
  if (from.mode == ResumeFrom::Mode::kLatest) request.resume_from_checkpoint = "true";
  if (from.mode == ResumeFrom::Mode::kPath) request.resume_from_checkpoint = from.path;
  std::vector<RefusedCheckpoint> refused;
  const auto found = TROUPE_TRY(find_resume_point(files, request, &refused));
  if (auto text = refused_message(refused, found); !text.empty()) notes.push_back(std::move(text));
  if (!found) {
    // A run that begins anew removes what would be taken for its own later, once it has some.
    const auto before = find_checkpoints(files, config.training.output_dir);
    if (config.training.overwrite_output_dir && before.ok() && !before->empty()) {
      notes.push_back(fmt::format(
          "overwrite_output_dir: true: {} moved to {}, and removed when this run saves; false goes "
          "on from the newest",
          before->size() == 1 ? "1 checkpoint is" : count_of(before->size(), "checkpoint") + " are",
          join_path(config.training.output_dir, kEarlierRunFolder)));
    }
    return std::string();
  }
  notes.push_back(fmt::format("going on from {} (step {})", found->path, found->step));
  return found->path;
}

RunContents read_contents(FileSystem& files, const TrainConfig& config,
                          std::vector<ContentProblem>& problems) {
  RunContents contents;
  // `key` counts for what does not tell its own.
  const auto wrong = [&](const char* key, const Status& status) {
    if (!status.ok())
      problems.push_back({std::string(status.context("key").value_or(key)), status});
    return !status.ok();
  };
  const bool trains = config.trains();
  for (const Status& folders : {check_home(config), trains ? check_output_dir(config) : Status(),
                                check_second_output_dir(files, config)}) {
    if (wrong("output_dir", folders)) problems.back().of_settings = true;
  }
  const bool by_path = config.training.resume_from_checkpoint.mode == ResumeFrom::Mode::kPath;
  auto resume = trains ? resume_point(files, config, contents.notes) : Result<std::string>("");
  wrong(by_path ? "resume_from_checkpoint" : "output_dir", resume.status());
  contents.resume_path = std::move(resume).value_or("");
  if (!wrong("model_name_or_path", read_model(files, config, contents))) {
    auto tokenizer = load_tokenizer(files, config, contents);
    wrong("model_name_or_path", tokenizer.status());
    contents.tokenizer = std::move(tokenizer).value_or(std::nullopt);
    std::string key;
    TrainConfig settled = config;
    if (contents.tokenizer) {
      const auto resizes = grow_vocabulary(files, config, contents, key);
      settled.model.resize_vocab = resizes.value_or(false);
      if (!wrong(key.c_str(), resizes.status()))
        wrong("model_name_or_path",
              check_vocabulary(contents.tokenizer->vocab_size(), *contents.model, config));
    } else if (config.model.adds_tokens()) {
      wrong(
          "add_tokens",
          error(Code::kUnsupported,
                "a tokenizer that is trained (troupe.train_tokenizer) gets no other tokens: leave "
                "add_tokens, add_special_tokens and new_special_tokens_config out"));
    }
    if (!trains) {
      if (!contents.tokenizer)
        wrong("troupe.train_tokenizer",
              error(Code::kInvalidArgument, "do_predict alone trains nothing; leave it out"));
      wrong("adapter_name_or_path", AdaptedModel::open(files, config.model.model_name_or_path,
                                                       config.finetuning.adapter_name_or_path)
                                        .status());
    }
    auto trained = trains ? trained_part(files, settled, *contents.model, key)
                          : Result<TrainedPart>(TrainedPart());
    wrong(key.c_str(), trained.status());
    if (trained.ok()) contents.trained = std::move(*trained);
    // A checkpoint of a whole model is compared with the configuration when it is loaded.
    const bool of_adapters = files.exists(join_path(contents.resume_path, kAdapterFile));
    if (trained.ok() && !contents.resume_path.empty() &&
        (of_adapters || !contents.trained.trainables.everything)) {
      const ModelLayout layout(*contents.model, contents.trained.trainables);
      if (of_adapters)
        wrong(by_path ? "resume_from_checkpoint" : "output_dir",
              check_checkpoint_quantization(files, contents.resume_path, config.model));
      wrong(by_path ? "resume_from_checkpoint" : "output_dir",
            check_checkpoint_fits(files, contents.resume_path, *contents.model, layout));
      if (of_adapters && !contents.trained.adapter_config.empty())
        wrong(
            by_path ? "resume_from_checkpoint" : "output_dir",
            check_checkpoint_adapter(files, contents.resume_path, contents.trained.adapter_config));
      if (contents.trained.base)
        wrong(by_path ? "resume_from_checkpoint" : "output_dir",
              check_checkpoint_base(files, contents.resume_path, config.model.model_name_or_path,
                                    *contents.trained.base));
    }
  }
  DataOptions data = data_options(config);
  wrong("template", look_at_template(data, contents.tokenizer));
  const auto look_at_eval = [&](std::int64_t rows) {
    data.answers_optional = config.prediction.do_predict;
    if (!data.eval_dataset.empty())
      wrong("eval_dataset", look_at_conversations(files, data, data.eval_dataset, rows).status());
  };
  if (!trains) {
    look_at_eval(100);
    return contents;
  }
  // Where they are tokenised already, their rows need not be there any more.
  const bool tokenised_before = config.data.tokenized_path && !config.data.overwrite_cache &&
                                holds_token_cache(files, *config.data.tokenized_path);
  if (!config.data.is_named() && config.data.tokenized_path) {
    if (!tokenised_before && !holds_token_cache(files, *config.data.tokenized_path))
      wrong("tokenized_path",
            error(Code::kNotFound,
                  "{} holds no tokenised data, and no dataset is named to make them of",
                  *config.data.tokenized_path));
    return contents;
  }
  if (wrong("dataset", check_data_options(data))) {
    problems.back().of_settings = true;
    return contents;
  }
  if (tokenised_before) return contents;
  // The first rows say of what kind all are.
  constexpr std::int64_t kRowsLeast = 100;
  const std::int64_t look_at = std::max(kRowsLeast, rows_to_judge_split(data));
  if (!data.rows.datasets.empty()) {
    wrong("troupe.datasets", look_at_row_datasets(files, data, contents.tokenizer, look_at));
    return contents;
  }
  const auto rows = look_at_conversations(files, data, data.dataset, look_at);
  if (!wrong("dataset", rows.status()) && *rows)
    wrong("val_size", rows_kept_back(data, **rows).status());
  look_at_eval(look_at);
  return contents;
}

Result<PreparedRun> prepare_run(FileSystem& files, const TrainConfig& config,
                                const std::function<void(const std::string&)>& say,
                                const SampleProgress& progress, const NoteStop& note_stop) {
  std::vector<ContentProblem> problems;
  RunContents contents = read_contents(files, config, problems);
  if (!problems.empty()) return problems.front().status;
  return prepare_run(files, config, say, std::move(contents), progress, note_stop);
}

Result<PreparedRun> prepare_run(FileSystem& files, const TrainConfig& config,
                                const std::function<void(const std::string&)>& say,
                                RunContents contents, const SampleProgress& progress,
                                const NoteStop& note_stop) {
  std::vector<std::string> notes = std::move(contents.notes);
  TROUPE_RETURN_IF_ERROR(check_writable(files, config.training.output_dir));
  auto& companions = contents.companions;
  ModelConfig& model = *contents.model;
  auto tokenizer = contents.tokenizer ? std::move(*contents.tokenizer)
                                      : TROUPE_TRY(train_tokenizer(files, config, companions, say));
  TROUPE_RETURN_IF_ERROR(check_vocabulary(tokenizer.vocab_size(), model, config));
  // Of the tokenizer as it was loaded or trained; what is saved may have other special tokens.
  TrainConfig of_data = config;
  // Prompts to answer (prediction.h), which nothing is measured on while it trains.
  if (config.prediction.do_predict) of_data.evaluation.eval_dataset.clear();
  TROUPE_RETURN_IF_ERROR(
      check_settings_of_samples(files, of_data, companions, contents.resume_path));
  RunSamples samples =
      TROUPE_TRY(samples_of(files, of_data, tokenizer, companions, say, progress, note_stop));
  CachedDataset& data = samples.data;
  DatasetModule& module = data.module;
  const std::int64_t longest =
      config.data.streaming ? config.data.cutoff_len : longest_sequence(module.train);
  TROUPE_RETURN_IF_ERROR(check_length(model, longest));
  if (module.eval) TROUPE_RETURN_IF_ERROR(check_length(model, longest_sequence(*module.eval)));
  if (!config.data.streaming) note_untaught_positions(model, module.train, longest, notes);
  std::string stream =
      TROUPE_TRY(settle_stream(files, config, samples.stream, contents.resume_path, notes));
  std::map<std::string, std::string> stream_tokenizer;
  if (config.data.streaming) stream_tokenizer = TROUPE_TRY(tokenizer.files());
  TROUPE_RETURN_IF_ERROR(refresh_companions(module.tokenizer, companions));
  companions["config.json"] =
      config_json_saying(state_dtype(config), model, std::move(companions["config.json"]));
  notes.insert(notes.end(), model.notes.begin(), model.notes.end());
  notes.insert(notes.end(), contents.trained.notes.begin(), contents.trained.notes.end());
  if (!contents.trained.adapter_config.empty()) {
    // As PEFT saves: the base's own files are not an adapter's.
    companions.erase("config.json");
    companions.erase("generation_config.json");
    companions[kAdapterConfigFile] = contents.trained.adapter_config;
    companions.erase(kBaseRecordFile);
    if (contents.trained.base) companions[kBaseRecordFile] = contents.trained.base->to_text();
  }
  describe(model, contents.trained.trainables, notes);
  describe(data, notes);
  PreparedRun prepared{
      .bundle = {.config = config,
                 .model = std::move(model),
                 .trainables = std::move(contents.trained.trainables),
                 .adapter = std::move(contents.trained.adapter),
                 .merged_adapters = std::move(contents.trained.merged),
                 .pissa = contents.trained.pissa,
                 .grown = std::move(contents.grown),
                 .companions = std::move(companions),
                 .sample_stream = std::move(stream),
                 .stream_tokenizer = std::move(stream_tokenizer),
                 .dataset = std::move(module.train),
                 .token_cache = std::move(data.folder)},
      .tokenizer = std::move(module.tokenizer),
      .held_out = std::move(module.held_out),
      .resume_path = contents.resume_path.empty() ? "" : absolute_path(contents.resume_path),
      .notes = std::move(notes)};
  // A run that is not evaluated ships nothing to evaluate on; val_size keeps its rows from training
  // all the same, as in LLaMA-Factory.
  if (config.evaluation.is_wanted()) {
    if (!module.eval) {
      return error(Code::kInvalidArgument,
                   "Please make sure eval_dataset be provided or val_size >1e-6");
    }
    prepared.bundle.eval = std::move(module.eval);
    prepared.bundle.eval_parts = std::move(module.eval_parts);
  }
  return prepared;
}

}  // namespace troupe::train
