#include "train/trainer/stream_setup.h"

#include <algorithm>

#include "train/trainer/run_samples.h"
#include "train/trainer/sharding_setup.h"

namespace troupe::train {

StreamedSamplesOptions stream_options(const TrainConfig& config, std::vector<StreamFile> files) {
  StreamedSamplesOptions options;
  options.data = data_options(config);
  options.order = {.buffer_size = config.data.buffer_size,
                   .shuffle = !config.data.disable_shuffling};
  options.rows_kept = static_cast<std::int64_t>(config.evaluation.val_size);
  options.files = std::move(files);
  return options;
}

SourceFacts stream_facts(const TrainConfig& config, int world_size) {
  const TrainingSection& training = config.training;
  const std::int64_t step =
      training.per_device_train_batch_size * training.gradient_accumulation_steps * world_size;
  return {.samples =
              std::min(training.max_steps, kPermutationSizeMax / std::max<std::int64_t>(1, step)) *
              step,
          // Two answers, each behind its question, are one sample.
          .length_max = (config.method.compares_answers() ? 2 : 1) * config.data.cutoff_len};
}

Result<SampleStream> settle_streamed(FileSystem& files, const TrainConfig& config,
                                     const Tokenizer& tokenizer, const StreamOrigin& origin,
                                     DatasetModule& module) {
  const StreamedSamplesOptions options = stream_options(config, {});
  TROUPE_RETURN_IF_ERROR(check_data_options(options.data));
  module = TROUPE_TRY(prepare_module(options.data, tokenizer));
  if (!options.data.eval_dataset.empty()) {
    const auto& names = options.data.eval_dataset;
    DataOptions evaluated = options.data;
    evaluated.eval_dataset.clear();
    for (std::size_t i = 0; i < (options.data.eval_each ? names.size() : 1); ++i) {
      evaluated.dataset = options.data.eval_each ? std::vector{names[i]} : names;
      if (std::ranges::find(module.eval_parts, names[i], &EvalPart::name) !=
          module.eval_parts.end())
        continue;
      auto made = build_dataset(files, evaluated, tokenizer);
      if (!made.ok()) return made.status().prefixed("evaluation data");
      if (options.data.eval_each) module.eval_parts.push_back({names[i], made->train.size()});
      if (module.eval) {
        module.eval->append(made->train);
      } else {
        module.eval = std::move(made->train);
      }
    }
  } else if (options.rows_kept > 0) {
    module.eval = TROUPE_TRY(first_samples(files, tokenizer, options));
  }
  // What cannot be streamed is said before anything is started.
  TROUPE_RETURN_IF_ERROR(RowStream::open(files, options.data, options.order, 0).status());
  return describe_streamed(files, options, origin);
}

Result<std::unique_ptr<StreamedSamples>> open_stream(FileSystem& files, const RunBundle& bundle,
                                                     int batch_world, StreamBeat beat) {
  const TrainConfig& config = bundle.config;
  auto tokenizer =
      TROUPE_TRY(Tokenizer::from_files(bundle.stream_tokenizer, "the run's tokenizer"));
  if (config.model.split_special_tokens) tokenizer.set_split_special_tokens(true);
  auto stream = TROUPE_TRY(SampleStream::parse(bundle.sample_stream, "the run's stream"));
  StreamedSamplesOptions options = stream_options(config, std::move(stream.files));
  options.steps = sampler_options(config, sample_count(bundle), batch_world, nullptr);
  return StreamedSamples::make(files, tokenizer, std::move(options), std::move(beat));
}

}  // namespace troupe::train
