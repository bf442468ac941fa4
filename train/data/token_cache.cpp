#include "train/data/token_cache.h"

#include <algorithm>
#include <array>
#include <optional>
#include <type_traits>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/limits.h"

namespace troupe::train {
namespace {

// Raised with the layout.
constexpr std::int64_t kCacheFormat = 1;
// A column's bytes are gathered to so many before they are written.
constexpr std::size_t kWriteBytes = std::size_t{1} << 20;
constexpr std::array kColumnNames = {"ids", "labels", "ends", "parts", "part_ends"};

std::string file_of(const std::string& set, std::string_view column) {
  return fmt::format("{}.{}", set, column);
}

json::Object to_json(const CachedSet& set) {
  json::Array columns;
  for (const CachedColumn& column : set.columns) {
    columns.push_back(json::Object{{"name", column.name},
                                   {"size", column.size_bytes},
                                   {"xxh3", hash_text(column.xxh3)},
                                   {"modified_unix_ns", column.stamp.modified_unix_ns},
                                   {"inode", static_cast<std::int64_t>(column.stamp.inode)}});
  }
  return {{"kind", static_cast<std::int64_t>(set.kind)},
          {"pad_id", set.pad_id},
          {"xxh3", hash_text(set.xxh3)},
          {"columns", std::move(columns)}};
}

std::optional<CachedSet> set_from_json(const json::Value& value) {
  const auto kind = json::find_integer(value, "kind");
  const auto pad = json::find_integer(value, "pad_id");
  const auto hash = hash_in(value, "xxh3");
  const json::Value* columns = json::find(value, "columns");
  if (!kind || *kind < 0 || *kind > static_cast<std::int64_t>(TokenDataset::Kind::kFeedback) ||
      !pad || !hash || !columns || !columns->is_array())
    return std::nullopt;
  CachedSet set{.kind = static_cast<TokenDataset::Kind>(*kind),
                .pad_id = static_cast<TokenId>(*pad),
                .xxh3 = *hash,
                .columns = {}};
  for (const json::Value& item : columns->get_array()) {
    const auto name = json::find_string(item, "name");
    const auto size = json::find_integer(item, "size");
    const auto xxh3 = hash_in(item, "xxh3");
    const auto modified = json::find_integer(item, "modified_unix_ns");
    const auto inode = json::find_integer(item, "inode");
    // The name becomes a file's: a stranger's cache must not name another one.
    if (!name || std::ranges::find(kColumnNames, *name) == kColumnNames.end() || !size ||
        *size < 0 || !xxh3 || !modified || !inode)
      return std::nullopt;
    set.columns.push_back({.name = *name,
                           .size_bytes = static_cast<std::uint64_t>(*size),
                           .xxh3 = *xxh3,
                           .stamp = {.size_bytes = static_cast<std::uint64_t>(*size),
                                     .modified_unix_ns = *modified,
                                     .inode = static_cast<std::uint64_t>(*inode)}});
  }
  return set;
}

bool is_set_name(std::string_view name) {
  return name == "train" || name == "eval" || name == "held_out";
}

// The folder that a path lies in.
std::string parent_of(const std::string& path) {
  const auto slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return path.substr(0, std::max<std::size_t>(slash, 1));
}

// Empty files cannot be mapped.
template <typename T>
Result<std::span<const T>> map_column(FileSystem& files, const std::string& path,
                                      std::uint64_t size_bytes,
                                      std::vector<std::unique_ptr<MappedFile>>& maps) {
  if (size_bytes == 0) return std::span<const T>();
  maps.push_back(TROUPE_TRY(files.map(path)));
  const auto bytes = maps.back()->bytes();
  if (bytes.size() != size_bytes || bytes.size() % sizeof(T) != 0)
    return error(Code::kDataLoss, "{} has {} bytes, and was written with {}", path, bytes.size(),
                 size_bytes);
  return std::span(reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T));
}

Status check_column(FileSystem& files, const std::string& path, CachedColumn& column) {
  const auto size = files.size(path);
  if (!size.ok())
    return error(Code::kDataLoss, "{} is not there: {}", path, size.status().message());
  if (*size != column.size_bytes)
    return error(Code::kDataLoss, "{} has {} bytes, and was written with {}", path, *size,
                 column.size_bytes);
  const auto stamp = file_stamp(path);
  if (stamp.ok() && *stamp == column.stamp) return {};
  const std::uint64_t hash =
      *size == 0 ? xxh3_64({}) : xxh3_64(TROUPE_TRY(files.map(path))->bytes());
  if (hash != column.xxh3)
    return error(Code::kDataLoss, "{} is not what was written: its hash was {} and is {}", path,
                 hash_text(column.xxh3), hash_text(hash));
  if (stamp.ok()) column.stamp = *stamp;
  return {};
}

// All of a column's file, which `take` gives in pieces.
Status take_column(FileSystem& files, const std::string& path, CachedColumn& column,
                   const std::function<Status(std::span<std::byte>)>& take) {
  const auto file = TROUPE_TRY(files.create(path));
  Xxh3Stream hash;
  std::vector<std::byte> buffer(
      static_cast<std::size_t>(std::min<std::uint64_t>(column.size_bytes, kWriteBytes)));
  for (std::uint64_t left = column.size_bytes; left > 0;) {
    const auto piece = std::span(buffer).first(
        static_cast<std::size_t>(std::min<std::uint64_t>(left, buffer.size())));
    TROUPE_RETURN_IF_ERROR(take(piece));
    hash.update(piece);
    TROUPE_RETURN_IF_ERROR(file->append(piece));
    left -= piece.size();
  }
  TROUPE_RETURN_IF_ERROR(file->sync());
  TROUPE_RETURN_IF_ERROR(file->close());
  if (hash.digest() != column.xxh3)
    return error(Code::kDataLoss, "{} did not come as it was written: its hash was {} and is {}",
                 path, hash_text(column.xxh3), hash_text(hash.digest()));
  column.stamp = file_stamp(path).value_or(FileStamp());
  return {};
}

}  // namespace

std::string TokenCache::to_text() const {
  json::Object all_sets;
  for (const auto& [name, set] : sets) all_sets[name] = to_json(set);
  json::Object object{{"format", kCacheFormat},
                      {"settings", settings},
                      {"files", files_to_json(files)},
                      {"records", records},
                      {"notes", json::Array(notes.begin(), notes.end())},
                      {"sets", std::move(all_sets)}};
  if (!eval_parts.empty()) object["eval_parts"] = to_json(eval_parts);
  return json::write_indented(object, true) + "\n";
}

Result<TokenCache> TokenCache::parse(std::string_view text, const std::string& name) {
  const auto damaged = [&](std::string_view what) {
    return error(Code::kDataLoss, "{}: {}", name, what);
  };
  auto value = json::parse(text, name, {.bytes_max = limits::kJsonFileBytesMax});
  if (!value.ok()) return damaged(value.status().message());
  if (json::find_integer(*value, "format") != kCacheFormat)
    return damaged("another version of Troupe wrote it");
  const json::Value* settings = json::find(*value, "settings");
  const json::Value* files = json::find(*value, "files");
  const json::Value* notes = json::find(*value, "notes");
  const json::Value* sets = json::find(*value, "sets");
  const auto records = json::find_integer(*value, "records");
  if (!settings || !settings->is_object() || !files || !files->is_array() || !notes ||
      !notes->is_array() || !sets || !sets->is_object() || !records)
    return damaged("a part is missing");
  TokenCache cache{.settings = settings->get_object(),
                   .files = TROUPE_TRY(files_from_json(*files, name)),
                   .records = *records,
                   .notes = {},
                   .sets = {},
                   .eval_parts = {}};
  if (const json::Value* parts = json::find(*value, "eval_parts")) {
    auto read = eval_parts_from_json(*parts);
    if (!read) return damaged("the parts of its evaluation data are none");
    cache.eval_parts = std::move(*read);
  }
  for (const json::Value& note : notes->get_array())
    if (note.is_string()) cache.notes.emplace_back(note.get_string());
  for (const auto& member : sets->get_object()) {
    auto set = set_from_json(member.value());
    if (!set || !is_set_name(member.key())) return damaged("a set of its samples is none");
    cache.sets.emplace(std::string(member.key()), std::move(*set));
  }
  if (!cache.sets.contains("train")) return damaged("it has no samples to train on");
  return cache;
}

Result<TokenCache> read_token_cache(FileSystem& files, const std::string& folder) {
  const std::string path = join_path(folder, kTokenCacheFile);
  if (!files.exists(path)) return error(Code::kNotFound, "{} holds no tokenised data", folder);
  auto cache =
      TROUPE_TRY(TokenCache::parse(TROUPE_TRY(files.read(path, limits::kJsonFileBytesMax)), path));
  const std::string before = cache.to_text();
  for (auto& [name, set] : cache.sets)
    for (CachedColumn& column : set.columns)
      TROUPE_RETURN_IF_ERROR(
          check_column(files, join_path(folder, file_of(name, column.name)), column));
  // It was copied here: the next start need not read it again. Not where others own it.
  if (const std::string now = cache.to_text(); now != before)
    static_cast<void>(write_file_atomically(files, path, now));
  return cache;
}

Result<TokenDataset> map_cached_set(FileSystem& files, const std::string& folder,
                                    const TokenCache& cache, const std::string& set) {
  const auto found = cache.sets.find(set);
  if (found == cache.sets.end())
    return error(Code::kNotFound, "{} holds no samples \"{}\"", folder, set);
  auto maps = std::make_shared<std::vector<std::unique_ptr<MappedFile>>>();
  TokenDataset::Columns columns;
  for (const CachedColumn& column : found->second.columns) {
    const std::string path = join_path(folder, file_of(set, column.name));
    const auto map = [&](auto& into) -> Status {
      using Element = typename std::remove_reference_t<decltype(into)>::value_type;
      into = TROUPE_TRY(map_column<Element>(files, path, column.size_bytes, *maps));
      return {};
    };
    if (column.name == "ids") TROUPE_RETURN_IF_ERROR(map(columns.ids));
    if (column.name == "labels") TROUPE_RETURN_IF_ERROR(map(columns.labels));
    if (column.name == "ends") TROUPE_RETURN_IF_ERROR(map(columns.ends));
    if (column.name == "parts") TROUPE_RETURN_IF_ERROR(map(columns.parts));
    if (column.name == "part_ends") TROUPE_RETURN_IF_ERROR(map(columns.part_ends));
  }
  auto dataset = TokenDataset::over(found->second.kind, found->second.pad_id, columns, maps);
  if (!dataset.ok()) return dataset.status().prefixed(fmt::format("{}: \"{}\"", folder, set));
  dataset->set_hash(found->second.xxh3);
  return dataset;
}

Status give_cached_files(FileSystem& files, const std::string& folder, const TokenCache& cache,
                         const std::function<Status(std::span<const std::byte>)>& give) {
  for (const auto& [name, set] : cache.sets) {
    for (const CachedColumn& column : set.columns) {
      std::vector<std::unique_ptr<MappedFile>> maps;
      const auto bytes = TROUPE_TRY(map_column<std::byte>(
          files, join_path(folder, file_of(name, column.name)), column.size_bytes, maps));
      for (std::size_t at = 0; at < bytes.size(); at += kWriteBytes)
        TROUPE_RETURN_IF_ERROR(give(bytes.subspan(at, std::min(kWriteBytes, bytes.size() - at))));
    }
  }
  return {};
}

Status take_cached_files(FileSystem& files, TokenCache cache, const std::string& folder,
                         const std::function<Status(std::span<std::byte>)>& take) {
  const std::string building = folder + ".building";
  TROUPE_RETURN_IF_ERROR(files.remove_tree(building));
  auto writer = TROUPE_TRY(TokenCacheWriter::begin(files, building));
  for (auto& [name, set] : cache.sets)
    for (CachedColumn& column : set.columns)
      TROUPE_RETURN_IF_ERROR(
          take_column(files, join_path(building, file_of(name, column.name)), column, take));
  return writer.finish(std::move(cache), folder);
}

// -- writing ------------------------------------------------------------------------------

struct TokenCacheWriter::Column {
  std::unique_ptr<WritableFile> file;
  Xxh3Stream hash;
  std::uint64_t size_bytes = 0;
};

struct TokenCacheWriter::Set {
  CachedSet about;
  Xxh3Stream samples;
  std::uint64_t ids = 0, parts = 0;
  std::array<Column, kColumnNames.size()> columns;
};

TokenCacheWriter::TokenCacheWriter(FileSystem& files, std::string building)
    : files_(&files), building_(std::move(building)) {}
TokenCacheWriter::TokenCacheWriter(TokenCacheWriter&& other) noexcept
    : files_(other.files_),
      building_(std::exchange(other.building_, "")),
      sets_(std::move(other.sets_)) {}

TokenCacheWriter::~TokenCacheWriter() {
  if (building_.empty()) return;
  sets_.clear();
  static_cast<void>(files_->remove_tree(building_));
}

Result<TokenCacheWriter> TokenCacheWriter::begin(FileSystem& files, const std::string& building) {
  TROUPE_RETURN_IF_ERROR(files.create_directories(building));
  return TokenCacheWriter(files, building);
}

Status TokenCacheWriter::write(Column& column, std::span<const std::byte> bytes) {
  for (std::size_t at = 0; at < bytes.size(); at += kWriteBytes) {
    const auto piece = bytes.subspan(at, std::min(kWriteBytes, bytes.size() - at));
    TROUPE_RETURN_IF_ERROR(column.file->append(piece));
    column.hash.update(piece);
  }
  // The disk writes while the next ones are made.
  column.file->begin_sync();
  column.size_bytes += bytes.size();
  return {};
}

Status TokenCacheWriter::append(const std::string& name, const TokenDataset& samples) {
  Set& set = sets_[name];
  if (!set.columns.front().file) {
    set.about = {.kind = samples.kind(), .pad_id = samples.pad_id(), .xxh3 = 0, .columns = {}};
    for (std::size_t i = 0; i < kColumnNames.size(); ++i)
      set.columns[i].file =
          TROUPE_TRY(files_->create(join_path(building_, file_of(name, kColumnNames[i]))));
  }
  TROUPE_CHECK(set.about.kind == samples.kind() && set.about.pad_id == samples.pad_id());
  add_to_hash(set.samples, samples);
  const TokenDataset::Columns more = samples.columns();
  const auto behind = [](std::span<const std::uint64_t> ends, std::uint64_t before) {
    std::vector<std::uint64_t> out(ends.begin(), ends.end());
    for (auto& end : out) end += before;
    return out;
  };
  const auto ends = behind(more.ends, set.ids), part_ends = behind(more.part_ends, set.parts);
  set.ids += more.ids.size();
  set.parts += more.parts.size();
  const std::span<const std::byte> columns[] = {
      std::as_bytes(more.ids), std::as_bytes(more.labels), std::as_bytes(std::span(ends)),
      std::as_bytes(more.parts), std::as_bytes(std::span(part_ends))};
  for (std::size_t i = 0; i < set.columns.size(); ++i)
    TROUPE_RETURN_IF_ERROR(write(set.columns[i], columns[i]));
  return {};
}

Status TokenCacheWriter::finish(TokenCache about, const std::string& folder,
                                const std::function<void()>& on_disk) {
  for (auto& [name, set] : sets_) {
    set.about.xxh3 = set.samples.digest();
    for (std::size_t i = 0; i < kColumnNames.size(); ++i) {
      Column& column = set.columns[i];
      TROUPE_RETURN_IF_ERROR(column.file->sync());
      TROUPE_RETURN_IF_ERROR(column.file->close());
      const auto stamp = file_stamp(join_path(building_, file_of(name, kColumnNames[i])));
      set.about.columns.push_back({.name = kColumnNames[i],
                                   .size_bytes = column.size_bytes,
                                   .xxh3 = column.hash.digest(),
                                   .stamp = stamp.value_or(FileStamp())});
    }
    about.sets[name] = set.about;
  }
  sets_.clear();
  TROUPE_RETURN_IF_ERROR(
      write_file_atomically(*files_, join_path(building_, kTokenCacheFile), about.to_text()));
  TROUPE_RETURN_IF_ERROR(files_->sync_directory(building_));
  if (on_disk) on_disk();
  const std::string before = building_ + ".replaced";
  if (files_->exists(folder)) TROUPE_RETURN_IF_ERROR(files_->rename(folder, before));
  TROUPE_RETURN_IF_ERROR(files_->rename(building_, folder));
  building_.clear();
  TROUPE_RETURN_IF_ERROR(files_->sync_directory(parent_of(folder)));
  return files_->remove_tree(before);
}

}  // namespace troupe::train
