#include "train/data/row_source.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "runtime/base/suggest.h"

namespace troupe::train {
namespace {

std::string short_text(const json::Value& value) { return json::write(value).substr(0, 60); }

// Reads the members of an entry, one after the other; the first that is wrong is the failure.
class EntryReader {
 public:
  explicit EntryReader(const json::Object& entry) : entry_(entry) {}

  void text(const char* name, std::string& out) {
    if (const auto* value = take(name)) {
      if (!value->is_string()) return wrong(name, "a text", *value);
      out = std::string(value->get_string());
    }
  }
  void flag(const char* name, bool& out) {
    if (const auto* value = take(name)) {
      if (!value->is_bool()) return wrong(name, "true or false", *value);
      out = value->get_bool();
    }
  }
  // A list of texts, or one.
  std::optional<std::vector<std::string>> texts(const char* name) {
    const auto* value = take(name);
    if (!value) return std::nullopt;
    json::Array list;
    if (const auto* array = value->if_array()) {
      list = *array;
    } else {
      list.push_back(*value);
    }
    std::vector<std::string> out;
    for (const auto& item : list) {
      if (!item.is_string()) {
        wrong(name, "a list of texts", *value);
        return std::nullopt;
      }
      out.emplace_back(item.get_string());
    }
    return out;
  }
  std::optional<TurnEnds> ends(const char* name) {
    std::string word;
    if (!entry_.if_contains(name)) return std::nullopt;
    text(name, word);
    if (word == "all") return TurnEnds::kAll;
    if (word == "turn") return TurnEnds::kTurn;
    if (word == "last") return TurnEnds::kLast;
    if (word != "none" && status_.ok())
      status_ =
          error(Code::kInvalidArgument, "{}: '{}' is none of all, turn, last, none", name, word);
    return TurnEnds::kNone;
  }
  const json::Object* object(const char* name) {
    const auto* value = take(name);
    if (!value) return nullptr;
    if (!value->is_object()) wrong(name, "a mapping", *value);
    return value->if_object();
  }
  void fail(const char* name, std::string_view what) {
    if (status_.ok()) status_ = error(Code::kInvalidArgument, "{}: {}", name, what);
  }

  Status finish() {
    for (const auto& member : entry_) {
      const std::string name(member.key());
      if (std::find(known_.begin(), known_.end(), name) != known_.end()) continue;
      return error(Code::kInvalidArgument, "unknown member '{}'{}", name,
                   did_you_mean(name, known_));
    }
    return status_;
  }

 private:
  const json::Value* take(const char* name) {
    known_.emplace_back(name);
    const auto* value = entry_.if_contains(name);
    return value && !value->is_null() ? value : nullptr;
  }
  void wrong(const char* name, std::string_view expected, const json::Value& found) {
    if (status_.ok())
      status_ = error(Code::kInvalidArgument, "{}: expected {}, found {}", name, expected,
                      short_text(found));
  }

  const json::Object& entry_;
  std::vector<std::string> known_ = {"train_on_eos", "train_on_eot"};
  Status status_;
};

void read_type(EntryReader& reader, RowSource& out) {
  std::string word;
  reader.text("ds_type", word);
  if (word == "json") out.ds_type = FileType::kJson;
  if (word == "csv") out.ds_type = FileType::kCsv;
  if (word == "text") out.ds_type = FileType::kText;
  if (word == "parquet") out.ds_type = FileType::kParquet;
  if (word == "arrow") out.ds_type = FileType::kArrow;
  if (!word.empty() && !out.ds_type)
    reader.fail("ds_type", fmt::format("'{}' is none of json, csv, text, parquet, arrow", word));
}

void read_roles(EntryReader& reader, RowSource& out) {
  const auto* roles = reader.object("roles");
  if (!roles) {
    out.roles = {{"human", "user"}, {"gpt", "assistant"}};
    return;
  }
  for (const auto& member : *roles) {
    const auto* sources = member.value().if_array();
    if (!sources) return reader.fail("roles", "expected for each role a list of its names");
    for (const auto& source : *sources) {
      if (!source.is_string()) return reader.fail("roles", "expected names of roles");
      out.roles[std::string(source.get_string())] = member.key();
    }
  }
}

void read_mappings(EntryReader& reader, RowSource& out) {
  reader.text("message_field_role", out.role_column);
  reader.text("message_field_content", out.content_column);
  const auto* mappings = reader.object("message_property_mappings");
  if (!mappings) return;
  for (const auto& member : *mappings) {
    if (!member.value().is_string())
      return reader.fail("message_property_mappings", "expected names of columns");
    const std::string column(member.value().get_string());
    if (member.key() == "role") {
      out.role_column = column;
    } else if (member.key() == "content") {
      out.content_column = column;
    } else {
      return reader.fail("message_property_mappings",
                         "conversations have turns of role and content alone");
    }
  }
}

// "20%", "-100", "1_000"; empty: no bound.
Result<std::optional<SplitRows::Bound>> read_bound(std::string_view written,
                                                   std::string_view split) {
  if (written.empty()) return std::optional<SplitRows::Bound>();
  std::string without(written);
  std::erase(without, '_');
  std::string_view text = without;
  SplitRows::Bound out;
  out.percent = text.ends_with('%');
  if (out.percent) text.remove_suffix(1);
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), out.value);
  if (failed != std::errc() || end != text.data() + text.size() ||
      (out.percent && std::abs(out.value) > 100)) {
    return error(Code::kInvalidArgument,
                 "split '{}': expected a part as in train[:20%] or train[100:200]", split);
  }
  return std::optional(out);
}

std::string file_name(const std::string& path) {
  const auto slash = path.rfind('/');
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

// Whether a file's name says that it is of a split: train.jsonl, data-test-0.json.
bool names_split(const std::string& path, std::string_view split) {
  const auto name = file_name(path);
  const auto at = name.find(split);
  const auto is_word = [](char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; };
  return at != std::string::npos && (at == 0 || !is_word(name[at - 1])) &&
         (at + split.size() == name.size() || !is_word(name[at + split.size()]));
}

// Of a folder's files those that the split's name chooses: where any is named by a split, these;
// else all are the split train.
Result<DataFiles> of_split(DataFiles files, const std::string& split, const std::string& path) {
  std::vector<std::string> chosen;
  bool named = false;
  for (const auto& file : files.paths) {
    if (names_split(file, split)) chosen.push_back(file);
    for (const char* word : {"train", "test", "validation", "valid", "eval", "dev"})
      named = named || names_split(file, word);
  }
  if (named) files.paths = std::move(chosen);
  if ((!named && split != "train") || files.paths.empty()) {
    return error(Code::kNotFound,
                 "no {} split found for dataset {}, you may specify a split with 'split: ...'",
                 split, path);
  }
  return files;
}

}  // namespace

Result<RowSource> parse_row_source(const json::Value& entry, bool train_on_inputs) {
  if (!entry.is_object())
    return error(Code::kInvalidArgument, "expected a mapping, found {}", short_text(entry));
  RowSource out;
  out.train_on_inputs = train_on_inputs;
  EntryReader reader(entry.get_object());
  reader.text("path", out.path);
  reader.text("type", out.type);
  reader.text("split", out.split);
  read_type(reader, out);
  if (auto files = reader.texts("data_files")) out.data_files = std::move(*files);
  reader.text("field", out.field);
  reader.text("text_column", out.field);
  reader.flag("train_on_inputs", out.train_on_inputs);
  reader.text("chat_template", out.chat_template);
  reader.text("chat_template_jinja", out.chat_template_jinja);
  reader.text("field_messages", out.field_messages);
  reader.text("field_system", out.field_system);
  reader.text("message_field_training", out.message_field_training);
  reader.flag("drop_system_message", out.drop_system_message);
  read_mappings(reader, out);
  read_roles(reader, out);
  if (auto roles = reader.texts("roles_to_train")) {
    out.roles_to_train.clear();
    for (const auto& role : *roles) {
      const auto found = out.roles.find(role);
      out.roles_to_train.push_back(found == out.roles.end() ? role : found->second);
    }
    if (roles->empty()) reader.fail("roles_to_train", "names no role: nothing would be trained");
  }
  if (const auto ends = reader.ends("train_on_eos")) out.train_on_eos = *ends;
  out.train_on_eot = reader.ends("train_on_eot");
  out.eot_tokens = reader.texts("eot_tokens");
  if (out.path.empty()) reader.fail("path", "names no data");
  TROUPE_RETURN_IF_ERROR(reader.finish());
  return out;
}

Result<std::string> read_slice(std::string_view split, SplitRows& out) {
  if (split.find('+') != std::string_view::npos)
    return error(Code::kInvalidArgument, "split '{}': give a data set for each split", split);
  const auto bracket = split.find('[');
  if (bracket == std::string_view::npos) return std::string(split);
  auto slice = split.substr(bracket + 1);
  // How percents are rounded.
  if (slice.ends_with("](closest)")) slice.remove_suffix(9);
  if (slice.ends_with("](pct1_dropremainder)")) {
    slice.remove_suffix(20);
    out.whole_percents = true;
  }
  const auto colon = slice.find(':');
  if (!slice.ends_with(']') || colon == std::string_view::npos) {
    return error(Code::kInvalidArgument,
                 "split '{}': expected a part as in train[:20%] or train[100:200]", split);
  }
  slice.remove_suffix(1);
  out.begin = TROUPE_TRY(read_bound(slice.substr(0, colon), split));
  out.end = TROUPE_TRY(read_bound(slice.substr(colon + 1), split));
  return std::string(split.substr(0, bracket));
}

Result<SplitRows> find_split(FileSystem& files, const RowSource& source) {
  SplitRows out;
  std::string name = TROUPE_TRY(read_slice(source.split, out));
  if (name.empty()) name = "train";
  if (!source.data_files.empty()) {
    for (const auto& file : source.data_files) {
      const std::string beside = join_path(source.path, file);
      const auto found =
          TROUPE_TRY(find_data_files(files, files.exists(beside) ? beside : file, source.ds_type));
      if (!out.files.paths.empty() && found.type != out.files.type)
        return error(Code::kInvalidArgument, "File types should be identical.");
      out.files.type = found.type;
      out.files.paths.insert(out.files.paths.end(), found.paths.begin(), found.paths.end());
    }
    if (name != "train") out.files = TROUPE_TRY(of_split(std::move(out.files), name, source.path));
    return out;
  }
  out.files = TROUPE_TRY(find_data_files(files, source.path, source.ds_type));
  const bool one_file = out.files.paths.size() == 1 && out.files.paths.front() == source.path;
  if (one_file && name == "train") return out;
  out.files = TROUPE_TRY(of_split(std::move(out.files), name, source.path));
  return out;
}

std::pair<std::int64_t, std::int64_t> SplitRows::range(std::int64_t count) const {
  const auto at = [&](const std::optional<Bound>& bound, std::int64_t otherwise) {
    if (!bound) return otherwise;
    std::int64_t row = bound->value;
    // As datasets rounds: half to even.
    if (bound->percent && whole_percents) {
      row = bound->value * (count / 100);
    } else if (bound->percent) {
      row = std::llrint(static_cast<double>(bound->value) * static_cast<double>(count) / 100.0);
    }
    if (row < 0) row += count;
    return std::clamp<std::int64_t>(row, 0, count);
  };
  const auto first = at(begin, 0);
  return {first, std::max(first, at(end, count))};
}

}  // namespace troupe::train
