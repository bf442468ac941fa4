#include "train/data/row_dataset.h"

#include <algorithm>
#include <cmath>
#include <numeric>

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

class RowReader {
 public:
  RowReader(FileSystem& files, const DataOptions& options, const Tokenizer& tokenizer)
      : files_(files), options_(options), tokenizer_(tokenizer) {}

  // The samples of all data sets, joined and shuffled, without those that are dropped.
  Result<std::vector<TokenRow>> read(const json::Array& datasets, EncodeReport& report) {
    std::vector<TokenRow> all;
    for (std::size_t i = 0; i < datasets.size(); ++i) {
      const std::int64_t rows_before = report.records;
      auto one = read_one(datasets[i], report);
      if (!one) return one.status().prefixed(name_of(i, datasets[i]));
      const auto kept = std::count_if(one->begin(), one->end(), [&](const TokenRow& row) {
        return fate_of(row) == Fate::kKept;
      });
      report.sets.push_back({.name = name_of(i, datasets[i]),
                             .rows = report.records - rows_before,
                             .samples = kept,
                             .dropped = std::ssize(*one) - kept});
      std::move(one->begin(), one->end(), std::back_inserter(all));
    }
    if (all.size() > static_cast<std::size_t>(kPermutationSizeMax))
      return error(Code::kUnsupported, "more than {} samples", kPermutationSizeMax);
    if (options_.rows.shuffle) shuffle(all);
    return without_dropped(std::move(all), report);
  }

 private:
  Result<std::vector<TokenRow>> read_one(const json::Value& entry, EncodeReport& report) {
    const auto source = TROUPE_TRY(parse_row_source(entry, options_.rows.train_on_inputs));
    const auto split = TROUPE_TRY(find_split(files_, source));
    std::vector<std::string> notes;  // told by prepare_row_module()
    const auto encoder =
        TROUPE_TRY(make_row_encoder(source, tokenizer_, options_.cutoff_len, notes));
    // A share of the rows needs their number, and with it all of them.
    std::vector<std::pair<Record, std::string>> rows;
    TROUPE_RETURN_IF_ERROR(
        read_records(files_, split.files, -1, [&](const Record& record, const std::string& where) {
          rows.emplace_back(record, where);
          return Status();
        }));
    const auto range = split.range(std::ssize(rows));
    const auto first = static_cast<std::size_t>(range.first);
    struct Encoded {
      std::vector<TokenRow> samples;
      Status status;
    };
    std::vector<Encoded> encoded(static_cast<std::size_t>(range.second - range.first));
    for_each_row(encoded.size(), [&](std::size_t i) {
      const auto& record = rows[first + i].first;
      encoded[i].status = encoder->encode(record, encoded[i].samples);
    });
    std::vector<TokenRow> out;
    for (std::size_t i = 0; i < encoded.size(); ++i) {
      auto& [samples, status] = encoded[i];
      if (!status.ok()) return status.prefixed(rows[first + i].second);
      ++report.records;
      for (const TokenRow& sample : samples) report.tokens += std::ssize(sample.ids);
      std::move(samples.begin(), samples.end(), std::back_inserter(out));
    }
    if (out.empty())
      return error(Code::kInvalidArgument, "Cannot find valid samples: {} rows read",
                   encoded.size());
    return out;
  }

  void shuffle(std::vector<TokenRow>& rows) const {
    std::vector<TokenRow> out;
    out.reserve(rows.size());
    for (const auto i : numpy_permutation(static_cast<std::uint32_t>(rows.size()), options_.seed))
      out.push_back(std::move(rows[i]));
    rows = std::move(out);
  }

  enum class Fate { kKept, kTooLong, kTooShort, kUnlabelled };
  bool truncates() const { return options_.rows.excess_length == "truncate"; }
  Fate fate_of(const TokenRow& row) const {
    auto length = std::ssize(row.ids);
    if (length > options_.cutoff_len && !truncates()) return Fate::kTooLong;
    length = std::min<std::int64_t>(length, options_.cutoff_len);
    if (length < options_.rows.min_sample_len) return Fate::kTooShort;
    const auto labels = std::span(row.labels).first(static_cast<std::size_t>(length));
    return options_.rows.drop_unlabelled && unlabelled(labels) ? Fate::kUnlabelled : Fate::kKept;
  }

  Result<std::vector<TokenRow>> without_dropped(std::vector<TokenRow> rows,
                                                EncodeReport& report) const {
    std::vector<TokenRow> out;
    for (auto& row : rows) {
      const auto length = std::ssize(row.ids);
      if (length > options_.cutoff_len && options_.rows.excess_length == "raise") {
        return error(Code::kInvalidArgument,
                     "a sample has {} tokens, more than {} (sequence_len), and "
                     "excess_length_strategy is raise",
                     length, options_.cutoff_len);
      }
      const Fate fate = fate_of(row);
      report.samples_too_long += fate == Fate::kTooLong;
      if (fate == Fate::kTooLong) continue;
      if (length > options_.cutoff_len) {
        report.tokens_dropped += length - options_.cutoff_len;
        row.ids.resize(static_cast<std::size_t>(options_.cutoff_len));
        row.labels.resize(static_cast<std::size_t>(options_.cutoff_len));
      }
      report.records_dropped += fate == Fate::kTooShort;
      report.samples_unlabelled += fate == Fate::kUnlabelled;
      if (fate == Fate::kKept) out.push_back(std::move(row));
    }
    return out;
  }

  static bool unlabelled(std::span<const std::int32_t> labels) {
    return std::all_of(labels.begin(), labels.end(),
                       [](std::int32_t label) { return label == kIgnoredLabel; });
  }

  FileSystem& files_;
  const DataOptions& options_;
  const Tokenizer& tokenizer_;
};

// How many of `count` samples val_size keeps.
std::size_t kept_of(double val_size, std::size_t count) {
  if (val_size <= 0) return 0;
  const auto share = val_size > 1 ? val_size : std::ceil(val_size * static_cast<double>(count));
  return static_cast<std::size_t>(share);
}

TokenDataset dataset_of(std::span<const TokenRow> rows, const Tokenizer& tokenizer) {
  TokenDataset out(TokenDataset::Kind::kSupervised, *tokenizer.pad_id());
  for (const auto& row : rows) {
    // No token of a sample predicts its first one, so that it does not count in the loss's mean.
    std::vector<std::int32_t> labels = row.labels;
    if (!labels.empty()) labels.front() = kIgnoredLabel;
    out.append(row.ids, labels);
  }
  return out;
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
                        DatasetModule& out) {
  const Tokenizer& prepared = out.tokenizer;
  RowReader reader(files, options, prepared);
  auto rows = TROUPE_TRY(reader.read(options.rows.datasets, out.train_report));
  const auto kept = kept_of(options.val_size, rows.size());
  if (kept >= rows.size() || (options.val_size > 0 && kept == 0)) {
    return error(Code::kInvalidArgument,
                 "val_size={} takes {} of {} samples ({} were longer than {} tokens, {} shorter "
                 "than {}, {} without a label): none is left to train on",
                 options.val_size, kept, rows.size(), out.train_report.samples_too_long,
                 options.cutoff_len, out.train_report.records_dropped, options.rows.min_sample_len,
                 out.train_report.samples_unlabelled);
  }
  TROUPE_RETURN_IF_ERROR(
      sinks.train(dataset_of(std::span(rows).first(rows.size() - kept), prepared)));
  if (!options.rows.eval_datasets.empty()) {
    auto eval = reader.read(options.rows.eval_datasets, out.eval_report);
    if (!eval) return eval.status().prefixed("evaluation data");
    if (eval->empty())
      return error(Code::kInvalidArgument, "evaluation data: no sample has a length that counts");
    TROUPE_RETURN_IF_ERROR(sinks.eval(dataset_of(*eval, prepared)));
  } else if (kept > 0) {
    TROUPE_RETURN_IF_ERROR(sinks.eval(dataset_of(std::span(rows).last(kept), prepared)));
  }
  const auto& report = out.train_report;
  if (report.samples_too_long > 0)
    out.notes.push_back(fmt::format("{} samples longer than {} tokens were dropped",
                                    report.samples_too_long, options.cutoff_len));
  if (report.records_dropped > 0)
    out.notes.push_back(fmt::format("{} samples shorter than {} tokens were dropped",
                                    report.records_dropped, options.rows.min_sample_len));
  if (report.samples_unlabelled > 0)
    out.notes.push_back(
        fmt::format("{} samples without a label were dropped", report.samples_unlabelled));
  if (report.tokens_dropped > 0)
    out.notes.push_back(fmt::format("{} of {} tokens are not trained on: samples were cut to {}",
                                    report.tokens_dropped, report.tokens, options.cutoff_len));
  return {};
}

Result<std::vector<Conversation>> read_row_texts(FileSystem& files, const DataOptions& options,
                                                 const json::Array& datasets,
                                                 EncodeReport& report) {
  std::vector<Conversation> out;
  for (std::size_t i = 0; i < datasets.size(); ++i) {
    const auto read = [&]() -> Status {
      const auto source = TROUPE_TRY(parse_row_source(datasets[i], options.rows.train_on_inputs));
      if (source.type != "text")
        return error(Code::kInvalidArgument, "type={} is not for pre-training; use type: text",
                     source.type);
      const auto split = TROUPE_TRY(find_split(files, source));
      std::vector<Conversation> texts;
      const auto visit = [&](const Record& record, const std::string& where) -> Status {
        auto text = text_column(record, source.field);
        if (!text.ok()) return text.status().prefixed(where);
        if (!*text)
          return error(Code::kInvalidArgument, "{}: no text in the column '{}'", where,
                       source.field);
        texts.push_back(
            {.messages = {{Role::kUser, std::move(**text)}}, .system = {}, .tools = {}});
        return {};
      };
      TROUPE_RETURN_IF_ERROR(read_records(files, split.files, -1, visit));
      const auto [first, last] = split.range(std::ssize(texts));
      report.records += last - first;
      std::move(texts.begin() + first, texts.begin() + last, std::back_inserter(out));
      report.sets.push_back(
          {.name = name_of(i, datasets[i]), .rows = last - first, .samples = last - first});
      return {};
    };
    if (const Status done = read(); !done.ok()) return done.prefixed(name_of(i, datasets[i]));
  }
  if (out.empty())
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
