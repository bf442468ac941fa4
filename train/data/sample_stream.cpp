#include "train/data/sample_stream.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "runtime/base/hash.h"
#include "runtime/base/limits.h"
#include "runtime/base/suggest.h"
#include "train/data/dataset_info.h"
#include "train/data/records.h"
#include "train/data/row_dataset.h"

namespace troupe::train {
namespace {

constexpr std::size_t kShownBytesMax = 200;

// A checkpoint may be a stranger's: what it says of itself neither steers a terminal nor fills it.
std::string shown(std::string text) {
  if (text.size() > kShownBytesMax) {
    std::size_t end = kShownBytesMax;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
    text.resize(end);
    text += "...";
  }
  std::ranges::replace_if(
      text, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, '?');
  return text;
}

template <typename T>
json::Value or_null(const std::optional<T>& value) {
  return value ? json::Value(*value) : json::Value();
}

// Entries of dataset_info.json by what their columns and tags are called.
std::string describe(const DatasetAttributes& a) {
  std::string text =
      fmt::format("{} {}", static_cast<int>(a.formatting), a.num_samples.value_or(-1));
  for (const std::string* name :
       {&a.prompt, &a.query, &a.response, &a.history, &a.messages, &a.system, &a.tools, &a.role_tag,
        &a.content_tag, &a.user_tag, &a.assistant_tag, &a.observation_tag, &a.function_tag,
        &a.system_tag}) {
    text += fmt::format(" {}:{}", name->size(), *name);
  }
  // What came later stands there only where it is used, so that older hashes stay.
  for (const std::string* name : {&a.chosen, &a.rejected, &a.kto_tag}) {
    if (!name->empty()) text += fmt::format(" {}:{}", name->size(), *name);
  }
  if (a.split != "train") text += " split " + a.split;
  return text + "\n";
}

// How the samples follow each other.
void add_order(json::Object& settings, const StreamOrigin& origin) {
  settings["disable_shuffling"] = !origin.shuffle;
  if (origin.shuffle) settings["data_seed (else seed)"] = origin.order_seed;
  if (origin.group_by_length) settings["group_by_length"] = true;
  if (!origin.packing.empty()) settings["troupe.sample_packing"] = origin.packing;
}

// Reward models and dpo have the same samples.
std::string_view stage_name(DataOptions::Stage stage) {
  switch (stage) {
    case DataOptions::Stage::kPretrain:
      return "pt";
    case DataOptions::Stage::kPairs:
      return "rm or dpo";
    case DataOptions::Stage::kFeedback:
      return "kto";
    case DataOptions::Stage::kSupervised:
      break;
  }
  return "sft";
}

// The data sets' names. By themselves they decide nothing.
constexpr std::string_view kNames = "dataset";

json::Object settings_of(const DataOptions& options, const StreamOrigin& origin,
                         const std::string& columns) {
  const bool pretrain = options.stage == DataOptions::Stage::kPretrain;
  const bool splits = options.val_size > 0 || options.held_out > 0;
  json::Object settings{{"stage", stage_name(options.stage)},
                        {"template", options.template_name.value_or("")},
                        {"tokenizer", hash_text(xxh3_64(bytes_of(origin.tokenizer)))},
                        {kColumnsSetting, hash_text(xxh3_64(bytes_of(columns)))},
                        {kNames, join_words(options.dataset, ",")},
                        {"cutoff_len", options.cutoff_len},
                        {"packing", packs(options)},
                        {"max_samples", or_null(options.max_samples)},
                        {"mix_strategy", options.mix_strategy},
                        {"val_size", options.val_size},
                        {"troupe.held_out", options.held_out}};
  add_order(settings, origin);
  if (!options.interleave_probs.empty()) {
    std::string shares;
    for (const auto& share : options.interleave_probs)
      shares += (shares.empty() ? "" : ",") + share;
    settings["interleave_probs"] = shares;
  }
  if (splits) settings["seed"] = options.seed;
  if (packs(options)) settings["preprocessing_batch_size"] = options.preprocessing_batch_size;
  const RowOptions& rows = options.rows;
  if (!rows.datasets.empty()) {
    settings["seed"] = options.seed;
    settings["troupe.datasets"] = hash_text(xxh3_64(bytes_of(json::write(rows.datasets))));
    settings["troupe.min_sample_len"] = rows.min_sample_len;
    settings["troupe.excess_length"] = rows.excess_length;
    settings["troupe.shuffle_merged_datasets"] = rows.shuffle;
    settings["troupe.train_on_inputs"] = rows.train_on_inputs;
    settings["troupe.special_tokens"] = rows.special_tokens;
    return settings;
  }
  if (pretrain) return settings;
  settings["neat_packing"] = options.neat_packing;
  settings["train_on_prompt"] = options.train_on_prompt;
  settings["mask_history"] = options.mask_history;
  settings["default_system"] = or_null(options.default_system);
  settings["enable_thinking"] =
      options.enable_thinking ? json::Value(*options.enable_thinking) : json::Value();
  if (options.preserve_thinking) settings["preserve_thinking"] = true;
  if (options.tool_format) settings["tool_format"] = *options.tool_format;
  return settings;
}

std::vector<std::string> file_differences(const SampleStream& before, const SampleStream& now) {
  std::vector<std::string> found;
  // A file may have changed where no sample is made of it: in its spaces, or behind max_samples.
  if (before.samples == now.samples && before.xxh3 == now.xxh3) return found;
  if (std::ranges::equal(before.files, now.files, {}, &StreamFile::xxh3, &StreamFile::xxh3))
    return found;
  const auto same_path = [](const SampleStream& stream, const StreamFile& file) {
    const auto at = std::ranges::find(stream.files, file.path, &StreamFile::path);
    return at == stream.files.end() ? nullptr : &*at;
  };
  for (const StreamFile& file : before.files) {
    const StreamFile* other = same_path(now, file);
    if (!other) {
      found.push_back(fmt::format("{} is not among the data any more", shown(file.path)));
    } else if (other->xxh3 != file.xxh3) {
      found.push_back(fmt::format("{} is not what it was (its hash was {} and is {})", file.path,
                                  hash_text(file.xxh3), hash_text(other->xxh3)));
    }
  }
  for (const StreamFile& file : now.files) {
    if (!same_path(before, file))
      found.push_back(fmt::format("{} was not among the data", file.path));
  }
  if (found.empty()) found.push_back("the data files come in another order");
  return found;
}

Result<StreamFile> file_from_json(const json::Value& value, std::string_view name) {
  const auto path = json::find_string(value, "path");
  const auto size = json::find_integer(value, "size");
  const auto modified = json::find_integer(value, "modified_unix_ns");
  const auto inode = json::find_integer(value, "inode");
  const auto hash = hash_in(value, "xxh3");
  if (!path || !size || !modified || !inode || !hash)
    return error(Code::kDataLoss, "{}: an entry of its files is none", name);
  return StreamFile{.path = *path,
                    .stamp = {.size_bytes = static_cast<std::uint64_t>(*size),
                              .modified_unix_ns = *modified,
                              .inode = static_cast<std::uint64_t>(*inode)},
                    .xxh3 = *hash};
}

// Read, not mapped: a file that becomes shorter meanwhile is an error then, not a signal.
Result<std::uint64_t> hash_of_file(FileSystem& files, const std::string& path,
                                   const std::stop_token& stop) {
  const auto file = TROUPE_TRY(files.open_readable(path));
  Xxh3Stream hash;
  std::vector<std::byte> piece;
  for (std::uint64_t at = 0; at < file->size(); at += piece.size()) {
    if (stop.stop_requested()) return error(Code::kCancelled, "nobody wants the hash of {}", path);
    piece.resize(std::min<std::uint64_t>(std::size_t{1} << 20, file->size() - at));
    const Status read = file->read_at(at, piece);
    if (!read.ok()) return read.prefixed(fmt::format("{} changed while it was read", path));
    hash.update(piece);
  }
  return hash.digest();
}

}  // namespace

std::string hash_text(std::uint64_t hash) { return fmt::format("{:016x}", hash); }

std::optional<std::uint64_t> hash_in(const json::Value& value, std::string_view key) {
  const std::string text = json::find_string(value, key).value_or("");
  std::uint64_t hash = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), hash, 16);
  if (text.size() != 16 || ec != std::errc() || end != text.data() + text.size()) return {};
  return hash;
}

std::uint64_t samples_hash(const TokenDataset& dataset) {
  if (const auto known = dataset.known_hash()) return *known;
  Xxh3Stream hash;
  add_to_hash(hash, dataset);
  return hash.digest();
}

void add_to_hash(Xxh3Stream& hash, const TokenDataset& samples) {
  const auto add = [&hash](auto values) {
    const std::uint64_t count = values.size();
    hash.update(std::as_bytes(std::span(&count, 1)));
    hash.update(std::as_bytes(values));
  };
  for (std::int64_t i = 0; i < samples.size(); ++i) {
    add(samples.ids(i));
    add(samples.labels(i));
    add(samples.part_lengths(i));
  }
}

Result<StreamFile> describe_file(FileSystem& files, const std::string& path,
                                 std::span<const StreamFile> known, std::stop_token stop) {
  StreamFile file{.path = path};
  // Before the bytes are read: what is written meanwhile has another stamp.
  if (const auto stamp = file_stamp(path); stamp.ok()) {
    file.stamp = *stamp;
    for (const StreamFile& one : known) {
      if (one.path == path && one.stamp == *stamp) return one;
    }
  }
  file.xxh3 = TROUPE_TRY(hash_of_file(files, path, stop));
  return file;
}

Result<std::string> columns_of(FileSystem& files, const DataOptions& options,
                               const std::vector<std::string>& names) {
  std::string columns;
  if (names.empty()) return columns;
  for (const auto& attributes :
       TROUPE_TRY(read_dataset_info(files, options.dataset_dir, names, options.hub_files)))
    columns += describe(attributes);
  return columns;
}

Result<std::vector<std::string>> training_files(FileSystem& files, const DataOptions& options) {
  auto out = TROUPE_TRY(row_dataset_files(files, options.rows.datasets));
  if (options.dataset.empty()) return out;
  for (const auto& attributes : TROUPE_TRY(
           read_dataset_info(files, options.dataset_dir, options.dataset, options.hub_files))) {
    const auto data = TROUPE_TRY(find_data_files(files, options.dataset_dir, attributes));
    out.insert(out.end(), data.paths.begin(), data.paths.end());
  }
  return out;
}

json::Array files_to_json(std::span<const StreamFile> files) {
  json::Array list;
  for (const StreamFile& file : files) {
    list.push_back(json::Object{{"path", file.path},
                                {"size", file.stamp.size_bytes},
                                {"modified_unix_ns", file.stamp.modified_unix_ns},
                                {"inode", static_cast<std::int64_t>(file.stamp.inode)},
                                {"xxh3", hash_text(file.xxh3)}});
  }
  return list;
}

Result<std::vector<StreamFile>> files_from_json(const json::Value& list, std::string_view name) {
  std::vector<StreamFile> files;
  for (const json::Value& item : list.get_array())
    files.push_back(TROUPE_TRY(file_from_json(item, name)));
  return files;
}

std::string SampleStream::to_text() const {
  const json::Object object{
      {"files", files_to_json(files)},
      {"samples", json::Object{{"count", samples}, {"tokens", tokens}, {"xxh3", hash_text(xxh3)}}},
      {"settings", settings}};
  return json::write_indented(object, true) + "\n";
}

Result<SampleStream> SampleStream::parse(std::string_view text, std::string_view name) {
  const auto value = TROUPE_TRY(json::parse(text, name, {.bytes_max = limits::kJsonFileBytesMax}));
  const json::Value* files = json::find(value, "files");
  const json::Value* samples = json::find(value, "samples");
  const json::Value* settings = json::find(value, "settings");
  if (!files || !files->is_array() || !samples || !settings || !settings->is_object())
    return error(Code::kDataLoss, "{}: a part is missing", name);
  SampleStream stream;
  stream.files = TROUPE_TRY(files_from_json(*files, name));
  stream.settings = settings->get_object();
  const auto count = json::find_integer(*samples, "count");
  const auto tokens = json::find_integer(*samples, "tokens");
  const auto hash = hash_in(*samples, "xxh3");
  if (!count || !tokens || !hash)
    return error(Code::kDataLoss, "{}: it does not say what its samples are", name);
  stream.samples = *count;
  stream.tokens = *tokens;
  stream.xxh3 = *hash;
  return stream;
}

Result<json::Object> stream_settings(FileSystem& files, const DataOptions& options,
                                     const StreamOrigin& origin) {
  return settings_of(options, origin, TROUPE_TRY(columns_of(files, options, options.dataset)));
}

Result<SampleStream> describe_stream(FileSystem& files, const DataOptions& options,
                                     const StreamOrigin& origin, const TokenDataset& dataset,
                                     std::span<const StreamFile> known) {
  SampleStream stream{
      .samples = dataset.size(), .tokens = dataset.token_count(), .xxh3 = samples_hash(dataset)};
  for (const std::string& path : TROUPE_TRY(training_files(files, options)))
    stream.files.push_back(TROUPE_TRY(describe_file(files, path, known)));
  stream.settings = TROUPE_TRY(stream_settings(files, options, origin));
  return stream;
}

SampleStream own_stream(std::string_view source, std::int64_t samples, const TokenDataset& dataset,
                        std::uint32_t order_seed, bool shuffle) {
  SampleStream stream{
      .samples = samples, .tokens = dataset.token_count(), .xxh3 = samples_hash(dataset)};
  stream.settings = {
      {"data source", source}, {"samples in an epoch", samples}, {"disable_shuffling", !shuffle}};
  if (shuffle) stream.settings["data_seed (else seed)"] = order_seed;
  return stream;
}

SampleStream taken_stream(const StreamOrigin& origin, const TokenDataset& dataset,
                          std::vector<StreamFile> files) {
  SampleStream stream{.files = std::move(files),
                      .settings = {},
                      .samples = dataset.size(),
                      .tokens = dataset.token_count(),
                      .xxh3 = samples_hash(dataset)};
  add_order(stream.settings, origin);
  return stream;
}

std::string setting_difference(std::string_view key, const json::Value* before,
                               const json::Value& now) {
  constexpr std::string_view kHashed[] = {"tokenizer", kColumnsSetting, "troupe.datasets",
                                          "troupe.eval_datasets"};
  if (std::ranges::find(kHashed, key) != std::end(kHashed)) {
    const bool are = key != kHashed[0];
    return fmt::format("{}{} {}", are ? "" : "the ", key, are ? "are others" : "is another one");
  }
  const auto text = [](const json::Value& value) {
    return value.is_double() ? json::python_float(value.get_double())
                             : json::write_indented(value, true);
  };
  return fmt::format("{} was {} and is {}", key, before ? shown(text(*before)) : "not there",
                     shown(text(now)));
}

std::vector<std::string> differences(const SampleStream& before, const SampleStream& now) {
  constexpr std::string_view kStreaming = "streaming";
  // Then all else is another thing, too.
  const bool streamed = before.settings.contains(kStreaming);
  if (!before.settings.empty() && !now.settings.empty() &&
      streamed != now.settings.contains(kStreaming))
    return {fmt::format("streaming was {} and is {}", streamed, !streamed)};
  std::vector<std::string> found = file_differences(before, now);
  const auto changed = [&](std::string_view key) {
    const json::Value* old = before.settings.if_contains(key);
    const json::Value* is = now.settings.if_contains(key);
    return old && is && json::write_indented(*old, true) != json::write_indented(*is, true);
  };
  for (const auto& setting : now.settings) {
    std::string_view key = setting.key();
    if (key == kNames || !changed(key)) continue;
    if (key == kColumnsSetting && changed(kNames)) key = kNames;
    found.push_back(
        setting_difference(key, before.settings.if_contains(key), now.settings.at(key)));
  }
  if (found.empty() && before.xxh3 != now.xxh3) {
    found.push_back(
        fmt::format("files and settings give {} samples of {} tokens where they gave {} of {}, as "
                    "another version of Troupe made them",
                    now.samples, now.tokens, before.samples, before.tokens));
  }
  return found;
}

}  // namespace troupe::train
