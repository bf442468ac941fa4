#include "train/data/dataset_info.h"

#include <algorithm>
#include <filesystem>

#include "runtime/base/json.h"
#include "runtime/base/suggest.h"

namespace troupe::train {
namespace {

constexpr const char* kFileName = "dataset_info.json";

// A member that must be a string where it stands; null counts as absent.
Status read_string(const json::Value& object, const char* key, std::string& out) {
  const auto* value = json::find(object, key);
  if (!value || value->is_null()) return {};
  if (!value->is_string()) return error(Code::kInvalidArgument, "{} must be a string", key);
  out = *json::find_string(object, key);
  return {};
}

Status refuse_remote(const json::Value& entry, const std::string& name, bool found_on_hub) {
  for (const char* key :
       {"hf_hub_url", "ms_hub_url", "om_hub_url", "script_url", "cloud_file_name"}) {
    if (found_on_hub && (key[0] == 'h' || key[0] == 'm')) continue;
    if (const auto* value = json::find(entry, key); value && !value->is_null()) {
      return error(Code::kUnsupported,
                   "{}={} is not supported: download it and give file_name in the entry '{}' of {}",
                   key, json::write(*value), name, kFileName);
    }
  }
  return {};
}

// A key that is none, but looks like one, would leave out what was meant. Others mean nothing here,
// as in LLaMA-Factory.
Status check_keys(const json::Value& object, const std::string& where,
                  const std::vector<std::string>& known) {
  for (const auto& [key, value] : object.as_object()) {
    const std::string name(key);
    if (std::ranges::find(known, name) != known.end()) continue;
    const std::string meant = did_you_mean(name, known);
    if (!meant.empty())
      return error(Code::kInvalidArgument, "'{}' is no key of {}{}", name, where, meant);
  }
  return {};
}

Status read_columns(const json::Value& columns, DatasetAttributes& out) {
  if (!columns.is_object()) return error(Code::kInvalidArgument, "columns must be an object");
  for (const char* key : {"images", "videos", "audios"}) {
    if (const auto* value = json::find(columns, key); value && !value->is_null()) {
      return error(Code::kUnsupported,
                   "columns.{} is not supported: only text is trained on; take the column out",
                   key);
    }
  }
  const std::pair<const char*, std::string*> names[] = {
      {"prompt", &out.prompt},   {"query", &out.query},       {"response", &out.response},
      {"history", &out.history}, {"messages", &out.messages}, {"system", &out.system},
      {"tools", &out.tools},     {"chosen", &out.chosen},     {"rejected", &out.rejected},
      {"kto_tag", &out.kto_tag}};
  std::vector<std::string> known;
  for (const auto& [key, column] : names) known.emplace_back(key);
  TROUPE_RETURN_IF_ERROR(check_keys(columns, "columns", known));
  for (const auto& [key, column] : names) {
    column->clear();
    TROUPE_RETURN_IF_ERROR(read_string(columns, key, *column));
    if (!column->empty()) out.named_columns.push_back(*column);
  }
  return {};
}

Status read_tags(const json::Value& tags, DatasetAttributes& out) {
  if (!tags.is_object()) return error(Code::kInvalidArgument, "tags must be an object");
  const std::pair<const char*, std::string*> names[] = {{"role_tag", &out.role_tag},
                                                        {"content_tag", &out.content_tag},
                                                        {"user_tag", &out.user_tag},
                                                        {"assistant_tag", &out.assistant_tag},
                                                        {"observation_tag", &out.observation_tag},
                                                        {"function_tag", &out.function_tag},
                                                        {"system_tag", &out.system_tag}};
  std::vector<std::string> known;
  for (const auto& [key, tag] : names) known.emplace_back(key);
  TROUPE_RETURN_IF_ERROR(check_keys(tags, "tags", known));
  for (const auto& [key, tag] : names) {
    tag->clear();
    TROUPE_RETURN_IF_ERROR(read_string(tags, key, *tag));
  }
  return {};
}

Status read_entry(const json::Value& entry, bool on_hub, DatasetAttributes& out) {
  if (!entry.is_object()) return error(Code::kInvalidArgument, "the entry must be an object");
  TROUPE_RETURN_IF_ERROR(check_keys(
      entry, "an entry",
      {"hf_hub_url", "ms_hub_url", "om_hub_url", "script_url", "cloud_file_name", "file_name",
       "formatting", "ranking", "subset", "split", "folder", "num_samples", "columns", "tags"}));
  TROUPE_RETURN_IF_ERROR(refuse_remote(entry, out.name, on_hub));
  TROUPE_RETURN_IF_ERROR(read_string(entry, "file_name", out.file_name));
  if (out.file_name.empty() && !on_hub)
    return error(Code::kInvalidArgument, "file_name is missing");
  std::string formatting = "alpaca";
  TROUPE_RETURN_IF_ERROR(read_string(entry, "formatting", formatting));
  TROUPE_RETURN_IF_ERROR(read_string(entry, "split", out.split));
  if (formatting == "sharegpt") {
    out.formatting = Formatting::kSharegpt;
  } else if (formatting == "openai") {
    out.formatting = Formatting::kOpenai;
  } else if (formatting != "alpaca") {
    return error(Code::kInvalidArgument, "formatting='{}' is none of alpaca, sharegpt, openai",
                 formatting);
  }
  if (const auto* ranking = json::find(entry, "ranking"); ranking && !ranking->is_null()) {
    if (!ranking->is_bool()) return error(Code::kInvalidArgument, "ranking must be true or false");
    out.ranking = ranking->get_bool();
  }
  if (const auto* count = json::find(entry, "num_samples"); count && !count->is_null()) {
    out.num_samples = json::find_integer(entry, "num_samples");
    if (!out.num_samples || *out.num_samples < 1) {
      return error(Code::kInvalidArgument, "num_samples must be a number of at least 1");
    }
  }
  if (const auto* columns = json::find(entry, "columns"); columns && !columns->is_null()) {
    TROUPE_RETURN_IF_ERROR(read_columns(*columns, out));
  }
  if (const auto* tags = json::find(entry, "tags"); tags && !tags->is_null()) {
    TROUPE_RETURN_IF_ERROR(read_tags(*tags, out));
  }
  return {};
}

}  // namespace

Result<std::vector<DatasetAttributes>> read_dataset_info(FileSystem& files,
                                                         const std::string& dataset_dir,
                                                         const std::vector<std::string>& names,
                                                         const HubFiles& hub_files) {
  std::vector<DatasetAttributes> out;
  if (dataset_dir == kOnline) {
    for (const auto& name : names) {
      const auto found = hub_files.find(name);
      if (found == hub_files.end())
        return error(Code::kNotFound, "the data set {} was not looked up on the hub", name);
      out.push_back({.name = name, .hub_splits = {{"train", found->second}}});
    }
    return out;
  }
  const auto path = join_path(dataset_dir, kFileName);
  auto text = files.read(path, limits::kConfigBytesMax);
  if (!text) {
    return error(text.status().code(),
                 "Cannot open {} due to {}. dataset_dir must name the folder that holds it", path,
                 text.status().message());
  }
  json::ParseOptions options;
  options.reject_duplicate_keys = true;
  const auto root = TROUPE_TRY(json::parse(*text, path, options));
  if (!root.is_object()) {
    return error(Code::kInvalidArgument, "{}: must be an object of data sets by name", path);
  }
  for (const auto& name : names) {
    // Named twice it is one data set, as in LLaMA-Factory.
    if (std::any_of(out.begin(), out.end(), [&](const auto& known) { return known.name == name; }))
      continue;
    const auto* entry = json::find(root, name);
    if (!entry) {
      std::vector<std::string> there;
      for (const auto& [other, value] : root.as_object()) there.emplace_back(other);
      const std::string meant = did_you_mean(name, there);
      // As file_name would have it: from dataset_dir.
      const bool is_there = files.exists(join_path(dataset_dir, name));
      const bool is_file = is_there || files.exists(name);
      const std::string named =
          !there.empty() && there.size() <= 20 ? " It has " + join_words(there) : "";
      return error(Code::kNotFound, "Undefined dataset {} in {}{}{}{}", name, kFileName,
                   meant.empty() ? "." : meant, named,
                   is_file ? fmt::format("; a file gets a name there: {{\"NAME\": {{\"file_name\": "
                                         "\"{}\"}}}}",
                                         is_there ? name : std::filesystem::absolute(name).string())
                   : name.find('/') == name.npos
                       ? ""
                       : "; one of a hub by its name alone is dataset_dir: ONLINE");
    }
    DatasetAttributes attributes;
    attributes.name = name;
    if (auto status = read_entry(*entry, hub_files.contains(name), attributes); !status.ok()) {
      return status.prefixed(fmt::format("{}: '{}'", path, name));
    }
    for (const auto& split : split_names(attributes.split)) {
      const auto found = hub_files.find(hub_key(name, split, attributes.hub_splits.empty()));
      if (found != hub_files.end()) attributes.hub_splits.push_back({split, found->second});
    }
    out.push_back(std::move(attributes));
  }
  return out;
}

Result<DataFiles> find_data_files(FileSystem& files, const std::string& dataset_dir,
                                  const DatasetAttributes& attributes) {
  if (attributes.hub_splits.empty())
    return find_data_files(files, join_path(dataset_dir, attributes.file_name));
  DataFiles out;
  for (const auto& [split, paths] : attributes.hub_splits) {
    for (const auto& path : paths) {
      auto found = TROUPE_TRY(find_data_files(files, path));
      if (!out.paths.empty() && found.type != out.type)
        return error(Code::kInvalidArgument, "File types should be identical.");
      out.type = found.type;
      out.paths.push_back(path);
    }
  }
  return out;
}

std::vector<std::string> split_names(std::string_view split) {
  std::vector<std::string> out;
  for (const auto& part : split_words(split, '+')) {
    std::string name(trim(std::string_view(part).substr(0, part.find('['))));
    if (std::ranges::find(out, name) == out.end()) out.push_back(std::move(name));
  }
  return out;
}

std::string hub_key(const std::string& name, const std::string& split, bool first) {
  return first ? name : name + '\n' + split;
}

std::vector<HubEntry> hub_entries(FileSystem& files, const std::string& dataset_dir,
                                  const std::vector<std::string>& names) {
  std::vector<HubEntry> out;
  if (dataset_dir == kOnline) {
    for (const auto& name : names)
      out.push_back({.name = name, .hf_hub_url = name, .ms_hub_url = name});
    return out;
  }
  const auto path = join_path(dataset_dir, kFileName);
  const auto text = files.read(path, limits::kConfigBytesMax);
  const auto root = text.ok() ? json::parse(*text, path) : Result<json::Value>(text.status());
  if (!root.ok()) return out;
  for (const auto& name : names) {
    const auto* entry = json::find(*root, name);
    if (!entry) continue;
    const auto text_of = [&](const char* key) {
      return json::find_string(*entry, key).value_or("");
    };
    HubEntry found{.name = name,
                   .hf_hub_url = text_of("hf_hub_url"),
                   .ms_hub_url = text_of("ms_hub_url"),
                   .subset = text_of("subset"),
                   .folder = text_of("folder")};
    if (const auto split = text_of("split"); !split.empty()) found.splits = split_names(split);
    if (!found.hf_hub_url.empty() || !found.ms_hub_url.empty()) out.push_back(std::move(found));
  }
  return out;
}

}  // namespace troupe::train
