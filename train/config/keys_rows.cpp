// Keys of data sets that are named by their paths, and of packing samples anew in every epoch.
#include "train/config/key_builder.h"

namespace troupe::train {
namespace {

// A list of mappings.
template <typename Field>
void add_sets_key(KeyTable& t, const char* name, const char* meaning, Field field) {
  t.optional(name, ValueType::kAny)
      .implemented(
          meaning,
          [field](TrainConfig& config, const json::Value& value) -> Status {
            auto& list = field(config);
            list.clear();
            if (value.is_null()) return {};
            const auto* sets = value.if_array();
            if (!sets) return error(Code::kInvalidArgument, "expected a list of mappings");
            for (const auto& set : *sets) {
              if (!set.is_object() || !json::find_string(set, "path") ||
                  !json::find_string(set, "type")) {
                return error(Code::kInvalidArgument,
                             "expected mappings with path and type, found {}",
                             json::write(set).substr(0, 60));
              }
            }
            list = *sets;
            return {};
          },
          [field](const TrainConfig& config) -> json::Value {
            const auto& list = field(config);
            if (list.empty()) return nullptr;
            return list;
          });
}

bool has_rows(const TrainConfig& config) { return !config.data.rows.datasets.empty(); }
constexpr const char* kRowsOnly = "it belongs to troupe.datasets";
bool packs_samples(const TrainConfig& config) { return config.data.sample_packing.on; }
constexpr const char* kPackingOnly = "it belongs to troupe.sample_packing: true";

}  // namespace

void add_row_keys(KeyTable& t) {
  add_sets_key(t, "troupe.datasets",
               "data sets by path and type (alpaca, chat_template, completion, input_output, "
               "pretrain), instead of dataset",
               TROUPE_FIELD(data.rows.datasets));
  add_sets_key(t, "troupe.eval_datasets", "such data sets to evaluate on",
               TROUPE_FIELD(data.rows.eval_datasets));
  t.integer("troupe.min_sample_len", 2)
      .implemented("shorter samples are dropped", TROUPE_FIELD(data.rows.min_sample_len))
      .at_least(1)
      .only_where(has_rows, kRowsOnly);
  t.choice("troupe.excess_length", "drop", "drop|truncate|raise")
      .implemented("what becomes of samples above cutoff_len",
                   TROUPE_FIELD(data.rows.excess_length))
      .only_where(has_rows, kRowsOnly);
  t.boolean("troupe.shuffle_merged_datasets", true)
      .implemented("data sets are shuffled once when they are joined",
                   TROUPE_FIELD(data.rows.shuffle_merged_datasets))
      .only_where(has_rows, kRowsOnly);
  t.boolean("troupe.train_on_inputs", false)
      .implemented("prompts count in the loss, too", TROUPE_FIELD(data.rows.train_on_inputs))
      .only_where(has_rows, kRowsOnly);
  t.object("troupe.special_tokens")
      .implemented(
          "bos_token, eos_token, pad_token, unk_token, additional_special_tokens: words of "
          "the vocabulary",
          TROUPE_FIELD(data.rows.special_tokens))
      .only_where(has_rows, kRowsOnly);
  t.list("troupe.tokens")
      .implemented("words that are one token, of the vocabulary", TROUPE_FIELD(data.rows.tokens))
      .only_where(has_rows, kRowsOnly);
  t.integer("troupe.vocabulary_multiple", 1)
      .implemented("the embedding must have rows for the words, up to a multiple of it",
                   TROUPE_FIELD(data.rows.vocabulary_multiple))
      .at_least(1);
  t.boolean("troupe.sample_packing", false)
      .implemented(
          "samples are packed into batches of whole rows, anew in every epoch, by first "
          "fit; none sees another",
          TROUPE_FIELD(data.sample_packing.on));
  t.boolean("troupe.sample_packing_rows", false)
      .implemented(
          "a micro-batch is per_device_train_batch_size bins of cutoff_len tokens, not "
          "one bin of as many",
          TROUPE_FIELD(data.sample_packing.rows))
      .only_where(packs_samples, kPackingOnly);
  t.integer("troupe.sample_packing_group_size", 100'000)
      .implemented("samples that are packed together", TROUPE_FIELD(data.sample_packing.group_size))
      .at_least(1)
      .only_where(packs_samples, kPackingOnly);
  t.integer("troupe.sample_packing_bin_size", 200)
      .implemented("samples of a bin at most", TROUPE_FIELD(data.sample_packing.bin_size))
      .at_least(1)
      .only_where(packs_samples, kPackingOnly);
  t.boolean("troupe.sample_packing_sequentially", false)
      .implemented("next fit in order instead of first fit",
                   TROUPE_FIELD(data.sample_packing.sequentially))
      .only_where(packs_samples, kPackingOnly);
  t.choice("troupe.step_rules", "transformers", "transformers|axolotl")
      .implemented("how the steps of a run and of its warm-up are counted",
                   TROUPE_FIELD(training.step_rules));
  t.optional("troupe.warmup_steps_max", ValueType::kInteger)
      .implemented("most steps that warmup_ratio may come to",
                   TROUPE_FIELD(training.warmup_steps_max))
      .at_least(0);
  t.optional("troupe.logging_steps_max", ValueType::kInteger)
      .implemented(
          "most steps that a share in logging_steps may come to, which is rounded down "
          "then",
          TROUPE_FIELD(training.logging_steps_max))
      .at_least(1);
}

}  // namespace troupe::train
