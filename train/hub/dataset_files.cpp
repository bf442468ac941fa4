#include "train/hub/dataset_files.h"

#include <algorithm>
#include <cctype>
#include <map>

#include "runtime/base/json.h"
#include "runtime/base/suggest.h"
#include "train/config/yaml.h"
#include "train/hub/hub.h"

namespace troupe::train::hub {
namespace {

struct SplitWords {
  const char* split;
  const char* words[4];
};
constexpr SplitWords kSplitWords[] = {{"train", {"train", "training"}},
                                      {"validation", {"validation", "valid", "dev", "val"}},
                                      {"test", {"test", "testing", "eval", "evaluation"}}};

// The type of a data file by its name; empty: it is none.
std::string type_of(const std::string& path) {
  std::string_view name = path;
  for (const char* packed : {".gz", ".zst", ".bz2", ".xz"}) {
    if (name.ends_with(packed)) name.remove_suffix(std::string_view(packed).size());
  }
  for (const char* type : {"csv", "tsv", "jsonl", "json", "parquet", "arrow", "txt"}) {
    if (name.ends_with(std::string(".") + type)) return type[0] == 'j' ? "json" : type;
  }
  return {};
}

// Whether the word stands alone in the text: letters at neither side.
bool has_word(std::string_view text, std::string_view word) {
  const auto is_letter = [](char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; };
  for (auto at = text.find(word); at != std::string_view::npos; at = text.find(word, at + 1)) {
    if ((at == 0 || !is_letter(text[at - 1])) &&
        (at + word.size() == text.size() || !is_letter(text[at + word.size()])))
      return true;
  }
  return false;
}

using Splits = std::map<std::string, std::vector<std::string>>;

// data/SPLIT-00000-of-00012-HASH.parquet
Splits by_shards(const std::vector<std::string>& files) {
  Splits out;
  for (const auto& path : files) {
    if (!path.starts_with("data/")) continue;
    const auto name = path.substr(5);
    const auto of = name.find("-of-");
    const auto dash = of == std::string::npos || of == 0 ? of : name.rfind('-', of - 1);
    if (dash == std::string::npos || dash == 0 || name.find('/') != std::string::npos) continue;
    if (!std::all_of(name.begin() + static_cast<std::ptrdiff_t>(dash) + 1,
                     name.begin() + static_cast<std::ptrdiff_t>(of),
                     [](unsigned char c) { return std::isdigit(c) != 0; }))
      continue;
    out[name.substr(0, dash)].push_back(path);
  }
  return out;
}

// By split words among the folders, or in the files' names.
Splits by_words(const std::vector<std::string>& files, bool in_folders) {
  Splits out;
  for (const auto& path : files) {
    const auto slash = path.rfind('/');
    const auto folders = slash == std::string::npos ? "" : path.substr(0, slash);
    const auto name = slash == std::string::npos ? path : path.substr(slash + 1);
    for (const auto& [split, words] : kSplitWords) {
      const bool named = std::ranges::any_of(words, [&](const char* word) {
        return word && has_word(in_folders ? folders : name.substr(0, name.find('.')), word);
      });
      if (named) out[split].push_back(path);
    }
  }
  return out;
}

// Keeps the files of the commonest type alone.
std::vector<std::string> of_one_type(const std::vector<std::string>& files) {
  std::map<std::string, std::size_t> counts;
  for (const auto& path : files) {
    if (const auto type = type_of(path); !type.empty()) ++counts[type];
  }
  const auto most = std::ranges::max_element(counts, {}, [](const auto& c) { return c.second; });
  std::vector<std::string> out;
  for (const auto& path : files) {
    if (most != counts.end() && type_of(path) == most->first) out.push_back(path);
  }
  return out;
}

Splits by_names(std::vector<std::string> files) {
  // Files that describe the repository hold no data.
  std::erase_if(files, [](const std::string& path) {
    const auto name = path.substr(path.rfind('/') + 1);
    return name == "dataset_infos.json" || name == "dataset_dict.json" || name == "state.json" ||
           name == "dataset_info.json" || name.starts_with(".");
  });
  files = of_one_type(files);
  for (auto splits : {by_shards(files), by_words(files, true), by_words(files, false)}) {
    if (!splits.empty()) return splits;
  }
  if (files.empty()) return {};
  return {{"train", files}};
}

// A text, or a list of texts.
std::vector<std::string> texts_of(const json::Value& value) {
  if (value.is_string()) return {std::string(value.get_string())};
  std::vector<std::string> out;
  for (const auto& item : value.is_array() ? value.get_array() : json::Array()) {
    if (item.is_string()) out.emplace_back(item.get_string());
  }
  return out;
}

// The splits of data_files as README.md writes them.
Splits by_patterns(const std::vector<std::string>& files, const json::Value& data_files,
                   const std::string& prefix) {
  Splits out;
  const auto add = [&](const std::string& split, const std::vector<std::string>& given) {
    std::vector<std::string> patterns;
    for (const auto& pattern : given) {
      patterns.push_back(prefix + pattern);
      // "**/" stands for any folders, or none.
      if (const auto any = patterns.back().find("**/"); any != std::string::npos)
        patterns.push_back(std::string(patterns.back()).erase(any, 3));
    }
    for (const auto& path : matching(files, patterns, {})) {
      if (!type_of(path).empty()) out[split].push_back(path);
    }
  };
  const bool with_splits = data_files.is_array() && !data_files.get_array().empty() &&
                           data_files.get_array()[0].is_object();
  if (!with_splits) {
    add("train", texts_of(data_files));
    return out;
  }
  for (const auto& entry : data_files.get_array()) {
    const auto* path = json::find(entry, "path");
    add(json::find_string(entry, "split").value_or("train"), path ? texts_of(*path) : texts_of({}));
  }
  return out;
}

// The `configs` between the lines "---" at README.md's begin. What is no YAML counts as none.
json::Array configs_of(std::string_view readme) {
  readme.remove_prefix(std::min(readme.find_first_not_of(" \t\r\n"), readme.size()));
  if (!readme.starts_with("---")) return {};
  const auto begin = readme.find('\n');
  const auto end = readme.find("\n---", begin == std::string::npos ? 0 : begin);
  if (end == std::string::npos) return {};
  const auto parsed = parse_yaml(readme.substr(begin + 1, end - begin), "README.md");
  if (!parsed.ok()) return {};
  const auto* configs = json::find(*parsed, "configs");
  return configs && configs->is_array() ? configs->get_array() : json::Array();
}

// The config that the subset names.
Result<json::Value> config_of(const json::Array& configs, const std::string& subset) {
  std::vector<std::string> names;
  for (const auto& config : configs) {
    const auto name = json::find_string(config, "config_name").value_or("default");
    const bool is_default = json::find_bool(config, "default").value_or(name == "default");
    if (subset.empty() ? is_default || configs.size() == 1 : name == subset) return config;
    names.push_back(name);
  }
  if (subset.empty())
    return error(Code::kInvalidArgument,
                 "Config name is missing. Please pick one among the available configs: {} (subset; "
                 "of Axolotl: name)",
                 join_words(names));
  return error(Code::kNotFound, "BuilderConfig '{}' not found. Available: {}{}", subset,
               join_words(names), did_you_mean(subset, names));
}

std::vector<std::string> below(const std::vector<std::string>& all, const std::string& folder) {
  if (folder.empty()) return all;
  std::vector<std::string> out;
  for (const auto& path : all) {
    if (path.starts_with(folder + "/")) out.push_back(path);
  }
  return out;
}

}  // namespace

Result<std::vector<std::string>> dataset_files(const std::vector<std::string>& all,
                                               const std::string& readme,
                                               const DatasetSelection& selection) {
  Splits splits;
  const auto configs = configs_of(readme);
  if (!selection.data_files.empty()) {
    json::Array patterns;
    for (const auto& pattern : selection.data_files) patterns.emplace_back(pattern);
    splits = by_patterns(all, patterns, "");
    if (splits.empty())
      return error(Code::kNotFound, "it has no data files {}", join_words(selection.data_files));
    return splits.begin()->second;
  }
  for (const auto& path : all) {
    if (configs.empty() && path.ends_with(".py") && path.find('/') == std::string::npos)
      return error(Code::kUnsupported,
                   "Dataset scripts are no longer supported, but found {}; name a data set of "
                   "files, or convert it, and give its folder",
                   path);
  }
  if (!configs.empty() && selection.folder.empty()) {
    const auto config = TROUPE_TRY(config_of(configs, selection.subset));
    const auto folder = json::find_string(config, "data_dir").value_or("");
    const auto* data_files = json::find(config, "data_files");
    splits = data_files ? by_patterns(all, *data_files, folder.empty() ? "" : folder + "/")
                        : by_names(below(all, folder));
  } else {
    auto files = below(all, selection.folder);
    // Without `configs` a subset is a folder, as older data sets have them.
    if (!selection.subset.empty() && selection.subset != "default") {
      files = below(files, selection.folder.empty() ? selection.subset
                                                    : selection.folder + "/" + selection.subset);
      if (files.empty())
        return error(Code::kNotFound,
                     "BuilderConfig '{}' not found: README.md has no configs, and "
                     "there is no folder of that name",
                     selection.subset);
    }
    splits = by_names(std::move(files));
  }
  const auto found = splits.find(selection.split);
  if (found != splits.end() && !found->second.empty()) return found->second;
  if (splits.empty())
    return error(Code::kNotFound,
                 "it has no data files (csv, tsv, json, jsonl, parquet, arrow, txt)");
  std::vector<std::string> names;
  for (const auto& [name, paths] : splits) names.push_back(name);
  return error(Code::kNotFound, "Unknown split \"{}\". Should be one of {}", selection.split,
               join_words(names));
}

}  // namespace troupe::train::hub
