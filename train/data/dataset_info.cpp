#include "train/data/dataset_info.h"

#include <algorithm>

#include "runtime/base/json.h"

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

Status refuse_remote(const json::Value& entry, const std::string& name) {
  for (const char* key :
       {"hf_hub_url", "ms_hub_url", "om_hub_url", "script_url", "cloud_file_name"}) {
    if (const auto* value = json::find(entry, key); value && !value->is_null()) {
      return error(Code::kUnsupported,
                   "{}={} is not supported: download it and give file_name in the entry '{}' of {}",
                   key, json::write(*value), name, kFileName);
    }
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
  for (const auto& [key, tag] : names) {
    tag->clear();
    TROUPE_RETURN_IF_ERROR(read_string(tags, key, *tag));
  }
  return {};
}

Status read_entry(const json::Value& entry, DatasetAttributes& out) {
  if (!entry.is_object()) return error(Code::kInvalidArgument, "the entry must be an object");
  TROUPE_RETURN_IF_ERROR(refuse_remote(entry, out.name));
  TROUPE_RETURN_IF_ERROR(read_string(entry, "file_name", out.file_name));
  if (out.file_name.empty()) return error(Code::kInvalidArgument, "file_name is missing");
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
                                                         const std::vector<std::string>& names) {
  if (dataset_dir == "ONLINE" || dataset_dir.starts_with("REMOTE:")) {
    return error(
        Code::kUnsupported,
        "dataset_dir={} is not supported: download the data set and give the folder of its "
        "{}",
        dataset_dir, kFileName);
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
  std::vector<DatasetAttributes> out;
  for (const auto& name : names) {
    // Named twice it is one data set, as in LLaMA-Factory.
    if (std::any_of(out.begin(), out.end(), [&](const auto& known) { return known.name == name; }))
      continue;
    const auto* entry = json::find(root, name);
    if (!entry) return error(Code::kNotFound, "Undefined dataset {} in {}.", name, kFileName);
    DatasetAttributes attributes;
    attributes.name = name;
    if (auto status = read_entry(*entry, attributes); !status.ok()) {
      return status.prefixed(fmt::format("{}: '{}'", path, name));
    }
    out.push_back(std::move(attributes));
  }
  return out;
}

}  // namespace troupe::train
