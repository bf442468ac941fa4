#include "train/trainer/prepare.h"

#include <cmath>
#include <filesystem>

#include "runtime/base/limits.h"
#include "runtime/base/suggest.h"
#include "runtime/base/text.h"
#include "train/adapters/adapter_config.h"
#include "train/checkpoint/checkpoint_directory.h"
#include "train/checkpoint/checkpoint_finder.h"
#include "train/checkpoint/tensor_reader.h"
#include "train/checkpoint/weights.h"
#include "train/config/rules.h"
#include "train/data/build_dataset.h"
#include "train/data/load_conversations.h"
#include "train/data/row_dataset.h"
#include "train/model/model_layout.h"
#include "train/report/format.h"
#include "train/report/run_registry.h"
#include "train/trainer/adapted_model.h"
#include "train/trainer/run_samples.h"
#include "train/trainer/run_tokenizer.h"
#include "train/trainer/sharding_setup.h"
#include "train/trainer/state_io.h"

namespace troupe::train {
namespace {

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

Status check_length(const ModelConfig& model, std::int64_t longest) {
  const auto limit = model.length_limit();
  if (!limit || longest <= *limit) return {};
  return error(Code::kInvalidArgument,
               "rows have up to {} tokens, the model's position table has {}; use cutoff_len: {}, "
               "or shorter samples where they are the program's own",
               longest, *limit, *limit / 8 * 8)
      .with("key", "cutoff_len");
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
    // A run that goes on from a checkpoint of the whole model does not read the base's weights.
    const bool reads_base = contents.resume_path.empty() || !contents.trained.trainables.everything;
    if (trained.ok() && trains && reads_base && !config.model.train_from_scratch &&
        !contents.grown) {
      const ModelLayout layout(*contents.model, contents.trained.trainables);
      wrong("model_name_or_path",
            check_model_fits(files, config.model.model_name_or_path, *contents.model, layout));
    }
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
  // Missing tokens can be told only where the tokenizer could be read, or is going to be trained.
  if (contents.tokenizer || config.troupe.train_tokenizer) {
    wrong("template", look_at_template(data, contents.tokenizer));
  } else if (data.template_name) {
    wrong("template", chat_template(*data.template_name).status());
  }
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
  if (config.data.tokenized_path && !tokenised_before)
    wrong("tokenized_path", check_cache_place(files, *config.data.tokenized_path, true));
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
                                const SampleProgress& progress,
                                const RemoveAtSignal& remove_at_signal) {
  std::vector<ContentProblem> problems;
  RunContents contents = read_contents(files, config, problems);
  if (!problems.empty()) return problems.front().status;
  return prepare_run(files, config, say, std::move(contents), progress, remove_at_signal);
}

Result<PreparedRun> prepare_run(FileSystem& files, const TrainConfig& config,
                                const std::function<void(const std::string&)>& say,
                                RunContents contents, const SampleProgress& progress,
                                const RemoveAtSignal& remove_at_signal) {
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
  RunSamples samples = TROUPE_TRY(
      samples_of(files, of_data, tokenizer, companions, say, progress, remove_at_signal));
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
