#include "train/data/row_dataset.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "runtime/base/text.h"
#include "train/data/conversation_encoder.h"
#include "train/data/numpy_random.h"
#include "train/data/row_encoder.h"
#include "train/data/row_source.h"
#include "train/data/row_threads.h"
#include "train/data/sampler.h"

namespace troupe::train {
namespace {

std::string name_of(std::size_t index, const json::Value& entry) {
  return fmt::format("data set {} ({})", index, json::find_string(entry, "path").value_or(""));
}

// Puts the words of special_tokens and tokens into the tokenizer: all of them must be tokens.
Status set_special_tokens(const RowOptions& rows, Tokenizer& tokenizer) {
  const auto is_token = [&](std::string_view name, const std::string& word) -> Status {
    if (tokenizer.token_id(word)) return {};
    return error(Code::kNotFound,
                 "{}: '{}' is no token of the vocabulary, which is taken as the folder has it",
                 name, word);
  };
  for (const auto& member : rows.special_tokens) {
    const std::string name(member.key());
    if (member.value().is_null()) continue;
    std::vector<std::string> words;
    if (member.value().is_string()) {
      words.emplace_back(member.value().get_string());
    } else if (const auto* list = member.value().if_array()) {
      for (const auto& word : *list)
        if (word.is_string()) words.emplace_back(word.get_string());
    }
    if (words.empty())
      return error(Code::kInvalidArgument, "special_tokens.{}: expected a token's word", name);
    for (const auto& word : words) TROUPE_RETURN_IF_ERROR(is_token("special_tokens." + name, word));
    if (name == "eos_token") {
      TROUPE_RETURN_IF_ERROR(tokenizer.set_eos(words.front()));
    } else if (name == "pad_token") {
      TROUPE_RETURN_IF_ERROR(tokenizer.set_pad(words.front()));
    } else if (name == "additional_special_tokens") {
      for (const auto& word : words) TROUPE_RETURN_IF_ERROR(tokenizer.add_special_token(word));
    } else if (name == "bos_token" || name == "unk_token") {
      const auto now = name == "bos_token" ? tokenizer.bos_id() : tokenizer.unk_id();
      if (now != tokenizer.token_id(words.front())) {
        return error(Code::kUnsupported,
                     "special_tokens.{}={} is not supported: the tokenizer has another one; change "
                     "it in tokenizer_config.json",
                     name, words.front());
      }
    } else {
      return error(Code::kInvalidArgument,
                   "special_tokens.{} is none of bos_token, eos_token, pad_token, unk_token, "
                   "additional_special_tokens",
                   name);
    }
  }
  for (const auto& word : rows.tokens) TROUPE_RETURN_IF_ERROR(is_token("tokens", word));
  if (!tokenizer.eos_id())
    return error(Code::kInvalidArgument,
                 "the tokenizer names no end token: name one in special_tokens.eos_token");
  // Batches are not padded; the token is only a name for it.
  if (!tokenizer.pad_id())
    TROUPE_RETURN_IF_ERROR(tokenizer.set_pad(*tokenizer.token(*tokenizer.eos_id())));
  return {};
}

// The samples of rows, one behind the other, on the disk of a folder (in memory where it is empty).
class KeptSamples {
 public:
  static Result<KeptSamples> create(const std::string& scratch) {
    auto ids = TROUPE_TRY(ScratchArray<TokenId>::create(scratch));
    auto labels = TROUPE_TRY(ScratchArray<std::int32_t>::create(scratch));
    auto ends = TROUPE_TRY(ScratchArray<std::uint64_t>::create(scratch));
    return KeptSamples(std::move(ids), std::move(labels), std::move(ends));
  }
  Status add(const TokenRow& sample) {
    if (size() >= static_cast<std::size_t>(kPermutationSizeMax))
      return error(Code::kUnsupported, "more than {} samples", kPermutationSizeMax);
    TROUPE_RETURN_IF_ERROR(ids_.append(sample.ids));
    TROUPE_RETURN_IF_ERROR(labels_.append(sample.labels));
    return ends_.append(ids_.items().size());
  }
  std::size_t size() const { return ends_.items().size(); }
  struct Sample {
    std::span<const TokenId> ids;
    std::span<const std::int32_t> labels;
  };
  Sample operator[](std::size_t index) const {
    const auto begin = index == 0 ? 0 : ends_.items()[index - 1];
    const auto count = ends_.items()[index] - begin;
    return {ids_.items().subspan(begin, count), labels_.items().subspan(begin, count)};
  }

 private:
  KeptSamples(ScratchArray<TokenId> ids, ScratchArray<std::int32_t> labels,
              ScratchArray<std::uint64_t> ends)
      : ids_(std::move(ids)), labels_(std::move(labels)), ends_(std::move(ends)) {}
  ScratchArray<TokenId> ids_;
  ScratchArray<std::int32_t> labels_;
  ScratchArray<std::uint64_t> ends_;
};

// The rows of a slice need their number: they are counted first.
Result<std::pair<std::int64_t, std::int64_t>> range_of(FileSystem& files, const SplitRows& split) {
  std::int64_t count = 0;
  if (!split.begin && !split.end)
    return std::pair(std::int64_t{0}, std::numeric_limits<std::int64_t>::max());
  TROUPE_RETURN_IF_ERROR(
      read_records(files, split.files, -1, [&](const Record&, const std::string&) {
        ++count;
        return Status();
      }));
  return split.range(count);
}

class RowReader {
 public:
  RowReader(FileSystem& files, const DataOptions& options, const Tokenizer& tokenizer,
            const std::string& scratch)
      : files_(files), options_(options), tokenizer_(tokenizer), scratch_(scratch) {}

  struct Samples {
    KeptSamples kept;
    RowOrder order;
  };
  // The samples of all data sets, joined and shuffled, without those that are dropped, cut.
  Result<Samples> read(const json::Array& datasets, EncodeReport& report) {
    auto all = TROUPE_TRY(KeptSamples::create(scratch_));
    for (std::size_t i = 0; i < datasets.size(); ++i) {
      const std::int64_t rows_before = report.records;
      const std::size_t samples_before = all.size();
      if (const Status read = read_one(datasets[i], report, all); !read.ok())
        return read.prefixed(name_of(i, datasets[i]));
      std::int64_t kept = 0;
      for (std::size_t at = samples_before; at < all.size(); ++at)
        kept += fate_of(all[at]) == Fate::kKept;
      const auto samples = static_cast<std::int64_t>(all.size() - samples_before);
      report.sets.push_back({.name = name_of(i, datasets[i]),
                             .rows = report.records - rows_before,
                             .samples = kept,
                             .dropped = samples - kept});
    }
    auto order = TROUPE_TRY(RowOrder::create(scratch_));
    TROUPE_RETURN_IF_ERROR(order.grow(all.size()));
    if (options_.rows.shuffle) {
      numpy_permute(order.items(), options_.seed);
    } else {
      std::iota(order.items().begin(), order.items().end(), 0u);
    }
    auto kept = TROUPE_TRY(without_dropped(all, order.items(), report));
    return Samples{std::move(all), std::move(kept)};
  }

  // Gives samples of an order to a sink, some at a time.
  Status give(const KeptSamples& samples, std::span<const std::uint32_t> order,
              const SampleSink& sink) const {
    constexpr std::int64_t kTokensAtOnce = std::int64_t{1} << 22;
    TokenDataset some(TokenDataset::Kind::kSupervised, *tokenizer_.pad_id());
    std::vector<std::int32_t> labels;
    for (const auto index : order) {
      auto [ids, all_labels] = samples[index];
      const auto length = std::min(ids.size(), static_cast<std::size_t>(options_.cutoff_len));
      labels.assign(all_labels.begin(), all_labels.begin() + static_cast<std::ptrdiff_t>(length));
      // No token of a sample predicts its first one, so that it does not count in the loss's mean.
      if (!labels.empty()) labels.front() = kIgnoredLabel;
      some.append(ids.first(length), labels);
      if (some.token_count() < kTokensAtOnce) continue;
      TROUPE_RETURN_IF_ERROR(sink(some));
      some = TokenDataset(some.kind(), some.pad_id());
    }
    return some.size() > 0 ? sink(some) : Status();
  }

 private:
  // Appends the samples of a data set.
  Status read_one(const json::Value& entry, EncodeReport& report, KeptSamples& out) {
    const auto source = TROUPE_TRY(parse_row_source(entry, options_.rows.train_on_inputs));
    const auto split = TROUPE_TRY(find_split(files_, source));
    std::vector<std::string> notes;  // told by prepare_row_module()
    const auto encoder =
        TROUPE_TRY(make_row_encoder(source, tokenizer_, options_.cutoff_len, notes));
    const auto [first, last] = TROUPE_TRY(range_of(files_, split));
    struct Row {
      Record record;
      std::string where;
      std::vector<TokenRow> samples;
      Status status;
    };
    std::vector<Row> rows;  // that are encoded together
    const std::size_t samples_before = out.size();
    const auto encode = [&]() -> Status {
      for_each_row(rows.size(), [&](std::size_t i) {
        rows[i].status = encoder->encode(rows[i].record, rows[i].samples);
      });
      for (const Row& row : rows) {
        if (!row.status.ok()) return row.status.prefixed(row.where);
        ++report.records;
        for (const TokenRow& sample : row.samples) {
          report.tokens += std::ssize(sample.ids);
          TROUPE_RETURN_IF_ERROR(out.add(sample));
        }
      }
      rows.clear();
      return {};
    };
    std::int64_t number = 0;
    TROUPE_RETURN_IF_ERROR(
        read_records(files_, split.files, last,
                     [&, first = first](const Record& record, const std::string& where) -> Status {
                       if (number++ < first) return {};
                       rows.push_back({record, where, {}, {}});
                       return rows.size() < kRecordsAtOnce ? Status() : encode();
                     }));
    const std::int64_t read = std::max<std::int64_t>(number - first, 0);
    TROUPE_RETURN_IF_ERROR(encode());
    if (out.size() > samples_before) return {};
    return error(Code::kInvalidArgument, "Cannot find valid samples: {} rows read", read);
  }

  enum class Fate { kKept, kTooLong, kTooShort, kUnlabelled };
  bool truncates() const { return options_.rows.excess_length == "truncate"; }
  Fate fate_of(const KeptSamples::Sample& sample) const {
    auto length = std::ssize(sample.ids);
    if (length > options_.cutoff_len && !truncates()) return Fate::kTooLong;
    length = std::min<std::int64_t>(length, options_.cutoff_len);
    if (length < options_.rows.min_sample_len) return Fate::kTooShort;
    const auto labels = sample.labels.first(static_cast<std::size_t>(length));
    return options_.rows.drop_unlabelled && unlabelled(labels) ? Fate::kUnlabelled : Fate::kKept;
  }

  Result<RowOrder> without_dropped(const KeptSamples& samples, std::span<const std::uint32_t> order,
                                   EncodeReport& report) const {
    auto out = TROUPE_TRY(RowOrder::create(scratch_));
    for (const auto index : order) {
      const auto sample = samples[index];
      const auto length = std::ssize(sample.ids);
      if (length > options_.cutoff_len && options_.rows.excess_length == "raise") {
        return error(Code::kInvalidArgument,
                     "a sample has {} tokens, more than {} (sequence_len), and "
                     "excess_length_strategy is raise",
                     length, options_.cutoff_len);
      }
      const Fate fate = fate_of(sample);
      report.samples_too_long += fate == Fate::kTooLong;
      if (fate == Fate::kTooLong) continue;
      report.tokens_dropped += std::max<std::int64_t>(length - options_.cutoff_len, 0);
      report.records_dropped += fate == Fate::kTooShort;
      report.samples_unlabelled += fate == Fate::kUnlabelled;
      if (fate == Fate::kKept) TROUPE_RETURN_IF_ERROR(out.append(index));
    }
    return out;
  }

  static bool unlabelled(std::span<const std::int32_t> labels) {
    return std::all_of(labels.begin(), labels.end(),
                       [](std::int32_t label) { return label == kIgnoredLabel; });
  }

  // Records that are held while they are encoded.
  static constexpr std::size_t kRecordsAtOnce = 512;

  FileSystem& files_;
  const DataOptions& options_;
  const Tokenizer& tokenizer_;
  const std::string& scratch_;
};

// How many of `count` samples val_size keeps.
std::size_t kept_of(double val_size, std::size_t count) {
  if (val_size <= 0) return 0;
  const auto share = val_size > 1 ? val_size : std::ceil(val_size * static_cast<double>(count));
  return static_cast<std::size_t>(share);
}

}  // namespace

Result<DatasetModule> prepare_row_module(const DataOptions& options, const Tokenizer& tokenizer) {
  DatasetModule out{.train = TokenDataset(TokenDataset::Kind::kSupervised, 0),
                    .eval = std::nullopt,
                    .held_out = std::nullopt,
                    .train_report = {},
                    .eval_report = {},
                    .held_out_report = {},
                    .tokenizer = tokenizer,
                    .chat = TROUPE_TRY(chat_template("empty")),
                    .notes = {}};
  TROUPE_RETURN_IF_ERROR(set_special_tokens(options.rows, out.tokenizer));
  const Tokenizer prepared = out.tokenizer;
  for (const auto* list : {&options.rows.datasets, &options.rows.eval_datasets}) {
    for (std::size_t i = 0; i < list->size(); ++i) {
      const auto prepare = [&]() -> Status {
        const auto source = TROUPE_TRY(parse_row_source((*list)[i], options.rows.train_on_inputs));
        TROUPE_RETURN_IF_ERROR(
            make_row_encoder(source, prepared, options.cutoff_len, out.notes).status());
        if (source.type != "chat_template" || out.tokenizer.chat_template()) return {};
        const auto jinja = source.chat_template == "jinja"
                               ? source.chat_template_jinja
                               : axolotl_template_jinja(source.chat_template);
        if (!jinja.empty()) out.tokenizer.set_chat_template(jinja);
        return {};
      };
      if (const Status prepared_one = prepare(); !prepared_one.ok())
        return prepared_one.prefixed(name_of(i, (*list)[i]));
    }
  }
  out.train = TokenDataset(TokenDataset::Kind::kSupervised, *out.tokenizer.pad_id());
  return out;
}

Status make_row_samples(FileSystem& files, const DataOptions& options, const SampleSinks& sinks,
                        const std::string& scratch, DatasetModule& out) {
  RowReader reader(files, options, out.tokenizer, scratch);
  const auto samples = TROUPE_TRY(reader.read(options.rows.datasets, out.train_report));
  const auto rows = samples.order.items();
  const auto kept = kept_of(options.val_size, rows.size());
  if (kept >= rows.size() || (options.val_size > 0 && kept == 0)) {
    return error(Code::kInvalidArgument,
                 "val_size={} takes {} of {} samples ({} were longer than {} tokens, {} shorter "
                 "than {}, {} without a label): none is left to train on",
                 options.val_size, kept, rows.size(), out.train_report.samples_too_long,
                 options.cutoff_len, out.train_report.records_dropped, options.rows.min_sample_len,
                 out.train_report.samples_unlabelled);
  }
  TROUPE_RETURN_IF_ERROR(reader.give(samples.kept, rows.first(rows.size() - kept), sinks.train));
  if (!options.rows.eval_datasets.empty()) {
    auto eval = reader.read(options.rows.eval_datasets, out.eval_report);
    if (!eval) return eval.status().prefixed("evaluation data");
    if (eval->order.items().empty())
      return error(Code::kInvalidArgument, "evaluation data: no sample has a length that counts");
    TROUPE_RETURN_IF_ERROR(reader.give(eval->kept, std::as_const(eval->order).items(), sinks.eval));
  } else if (kept > 0) {
    TROUPE_RETURN_IF_ERROR(reader.give(samples.kept, rows.last(kept), sinks.eval));
  }
  const auto& report = out.train_report;
  if (report.samples_too_long > 0)
    out.notes.push_back(fmt::format("dropped: {} longer than {} tokens",
                                    count_of(report.samples_too_long, "sample"),
                                    options.cutoff_len));
  if (report.records_dropped > 0)
    out.notes.push_back(fmt::format("dropped: {} shorter than {} tokens",
                                    count_of(report.records_dropped, "sample"),
                                    options.rows.min_sample_len));
  if (report.samples_unlabelled > 0)
    out.notes.push_back(
        fmt::format("dropped: {} without a label", count_of(report.samples_unlabelled, "sample")));
  if (report.tokens_dropped > 0)
    out.notes.push_back(fmt::format("{} of {} tokens are not trained on: samples were cut to {}",
                                    report.tokens_dropped, report.tokens, options.cutoff_len));
  return {};
}

Result<OrderedRows> keep_row_texts(FileSystem& files, const DataOptions& options,
                                   const json::Array& datasets, EncodeReport& report,
                                   const std::string& scratch) {
  auto out = TROUPE_TRY(OrderedRows::create(scratch));
  for (std::size_t i = 0; i < datasets.size(); ++i) {
    const auto read = [&]() -> Status {
      const auto source = TROUPE_TRY(parse_row_source(datasets[i], options.rows.train_on_inputs));
      if (source.type != "text")
        return error(Code::kInvalidArgument, "type={} is not for pre-training; use type: text",
                     source.type);
      const auto split = TROUPE_TRY(find_split(files, source));
      const std::uint32_t before = out.rows.size();
      const auto visit = [&](const Record& record, const std::string& where) -> Status {
        auto text = text_column(record, source.field);
        if (!text.ok()) return text.status().prefixed(where);
        if (!*text)
          return error(Code::kInvalidArgument, "{}: no text in the column '{}'", where,
                       source.field);
        return out.rows.add(
            {.messages = {{Role::kUser, std::move(**text)}}, .system = {}, .tools = {}});
      };
      TROUPE_RETURN_IF_ERROR(read_records(files, split.files, -1, visit));
      const auto [first, last] = split.range(out.rows.size() - before);
      for (auto row = first; row < last; ++row)
        TROUPE_RETURN_IF_ERROR(out.order.append(before + static_cast<std::uint32_t>(row)));
      report.records += last - first;
      report.sets.push_back(
          {.name = name_of(i, datasets[i]), .rows = last - first, .samples = last - first});
      return {};
    };
    if (const Status done = read(); !done.ok()) return done.prefixed(name_of(i, datasets[i]));
  }
  if (out.order.items().empty())
    return error(Code::kInvalidArgument, "Cannot find valid samples: no row was read");
  return out;
}

Status look_at_row_datasets(FileSystem& files, const DataOptions& options,
                            const std::optional<Tokenizer>& tokenizer, std::int64_t rows) {
  std::optional<Tokenizer> prepared = tokenizer;
  if (prepared) TROUPE_RETURN_IF_ERROR(set_special_tokens(options.rows, *prepared));
  // The samples to train on, where no row is left unread: as many, or fewer where some are dropped.
  std::size_t samples_most = 0;
  bool all_read = prepared.has_value() && options.stage == DataOptions::Stage::kSupervised;
  for (const auto* list : {&options.rows.datasets, &options.rows.eval_datasets}) {
    for (std::size_t i = 0; i < list->size(); ++i) {
      const auto look = [&]() -> Status {
        const auto source = TROUPE_TRY(parse_row_source((*list)[i], options.rows.train_on_inputs));
        const auto split = TROUPE_TRY(find_split(files, source));
        if (!prepared) return {};
        std::vector<std::string> notes;
        const auto encoder =
            TROUPE_TRY(make_row_encoder(source, *prepared, options.cutoff_len, notes));
        std::vector<TokenRow> samples;
        std::vector<std::size_t> of_rows;
        TROUPE_RETURN_IF_ERROR(read_records(
            files, split.files, rows, [&](const Record& record, const std::string& where) {
              samples.clear();
              const Status encoded = encoder->encode(record, samples);
              of_rows.push_back(samples.size());
              return encoded.ok() ? encoded : encoded.prefixed(where);
            }));
        if (list != &options.rows.datasets) return {};
        all_read = all_read && std::ssize(of_rows) < rows;
        const auto [first, last] = split.range(std::ssize(of_rows));
        samples_most +=
            std::accumulate(of_rows.begin() + first, of_rows.begin() + last, std::size_t{0});
        return {};
      };
      if (const Status looked = look(); !looked.ok())
        return looked.prefixed(name_of(i, (*list)[i]));
    }
  }
  const auto kept = kept_of(options.val_size, samples_most);
  if (!all_read || kept == 0 || kept < samples_most) return {};
  return error(Code::kInvalidArgument,
               "val_size={} takes {} of {} samples: none is left to train on", options.val_size,
               kept, samples_most)
      .with("key", "val_size");
}

Result<std::vector<std::string>> row_dataset_files(FileSystem& files, const json::Array& datasets) {
  std::vector<std::string> out;
  for (const auto& entry : datasets) {
    const auto source = TROUPE_TRY(parse_row_source(entry, false));
    const auto split = TROUPE_TRY(find_split(files, source));
    out.insert(out.end(), split.files.paths.begin(), split.files.paths.end());
  }
  return out;
}

}  // namespace troupe::train
