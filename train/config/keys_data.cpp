// Keys of LLaMA-Factory's DataArguments.
#include "train/config/key_builder.h"

namespace troupe::train {
namespace {

void add_source_keys(KeyTable& t) {
  t.list("dataset").implemented("names in dataset_info.json", TROUPE_FIELD(data.dataset));
  t.text("dataset_dir", "data")
      .implemented(
          "folder of dataset_info.json; ONLINE: data sets are names on a hub; REMOTE:OWNER/NAME: "
          "dataset_info.json of that data set",
          TROUPE_FIELD(data.dataset_dir));
  t.optional("max_samples", ValueType::kInteger)
      .implemented("the first N samples of each data set", TROUPE_FIELD(data.max_samples))
      .at_least(1);
  t.choice("mix_strategy", "concat", "concat|interleave_under|interleave_over|interleave_once")
      .implemented("how data sets are joined", TROUPE_FIELD(data.mix_strategy));
  t.list("interleave_probs")
      .implemented("probabilities of interleaved data sets", TROUPE_FIELD(data.interleave_probs));
  t.boolean("streaming", false)
      .implemented("data are read and tokenised while they are trained on",
                   TROUPE_FIELD(data.streaming));
  t.integer("buffer_size", 16384)
      .implemented("rows that a stream is shuffled among", TROUPE_FIELD(data.buffer_size))
      .at_least(1)
      .at_most(1 << 24)
      .only_where([](const TrainConfig& config) { return config.data.streaming; },
                  "it belongs to streaming: true");
  t.optional("media_dir", ValueType::kText)
      .inert("folder of images and sound", "only text is trained");
  t.optional("tokenized_path", ValueType::kText)
      .implemented(
          "folder that tokenised data are taken from where they are there, else kept in (default: "
          "token_cache in output_dir)",
          TROUPE_FIELD(data.tokenized_path));
  t.boolean("data_shared_file_system", false)
      .inert("one node prepares data for all",
             "the machine of the command prepares them, in a folder that all nodes share");
  t.boolean("overwrite_cache", false)
      .implemented("data are tokenised anew, whatever is kept", TROUPE_FIELD(data.overwrite_cache));
}

void add_preparation_keys(KeyTable& t) {
  const auto trains_turns = [](const TrainConfig& config) {
    return config.method.stage == TrainingStage::kSupervised;
  };
  const char* turns_only = "it belongs to stage: sft";
  const auto writes_turns = [](const TrainConfig& config) {
    return config.method.stage != TrainingStage::kPretrain;
  };
  const char* no_turns = "plain text (stage: pt) has no turns";
  t.optional("template", ValueType::kText)
      .implemented("how turns are written", TROUPE_FIELD(data.template_name));
  t.integer("cutoff_len", 2048)
      .implemented("longest sequence in tokens", TROUPE_FIELD(data.cutoff_len))
      .at_least(2)
      .at_most(1 << 20);
  t.optional("packing", ValueType::kBool)
      .implemented("several samples in one sequence (default: for pt)", TROUPE_FIELD(data.packing));
  t.boolean("neat_packing", false)
      .implemented("packing without attention between samples", TROUPE_FIELD(data.neat_packing));
  t.boolean("train_on_prompt", false)
      .implemented("the prompt's tokens count in the loss", TROUPE_FIELD(data.train_on_prompt))
      .only_where(trains_turns, turns_only);
  t.boolean("mask_history", false)
      .implemented("only the last answer counts in the loss", TROUPE_FIELD(data.mask_history))
      .only_where(trains_turns, turns_only);
  t.integer("preprocessing_batch_size", 1000)
      .implemented("samples that are packed together", TROUPE_FIELD(data.preprocessing_batch_size))
      .at_least(1)
      .only_where([](const TrainConfig& config) { return config.data.packing; },
                  "nothing is packed: it belongs to packing: true");
  t.optional("preprocessing_num_workers", ValueType::kInteger)
      .inert("processes that tokenise", "threads of this process do it, one a core");
  t.boolean("ignore_pad_token_for_loss", true)
      .refused("padding does not count in the loss", "padding never counts in the loss",
               "use ignore_pad_token_for_loss: true");
  t.optional("default_system", ValueType::kText)
      .implemented("system message where a sample has none", TROUPE_FIELD(data.default_system))
      .only_where(writes_turns, no_turns);
  t.optional("tool_format", ValueType::kText)
      .implemented("how tools are described and called", TROUPE_FIELD(data.tool_format))
      .only_where(writes_turns, no_turns);
  t.boolean("enable_thinking", true)
      .nullable()
      .implemented("thoughts of reasoning models are trained", TROUPE_FIELD(data.enable_thinking))
      .only_where(writes_turns, no_turns);
  t.boolean("preserve_thinking", false)
      .implemented("former answers keep their thoughts", TROUPE_FIELD(data.preserve_thinking))
      .only_where(writes_turns, no_turns);
}

}  // namespace

void add_data_keys(KeyTable& table) {
  add_source_keys(table);
  add_preparation_keys(table);
}

}  // namespace troupe::train
