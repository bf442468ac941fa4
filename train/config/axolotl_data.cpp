// Axolotl's data sets: which rows, and how they become samples.
#include <algorithm>

#include "runtime/base/suggest.h"
#include "train/config/foreign_reader.h"

namespace troupe::train {
namespace {

// Ways of reading rows that are there; the same words stand in troupe.datasets.
constexpr const char* kTypes[] = {"alpaca",        "alpaca:instruct", "alpaca:chat",
                                  "alpaca:chatml", "alpaca:phi",      "completion",
                                  "input_output",  "chat_template",   "pretrain"};

std::string type_names() {
  std::vector<std::string> names(std::begin(kTypes), std::end(kTypes));
  return join_words(names);
}

class DataTranslator {
 public:
  explicit DataTranslator(ForeignReader& reader) : r_(reader) {}

  void translate() {
    const auto* train = r_.get("datasets");
    const auto* pretrain = r_.get("pretraining_dataset");
    if (train && pretrain)
      r_.wrong("pretraining_dataset",
               "either datasets or pretraining_dataset is required, not both");
    if (!train && !pretrain)
      r_.wrong("datasets", "either datasets or pretraining_dataset is required");
    if (train) give_sets("troupe.datasets", "datasets", *train, "");
    if (pretrain) give_sets("troupe.datasets", "pretraining_dataset", *pretrain, "pretrain");
    if (pretrain && r_.integer("max_steps").value_or(0) <= 0)
      r_.wrong("pretraining_dataset", "max_steps must be set when using streaming datasets.");
    if (const auto* test = r_.get("test_datasets")) {
      if (r_.number("val_set_size").value_or(0) > 0)
        r_.wrong("val_set_size",
                 "non-zero val_set_size should not be used with test_datasets configuration");
      give_sets("troupe.eval_datasets", "test_datasets", *test, "");
    } else {
      r_.take("val_size", "val_set_size");
    }
    translate_order();
    translate_lengths();
    translate_packing();
    if (r_.get("train_on_inputs")) r_.take("troupe.train_on_inputs", "train_on_inputs");
    if (r_.get("special_tokens")) r_.take("troupe.special_tokens", "special_tokens");
    if (r_.get("tokens")) r_.take("troupe.tokens", "tokens");
  }

 private:
  void translate_order() {
    r_.take("troupe.shuffle_merged_datasets", "shuffle_merged_datasets");
    if (!r_.is_on("curriculum_sampling")) return;
    r_.give("disable_shuffling", true, "curriculum_sampling");
    // One data set keeps its order; several are shuffled where they are joined all the same.
    const auto* sets = r_.get("datasets");
    if (sets && sets->is_array() && sets->get_array().size() == 1)
      r_.give("troupe.shuffle_merged_datasets", false, "curriculum_sampling");
  }

  void translate_lengths() {
    if (r_.get("sequence_len")) {
      r_.take("cutoff_len", "sequence_len");
    } else {
      r_.by_default("cutoff_len", 512);
    }
    r_.take("troupe.min_sample_len", "min_sample_len");
    r_.take("troupe.excess_length", "excess_length_strategy");
  }

  void translate_packing() {
    if (!r_.is_on("sample_packing")) return;
    r_.take("troupe.sample_packing", "sample_packing");
    for (const char* key :
         {"sample_packing_group_size", "sample_packing_bin_size", "sample_packing_sequentially"})
      r_.take(std::string("troupe.") + key, key);
    // Attention that knows packed samples takes one long row; the others a batch of rows.
    const auto attention = r_.text("attn_implementation").value_or("");
    const auto names = [&](const char* word) { return attention.find(word) != std::string::npos; };
    const bool one_row = names("flash") || names("flex") || names("xformers") || names("sage") ||
                         r_.is_on("flash_attention") || r_.is_on("flex_attention") ||
                         r_.is_on("xformers_attention") || r_.is_on("sage_attention");
    const auto rows = r_.flag("multipack_real_batches");
    if (rows.value_or(!one_row))
      r_.give("troupe.sample_packing_rows", true,
              rows ? "multipack_real_batches" : "sample_packing");
  }

  void give_sets(std::string_view ours, std::string_view key, const json::Value& sets,
                 std::string_view default_type) {
    json::Array list;
    if (sets.is_array()) {
      list = sets.get_array();
    } else {
      list.push_back(sets);
    }
    json::Array out;
    for (std::size_t i = 0; i < list.size(); ++i) {
      const std::string place = fmt::format("{}[{}]", key, i);
      // pretraining_dataset may be a name alone.
      json::Object entry;
      if (list[i].is_string()) {
        entry["path"] = list[i];
      } else if (list[i].is_object()) {
        entry = list[i].get_object();
      } else {
        r_.wrong(key, fmt::format("{}: expected a mapping with path and type", place));
        continue;
      }
      if (const auto read = read_set(key, place, std::move(entry), default_type))
        for (auto& one : by_split(*read)) out.push_back(std::move(one));
    }
    if (out.empty() && list.empty()) r_.wrong(key, "names no data set");
    if (!out.empty()) r_.give(ours, std::move(out), key);
  }

  // An entry for each of the splits that are joined by '+': their rows follow each other.
  static json::Array by_split(const json::Object& entry) {
    json::Array out;
    for (const auto& part : split_words(json::find_string(entry, "split").value_or(""), '+')) {
      json::Object one = entry;
      one["split"] = trim(part);
      out.push_back(std::move(one));
    }
    if (out.size() > 1) return out;
    out.clear();
    out.push_back(entry);
    return out;
  }

  // The entry with what is said for all data sets; nothing where it is wrong.
  std::optional<json::Object> read_set(std::string_view key, const std::string& place,
                                       json::Object entry, std::string_view default_type) {
    bool good = true;
    const auto bad = [&](Code code, const std::string& message) {
      good = false;
      if (code == Code::kUnsupported) {
        r_.refuse(key, message);
      } else {
        r_.wrong(key, message);
      }
    };
    if (!entry.contains("path"))
      bad(Code::kInvalidArgument, fmt::format("{}.path: Field required", place));
    std::string type(default_type);
    if (const auto* given = entry.if_contains("type"); given && given->is_string()) {
      type = value_text(*given);
    } else if (given && given->is_object()) {
      bad(Code::kUnsupported, fmt::format("{}.type={} is not supported: prompts of one's own are "
                                          "not there; the types are {}",
                                          place, value_text(*given).substr(0, 60), type_names()));
      return std::nullopt;
    }
    check_type(place, type, bad);
    entry["type"] = type;
    const ShownName shown = [&](const std::string& path) { return place + "." + path; };
    const auto& keys = axolotl_dataset_keys();
    keys.check_each(entry, shown, [&](const std::string&, const Status& wrong) {
      bad(wrong.code(), wrong.message());
    });
    for (auto& notice : keys.notices(entry, shown)) r_.say(std::move(notice));
    choose_folder(place, entry, bad);
    // What has no effect is no part of the run's own configuration.
    const json::Object given_entry = entry;
    for (const auto& member : given_entry) {
      const bool used = keys.has(member.key()) &&
                        keys.treated(member.key()).treatment == Treatment::kImplemented &&
                        keys.counts(member.key(), given_entry);
      if (!used || member.value().is_null()) entry.erase(member.key());
    }
    if (type == "chat_template") add_template(place, entry, bad);
    return good ? std::optional(std::move(entry)) : std::nullopt;
  }

  // A folder of several data sets has a folder for each, as hubs lay them out. A file is one data
  // set whatever it is called. What is not here is a name on a hub, and is looked up later.
  template <typename Bad>
  void choose_folder(const std::string& place, json::Object& entry, const Bad& bad) {
    const auto name = json::find_string(entry, "name");
    const auto path = json::find_string(entry, "path");
    auto& files = r_.context().files;
    if (!path || !files.exists(*path)) return;
    entry.erase("name");
    if (entry.contains("revision")) {
      r_.say(
          without_effect("", {place + ".revision"}, fmt::format("{} is on this machine", *path)));
      entry.erase("revision");
    }
    if (!name || name->empty()) return;
    if (!files.list(*path).ok()) {
      r_.say(without_effect("", {place + ".name"}, fmt::format("{} is one file", *path)));
    } else if (const auto folder = join_path(*path, *name); files.list(folder).ok()) {
      entry["path"] = folder;
    } else {
      bad(Code::kUnsupported,
          fmt::format("{}.name={} is not supported: {} has no folder of that name; give the "
                      "folder or the files of that data set as path and data_files, and leave "
                      "name out",
                      place, *name, *path));
    }
  }

  template <typename Bad>
  void check_type(const std::string& place, const std::string& type, const Bad& bad) {
    if (std::find(std::begin(kTypes), std::end(kTypes), type) != std::end(kTypes)) return;
    if (type.starts_with("sharegpt")) {
      return bad(Code::kInvalidArgument,
                 fmt::format("{}.type={}: `type: sharegpt.*` is deprecated. Please use `type: "
                             "chat_template` instead, with field_messages: conversations and "
                             "message_property_mappings: {{role: from, content: value}}",
                             place, type));
    }
    if (type.empty())
      return bad(Code::kUnsupported,
                 fmt::format("{}.type is not given, and rows that are ids already are not read; "
                             "the types are {}",
                             place, type_names()));
    const std::vector<std::string> names(std::begin(kTypes), std::end(kTypes));
    bad(Code::kUnsupported, fmt::format("{}.type={} is not supported: the types are {}{}", place,
                                        type, type_names(), did_you_mean(type, names)));
  }

  // The Jinja text of a data set: its own, else that of all; a path stands for the file's text.
  bool add_jinja(json::Object& entry) {
    const auto own = json::find_string(entry, "chat_template_jinja");
    std::string text = own && !own->empty() ? *own : r_.text("chat_template_jinja").value_or("");
    if (text.empty()) return false;
    auto& files = r_.context().files;
    if (text.find_first_of("{\n") == std::string::npos) {
      auto read = files.read(text, limits::kConfigBytesMax);
      if (!read.ok()) return false;
      text = std::move(*read);
    }
    entry["chat_template_jinja"] = text;
    return true;
  }

  // The template of a data set: its own, else that of all. A Jinja text alone says jinja.
  template <typename Bad>
  void add_template(const std::string& place, json::Object& entry, const Bad& bad) {
    std::string where = place + ".chat_template";
    const auto* own = entry.if_contains("chat_template");
    std::string name = own && own->is_string() ? value_text(*own) : "";
    if (name.empty()) {
      const bool of_set = json::find_string(entry, "chat_template_jinja").has_value();
      name = r_.text("chat_template").value_or("");
      if (of_set || (name.empty() && r_.text("chat_template_jinja"))) name = "jinja";
      if (name.empty()) name = "tokenizer_default";
      where = "chat_template";
    }
    if (name == "jinja" && !add_jinja(entry))
      bad(Code::kInvalidArgument,
          fmt::format("{}=jinja: chat_template_jinja gives neither a template nor the path of a "
                      "file with one",
                      where));
    entry["chat_template"] = name;
    if (!entry.contains("eot_tokens")) {
      if (const auto* tokens = r_.get("eot_tokens")) entry["eot_tokens"] = *tokens;
    }
  }

  ForeignReader& r_;
};

}  // namespace

void translate_axolotl_data(ForeignReader& reader) { DataTranslator(reader).translate(); }

}  // namespace troupe::train
