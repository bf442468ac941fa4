#include "train/data/records.h"

#include <algorithm>
#include <optional>

#include "train/arrow/arrow_rows.h"
#include "train/data/compressed.h"

namespace troupe::train {
namespace {

// Ends a reading early without being a failure to the caller.
struct Counter {
  std::int64_t left;
  bool take() {
    if (left == 0) return false;
    if (left > 0) --left;
    return true;
  }
};

std::string extension_of(const std::string& path) {
  const auto slash = path.rfind('/');
  auto name = slash == std::string::npos ? path : path.substr(slash + 1);
  for (const std::string_view packed : {".gz", ".zst"})
    if (name.ends_with(packed)) name.resize(name.size() - packed.size());
  const auto dot = name.rfind('.');
  return dot == std::string::npos ? "" : name.substr(dot + 1);
}

Result<FileType> type_of(const std::string& path) {
  const auto extension = extension_of(path);
  if (extension == "json" || extension == "jsonl") return FileType::kJson;
  if (extension == "csv") return FileType::kCsv;
  if (extension == "txt") return FileType::kText;
  if (extension == "parquet") return FileType::kParquet;
  if (extension == "arrow") return FileType::kArrow;
  return error(Code::kInvalidArgument, "{}: Allowed file types: arrow,csv,json,jsonl,parquet,txt.",
               path);
}

// The shards of a data set that datasets.save_to_disk wrote into this folder; none where it did
// not.
Result<std::vector<std::string>> saved_shards(FileSystem& files, const std::string& folder) {
  const std::string state = join_path(folder, "state.json");
  std::vector<std::string> out;
  if (!files.exists(state) || !files.exists(join_path(folder, "dataset_info.json"))) return out;
  const auto text = TROUPE_TRY(files.read(state, limits::kConfigBytesMax));
  const auto root = TROUPE_TRY(json::parse(text, state));
  const auto* shards = json::find(root, "_data_files");
  for (const auto& shard : shards && shards->is_array() ? shards->get_array() : json::Array()) {
    const auto name = json::find_string(shard, "filename");
    if (!name || name->find('/') != std::string::npos)
      return error(Code::kDataLoss, "{}: _data_files must have objects with filename", state);
    out.push_back(join_path(folder, std::string(*name)));
  }
  if (out.empty()) return error(Code::kDataLoss, "{}: it names no file", state);
  return out;
}

Status read_arrow(std::string_view bytes, FileType type, const std::string& path, Counter& counter,
                  const RecordVisitor& visit) {
  return read_arrow_rows(
      std::as_bytes(std::span(bytes)),
      type == FileType::kParquet ? ArrowKind::kParquet : ArrowKind::kIpc, path,
      [&](const json::Object& row, std::int64_t number) -> Result<bool> {
        if (!counter.take()) return false;
        TROUPE_RETURN_IF_ERROR(visit(row, fmt::format("{} row {}", path, number)));
        return true;
      });
}

// The next line of `text` from `at`, without its end (\n, \r\n or \r); nothing behind the last.
std::optional<std::string_view> next_line(std::string_view text, std::size_t& at) {
  if (at >= text.size()) return std::nullopt;
  const auto end = text.find_first_of("\r\n", at);
  if (end == std::string_view::npos) {
    const auto line = text.substr(at);
    at = text.size();
    return line;
  }
  const auto line = text.substr(at, end - at);
  at = end + (text.substr(end).starts_with("\r\n") ? 2 : 1);
  return line;
}

std::string_view without_mark(std::string_view text) {
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  return text;
}

Status read_text(std::string_view text, const std::string& path, Counter& counter,
                 const RecordVisitor& visit) {
  std::int64_t number = 0;
  for (std::size_t at = 0; const auto line = next_line(text, at);) {
    ++number;
    if (!counter.take()) return {};
    Record record;
    record["text"] = json::Value(std::string_view(*line));
    TROUPE_RETURN_IF_ERROR(visit(record, fmt::format("{} line {}", path, number)));
  }
  return {};
}

Status read_json_array(const json::Value& root, const std::string& path, Counter& counter,
                       const RecordVisitor& visit) {
  std::int64_t number = 0;
  for (const auto& item : root.get_array()) {
    const auto where = fmt::format("{} item {}", path, number++);
    if (!item.is_object()) {
      return error(Code::kInvalidArgument, "{}: must be an object, is {}", where,
                   json::write(item).substr(0, 60));
    }
    if (!counter.take()) return {};
    TROUPE_RETURN_IF_ERROR(visit(item.get_object(), where));
  }
  return {};
}

Status read_json(std::string_view text, const std::string& path, Counter& counter,
                 const RecordVisitor& visit) {
  json::ParseOptions options;
  options.bytes_max = limits::kJsonFileBytesMax;
  const auto first = text.find_first_not_of(" \t\r\n");
  if (first != std::string_view::npos && text[first] == '[') {
    const auto root = TROUPE_TRY(json::parse(text, path, options));
    return read_json_array(root, path, counter, visit);
  }
  std::int64_t number = 0;
  bool is_first = true;
  for (std::size_t at = 0; at < text.size();) {
    auto end = text.find('\n', at);
    if (end == std::string_view::npos) end = text.size();
    const auto line = text.substr(at, end - at);
    at = end + 1;
    const auto where = fmt::format("{} line {}", path, ++number);
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    auto parsed = json::parse(line, where, options);
    if (!parsed && is_first) {  // one object over several lines?
      if (auto whole = json::parse(text, path, options))
        parsed = std::move(whole), at = text.size();
    }
    is_first = false;
    const auto value = TROUPE_TRY(std::move(parsed));
    if (!value.is_object()) {
      return error(Code::kInvalidArgument,
                   "{}: must be an object (a JSON data file is an array of objects, or one object "
                   "a line)",
                   where);
    }
    if (!counter.take()) return {};
    TROUPE_RETURN_IF_ERROR(visit(value.get_object(), where));
  }
  return {};
}

// One row of RFC 4180: fields with commas, quotes ("" inside) and line ends where quoted.
Result<std::vector<std::string>> next_row(std::string_view text, std::size_t& at,
                                          std::int64_t& line) {
  std::vector<std::string> fields(1);
  bool quoted = false, was_quoted = false;
  for (; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '\n') ++line;
    if (quoted) {
      if (c == '"' && text.substr(at + 1).starts_with('"')) {
        fields.back().push_back('"');
        ++at;
      } else if (c == '"') {
        quoted = false;
      } else {
        fields.back().push_back(c);
      }
    } else if (c == '"' && fields.back().empty() && !was_quoted) {
      quoted = was_quoted = true;
    } else if (c == ',') {
      fields.emplace_back();
      was_quoted = false;
    } else if (c == '\n' || c == '\r') {
      ++at;
      if (c == '\r' && text.substr(at).starts_with('\n')) ++at, ++line;
      return fields;
    } else {
      fields.back().push_back(c);
    }
  }
  if (quoted) return error(Code::kInvalidArgument, "a quoted field is not closed");
  return fields;
}

Status read_csv(std::string_view text, const std::string& path, Counter& counter,
                const RecordVisitor& visit) {
  std::size_t at = 0;
  std::int64_t line = 1;
  const auto row = [&]() -> Result<std::vector<std::string>> {
    const auto begin = line;
    auto fields = next_row(text, at, line);
    if (!fields) return fields.status().prefixed(fmt::format("{} line {}", path, begin));
    return fields;
  };
  const auto header = TROUPE_TRY(row());
  for (auto name = header.begin(); name != header.end(); ++name) {
    if (std::find(header.begin(), name, *name) != name)
      return error(Code::kInvalidArgument, "{} line 1: two columns are named '{}'; name them apart",
                   path, *name);
  }
  while (at < text.size()) {
    const auto where = fmt::format("{} line {}", path, line);
    const auto fields = TROUPE_TRY(row());
    if (fields.size() == 1 && fields[0].empty()) continue;  // an empty line
    if (fields.size() != header.size()) {
      return error(Code::kInvalidArgument, "{}: {} fields, the header has {}", where, fields.size(),
                   header.size());
    }
    if (!counter.take()) return {};
    Record record;
    for (std::size_t i = 0; i < fields.size(); ++i) {
      record[header[i]] = json::Value(std::string_view(fields[i]));
    }
    TROUPE_RETURN_IF_ERROR(visit(record, where));
  }
  return {};
}

}  // namespace

Result<DataFiles> find_data_files(FileSystem& files, const std::string& path,
                                  std::optional<FileType> given) {
  const auto type_of_file = [&](const std::string& file) -> Result<FileType> {
    if (given) return *given;
    return type_of(file);
  };
  if (!files.exists(path)) {
    return error(Code::kNotFound, "File {} not found. (file_name is relative to dataset_dir)",
                 path);
  }
  if (files.exists(join_path(path, "dataset_dict.json"))) {
    const auto split = join_path(path, "train");
    if (files.exists(split)) return find_data_files(files, split, given);
    return error(Code::kInvalidArgument,
                 "{} has several splits and none of them is train: name the folder of one", path);
  }
  DataFiles out;
  out.paths = TROUPE_TRY(saved_shards(files, path));
  if (!out.paths.empty()) {
    out.type = FileType::kArrow;
    return out;
  }
  const auto entries = files.list(path);
  if (!entries) {  // a file
    out.type = TROUPE_TRY(type_of_file(path));
    out.paths.push_back(path);
    return out;
  }
  std::string first_extension;
  for (const auto& entry : *entries) {
    if (entry.is_directory) {
      return error(Code::kUnsupported,
                   "{} has a directory '{}' in it: put all files of a data set into one directory",
                   path, entry.name);
    }
    const auto file = join_path(path, entry.name);
    const auto type = TROUPE_TRY(type_of_file(file));
    if (!out.paths.empty() && type != out.type) {
      return error(Code::kInvalidArgument, "File types should be identical. ({} and {} in {})",
                   out.paths.back(), entry.name, path);
    }
    out.type = type;
    out.paths.push_back(file);
  }
  if (out.paths.empty()) {
    return error(Code::kInvalidArgument, "{}: the directory has no files", path);
  }
  return out;
}

Status read_records(FileSystem& files, const DataFiles& data, std::int64_t records_max,
                    const RecordVisitor& visit) {
  Counter counter{records_max};
  for (const auto& path : data.paths) {
    if (TROUPE_TRY(files.size(path)) == 0) continue;  // nothing to map
    const auto mapped = TROUPE_TRY(files.map(path));
    const auto bytes = mapped->bytes();
    const std::string_view stored(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    const auto plain = TROUPE_TRY(decompressed(stored, path));
    if (data.type == FileType::kParquet || data.type == FileType::kArrow) {
      TROUPE_RETURN_IF_ERROR(
          read_arrow(plain ? std::string_view(*plain) : stored, data.type, path, counter, visit));
      continue;
    }
    const auto text = without_mark(plain ? std::string_view(*plain) : stored);
    switch (data.type) {
      case FileType::kText:
        TROUPE_RETURN_IF_ERROR(read_text(text, path, counter, visit));
        break;
      case FileType::kJson:
        TROUPE_RETURN_IF_ERROR(read_json(text, path, counter, visit));
        break;
      case FileType::kCsv:
        TROUPE_RETURN_IF_ERROR(read_csv(text, path, counter, visit));
        break;
      case FileType::kParquet:
      case FileType::kArrow:
        break;
    }
  }
  return {};
}

}  // namespace troupe::train
