#include "train/data/records.h"

#include <fnmatch.h>

#include <algorithm>
#include <optional>
#include <span>

#include "train/arrow/arrow_rows.h"
#include "train/data/file_text.h"
#include "train/tokenizer/unicode.h"

namespace troupe::train {
namespace {

// Compressed Arrow data have to be unpacked whole; larger ones would not fit beside the samples.
constexpr std::size_t kUnpackedBytesMax = std::size_t{8} << 30;

// Ends a reading early without being a failure to the caller.
struct Counter {
  std::int64_t left;  // negative: no end
  void take() {
    if (left > 0) --left;
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

Status read_arrow(FileSystem& files, FileText& text, FileType type, Counter& counter,
                  const RecordVisitor& visit) {
  const std::string& path = text.path();
  std::unique_ptr<MappedFile> mapped;
  std::string unpacked;
  std::span<const std::byte> bytes;
  if (text.is_compressed()) {
    unpacked = TROUPE_TRY(text.rest(kUnpackedBytesMax));
    bytes = std::as_bytes(std::span(unpacked));
  } else {
    if (TROUPE_TRY(files.size(path)) == 0) return {};  // nothing to map
    mapped = TROUPE_TRY(files.map(path));
    bytes = mapped->bytes();
  }
  return read_arrow_rows(
      bytes, type == FileType::kParquet ? ArrowKind::kParquet : ArrowKind::kIpc, path,
      [&](const json::Object& row, std::int64_t number) -> Result<bool> {
        if (counter.left == 0) return false;
        counter.take();
        TROUPE_RETURN_IF_ERROR(visit(row, fmt::format("{} row {}", path, number)));
        return true;
      });
}

// UTF-8's is passed over.
Status pass_byte_order_mark(FileText& text) {
  while (text.window().size() < 3 && TROUPE_TRY(text.more())) continue;
  const auto window = text.window();
  if (window.starts_with("\xef\xbb\xbf")) text.take(3);
  if (window.starts_with("\xff\xfe") || window.starts_with("\xfe\xff"))
    return error(Code::kUnsupported,
                 "{}: it is UTF-16; convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)", text.path());
  return {};
}

// A row may be a gigabyte long.
constexpr json::ParseOptions kRowOptions{.bytes_max = limits::kJsonFileBytesMax};

// Where the text is, in lines and columns from 1.
struct TextPlace {
  std::size_t line = 1, column = 1;
  void pass(std::string_view text) {
    const auto last = text.rfind('\n');
    column = last == std::string_view::npos ? column + text.size() : text.size() - last;
    line += static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
  }
};

// The next line without its end, which is \n, or with `any_end` \r\n or \r as well; nothing behind
// the last one. Valid until more is read.
Result<std::optional<std::string_view>> next_line(FileText& text, bool any_end) {
  bool at_end = false;
  for (std::size_t seen = 0;;) {
    const auto window = text.window();
    const auto end = any_end ? window.find_first_of("\r\n", seen) : window.find('\n', seen);
    const bool found = end != std::string_view::npos;
    // What follows \r may be \n.
    if (!at_end && (!found || (window[end] == '\r' && end + 1 == window.size()))) {
      seen = found ? end : window.size();
      // The window lies elsewhere then, at the end of the text, too.
      at_end = !TROUPE_TRY(text.more());
      continue;
    }
    if (window.empty()) return std::optional<std::string_view>();
    text.take(found ? end + (window.substr(end).starts_with("\r\n") ? 2 : 1) : window.size());
    return std::optional(window.substr(0, end));
  }
}

Status check_utf8(std::string_view text, const std::string& where) {
  const auto valid = valid_utf8_prefix(text);
  if (valid == text.size()) return {};
  return error(Code::kInvalidArgument,
               "{}: the byte 0x{:02x} is not part of UTF-8 text, which data files have to be "
               "(iconv -t UTF-8 converts)",
               where, static_cast<unsigned char>(text[valid]));
}

Status read_text(FileText& text, Counter& counter, const RecordVisitor& visit) {
  for (std::int64_t number = 1; counter.left != 0; ++number) {
    const auto where = fmt::format("{} line {}", text.path(), number);
    const auto line = next_line(text, true);
    if (!line.ok()) return line.status().prefixed(where);
    if (!*line) return {};
    counter.take();
    TROUPE_RETURN_IF_ERROR(check_utf8(**line, where));
    Record record;
    record["text"] = json::Value(**line);
    TROUPE_RETURN_IF_ERROR(visit(record, where));
  }
  return {};
}

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

// Passes over blanks. The next byte, which is not taken; nothing at the end of the text.
Result<std::optional<char>> next_byte(FileText& text, TextPlace& place) {
  for (;;) {
    const auto window = text.window();
    const auto blanks =
        static_cast<std::size_t>(std::ranges::find_if_not(window, is_blank) - window.begin());
    place.pass(window.substr(0, blanks));
    text.take(blanks);
    if (blanks < window.size()) return std::optional(window[blanks]);
    if (!TROUPE_TRY(text.more())) return std::optional<char>();
  }
}

// The value that begins here.
Result<json::Value> next_value(FileText& text, TextPlace& place) {
  json::ParseOptions options = kRowOptions;
  options.line = place.line;
  options.column = place.column;
  for (;;) {
    std::size_t used = 0;
    auto value = json::parse_first(text.window(), used, text.path(), options);
    if (value.status().code() == Code::kDataLoss && TROUPE_TRY(text.more())) continue;
    if (!value.ok()) return Status(Code::kInvalidArgument, value.status().message());
    place.pass(text.window().substr(0, used));
    text.take(used);
    return value;
  }
}

// One element at a time, so that no more than one is in memory.
Status read_json_array(FileText& text, TextPlace place, Counter& counter,
                       const RecordVisitor& visit) {
  const auto invalid = [&](std::string_view what) {
    return error(Code::kInvalidArgument, "{}:{}:{}: not valid JSON: {}", text.path(), place.line,
                 place.column, what);
  };
  const auto pass_one = [&] {
    place.pass(text.window().substr(0, 1));
    text.take(1);
  };
  pass_one();  // the bracket
  auto next = TROUPE_TRY(next_byte(text, place));
  for (std::int64_t number = 0; next != ']'; ++number) {
    const auto where = fmt::format("{} item {} (line {})", text.path(), number, place.line);
    const auto item = next_value(text, place);
    if (!item.ok())
      return Status(item.status().code(),
                    fmt::format("{} (item {})", item.status().message(), number));
    if (!item->is_object()) {
      return error(Code::kInvalidArgument, "{}: must be an object, is {}", where,
                   json::write(*item).substr(0, 60));
    }
    counter.take();
    TROUPE_RETURN_IF_ERROR(visit(item->get_object(), where));
    if (counter.left == 0) return {};
    next = TROUPE_TRY(next_byte(text, place));
    if (!next) return invalid(fmt::format("the text ends behind item {}", number));
    if (next == ']') break;
    if (next != ',') return invalid(fmt::format("no comma behind item {}", number));
    pass_one();
    TROUPE_TRY(next_byte(text, place));
  }
  pass_one();
  if (TROUPE_TRY(next_byte(text, place))) return invalid("text after the end of the array");
  return {};
}

// One object a line, or a single one over several lines.
Status read_json(FileText& text, Counter& counter, const RecordVisitor& visit) {
  TextPlace place;
  const auto begin = TROUPE_TRY(next_byte(text, place));
  if (!begin || counter.left == 0) return {};
  if (begin == '[') return read_json_array(text, place, counter, visit);
  auto number = place.line;
  const auto where = [&] { return fmt::format("{} line {}", text.path(), number); };
  const auto give = [&](const json::Value& value) -> Status {
    if (!value.is_object()) {
      return error(Code::kInvalidArgument,
                   "{}: must be an object (a JSON data file is an array of objects, or one object "
                   "a line)",
                   where());
    }
    counter.take();
    return visit(value.get_object(), where());
  };
  // Errors in a line are told with its number in the file.
  const auto options = [&] {
    auto out = kRowOptions;
    out.line = number;
    return out;
  };
  const auto first = next_value(text, place);
  const auto rest = TROUPE_TRY(next_line(text, false)).value_or("");
  if (!first.ok()) {
    const Status of_line = json::parse(rest, text.path(), options()).status();
    return of_line.ok() ? first.status() : of_line;
  }
  if (!std::ranges::all_of(rest, is_blank))
    return error(Code::kInvalidArgument, "{}:{}:{}: text after the end of the value", text.path(),
                 place.line, place.column);
  TROUPE_RETURN_IF_ERROR(give(*first));
  if (place.line > number && TROUPE_TRY(next_byte(text, place))) {
    return error(Code::kInvalidArgument,
                 "{}: text behind an object of several lines (a JSON data file is an array of "
                 "objects, or one object a line)",
                 text.path());
  }
  while (counter.left != 0) {
    ++number;
    const auto line = next_line(text, false);
    if (!line.ok()) return line.status().prefixed(where());
    if (!*line) return {};
    if (std::ranges::all_of(**line, is_blank)) continue;
    TROUPE_RETURN_IF_ERROR(give(TROUPE_TRY(json::parse(**line, text.path(), options()))));
  }
  return {};
}

// One row of RFC 4180: fields with commas, quotes ("" inside) and line ends where quoted.
class CsvRow {
 public:
  // Reads from the beginning of `text`, and whether the row's end is in it.
  bool read(std::string_view text) {
    fields_.assign(1, "");
    at_ = lines_ = 0;
    quoted_ = false;
    for (bool was_quoted = false; at_ < text.size(); ++at_) {
      const char c = text[at_];
      lines_ += c == '\n';
      if (quoted_) {
        if (c == '"' && text.substr(at_ + 1).starts_with('"')) {
          fields_.back().push_back('"');
          ++at_;
        } else if (c == '"') {
          quoted_ = false;
        } else {
          fields_.back().push_back(c);
        }
      } else if (c == '"' && fields_.back().empty() && !was_quoted) {
        quoted_ = was_quoted = true;
      } else if (c == ',') {
        fields_.emplace_back();
        was_quoted = false;
      } else if (c == '\n' || c == '\r') {
        const bool two = c == '\r' && text.substr(at_ + 1).starts_with('\n');
        at_ += two ? 2 : 1;
        lines_ += two;
        return c == '\n' || two || at_ < text.size();  // what follows \r may be \n
      } else {
        fields_.back().push_back(c);
      }
    }
    return false;
  }
  std::size_t size_bytes() const { return at_; }
  std::int64_t lines() const { return lines_; }
  bool is_open() const { return quoted_; }
  const std::vector<std::string>& fields() const { return fields_; }

 private:
  std::vector<std::string> fields_;
  std::size_t at_ = 0;
  std::int64_t lines_ = 0;
  bool quoted_ = false;  // at the text's end
};

Status read_csv(FileText& text, Counter& counter, const RecordVisitor& visit) {
  std::int64_t line = 1;
  CsvRow row;
  std::string where;
  // False at the end.
  const auto next_row = [&]() -> Result<bool> {
    where = fmt::format("{} line {}", text.path(), line);
    while (!row.read(text.window())) {
      const auto more = text.more();
      if (!more.ok()) return more.status().prefixed(where);
      if (*more) continue;
      if (row.is_open())
        return error(Code::kInvalidArgument, "{}: a quoted field is not closed", where);
      break;
    }
    const auto taken = text.window().substr(0, row.size_bytes());
    TROUPE_RETURN_IF_ERROR(check_utf8(taken, where));
    text.take(taken.size());
    line += row.lines();
    return !taken.empty();
  };
  if (!TROUPE_TRY(next_row())) return {};
  const auto header = row.fields();
  for (auto name = header.begin(); name != header.end(); ++name) {
    if (std::find(header.begin(), name, *name) != name)
      return error(Code::kInvalidArgument, "{} line 1: two columns are named '{}'; name them apart",
                   text.path(), *name);
  }
  while (counter.left != 0 && TROUPE_TRY(next_row())) {
    const auto& fields = row.fields();
    if (fields.size() == 1 && fields[0].empty()) continue;  // an empty line
    if (fields.size() != header.size()) {
      const bool of_semicolons = header.size() == 1 && header[0].find(';') != std::string::npos;
      return error(Code::kInvalidArgument, "{}: {} fields, the header has {}{}", where,
                   fields.size(), header.size(),
                   of_semicolons ? "; fields are separated by commas, not by ;" : "");
    }
    counter.take();
    Record record;
    for (std::size_t i = 0; i < fields.size(); ++i) {
      record[header[i]] = json::Value(std::string_view(fields[i]));
    }
    TROUPE_RETURN_IF_ERROR(visit(record, where));
  }
  return {};
}

// The files whose names match the last part of a path such as "data/part-*.jsonl".
Result<std::vector<std::string>> matching_files(FileSystem& files, const std::string& path) {
  std::vector<std::string> out;
  const auto slash = path.rfind('/');
  const std::string pattern = slash == std::string::npos ? path : path.substr(slash + 1);
  if (pattern.find_first_of("*?[") == std::string::npos) return out;
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash);
  if (!files.exists(folder)) return out;
  for (const auto& entry : TROUPE_TRY(files.list(folder)))
    if (!entry.is_directory && ::fnmatch(pattern.c_str(), entry.name.c_str(), FNM_PERIOD) == 0)
      out.push_back(join_path(folder, entry.name));
  return out;
}

using TypeOfFile = std::function<Result<FileType>(const std::string& file)>;

Result<DataFiles> of_one_type(std::vector<std::string> paths, const TypeOfFile& type_of_file) {
  DataFiles out;
  out.type = TROUPE_TRY(type_of_file(paths.front()));
  for (const auto& path : paths) {
    if (TROUPE_TRY(type_of_file(path)) != out.type)
      return error(Code::kInvalidArgument, "File types should be identical. ({} and {})",
                   paths.front(), path);
  }
  out.paths = std::move(paths);
  return out;
}

}  // namespace

Result<DataFiles> find_data_files(FileSystem& files, const std::string& path,
                                  std::optional<FileType> given) {
  const auto type_of_file = [&](const std::string& file) -> Result<FileType> {
    if (given) return *given;
    return type_of(file);
  };
  if (!files.exists(path)) {
    auto matches = TROUPE_TRY(matching_files(files, path));
    if (!matches.empty()) return of_one_type(std::move(matches), type_of_file);
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
  std::vector<std::string> inside;
  for (const auto& entry : *entries) {
    // Of version control, of downloads; what a hub shows of a data set.
    if (entry.name.starts_with('.') || entry.name == "README.md") continue;
    if (entry.is_directory) {
      return error(Code::kUnsupported,
                   "{} has a directory '{}' in it: put all files of a data set into one directory",
                   path, entry.name);
    }
    inside.push_back(join_path(path, entry.name));
  }
  if (inside.empty()) return error(Code::kInvalidArgument, "{}: the directory has no files", path);
  return of_one_type(std::move(inside), type_of_file);
}

Status read_records(FileSystem& files, const DataFiles& data, std::int64_t records_max,
                    const RecordVisitor& visit, std::size_t piece_bytes) {
  Counter counter{records_max};
  for (const auto& path : data.paths) {
    if (counter.left == 0) return {};
    auto text = TROUPE_TRY(FileText::open(files, path, piece_bytes));
    if (data.type == FileType::kParquet || data.type == FileType::kArrow) {
      TROUPE_RETURN_IF_ERROR(read_arrow(files, text, data.type, counter, visit));
      continue;
    }
    TROUPE_RETURN_IF_ERROR(pass_byte_order_mark(text));
    switch (data.type) {
      case FileType::kText:
        TROUPE_RETURN_IF_ERROR(read_text(text, counter, visit));
        break;
      case FileType::kJson:
        TROUPE_RETURN_IF_ERROR(read_json(text, counter, visit));
        break;
      case FileType::kCsv:
        TROUPE_RETURN_IF_ERROR(read_csv(text, counter, visit));
        break;
      case FileType::kParquet:
      case FileType::kArrow:
        break;
    }
  }
  return {};
}

}  // namespace troupe::train
