#include "train/data/load_conversations.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "train/data/dataset_info.h"
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

// LLaMA-Factory draws num_samples rows from NumPy's unseeded generator; here they are the first of
// a seeded permutation, and where more are wanted than there are, rows of further permutations.
std::vector<Conversation> draw(std::vector<Conversation> rows, std::int64_t count,
                               std::uint32_t seed) {
  std::vector<Conversation> out;
  for (std::uint32_t round = 0; !rows.empty() && std::ssize(out) < count; ++round) {
    for (const auto i : random_permutation(static_cast<std::uint32_t>(rows.size()), seed + round)) {
      if (std::ssize(out) == count) break;
      out.push_back(rows[i]);
    }
  }
  return out;
}

constexpr const char* kHowRowsAreRead =
    "formatting, columns and tags of its entry in dataset_info.json say how rows are read";

// `look_at`: only so many of the first rows are read, and nothing is said of those behind;
// negative: all.
Result<std::vector<Conversation>> load_one(FileSystem& files, const DataOptions& options,
                                           const DatasetAttributes& attributes,
                                           EncodeReport& report, std::int64_t look_at = -1) {
  if (attributes.ranking) {
    return error(Code::kInvalidArgument,
                 "The dataset is not applicable in the current training stage. ('{}' has "
                 "ranking: true)",
                 attributes.name);
  }
  const std::int64_t records_before = report.records, dropped_before = report.records_dropped;
  const auto data =
      TROUPE_TRY(find_data_files(files, join_path(options.dataset_dir, attributes.file_name)));
  const bool for_sft = options.stage == DataOptions::Stage::kSupervised;
  const auto& needed = main_column(attributes);
  if (needed.empty()) {
    return error(Code::kInvalidArgument, "columns must name {}",
                 attributes.formatting == Formatting::kAlpaca ? "prompt" : "messages");
  }
  std::vector<Conversation> out;
  std::set<std::string> columns;
  bool seen = false;
  const auto visit = [&](const Record& record, const std::string& where) -> Status {
    ++report.records;
    if (!seen && record.contains(needed)) seen = true;
    if (!seen && columns.size() < 32) {
      for (const auto& member : record) columns.emplace(member.key());
    }
    auto converted = convert_record(record, attributes, for_sft);
    if (!converted) return converted.status().prefixed(where);
    if (auto* dropped = std::get_if<Dropped>(&*converted)) {
      ++report.records_dropped;
      warn(report, fmt::format("{}: dropped: {}", where, dropped->reason));
    } else {
      out.push_back(std::get<Conversation>(std::move(*converted)));
    }
    return {};
  };
  auto rows_max = attributes.num_samples ? -1 : options.max_samples.value_or(-1);
  const bool looks = look_at >= 0 && (rows_max < 0 || look_at < rows_max);
  if (looks) rows_max = look_at;
  TROUPE_RETURN_IF_ERROR(read_records(files, data, rows_max, visit));
  const std::int64_t read = report.records - records_before;
  // Rows that were not read may be what these are not.
  if (looks && read == look_at) return out;
  if (!seen && !columns.empty()) {
    std::string names;
    for (const auto& name : columns) names += (names.empty() ? "" : ", ") + name;
    return error(Code::kInvalidArgument,
                 "no row has the column '{}'; the rows have: {}. Name the columns under `columns` "
                 "in dataset_info.json",
                 needed, names);
  }
  if (out.empty()) {
    return error(Code::kInvalidArgument,
                 "Cannot find valid samples: {} rows read, {} dropped{}{}; {}", read,
                 report.records_dropped - dropped_before, report.warnings.empty() ? "" : "; ",
                 report.warnings.empty() ? "" : report.warnings.front(), kHowRowsAreRead);
  }
  if (out.size() > static_cast<std::size_t>(kPermutationSizeMax)) {
    return error(Code::kUnsupported, "more than {} rows", kPermutationSizeMax);
  }
  if (!attributes.num_samples) return out;
  out = draw(std::move(out), *attributes.num_samples, options.seed);
  if (options.max_samples && std::ssize(out) > *options.max_samples) {
    out.resize(static_cast<std::size_t>(*options.max_samples));
  }
  return out;
}

}  // namespace

std::vector<std::pair<std::size_t, std::size_t>> interleave(const std::vector<std::size_t>& sizes,
                                                            const std::string& strategy) {
  std::vector<std::pair<std::size_t, std::size_t>> out;
  const auto [least, most] = std::minmax_element(sizes.begin(), sizes.end());
  const bool under = strategy == "interleave_under", over = strategy == "interleave_over";
  if (sizes.empty() || *least == 0) return out;
  for (std::size_t row = 0; row < (under ? *least : *most); ++row) {
    for (std::size_t set = 0; set < sizes.size(); ++set) {
      if (row < sizes[set] || over) out.emplace_back(set, row % sizes[set]);
    }
  }
  return out;
}

Result<std::optional<std::size_t>> look_at_conversations(FileSystem& files,
                                                         const DataOptions& options,
                                                         const std::vector<std::string>& names,
                                                         std::int64_t rows) {
  std::vector<std::size_t> sizes;
  bool known = true;
  for (const auto& attributes : TROUPE_TRY(read_dataset_info(files, options.dataset_dir, names))) {
    EncodeReport report;
    const auto looked = load_one(files, options, attributes, report, rows);
    if (!looked) return looked.status().prefixed(fmt::format("data set '{}'", attributes.name));
    sizes.push_back(looked->size());
    known = known && report.records < rows;  // there are no rows behind these
  }
  if (!known) return std::optional<std::size_t>();
  if (options.mix_strategy == "concat" || sizes.size() == 1)
    return std::optional(std::accumulate(sizes.begin(), sizes.end(), std::size_t{0}));
  return std::optional(interleave(sizes, options.mix_strategy).size());
}

Result<std::vector<Conversation>> load_conversations(FileSystem& files, const DataOptions& options,
                                                     const std::vector<std::string>& names,
                                                     EncodeReport& report) {
  std::vector<std::vector<Conversation>> sets;
  for (const auto& attributes : TROUPE_TRY(read_dataset_info(files, options.dataset_dir, names))) {
    const EncodeReport before = report;
    auto rows = load_one(files, options, attributes, report);
    if (!rows) return rows.status().prefixed(fmt::format("data set '{}'", attributes.name));
    report.sets.push_back({.name = attributes.name,
                           .rows = report.records - before.records,
                           .samples = std::ssize(*rows),
                           .dropped = report.records_dropped - before.records_dropped});
    sets.push_back(std::move(*rows));
  }
  if (sets.size() == 1) return std::move(sets.front());
  std::vector<Conversation> out;
  if (options.mix_strategy == "concat") {
    for (auto& set : sets) std::move(set.begin(), set.end(), std::back_inserter(out));
    return out;
  }
  std::vector<std::size_t> sizes;
  for (const auto& set : sets) sizes.push_back(set.size());
  for (const auto& [set, row] : interleave(sizes, options.mix_strategy)) {
    out.push_back(sets[set][row]);
  }
  return out;
}

}  // namespace troupe::train
