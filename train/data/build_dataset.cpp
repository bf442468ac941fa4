#include "train/data/build_dataset.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <thread>

#include "runtime/base/signal_block.h"
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

std::int64_t text_bytes_of(const Conversation& row) {
  std::size_t bytes = row.system.size() + row.tools.size();
  for (const Message& message : row.messages) bytes += message.content.size();
  return static_cast<std::int64_t>(bytes);
}

// Makes samples of rows as they come: some rows are tokenised while the next ones are read.
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
    const bool enough = rows_.size() >= kRowsAtOnce || bytes_ >= kBytesAtOnce;
    return enough && rows_.size() % together_ == 0 ? begin_block() : Status();
  }

  // When all rows were added; the counts are added to `report`. kInvalidArgument where no sample
  // came of them.
  Status finish(EncodeReport& report) {
    if (!rows_.empty()) TROUPE_RETURN_IF_ERROR(begin_block());
    TROUPE_RETURN_IF_ERROR(end_block());
    report.tokens += report_.tokens;
    report.tokens_dropped += report_.tokens_dropped;
    report.samples_too_long += report_.samples_too_long;
    report.samples_unlabelled += report_.samples_unlabelled;
    report.text_bytes += report_.text_bytes;
    for (const auto& warning : report_.warnings) report.warnings.push_back(warning);
    if (samples_ > 0) return {};
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
  static constexpr std::int64_t kBytesAtOnce = std::int64_t{16} << 20;

  Status begin_block() {
    TROUPE_RETURN_IF_ERROR(end_block());
    std::swap(block_, rows_);
    rows_.clear();
    block_bytes_ = std::exchange(bytes_, 0);
    const SignalBlock block;  // Ctrl-C is the caller's
    thread_ = std::jthread([this] { status_ = make_block(); });
    return {};
  }
  Status end_block() {
    if (thread_.joinable()) thread_.join();
    return std::exchange(status_, {});
  }
  Status make_block() {
    const auto samples = TROUPE_TRY(encode_rows(block_, made_.rows, options_, module_, report_));
    if (samples.size() > 0) TROUPE_RETURN_IF_ERROR(sink_(samples));
    samples_ += samples.size();
    if (samples_ > kPermutationSizeMax)
      return error(Code::kUnsupported, "more than {} samples", kPermutationSizeMax);
    made_.rows += std::ssize(block_);
    made_.tokens = report_.tokens;
    made_.text_bytes += block_bytes_;
    if (progress_) progress_(made_);
    return {};
  }

  const DataOptions& options_;
  const DatasetModule& module_;
  const SampleSink& sink_;
  const SampleProgress& progress_;
  std::size_t together_ = 1;
  std::vector<Conversation> rows_;
  std::int64_t bytes_ = 0;
  // The thread's until it is joined.
  std::vector<Conversation> block_;
  std::int64_t block_bytes_ = 0, samples_ = 0;
  EncodeReport report_;
  SamplesMade made_;
  Status status_;
  std::jthread thread_;
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
    notes.push_back(fmt::format("{} samples longer than cutoff_len were dropped by packing",
                                report.samples_too_long));
  }
  if (report.records_dropped > 0) {
    notes.push_back(fmt::format("{} of {} rows were dropped as invalid", report.records_dropped,
                                report.records));
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
  auto rows = TROUPE_TRY(load_conversations(files, options, options.dataset, random, report));
  auto train = TROUPE_TRY(split(std::move(rows), options)).train;
  std::erase_if(train, [](const Conversation& row) { return !row.fault.empty(); });
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
                                   const SampleProgress& progress) {
  TROUPE_RETURN_IF_ERROR(check_data_options(options));
  auto out = TROUPE_TRY(prepare_module(options, tokenizer));
  const bool by_path = !options.rows.datasets.empty();
  if (by_path && options.stage != DataOptions::Stage::kPretrain) {
    TROUPE_RETURN_IF_ERROR(make_row_samples(files, options, sinks, out));
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
  const auto make = [](std::vector<Conversation> rows, EncodeReport& report,
                       SampleMaker& maker) -> Status {
    for (Conversation& row : rows) TROUPE_RETURN_IF_ERROR(maker.add(std::move(row)));
    rows.clear();
    return maker.finish(report);
  };
  SampleMaker train("train", options, out, sinks.train, progress);
  const bool splits = options.val_size > kValSizeMin || options.held_out > kValSizeMin;
  std::vector<Conversation> kept;
  if (!by_path && !splits && TROUPE_TRY(stream(options.dataset, out.train_report, train))) {
    TROUPE_RETURN_IF_ERROR(train.finish(out.train_report));
  } else {
    auto all =
        by_path
            ? TROUPE_TRY(read_row_texts(files, options, options.rows.datasets, out.train_report))
            : TROUPE_TRY(
                  load_conversations(files, options, options.dataset, random, out.train_report));
    auto rows = TROUPE_TRY(split(std::move(all), options));
    kept = std::move(rows.kept);
    TROUPE_RETURN_IF_ERROR(make(std::move(rows.train), out.train_report, train));
  }
  describe(options, out.train_report, out.tokenizer, out.notes);
  for (const auto& warning : out.train_report.warnings) out.notes.push_back(warning);

  SampleMaker eval("eval", options, out, sinks.eval, progress);
  const auto make_eval = [&]() -> Status {
    if (!options.eval_dataset.empty()) {
      if (TROUPE_TRY(stream(options.eval_dataset, out.eval_report, eval)))
        return eval.finish(out.eval_report);
      return make(TROUPE_TRY(load_conversations(files, options, options.eval_dataset, random,
                                                out.eval_report)),
                  out.eval_report, eval);
    }
    if (!options.rows.eval_datasets.empty())
      return make(
          TROUPE_TRY(read_row_texts(files, options, options.rows.eval_datasets, out.eval_report)),
          out.eval_report, eval);
    if (kept.empty() || options.held_out > kValSizeMin) return {};
    return make(std::move(kept), out.eval_report, eval);
  };
  if (const Status made = make_eval(); !made.ok()) return made.prefixed("evaluation data");
  if (options.held_out > kValSizeMin && !kept.empty()) {
    SampleMaker held_out("held_out", options, out, sinks.held_out, progress);
    const Status made = make(std::move(kept), out.held_out_report, held_out);
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
