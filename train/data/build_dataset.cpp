#include "train/data/build_dataset.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

#include "train/data/load_conversations.h"
#include "train/data/row_dataset.h"
#include "train/data/sampler.h"

namespace troupe::train {
namespace {

constexpr double kValSizeMin = 1e-6;
constexpr std::int64_t kCutoffMax = std::int64_t{1} << 24;

TokenDataset::Kind kind_of(const DataOptions& options) {
  if (options.stage == DataOptions::Stage::kPretrain) return TokenDataset::Kind::kPretrain;
  if (options.neat_packing) return TokenDataset::Kind::kNeatPacked;
  return packs(options) ? TokenDataset::Kind::kPacked : TokenDataset::Kind::kSupervised;
}

struct Split {
  std::vector<Conversation> train, kept;  // kept from training: val_size or held_out
};

Result<Split> split(std::vector<Conversation> rows, const DataOptions& options) {
  Split out;
  const std::size_t kept_count = TROUPE_TRY(rows_kept_back(options, rows.size()));
  if (kept_count == 0) {
    out.train = std::move(rows);
    return out;
  }
  const auto count = static_cast<std::uint32_t>(rows.size());
  const auto order = options.held_out > kValSizeMin ? random_permutation(count, options.seed)
                                                    : numpy_permutation(count, options.seed);
  for (std::size_t i = 0; i < order.size(); ++i) {
    (i < kept_count ? out.kept : out.train).push_back(std::move(rows[order[i]]));
  }
  return out;
}

// The text behind every pre-training text: with the template llama3 its end-of-text token, as in
// LLaMA-Factory, not the end-of-turn token that the template makes eos.
Result<std::string> pretrain_eos(const DataOptions& options, const Tokenizer& tokenizer) {
  if (options.template_name == "llama3") return std::string("<|end_of_text|>");
  return *tokenizer.token(*tokenizer.eos_id());
}

Result<TokenDataset> encode(std::span<const Conversation> rows, const DataOptions& options,
                            const DatasetModule& module, const DataProgress& progress,
                            EncodeReport& report) {
  TokenDataset out(kind_of(options), *module.tokenizer.pad_id());
  if (options.stage == DataOptions::Stage::kPretrain) {
    PretrainOptions pretrain;
    pretrain.cutoff_len = options.cutoff_len;
    pretrain.packing = packs(options);
    pretrain.preprocessing_batch_size = options.preprocessing_batch_size;
    pretrain.eos_token = TROUPE_TRY(pretrain_eos(options, module.tokenizer));
    pretrain.progress = progress;
    TROUPE_RETURN_IF_ERROR(encode_pretrain(rows, module.tokenizer, pretrain, out, report));
  } else {
    SupervisedOptions supervised;
    supervised.cutoff_len = options.cutoff_len;
    supervised.packing = packs(options);
    supervised.preprocessing_batch_size = options.preprocessing_batch_size;
    supervised.train_on_prompt = options.train_on_prompt;
    supervised.mask_history = options.mask_history;
    supervised.encode.default_system = options.default_system;
    supervised.encode.enable_thinking = options.enable_thinking;
    supervised.encode.preserve_thinking = options.preserve_thinking;
    supervised.progress = progress;
    TROUPE_RETURN_IF_ERROR(
        encode_supervised(rows, module.chat, module.tokenizer, supervised, out, report));
  }
  if (out.size() == 0 && options.stage == DataOptions::Stage::kPretrain) {
    return error(Code::kInvalidArgument,
                 "Cannot find sufficient samples, consider increasing dataset size. ({} rows, {} "
                 "tokens, blocks of {})",
                 rows.size(), report.tokens, options.cutoff_len);
  }
  if (out.size() == 0) {
    return error(Code::kInvalidArgument,
                 "Cannot find valid samples: {} rows of {} tokens leave none with cutoff_len={}; "
                 "use a larger one, or packing: false, which cuts what is too long",
                 rows.size(), report.tokens, options.cutoff_len);
  }
  return out;
}

void describe(const DataOptions& options, const EncodeReport& report, const TokenDataset& dataset,
              const Tokenizer& tokenizer, std::vector<std::string>& notes) {
  if (report.tokens_dropped > 0) {
    notes.push_back(fmt::format("{} of {} tokens are not trained on: {}", report.tokens_dropped,
                                report.tokens,
                                dataset.kind() == TokenDataset::Kind::kPretrain && packs(options)
                                    ? "packing drops the tail of every preprocessing batch"
                                    : "samples were cut to cutoff_len"));
  }
  if (report.samples_too_long > 0) {
    notes.push_back(fmt::format("{} samples longer than cutoff_len were dropped by packing",
                                report.samples_too_long));
  }
  if (report.records_dropped > 0) {
    notes.push_back(fmt::format("{} of {} rows were dropped as invalid", report.records_dropped,
                                report.records));
  }
  if (dataset.kind() == TokenDataset::Kind::kPacked) {
    notes.push_back(
        "packing lets samples of a sequence attend to each other; neat_packing: true prevents it");
  }
  if (dataset.kind() == TokenDataset::Kind::kPretrain && tokenizer.pad_id() == tokenizer.eos_id()) {
    notes.push_back(
        "the padding token is the end token, so that the end of a text is not trained; give the "
        "tokenizer a pad_token of its own to train it");
  }
}

}  // namespace

bool packs(const DataOptions& options) {
  return options.neat_packing ||
         options.packing.value_or(options.stage == DataOptions::Stage::kPretrain);
}

Status check_data_options(const DataOptions& options) {
  const bool pretrain = options.stage == DataOptions::Stage::kPretrain;
  const auto invalid = [](std::string message) {
    return Status(Code::kInvalidArgument, std::move(message));
  };
  if (options.dataset.empty() && options.rows.datasets.empty())
    return invalid("Please specify dataset for training.");
  if (!options.rows.datasets.empty() && options.held_out > kValSizeMin)
    return invalid("troupe.held_out belongs to data sets of dataset_info.json; leave it out");
  if (options.neat_packing && pretrain) {
    return invalid("`neat_packing` cannot be set as True except SFT.");
  }
  if (options.neat_packing && options.packing == false) {
    return invalid("neat_packing: true contradicts packing: false; take one of them out");
  }
  if (options.train_on_prompt && options.mask_history) {
    return invalid("`train_on_prompt` and `mask_history` are mutually exclusive.");
  }
  const std::int64_t cutoff_min = packs(options) && !pretrain ? 2 : 1;
  if (options.cutoff_len < cutoff_min || options.cutoff_len > kCutoffMax) {
    return error(Code::kInvalidArgument, "cutoff_len={}: must be in [{}, {}]", options.cutoff_len,
                 cutoff_min, kCutoffMax);
  }
  if (options.preprocessing_batch_size < 1) {
    return error(Code::kInvalidArgument, "preprocessing_batch_size={}: must be at least 1",
                 options.preprocessing_batch_size);
  }
  if (options.max_samples && *options.max_samples < 1) {
    return error(Code::kInvalidArgument, "max_samples={}: must be at least 1",
                 *options.max_samples);
  }
  // A count, however it came about, must fit the arithmetic below.
  for (const auto& [key, share] :
       {std::pair("val_size", options.val_size), std::pair("troupe.held_out", options.held_out)}) {
    if (share >= 0 && share < 1e9) continue;
    return error(Code::kInvalidArgument, "{}={}: must be a count or a fraction of the rows", key,
                 share);
  }
  if (options.val_size > kValSizeMin && options.held_out > kValSizeMin) {
    return error(Code::kInvalidArgument,
                 "troupe.held_out={} and val_size={} both keep data from training: leave one out",
                 options.held_out, options.val_size);
  }
  if (options.val_size > kValSizeMin && !options.eval_dataset.empty()) {
    return invalid("Cannot specify `val_size` if `eval_dataset` is not None.");
  }
  const auto& mix = options.mix_strategy;
  if (mix != "concat" && mix != "interleave_under" && mix != "interleave_over" &&
      mix != "interleave_once") {
    return error(Code::kInvalidArgument,
                 "mix_strategy='{}' is none of concat, interleave_under, interleave_over, "
                 "interleave_once",
                 mix);
  }
  if (!options.interleave_probs.empty() && mix == "concat") {
    return invalid("`interleave_probs` is only valid for interleaved mixing.");
  }
  return interleave_shares(options, options.interleave_probs.size()).status();
}

Result<std::vector<double>> interleave_shares(const DataOptions& options, std::size_t sets) {
  std::vector<double> out;
  for (const auto& text : options.interleave_probs) {
    double share = 0;
    const char* end = text.data() + text.size();
    const auto [read, failed] = std::from_chars(text.data(), end, share);
    if (failed != std::errc() || read != end || !(share > 0 && share <= 1)) {
      return error(Code::kInvalidArgument,
                   "interleave_probs: '{}' is no number above 0 and at most 1", text);
    }
    out.push_back(share);
  }
  if (out.empty()) return out;
  if (out.size() != sets) {
    return error(
        Code::kInvalidArgument,
        "The length of dataset and interleave probs should be identical. ({} data sets, {} "
        "probabilities)",
        sets, out.size());
  }
  const double sum = std::accumulate(out.begin(), out.end(), 0.0);
  if (std::abs(sum - 1) > 1e-6)
    return error(Code::kInvalidArgument, "interleave_probs: they sum to {}, and must to 1", sum);
  return out;
}

Result<std::size_t> rows_kept_back(const DataOptions& options, std::size_t count) {
  const bool held_out = options.held_out > kValSizeMin;
  const double share = held_out ? options.held_out : options.val_size;
  if (share <= kValSizeMin) return std::size_t{0};
  const auto kept =
      static_cast<std::size_t>(share > 1 ? share : std::ceil(share * static_cast<double>(count)));
  if (kept < count) return kept;
  const char* key = held_out ? "troupe.held_out" : "val_size";
  return error(Code::kInvalidArgument, "{}={} takes {} of {} rows: none is left to train on", key,
               share, kept, count)
      .with("key", key);
}

std::int64_t rows_to_judge_split(const DataOptions& options) {
  const double share = std::max(options.held_out, options.val_size);
  if (share <= kValSizeMin || share == 1) return 0;
  return static_cast<std::int64_t>(share > 1 ? share : 1 / (1 - share)) + 1;
}

Result<std::vector<Conversation>> load_training_rows(FileSystem& files, const DataOptions& options,
                                                     EncodeReport& report) {
  TROUPE_RETURN_IF_ERROR(check_data_options(options));
  if (!options.rows.datasets.empty()) {
    return error(Code::kUnsupported,
                 "a tokenizer is trained on data sets of dataset_info.json only; give the model's "
                 "folder a tokenizer.json");
  }
  NumpyGlobal random(options.seed);
  auto rows = TROUPE_TRY(load_conversations(files, options, options.dataset, random, report));
  auto train = TROUPE_TRY(split(std::move(rows), options)).train;
  std::erase_if(train, [](const Conversation& row) { return !row.fault.empty(); });
  return train;
}

Result<DatasetModule> build_dataset(FileSystem& files, const DataOptions& options,
                                    const Tokenizer& tokenizer, const DataProgress& progress) {
  TROUPE_RETURN_IF_ERROR(check_data_options(options));
  const bool pretrain = options.stage == DataOptions::Stage::kPretrain;
  const bool by_path = !options.rows.datasets.empty();
  if (by_path && !pretrain) return build_row_dataset(files, options, tokenizer, progress);
  // Pre-training uses no template but for its end token: a Jinja template does no harm there.
  auto chat = pretrain && !options.template_name
                  ? TROUPE_TRY(chat_template("empty"))
                  : TROUPE_TRY(choose_template(options.template_name, tokenizer));
  if (options.tool_format && !pretrain)
    TROUPE_RETURN_IF_ERROR(set_tool_format(chat, *options.tool_format));
  if (options.train_on_prompt && chat.efficient_eos) {
    return error(Code::kInvalidArgument, "Current template does not support `train_on_prompt`.");
  }
  DatasetModule out{.train = TokenDataset(kind_of(options), 0),
                    .eval = std::nullopt,
                    .held_out = std::nullopt,
                    .train_report = {},
                    .eval_report = {},
                    .held_out_report = {},
                    .tokenizer = tokenizer,
                    .chat = chat,
                    .notes = {}};
  TROUPE_RETURN_IF_ERROR(fix_special_tokens(chat, out.tokenizer, out.notes));
  set_jinja_template(chat, out.tokenizer, options.default_system);
  // One generator for all, as in a process of LLaMA-Factory.
  NumpyGlobal random(options.seed);
  const auto load = [&](const std::vector<std::string>& names, EncodeReport& report) {
    return load_conversations(files, options, names, random, report);
  };
  auto all =
      by_path ? TROUPE_TRY(read_row_texts(files, options, options.rows.datasets, out.train_report))
              : TROUPE_TRY(load(options.dataset, out.train_report));
  auto rows = TROUPE_TRY(split(std::move(all), options));
  std::vector<Conversation> eval_rows, held_out_rows;
  if (options.held_out > kValSizeMin) {
    held_out_rows = std::move(rows.kept);
  } else {
    eval_rows = std::move(rows.kept);
  }
  if (!options.rows.eval_datasets.empty()) {
    eval_rows =
        TROUPE_TRY(read_row_texts(files, options, options.rows.eval_datasets, out.eval_report));
  }
  if (!options.eval_dataset.empty()) {
    eval_rows = TROUPE_TRY(load(options.eval_dataset, out.eval_report));
  }
  out.train = TROUPE_TRY(encode(rows.train, options, out, progress, out.train_report));
  describe(options, out.train_report, out.train, out.tokenizer, out.notes);
  for (const auto& warning : out.train_report.warnings) out.notes.push_back(warning);
  if (!eval_rows.empty()) {
    auto eval = encode(eval_rows, options, out, progress, out.eval_report);
    if (!eval) return eval.status().prefixed("evaluation data");
    out.eval = std::move(*eval);
  }
  if (!held_out_rows.empty()) {
    auto held_out = encode(held_out_rows, options, out, progress, out.held_out_report);
    if (!held_out) return held_out.status().prefixed("held-out data");
    out.held_out = std::move(*held_out);
  }
  return out;
}

}  // namespace troupe::train
