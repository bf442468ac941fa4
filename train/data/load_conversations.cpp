#include "train/data/load_conversations.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "runtime/base/suggest.h"
#include "runtime/base/text.h"
#include "train/data/dataset_info.h"
#include "train/data/row_source.h"
#include "train/data/sampler.h"

namespace troupe::train {
namespace {

constexpr std::size_t kWarningsMax = 5;
// Columns that are not read are looked for in so many of the first rows.
constexpr std::int64_t kRowsLookedAt = 100;

void warn(EncodeReport& report, const std::string& message) {
  if (report.warnings.size() < kWarningsMax) report.warnings.push_back(message);
}

// The column that a row cannot do without, to find data sets whose columns are named otherwise.
const std::string& main_column(const DatasetAttributes& attributes) {
  return attributes.formatting == Formatting::kAlpaca ? attributes.prompt : attributes.messages;
}

// The splits that the files of a data set are: those of a hub were chosen by it.
std::vector<std::string> splits_of_files(const DatasetAttributes& attributes) {
  std::vector<std::string> out;
  for (const auto& [split, paths] : attributes.hub_splits) out.push_back(split);
  if (out.empty()) out.emplace_back("train");
  return out;
}

// The rows [first, first + count) that were read of a split.
struct SplitPlace {
  std::string split;
  std::uint32_t first = 0, count = 0;
};

// Which of the rows that were read the data set's split names, in its order.
Status take_split(const DatasetAttributes& attributes, const std::vector<SplitPlace>& places,
                  RowOrder& out) {
  std::int64_t all = 0;
  for (const auto& part : split_words(attributes.split, '+')) {
    SplitRows slice;
    const auto name = TROUPE_TRY(read_slice(trim(part), slice));
    const auto place = std::ranges::find(places, name, &SplitPlace::split);
    if (place == places.end()) {
      return error(Code::kInvalidArgument,
                   "Unknown split \"{}\". Should be one of ['{}']. (a file is one split; make an "
                   "entry for each file)",
                   name, join_words(splits_of_files(attributes), "', '"));
    }
    const auto [begin, end] = slice.range(place->count);
    for (auto row = begin; row < end; ++row)
      TROUPE_RETURN_IF_ERROR(out.append(place->first + static_cast<std::uint32_t>(row)));
    all += place->count;
  }
  if (!out.items().empty()) return {};
  return error(Code::kInvalidArgument, "split '{}' takes none of {} rows", attributes.split, all);
}

// num_samples rows: of a permutation, and where more are wanted than there are, drawn besides.
Status draw(RowOrder from, std::int64_t count, NumpyGlobal& random, const std::string& scratch,
            RowOrder& out) {
  const auto there = from.items();
  auto order = TROUPE_TRY(RowOrder::create(scratch));
  TROUPE_RETURN_IF_ERROR(order.grow(there.size()));
  random.permute(order.items());
  const auto kept = std::min(order.items().size(), static_cast<std::size_t>(count));
  for (const auto place : order.items().first(kept))
    TROUPE_RETURN_IF_ERROR(out.append(there[place]));
  for (auto left = static_cast<std::size_t>(count) - kept; left > 0; --left)
    TROUPE_RETURN_IF_ERROR(
        out.append(there[random.choice(static_cast<std::uint32_t>(there.size()))]));
  return {};
}

// Whether the entry is for the stage.
Status check_stage(const DatasetAttributes& attributes, DataOptions::Stage stage) {
  const bool wants_pairs = stage == DataOptions::Stage::kPairs,
             wants_feedback = stage == DataOptions::Stage::kFeedback;
  const bool judged = !attributes.ranking && !attributes.kto_tag.empty();
  if (attributes.ranking == wants_pairs && judged == wants_feedback) return {};
  return error(Code::kInvalidArgument,
               "The dataset is not applicable in the current training stage. ('{}' has {})",
               attributes.name,
               attributes.ranking ? "ranking: true, for stages rm and dpo"
               : judged           ? "columns.kto_tag, for stage kto"
               : wants_pairs      ? "no ranking: true, which stages rm and dpo want"
                                  : "no columns.kto_tag, which stage kto wants");
}

constexpr const char* kHowRowsAreRead =
    "formatting, columns and tags of its entry in dataset_info.json say how rows are read";

bool says_nothing(const json::Value& value) {
  if (const auto* text = value.if_string()) {
    const auto words = trim(std::string_view(*text));
    return words.empty() || words == "[]" || words == "{}";
  }
  return value.is_null() || (value.is_array() && value.get_array().empty()) ||
         (value.is_object() && value.get_object().empty());
}

// Columns that are named as what LLaMA-Factory reads only where its `columns` say so.
void warn_of_unread(const Record& record, const DatasetAttributes& attributes,
                    std::set<std::string>& told, EncodeReport& report) {
  const std::pair<const char*, const std::string*> roles[] = {
      {"system", &attributes.system},
      {"tools", &attributes.tools},
      {"history", &attributes.history},
  };
  const bool is_alpaca = attributes.formatting == Formatting::kAlpaca;
  for (const auto& [role, column] : roles) {
    if (!column->empty() || (role == std::string_view("history") && !is_alpaca)) continue;
    const json::Value* value = record.if_contains(role);
    const bool empty = !value || says_nothing(*value);
    if (empty || !told.insert(role).second) continue;
    warn(report, fmt::format("data set '{0}': the column '{1}' is not read, as no `columns` of its "
                             "entry in dataset_info.json names it; \"{1}\": \"{1}\" there does",
                             attributes.name, role));
  }
}

// What formatting openai does to system texts, which users of most models do not expect.
void warn_of_openai(const Record& record, const Conversation& row,
                    const DatasetAttributes& attributes, std::set<std::string>& told,
                    EncodeReport& report) {
  if (attributes.formatting != Formatting::kOpenai || !row.fault.empty() ||
      !row.system.ends_with(kThinkingOff) ||
      json::write(record).find(kThinkingOff) != std::string::npos ||
      !told.insert("formatting").second)
    return;
  warn(report,
       fmt::format("data set '{}': formatting openai ends the system text in '{}' where it "
                   "says nothing of thinking and there are no tools, as LLaMA-Factory's "
                   "does; formatting sharegpt with the same tags leaves it as it is, where no "
                   "message has tool_calls",
                   attributes.name, kThinkingOff));
}

// LLaMA-Factory takes a row without a question as it is.
void warn_of_no_question(const Conversation& row, const DatasetAttributes& attributes,
                         const std::string& where, std::set<std::string>& told,
                         EncodeReport& report) {
  if (attributes.formatting != Formatting::kAlpaca || !row.fault.empty() || row.messages.empty() ||
      !row.messages.front().content.empty() || !told.insert("question").second)
    return;
  warn(report, fmt::format("{}: nothing in the column '{}': its answer is trained without a "
                           "question (of such rows the first is named)",
                           where, attributes.prompt));
}

// How much of a data set was read.
struct ReadRows {
  std::int64_t rows = 0;
  bool all = true;  // there are none behind these
};

// Whether the split or num_samples take some of the rows, which are known when all have been read.
bool picks_rows(const DatasetAttributes& attributes) {
  return attributes.num_samples || attributes.split != splits_of_files(attributes).front();
}

// The rows as they are read, before any are picked. `look_at`: only so many of the first ones, and
// nothing is said of those behind; negative: all.
Result<ReadRows> read_rows(FileSystem& files, const DataOptions& options,
                           const DatasetAttributes& attributes, EncodeReport& report,
                           std::int64_t look_at, const RowTaker& take) {
  TROUPE_RETURN_IF_ERROR(check_stage(attributes, options.stage));
  const std::int64_t records_before = report.records, dropped_before = report.records_dropped;
  const auto data = TROUPE_TRY(find_data_files(files, options.dataset_dir, attributes));
  const bool needs_answer =
      options.stage != DataOptions::Stage::kPretrain && !options.answers_optional;
  const auto& needed = main_column(attributes);
  if (needed.empty()) {
    return error(Code::kInvalidArgument, "columns must name {}",
                 attributes.formatting == Formatting::kAlpaca ? "prompt" : "messages");
  }
  std::set<std::string> columns, told;
  std::set<std::string> unseen(attributes.named_columns.begin(), attributes.named_columns.end());
  unseen.insert(needed);
  const auto visit = [&](const Record& record, const std::string& where) -> Status {
    ++report.records;
    std::erase_if(unseen, [&](const std::string& name) { return record.contains(name); });
    if (!unseen.empty() && columns.size() < 32) {
      for (const auto& member : record) columns.emplace(member.key());
    }
    const bool looks_at = options.stage != DataOptions::Stage::kPretrain &&
                          report.records - records_before <= kRowsLookedAt;
    if (looks_at) warn_of_unread(record, attributes, told, report);
    auto converted = convert_record(record, attributes, needs_answer);
    if (!converted) return converted.status().prefixed(where);
    if (looks_at) warn_of_openai(record, *converted, attributes, told, report);
    if (needs_answer) warn_of_no_question(*converted, attributes, where, told, report);
    if (!converted->fault.empty()) {
      ++report.records_dropped;
      warn(report, fmt::format("{}: dropped: {}", where, converted->fault));
    }
    return take(std::move(*converted));
  };
  auto rows_max = picks_rows(attributes) ? -1 : options.max_samples.value_or(-1);
  const bool looks = look_at >= 0 && (rows_max < 0 || look_at < rows_max);
  if (looks) rows_max = look_at;
  TROUPE_RETURN_IF_ERROR(read_records(files, data, rows_max, visit));
  const std::int64_t read = report.records - records_before;
  // Rows that were not read may be what these are not.
  if (looks && read == look_at) return ReadRows{.rows = read, .all = false};
  // Of rows behind max_samples any may have the column, but for the one that all need.
  if (read == rows_max && !unseen.contains(needed)) unseen.clear();
  if (!unseen.empty() && !columns.empty()) {
    const std::vector<std::string> there(columns.begin(), columns.end());
    const std::string& missing = *unseen.begin();
    return error(
        Code::kInvalidArgument,
        "no row has the column '{}'{} (the rows have: {}). Name the columns under `columns` "
        "in dataset_info.json",
        missing, did_you_mean(missing, there), join_words(there));
  }
  const auto dropped = report.records_dropped - dropped_before;
  if (read == 0) {
    return error(Code::kInvalidArgument, "Cannot find valid samples: no row is in {}",
                 join_words(data.paths));
  }
  if (dropped == read) {
    return error(Code::kInvalidArgument, "Cannot find valid samples: {} read, {} dropped{}{}; {}",
                 count_of(read, "row"), dropped, report.warnings.empty() ? "" : "; ",
                 report.warnings.empty() ? "" : report.warnings.front(), kHowRowsAreRead);
  }
  if (read > kPermutationSizeMax) {
    return error(Code::kUnsupported, "more than {} rows", kPermutationSizeMax);
  }
  return ReadRows{.rows = read};
}

// Reads the rows of a data set behind those that are kept, and returns the order of those that its
// split and num_samples pick. `look_at`: as above; then nothing is picked where there may be more.
Result<RowOrder> keep_one(FileSystem& files, const DataOptions& options,
                          const DatasetAttributes& attributes, NumpyGlobal& random,
                          EncodeReport& report, const std::string& scratch, KeptRows& rows,
                          std::int64_t look_at = -1) {
  std::vector<SplitPlace> places;
  auto order = TROUPE_TRY(RowOrder::create(scratch));
  bool all = true;
  for (const auto& split : splits_of_files(attributes)) {
    DatasetAttributes one = attributes;
    std::erase_if(one.hub_splits, [&](const auto& other) { return other.split != split; });
    const std::uint32_t first = rows.size();
    const ReadRows read =
        TROUPE_TRY(read_rows(files, options, one, report, look_at,
                             [&](const Conversation& row) { return rows.add(row); }));
    places.push_back({split, first, rows.size() - first});
    all = all && read.all;
  }
  if (!all) return order;
  TROUPE_RETURN_IF_ERROR(take_split(attributes, places, order));
  if (attributes.num_samples) {
    auto drawn = TROUPE_TRY(RowOrder::create(scratch));
    TROUPE_RETURN_IF_ERROR(draw(std::move(order), *attributes.num_samples, random, scratch, drawn));
    return drawn;
  }
  return order;
}

// The first rows of an order: max_samples counts those that were picked.
std::span<const std::uint32_t> first_of_order(const RowOrder& order, const DataOptions& options) {
  const auto items = order.items();
  const auto most = static_cast<std::size_t>(options.max_samples.value_or(std::ssize(items)));
  return items.first(std::min(items.size(), most));
}

}  // namespace

Status interleave(const std::vector<std::size_t>& sizes, const std::string& strategy,
                  const std::vector<double>& shares, std::uint32_t seed,
                  const RowPlaceTaker& take) {
  const auto [least, most] = std::minmax_element(sizes.begin(), sizes.end());
  const bool under = strategy == "interleave_under", over = strategy == "interleave_over";
  if (sizes.empty() || *least == 0) return {};
  if (shares.empty()) {
    for (std::size_t row = 0; row < (under ? *least : *most); ++row) {
      for (std::size_t set = 0; set < sizes.size(); ++set) {
        if (row < sizes[set] || over) TROUPE_RETURN_IF_ERROR(take(set, row % sizes[set]));
      }
    }
    return {};
  }
  NumpyChoice choice(seed, shares);
  std::vector<std::size_t> taken(sizes.size());
  for (std::size_t ended = 0; ended < (under ? 1 : sizes.size());) {
    const auto set = choice.next();
    if (taken[set] >= sizes[set] && !over) continue;  // interleave_once
    TROUPE_RETURN_IF_ERROR(take(set, taken[set] % sizes[set]));
    if (++taken[set] == sizes[set]) ++ended;
  }
  return {};
}

Result<std::optional<std::size_t>> look_at_conversations(FileSystem& files,
                                                         const DataOptions& options,
                                                         const std::vector<std::string>& names,
                                                         std::int64_t rows) {
  std::vector<std::size_t> sizes;
  bool known = true;
  for (const auto& attributes :
       TROUPE_TRY(read_dataset_info(files, options.dataset_dir, names, options.hub_files))) {
    EncodeReport report;
    NumpyGlobal random(options.seed);
    auto kept = TROUPE_TRY(KeptRows::create(""));
    const auto looked = keep_one(files, options, attributes, random, report, "", kept, rows);
    if (!looked) return looked.status().prefixed(fmt::format("data set '{}'", attributes.name));
    sizes.push_back(first_of_order(*looked, options).size());
    known = known && report.records < rows;  // there are no rows behind these
  }
  if (!known) return std::optional<std::size_t>();
  if (options.mix_strategy == "concat" || sizes.size() == 1)
    return std::optional(std::accumulate(sizes.begin(), sizes.end(), std::size_t{0}));
  const auto shares = TROUPE_TRY(interleave_shares(options, sizes.size()));
  std::size_t count = 0;
  TROUPE_RETURN_IF_ERROR(
      interleave(sizes, options.mix_strategy, shares, options.seed, [&](std::size_t, std::size_t) {
        ++count;
        return Status();
      }));
  return std::optional(count);
}

Result<OrderedRows> keep_conversations(FileSystem& files, const DataOptions& options,
                                       const std::vector<std::string>& names, NumpyGlobal& random,
                                       EncodeReport& report, const std::string& scratch) {
  auto out = TROUPE_TRY(OrderedRows::create(scratch));
  std::vector<RowOrder> orders;
  std::vector<std::size_t> sizes;
  for (const auto& attributes :
       TROUPE_TRY(read_dataset_info(files, options.dataset_dir, names, options.hub_files))) {
    const EncodeReport before = report;
    auto order = keep_one(files, options, attributes, random, report, scratch, out.rows);
    if (!order) return order.status().prefixed(fmt::format("data set '{}'", attributes.name));
    const auto picked = first_of_order(*order, options);
    report.sets.push_back({.name = attributes.name,
                           .rows = report.records - before.records,
                           .samples = std::ranges::count_if(
                               picked, [&](std::uint32_t row) { return out.rows.is_sample(row); }),
                           .dropped = report.records_dropped - before.records_dropped});
    sizes.push_back(picked.size());
    orders.push_back(std::move(*order));
  }
  if (sizes.size() == 1 || options.mix_strategy == "concat") {
    for (const RowOrder& order : orders)
      TROUPE_RETURN_IF_ERROR(out.order.append(first_of_order(order, options)));
  } else {
    const auto shares = TROUPE_TRY(interleave_shares(options, sizes.size()));
    TROUPE_RETURN_IF_ERROR(interleave(sizes, options.mix_strategy, shares, options.seed,
                                      [&](std::size_t set, std::size_t row) {
                                        return out.order.append(orders[set].items()[row]);
                                      }));
  }
  if (std::ssize(out.order.items()) > kPermutationSizeMax)
    return error(Code::kUnsupported, "more than {} rows", kPermutationSizeMax);
  return out;
}

Result<std::vector<Conversation>> load_conversations(FileSystem& files, const DataOptions& options,
                                                     const std::vector<std::string>& names,
                                                     NumpyGlobal& random, EncodeReport& report) {
  const auto kept = TROUPE_TRY(keep_conversations(files, options, names, random, report, ""));
  std::vector<Conversation> out;
  out.reserve(kept.order.items().size());
  for (const auto row : kept.order.items()) out.push_back(kept.rows.row(row));
  return out;
}

Result<bool> stream_conversations(FileSystem& files, const DataOptions& options,
                                  const std::vector<std::string>& names, EncodeReport& report,
                                  const RowTaker& take) {
  const auto sets =
      TROUPE_TRY(read_dataset_info(files, options.dataset_dir, names, options.hub_files));
  if ((sets.size() > 1 && options.mix_strategy != "concat") ||
      std::ranges::any_of(sets, picks_rows))
    return false;
  for (const auto& attributes : sets) {
    const EncodeReport before = report;
    const auto read = read_rows(files, options, attributes, report, -1, take);
    if (!read) return read.status().prefixed(fmt::format("data set '{}'", attributes.name));
    const auto dropped = report.records_dropped - before.records_dropped;
    report.sets.push_back({.name = attributes.name,
                           .rows = read->rows,
                           .samples = read->rows - dropped,
                           .dropped = dropped});
  }
  return true;
}

Status visit_rows(FileSystem& files, const DataOptions& options,
                  const DatasetAttributes& attributes, EncodeReport& report, const RowTaker& take) {
  const Status read = read_rows(files, options, attributes, report, -1, take).status();
  return read.ok() ? read : read.prefixed(fmt::format("data set '{}'", attributes.name));
}

std::string picked_by(const DatasetAttributes& attributes) {
  if (attributes.num_samples) return "num_samples";
  return picks_rows(attributes) ? fmt::format("split '{}'", attributes.split) : std::string();
}

}  // namespace troupe::train
