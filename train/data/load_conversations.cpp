#include "train/data/load_conversations.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "train/data/dataset_info.h"
#include "train/data/row_source.h"
#include "train/data/sampler.h"

namespace troupe::train {
namespace {

constexpr std::size_t kWarningsMax = 5;

void warn(EncodeReport& report, const std::string& message) {
  if (report.warnings.size() < kWarningsMax) report.warnings.push_back(message);
}

// The column that a row cannot do without, to find data sets whose columns are named otherwise.
const std::string& main_column(const DatasetAttributes& attributes) {
  return attributes.formatting == Formatting::kAlpaca ? attributes.prompt : attributes.messages;
}

// The split that the files of a data set are: those of a hub were chosen by it.
std::string_view split_of_files(const DatasetAttributes& attributes) {
  return attributes.hub_files.empty() ? "train" : split_name(attributes.split);
}

// The rows that the data set's split names, in its order.
Result<std::vector<Conversation>> take_split(std::vector<Conversation> rows,
                                             const DatasetAttributes& attributes) {
  const std::string_view split = attributes.split, there = split_of_files(attributes);
  if (split == there) return rows;
  std::vector<Conversation> out;
  for (std::string_view rest = split; !rest.empty();) {
    const auto part = rest.substr(0, rest.find('+'));
    rest.remove_prefix(std::min(part.size() + 1, rest.size()));
    SplitRows slice;
    const auto name = TROUPE_TRY(read_slice(part, slice));
    if (name != there) {
      return error(Code::kInvalidArgument,
                   "Unknown split \"{}\". Should be one of ['{}']. (a file is one split; make an "
                   "entry for each file)",
                   name, there);
    }
    const auto [first, last] = slice.range(std::ssize(rows));
    out.insert(out.end(), rows.begin() + first, rows.begin() + last);
  }
  return out;
}

// num_samples rows: of a permutation, and where more are wanted than there are, drawn besides.
std::vector<Conversation> draw(std::vector<Conversation> rows, std::int64_t count,
                               NumpyGlobal& random) {
  const auto size = static_cast<std::uint32_t>(rows.size());
  const auto wanted = static_cast<std::size_t>(count);
  auto order = random.permutation(size);
  if (wanted > order.size()) {
    const auto more = random.choice(size, wanted - order.size());
    order.insert(order.end(), more.begin(), more.end());
  }
  order.resize(wanted);
  std::vector<Conversation> out;
  for (const auto i : order) out.push_back(rows[i]);
  return out;
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

// How much of a data set was read.
struct ReadRows {
  std::int64_t rows = 0;
  bool all = true;  // there are none behind these
};

// Whether the split or num_samples take some of the rows, which are known when all have been read.
bool picks_rows(const DatasetAttributes& attributes) {
  return attributes.num_samples || attributes.split != split_of_files(attributes);
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
  std::set<std::string> columns;
  std::set<std::string> unseen(attributes.named_columns.begin(), attributes.named_columns.end());
  unseen.insert(needed);
  const auto visit = [&](const Record& record, const std::string& where) -> Status {
    ++report.records;
    std::erase_if(unseen, [&](const std::string& name) { return record.contains(name); });
    if (!unseen.empty() && columns.size() < 32) {
      for (const auto& member : record) columns.emplace(member.key());
    }
    auto converted = convert_record(record, attributes, needs_answer);
    if (!converted) return converted.status().prefixed(where);
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
    std::string names;
    for (const auto& name : columns) names += (names.empty() ? "" : ", ") + name;
    return error(Code::kInvalidArgument,
                 "no row has the column '{}'; the rows have: {}. Name the columns under `columns` "
                 "in dataset_info.json",
                 *unseen.begin(), names);
  }
  const auto dropped = report.records_dropped - dropped_before;
  if (dropped == read) {
    return error(Code::kInvalidArgument,
                 "Cannot find valid samples: {} rows read, {} dropped{}{}; {}", read, dropped,
                 report.warnings.empty() ? "" : "; ",
                 report.warnings.empty() ? "" : report.warnings.front(), kHowRowsAreRead);
  }
  if (read > kPermutationSizeMax) {
    return error(Code::kUnsupported, "more than {} rows", kPermutationSizeMax);
  }
  return ReadRows{.rows = read};
}

// The rows of a data set, those that its split and num_samples pick. `look_at`: as above.
Result<std::vector<Conversation>> load_one(FileSystem& files, const DataOptions& options,
                                           const DatasetAttributes& attributes, NumpyGlobal& random,
                                           EncodeReport& report, std::int64_t look_at = -1) {
  std::vector<Conversation> out;
  const auto take = [&](Conversation row) {
    out.push_back(std::move(row));
    return Status();
  };
  const ReadRows read = TROUPE_TRY(read_rows(files, options, attributes, report, look_at, take));
  if (!read.all || !picks_rows(attributes)) return out;
  out = TROUPE_TRY(take_split(std::move(out), attributes));
  if (out.empty()) {
    return error(Code::kInvalidArgument, "split '{}' takes none of {} rows", attributes.split,
                 read.rows);
  }
  if (attributes.num_samples) out = draw(std::move(out), *attributes.num_samples, random);
  if (options.max_samples && std::ssize(out) > *options.max_samples) {
    out.resize(static_cast<std::size_t>(*options.max_samples));
  }
  return out;
}

}  // namespace

std::vector<std::pair<std::size_t, std::size_t>> interleave(const std::vector<std::size_t>& sizes,
                                                            const std::string& strategy,
                                                            const std::vector<double>& shares,
                                                            std::uint32_t seed) {
  std::vector<std::pair<std::size_t, std::size_t>> out;
  const auto [least, most] = std::minmax_element(sizes.begin(), sizes.end());
  const bool under = strategy == "interleave_under", over = strategy == "interleave_over";
  if (sizes.empty() || *least == 0) return out;
  if (shares.empty()) {
    for (std::size_t row = 0; row < (under ? *least : *most); ++row) {
      for (std::size_t set = 0; set < sizes.size(); ++set) {
        if (row < sizes[set] || over) out.emplace_back(set, row % sizes[set]);
      }
    }
    return out;
  }
  NumpyChoice choice(seed, shares);
  std::vector<std::size_t> taken(sizes.size());
  for (std::size_t ended = 0; ended < (under ? 1 : sizes.size());) {
    const auto set = choice.next();
    if (taken[set] >= sizes[set] && !over) continue;  // interleave_once
    out.emplace_back(set, taken[set] % sizes[set]);
    if (++taken[set] == sizes[set]) ++ended;
  }
  return out;
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
    const auto looked = load_one(files, options, attributes, random, report, rows);
    if (!looked) return looked.status().prefixed(fmt::format("data set '{}'", attributes.name));
    sizes.push_back(looked->size());
    known = known && report.records < rows;  // there are no rows behind these
  }
  if (!known) return std::optional<std::size_t>();
  if (options.mix_strategy == "concat" || sizes.size() == 1)
    return std::optional(std::accumulate(sizes.begin(), sizes.end(), std::size_t{0}));
  const auto shares = TROUPE_TRY(interleave_shares(options, sizes.size()));
  return std::optional(interleave(sizes, options.mix_strategy, shares, options.seed).size());
}

Result<std::vector<Conversation>> load_conversations(FileSystem& files, const DataOptions& options,
                                                     const std::vector<std::string>& names,
                                                     NumpyGlobal& random, EncodeReport& report) {
  std::vector<std::vector<Conversation>> sets;
  for (const auto& attributes :
       TROUPE_TRY(read_dataset_info(files, options.dataset_dir, names, options.hub_files))) {
    const EncodeReport before = report;
    auto rows = load_one(files, options, attributes, random, report);
    if (!rows) return rows.status().prefixed(fmt::format("data set '{}'", attributes.name));
    report.sets.push_back({.name = attributes.name,
                           .rows = report.records - before.records,
                           .samples = std::ranges::count(*rows, "", &Conversation::fault),
                           .dropped = report.records_dropped - before.records_dropped});
    sets.push_back(std::move(*rows));
  }
  if (sets.size() == 1) return std::move(sets.front());
  std::vector<Conversation> out;
  if (options.mix_strategy == "concat") {
    for (auto& set : sets) std::move(set.begin(), set.end(), std::back_inserter(out));
    return out;
  }
  const auto shares = TROUPE_TRY(interleave_shares(options, sets.size()));
  std::vector<std::size_t> sizes;
  for (const auto& set : sets) sizes.push_back(set.size());
  for (const auto& [set, row] : interleave(sizes, options.mix_strategy, shares, options.seed)) {
    out.push_back(sets[set][row]);
  }
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
