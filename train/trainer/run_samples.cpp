#include "train/trainer/run_samples.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "runtime/base/file_lock.h"
#include "runtime/base/limits.h"
#include "runtime/base/suggest.h"
#include "train/checkpoint/checkpoint_directory.h"
#include "train/data/row_source.h"
#include "train/report/run_registry.h"
#include "train/trainer/sharding_setup.h"
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
                                const SampleProgress& progress,
                                const RemoveAtSignal& remove_at_signal) {
  const std::string& output_dir = config.training.output_dir;
  CacheRequest request{.folder = join_path(output_dir, kTokenCacheFolder),
                       .named = config.data.tokenized_path.has_value(),
                       .overwrite = config.data.overwrite_cache,
                       .tokenizer = std::move(tokenizer_text),
                       .holder = fmt::format("process {}", ::getpid()),
                       .say = say,
                       .progress = progress,
                       .remove_at_signal = remove_at_signal};
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

// The settings that decide which samples are packed together, as a text.
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

Status output_dir_taken(const std::string& folder, const Status& holder) {
  return error(Code::kAlreadyExists,
               "output_dir {} is that of a run which goes on ({}): give this one another "
               "output_dir, or end that one first with troupe stop",
               folder, holder.message());
}

Result<RunSamples> samples_of(FileSystem& files, const TrainConfig& config,
                              const Tokenizer& tokenizer,
                              const std::map<std::string, std::string>& companions,
                              const std::function<void(const std::string&)>& say,
                              const SampleProgress& progress,
                              const RemoveAtSignal& remove_at_signal) {
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
                                              progress, remove_at_signal)),
                 .stream = {}};
  const TokenDataset& train = out.data.module.train;
  out.stream = out.data.as_it_is
                   ? taken_stream(origin, train, out.data.files)
                   : TROUPE_TRY(describe_stream(files, options, origin, train, out.data.files));
  return out;
}

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

Status check_checkpoint_stream(FileSystem& files, const TrainConfig& config,
                               const std::string& checkpoint, const SampleStream& now,
                               std::vector<std::string>& notes) {
  const auto before = checkpoint.empty() ? std::nullopt : read_stream(files, checkpoint);
  return check_stream(checkpoint, before, now, config.troupe.allow_data_change, notes);
}

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

}  // namespace troupe::train
