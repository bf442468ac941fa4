#include "train/data/build_dataset.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <deque>
#include <numeric>
#include <utility>

#include "runtime/base/text.h"
#include "train/data/load_conversations.h"
#include "train/data/row_dataset.h"
#include "train/data/row_threads.h"
#include "train/data/sampler.h"

namespace troupe::train {
namespace {

constexpr double kValSizeMin = 1e-6;
constexpr std::int64_t kCutoffMax = std::int64_t{1} << 24;

TokenDataset::Kind kind_of(const DataOptions& options) {
  if (options.stage == DataOptions::Stage::kPretrain) return TokenDataset::Kind::kPretrain;
  if (options.stage == DataOptions::Stage::kPairs) return TokenDataset::Kind::kPairs;
  if (options.stage == DataOptions::Stage::kFeedback) return TokenDataset::Kind::kFeedback;
  if (options.neat_packing) return TokenDataset::Kind::kNeatPacked;
  return packs(options) ? TokenDataset::Kind::kPacked : TokenDataset::Kind::kSupervised;
}

// Puts those rows first that val_size or held_out keep from training, and returns their number.
Result<std::size_t> split(OrderedRows& rows, const DataOptions& options,
                          const std::string& scratch) {
  const auto before = std::as_const(rows.order).items();
  const std::size_t kept = TROUPE_TRY(rows_kept_back(options, before.size()));
  if (kept == 0) return kept;
  auto order = TROUPE_TRY(RowOrder::create(scratch));
  TROUPE_RETURN_IF_ERROR(order.grow(before.size()));
  if (options.held_out > kValSizeMin) {
    random_permute(order.items(), options.seed);
  } else {
    numpy_permute(order.items(), options.seed);
  }
  for (auto& place : order.items()) place = before[place];
  rows.order = std::move(order);
  return kept;
}

// The text behind every pre-training text: with the template llama3 its end-of-text token, as in
// LLaMA-Factory, not the end-of-turn token that the template makes eos.
Result<std::string> pretrain_eos(const DataOptions& options, const Tokenizer& tokenizer) {
  if (options.template_name == "llama3") return std::string("<|end_of_text|>");
  return *tokenizer.token(*tokenizer.eos_id());
}

std::int64_t text_bytes_of(const Conversation& row) {
  std::size_t bytes = row.system.size() + row.tools.size();
  for (const Message& message : row.messages) bytes += message.content.size();
  return static_cast<std::int64_t>(bytes);
}

void add_counts(EncodeReport& report, const EncodeReport& more) {
  report.tokens += more.tokens;
  report.tokens_dropped += more.tokens_dropped;
  report.samples_too_long += more.samples_too_long;
  report.samples_unlabelled += more.samples_unlabelled;
  report.records_dropped += more.records_dropped;
  report.text_bytes += more.text_bytes;
  report.warnings.insert(report.warnings.end(), more.warnings.begin(), more.warnings.end());
}

// Makes samples of rows as they come: some rows are tokenised while the next ones are read, and
// while the samples of those before are taken.
class SampleMaker {
 public:
  SampleMaker(std::string_view set, const DataOptions& options, const DatasetModule& module,
              const SampleSink& sink, const SampleProgress& progress)
      : options_(options), module_(module), sink_(sink), progress_(progress), made_{.set = set} {
    // Rows of a preprocessing batch stay together.
    const auto batch = static_cast<std::size_t>(options.preprocessing_batch_size);
    const bool of_each_other = packs(options) || options.stage == DataOptions::Stage::kFeedback;
    together_ = of_each_other ? batch : std::min(batch, kRowsAtOnce);
  }

  Status add(Conversation row) {
    bytes_ += text_bytes_of(row);
    rows_.push_back(std::move(row));
    const bool enough = rows_.size() >= kRowsOfBlock || bytes_ >= kBytesAtOnce;
    return enough && rows_.size() % together_ == 0 ? begin_block() : Status();
  }

  // When all rows were added; the counts are added to `report`. kInvalidArgument where no sample
  // came of them.
  Status finish(EncodeReport& report) {
    if (!rows_.empty()) TROUPE_RETURN_IF_ERROR(begin_block());
    while (!blocks_.empty()) TROUPE_RETURN_IF_ERROR(end_block());
    add_counts(report, report_);
    if (trained_) return {};
    if (samples_ > 0) {
      return error(Code::kInvalidArgument,
                   "Cannot find valid samples: no token of {} is trained on with cutoff_len={}, "
                   "which cuts answers off; use a larger one",
                   count_of(samples_, "sample"), options_.cutoff_len);
    }
    if (options_.stage == DataOptions::Stage::kPretrain) {
      return error(Code::kInvalidArgument,
                   "Cannot find sufficient samples, consider increasing dataset size. ({} rows, {} "
                   "tokens, blocks of {})",
                   made_.rows, report_.tokens, options_.cutoff_len);
    }
    return error(Code::kInvalidArgument,
                 "Cannot find valid samples: {} rows of {} tokens leave none with cutoff_len={}; "
                 "use a larger one, or packing: false, which cuts what is too long",
                 made_.rows, report_.tokens, options_.cutoff_len);
  }

 private:
  // Small enough that the most memory is held after a few blocks already: it is the same for much
  // data and little.
  static constexpr std::int64_t kBytesAtOnce = std::int64_t{4} << 20;
  static constexpr std::size_t kRowsOfBlock = 4096;
  // One is worked on while another one's samples are put together and those of a third are taken.
  static constexpr std::size_t kBlocksMax = 3;

  // Rows that are tokenised together, by as many threads as there are cores: each of them finds its
  // remembered words in its core's cache.
  struct Block {
    std::vector<Conversation> rows;
    std::int64_t bytes = 0;
    // The work's until it was waited for.
    std::optional<Result<TokenDataset>> samples;
    EncodeReport report;
    RowWork work;  // ends before the rest of this does
  };

  Status begin_block() {
    while (blocks_.size() >= kBlocksMax) TROUPE_RETURN_IF_ERROR(end_block());
    Block& block = blocks_.emplace_back();
    block.rows = std::exchange(rows_, {});
    block.bytes = std::exchange(bytes_, 0);
    const std::int64_t before = rows_begun_;
    rows_begun_ += std::ssize(block.rows);
    block.work.run([this, &block, before] {
      block.samples = encode_rows(block.rows, before, options_, module_, block.report);
    });
    return {};
  }
  // Takes the samples of the first one.
  Status end_block() {
    Block& block = blocks_.front();
    block.work.wait();
    const TokenDataset samples = TROUPE_TRY(*std::move(block.samples));
    if (samples.size() > 0) TROUPE_RETURN_IF_ERROR(sink_(samples));
    samples_ += samples.size();
    trained_ = trained_ || samples.kind() == TokenDataset::Kind::kPretrain ||
               std::ranges::any_of(samples.columns().labels,
                                   [](std::int32_t label) { return label != kIgnoredLabel; });
    if (samples_ > kPermutationSizeMax)
      return error(Code::kUnsupported, "more than {} samples", kPermutationSizeMax);
    add_counts(report_, block.report);
    made_.rows += std::ssize(block.rows);
    made_.tokens = report_.tokens;
    made_.text_bytes += block.bytes;
    blocks_.pop_front();
    if (progress_) progress_(made_);
    return {};
  }

  const DataOptions& options_;
  const DatasetModule& module_;
  const SampleSink& sink_;
  const SampleProgress& progress_;
  std::size_t together_ = 1;
  std::vector<Conversation> rows_;
  std::int64_t bytes_ = 0, rows_begun_ = 0, samples_ = 0;
  bool trained_ = false;  // some token is
  EncodeReport report_;
  SamplesMade made_;
  std::deque<Block> blocks_;  // that are tokenised
};

void describe(const DataOptions& options, const EncodeReport& report, const Tokenizer& tokenizer,
              std::vector<std::string>& notes) {
  const TokenDataset::Kind kind = kind_of(options);
  if (report.tokens_dropped > 0) {
    notes.push_back(fmt::format("{} of {} tokens are not trained on: {}", report.tokens_dropped,
                                report.tokens,
                                kind == TokenDataset::Kind::kPretrain && packs(options)
                                    ? "packing drops the tail of every preprocessing batch"
                                    : "samples were cut to cutoff_len"));
  }
  if (report.samples_too_long > 0) {
    notes.push_back(fmt::format("packing dropped {} longer than cutoff_len",
                                count_of(report.samples_too_long, "sample")));
  }
  if (report.records_dropped > 0) {
    notes.push_back(fmt::format("{} of {} dropped as invalid", report.records_dropped,
                                count_of(report.records, "row")));
  }
  if (kind == TokenDataset::Kind::kPacked) {
    notes.push_back(
        "packing lets samples of a sequence attend to each other; neat_packing: true prevents it");
  }
  if (kind == TokenDataset::Kind::kPretrain && tokenizer.pad_id() == tokenizer.eos_id()) {
    notes.push_back(
        "the padding token is the end token, so that the end of a text is not trained; give the "
        "tokenizer a pad_token of its own to train it");
  }
}

}  // namespace

bool packs(const DataOptions& options) {
  const bool judged =
      options.stage == DataOptions::Stage::kPairs || options.stage == DataOptions::Stage::kFeedback;
  // Answers that are compared are not packed, whatever `packing` says: as in LLaMA-Factory.
  return !judged && (options.neat_packing ||
                     options.packing.value_or(options.stage == DataOptions::Stage::kPretrain));
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
  if (options.neat_packing && options.stage != DataOptions::Stage::kSupervised) {
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
  auto rows = TROUPE_TRY(keep_conversations(files, options, options.dataset, random, report, ""));
  const std::size_t kept = TROUPE_TRY(split(rows, options, ""));
  std::vector<Conversation> train;
  for (const auto row : rows.order.items().subspan(kept))
    if (rows.rows.is_sample(row)) train.push_back(rows.rows.row(row));
  return train;
}

Result<TokenDataset> encode_rows(std::span<const Conversation> rows, std::int64_t before,
                                 const DataOptions& options, const DatasetModule& module,
                                 EncodeReport& report) {
  TokenDataset out(kind_of(options), *module.tokenizer.pad_id());
  if (options.stage == DataOptions::Stage::kPretrain) {
    PretrainOptions pretrain;
    pretrain.cutoff_len = options.cutoff_len;
    pretrain.packing = packs(options);
    pretrain.preprocessing_batch_size = options.preprocessing_batch_size;
    pretrain.eos_token = TROUPE_TRY(pretrain_eos(options, module.tokenizer));
    TROUPE_RETURN_IF_ERROR(encode_pretrain(rows, module.tokenizer, pretrain, out, report));
  } else {
    SupervisedOptions supervised;
    supervised.cutoff_len = options.cutoff_len;
    supervised.packing = packs(options);
    supervised.preprocessing_batch_size = options.preprocessing_batch_size;
    supervised.rows_before = before;
    supervised.train_on_prompt = options.train_on_prompt;
    supervised.mask_history = options.mask_history;
    supervised.encode.default_system = options.default_system;
    supervised.encode.enable_thinking = options.enable_thinking;
    supervised.encode.preserve_thinking = options.preserve_thinking;
    const auto encode =
        options.stage == DataOptions::Stage::kSupervised ? encode_supervised : encode_preferences;
    TROUPE_RETURN_IF_ERROR(encode(rows, module.chat, module.tokenizer, supervised, out, report));
  }
  return out;
}

Result<DatasetModule> prepare_module(const DataOptions& options, const Tokenizer& tokenizer) {
  const bool pretrain = options.stage == DataOptions::Stage::kPretrain;
  if (!options.rows.datasets.empty() && !pretrain) return prepare_row_module(options, tokenizer);
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
  out.train = TokenDataset(kind_of(options), *out.tokenizer.pad_id());
  return out;
}

Result<DatasetModule> make_samples(FileSystem& files, const DataOptions& options,
                                   const Tokenizer& tokenizer, const SampleSinks& sinks,
                                   const SampleProgress& progress, const std::string& scratch) {
  TROUPE_RETURN_IF_ERROR(check_data_options(options));
  auto out = TROUPE_TRY(prepare_module(options, tokenizer));
  const bool by_path = !options.rows.datasets.empty();
  if (by_path && options.stage != DataOptions::Stage::kPretrain) {
    TROUPE_RETURN_IF_ERROR(make_row_samples(files, options, sinks, scratch, out));
    return out;
  }
  // One generator for all, as in a process of LLaMA-Factory.
  NumpyGlobal random(options.seed);
  // Where their order allows it, rows become samples as they are read.
  const auto stream = [&](const std::vector<std::string>& names, EncodeReport& report,
                          SampleMaker& maker) {
    return stream_conversations(files, options, names, report,
                                [&](Conversation row) { return maker.add(std::move(row)); });
  };
  const auto make = [](const KeptRows& rows, std::span<const std::uint32_t> order,
                       EncodeReport& report, SampleMaker& maker) -> Status {
    for (const auto row : order) TROUPE_RETURN_IF_ERROR(maker.add(rows.row(row)));
    return maker.finish(report);
  };
  const auto keep = [&](const std::vector<std::string>& names, const json::Array& datasets,
                        EncodeReport& report) {
    return datasets.empty() ? keep_conversations(files, options, names, random, report, scratch)
                            : keep_row_texts(files, options, datasets, report, scratch);
  };
  SampleMaker train("train", options, out, sinks.train, progress);
  const bool splits = options.val_size > kValSizeMin || options.held_out > kValSizeMin;
  std::optional<OrderedRows> rows;
  std::size_t kept = 0;
  if (!by_path && !splits && TROUPE_TRY(stream(options.dataset, out.train_report, train))) {
    TROUPE_RETURN_IF_ERROR(train.finish(out.train_report));
  } else {
    rows.emplace(TROUPE_TRY(keep(options.dataset, options.rows.datasets, out.train_report)));
    kept = TROUPE_TRY(split(*rows, options, scratch));
    TROUPE_RETURN_IF_ERROR(
        make(rows->rows, rows->order.items().subspan(kept), out.train_report, train));
  }
  describe(options, out.train_report, out.tokenizer, out.notes);
  for (const auto& warning : out.train_report.warnings) out.notes.push_back(warning);

  std::int64_t evaluated = 0;
  const SampleSink count_evaluated = [&](const TokenDataset& samples) {
    evaluated += samples.size();
    return sinks.eval(samples);
  };
  const auto make_named = [&](const std::vector<std::string>& names) -> Status {
    SampleMaker eval("eval", options, out, count_evaluated, progress);
    if (!names.empty() && TROUPE_TRY(stream(names, out.eval_report, eval)))
      return eval.finish(out.eval_report);
    const auto read = TROUPE_TRY(keep(names, options.rows.eval_datasets, out.eval_report));
    return make(read.rows, read.order.items(), out.eval_report, eval);
  };
  const auto make_eval = [&]() -> Status {
    if (options.eval_each && !options.eval_dataset.empty()) {
      for (const auto& name : options.eval_dataset) {
        if (std::ranges::find(out.eval_parts, name, &EvalPart::name) != out.eval_parts.end())
          continue;
        const std::int64_t before = evaluated;
        TROUPE_RETURN_IF_ERROR(make_named({name}));
        out.eval_parts.push_back({name, evaluated - before});
      }
      return {};
    }
    if (!options.eval_dataset.empty() || !options.rows.eval_datasets.empty())
      return make_named(options.eval_dataset);
    SampleMaker eval("eval", options, out, sinks.eval, progress);
    if (kept == 0 || options.held_out > kValSizeMin) return {};
    return make(rows->rows, rows->order.items().first(kept), out.eval_report, eval);
  };
  if (const Status made = make_eval(); !made.ok()) return made.prefixed("evaluation data");
  if (options.held_out > kValSizeMin && kept > 0) {
    SampleMaker held_out("held_out", options, out, sinks.held_out, progress);
    const Status made =
        make(rows->rows, rows->order.items().first(kept), out.held_out_report, held_out);
    if (!made.ok()) return made.prefixed("held-out data");
  }
  return out;
}

Result<DatasetModule> build_dataset(FileSystem& files, const DataOptions& options,
                                    const Tokenizer& tokenizer) {
  std::optional<TokenDataset> train, eval, held_out;
  const auto into = [](std::optional<TokenDataset>& set) {
    return [&set](const TokenDataset& samples) {
      if (!set) set.emplace(samples.kind(), samples.pad_id());
      set->append(samples);
      return Status();
    };
  };
  auto out = TROUPE_TRY(
      make_samples(files, options, tokenizer,
                   {.train = into(train), .eval = into(eval), .held_out = into(held_out)}));
  if (train) out.train = std::move(*train);
  out.eval = std::move(eval);
  out.held_out = std::move(held_out);
  return out;
}

}  // namespace troupe::train
