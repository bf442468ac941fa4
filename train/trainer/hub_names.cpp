#include "train/trainer/hub_names.h"

#include <algorithm>
#include <filesystem>
#include <thread>

#include "runtime/base/clock.h"
#include "runtime/base/text.h"
#include "train/data/dataset_info.h"
#include "train/hub/curl_http.h"
#include "train/hub/errors.h"

namespace troupe::train {
namespace {

constexpr const char* kRemote = "REMOTE:";
constexpr const char* kIndexFile = "model.safetensors.index.json";
constexpr std::uint64_t kReadmeBytesMax = 4u << 20;

// The files below a folder, by their paths in it.
std::vector<std::string> files_below(const std::string& folder) {
  namespace fs = std::filesystem;
  std::vector<std::string> out;
  std::error_code failed;
  for (fs::recursive_directory_iterator it(folder, failed), end; !failed && it != end;
       it.increment(failed)) {
    if (it->is_regular_file(failed)) out.push_back(it->path().lexically_relative(folder).string());
  }
  std::ranges::sort(out);
  return out;
}

// What a cache holds of a model may be a part of it.
Status check_whole(FileSystem& files, const hub::Repository& repository, const std::string& folder,
                   const hub::ModelFiles& wanted) {
  const auto incomplete = [&](std::string_view missing) {
    return error(Code::kNotFound,
                 "the cache has a part of {} only ({} lacks {}); where there is a network, "
                 "{} fetches the rest",
                 repository.name, folder, missing, repository.download_command());
  };
  const auto place = wanted.folder.empty() ? folder : join_path(folder, wanted.folder);
  const auto has = [&](const char* file) { return files.exists(join_path(place, file)); };
  if (!has("config.json") && !has("adapter_config.json")) return incomplete("config.json");
  if (!wanted.weights) return {};
  if (const auto text = files.read(join_path(place, kIndexFile), limits::kJsonFileBytesMax);
      text.ok()) {
    const auto index = json::parse(*text, kIndexFile, {.bytes_max = limits::kJsonFileBytesMax});
    const auto* map = index.ok() ? json::find(*index, "weight_map") : nullptr;
    for (const auto& member : map && map->is_object() ? map->get_object() : json::Object()) {
      if (!member.value().is_string()) continue;
      const std::string shard(member.value().get_string());
      if (!has(shard.c_str())) return incomplete(shard);
    }
    return {};
  }
  for (const auto& entry : files.list(place).value_or({})) {
    if (entry.name.ends_with(".safetensors")) return {};
  }
  return incomplete("weights in safetensors");
}

// A file that is not there, not a data set on a hub.
bool is_data_file_name(const std::string& name) {
  return std::ranges::any_of(std::initializer_list<const char*>{".json", ".jsonl", ".csv", ".tsv",
                                                                ".txt", ".parquet", ".arrow"},
                             [&](const char* end) { return name.ends_with(end); });
}

std::string short_commit(const std::string& commit) { return commit.substr(0, 12); }

}  // namespace

HubNames::HubNames(FileSystem& files, const Environment& environment, HubNamesOptions options)
    : files_(files),
      options_(std::move(options)),
      from_environment_(hub::Settings::from(environment, files)) {
  set_overrides({});
}

void HubNames::set_overrides(const Overrides& overrides) {
  settings_ = from_environment_;
  if (!overrides.token.empty()) settings_.token = overrides.token;
  if (!overrides.modelscope_token.empty()) settings_.modelscope_token = overrides.modelscope_token;
  if (!overrides.cache.empty()) settings_.cache = settings_.modelscope_cache = overrides.cache;
  if (!options_.downloads) settings_.offline = true;
  revision_ = overrides.revision;
  hub_.reset();
  modelscope_.reset();
}

hub::Services HubNames::services() {
  static const SystemClock clock;
  if (!progress_) {
    if (settings_.shows_progress)
      progress_ = std::make_unique<hub::ProgressText>(clock, options_.terminal, options_.write);
    else
      progress_ = std::make_unique<hub::QuietProgress>(options_.write);
  }
  return {
      .files = files_,
      .open_http = [certificates = settings_.certificates] { return hub::open_curl(certificates); },
      .wait = [](Duration time) { std::this_thread::sleep_for(time); },
      .progress = *progress_};
}

hub::Hub& HubNames::hub() {
  if (!hub_) hub_ = std::make_unique<hub::Hub>(settings_, services());
  return *hub_;
}

hub::ModelScope& HubNames::modelscope() {
  if (!modelscope_) modelscope_ = std::make_unique<hub::ModelScope>(settings_, services());
  return *modelscope_;
}

Result<hub::Snapshot> HubNames::snapshot(const hub::Repository& repository, bool modelscope,
                                         const hub::ChooseFiles& choose) {
  return modelscope ? this->modelscope().snapshot(repository, choose)
                    : hub().snapshot(repository, choose);
}

Status HubNames::explained(const hub::Repository& repository, bool modelscope,
                           const Status& why) const {
  const bool only_looked = !options_.downloads && !from_environment_.offline &&
                           hub::is_kind(why, hub::kLocalEntryNotFound);
  const Status reason =
      only_looked && !modelscope
          ? error(Code::kNotFound,
                  "{} is not in the cache {}; {} fetches it, and a training does so by itself",
                  repository.name, settings_.cache, repository.download_command())
          : why;
  return reason.prefixed(fmt::format("'{}' is no folder on this machine", repository.name));
}

// Where a snapshot came from, for people.
std::string HubNames::told(const std::string& name, bool modelscope,
                           const hub::Snapshot& snapshot) {
  const std::string from =
      modelscope ? fmt::format("{} of ModelScope at {}", name, snapshot.commit)
                 : fmt::format("{} at commit {}", name, short_commit(snapshot.commit));
  return fmt::format("{}, {}", from,
                     snapshot.downloaded > 0
                         ? fmt::format("downloaded: {}", count_of(snapshot.downloaded, "file"))
                         : "in the cache");
}

Result<std::string> HubNames::model_folder(const std::string& name, const hub::ModelFiles& wanted) {
  where_.clear();
  if (name.empty() || files_.exists(name) || !hub::is_repository_name(name)) return name;
  const std::string key = fmt::format("{}\n{}\n{}\n{}\n{}", name, revision_, wanted.weights,
                                      wanted.folder, settings_.cache);
  if (const auto known = folders_.find(key); known != folders_.end()) {
    where_ = known->second.second;
    return known->second.first;
  }
  const hub::Repository repository{.name = name, .revision = revision_};
  const bool modelscope = settings_.modelscope;
  auto snapshot = this->snapshot(repository, modelscope, [&](const hub::Snapshot& found) {
    return hub::model_files(found.all, wanted);
  });
  if (!snapshot.ok()) return explained(repository, modelscope, snapshot.status());
  if (!snapshot->asked_hub)
    TROUPE_RETURN_IF_ERROR(check_whole(files_, repository, snapshot->folder, wanted));
  where_ = told(name, modelscope, *snapshot);
  folders_[key] = {snapshot->folder, where_};
  return std::move(snapshot->folder);
}

Result<HubNames::DataFound> HubNames::data_files(const std::string& name,
                                                 const std::string& revision,
                                                 const hub::DatasetSelection& selection,
                                                 bool modelscope) {
  constexpr auto kType = hub::RepositoryType::kDataset;
  DataFound out;
  std::vector<std::string> chosen;
  const hub::Repository repository{.type = kType, .name = name, .revision = revision};
  const auto snapshot = this->snapshot(
      repository, modelscope, [&](const hub::Snapshot& found) -> Result<std::vector<std::string>> {
        std::string readme;
        if (std::ranges::find(found.all, "README.md") != found.all.end()) {
          const hub::Repository at{.type = kType, .name = name, .revision = found.commit};
          const auto path = TROUPE_TRY(modelscope ? this->modelscope().file(at, "README.md")
                                                  : hub().file(at, "README.md"));
          readme = TROUPE_TRY(files_.read(path, kReadmeBytesMax));
        }
        chosen = TROUPE_TRY(hub::dataset_files(found.all, readme, selection));
        return chosen;
      });
  if (!snapshot.ok()) return explained(repository, modelscope, snapshot.status());
  out = {.folder = snapshot->folder, .where = told(name, modelscope, *snapshot)};
  if (chosen.empty()) {
    const auto readme = files_.read(join_path(out.folder, "README.md"), kReadmeBytesMax);
    auto found = hub::dataset_files(files_below(out.folder), readme.value_or(""), selection);
    if (!found.ok()) return found.status().prefixed("data set " + name);
    chosen = std::move(*found);
  }
  for (const auto& file : chosen) out.paths.push_back(join_path(out.folder, file));
  return out;
}

void HubNames::found(LoadedConfig& loaded, const char* key, const std::string& where) {
  loaded.config.model.is_from_hub = true;
  auto& text = loaded.located[key];
  text += (text.empty() ? "" : "; ") + where;
  const auto notice = fmt::format("{} is {}", loaded.source.shown(key), where);
  if (std::ranges::find(loaded.notices, notice) == loaded.notices.end())
    loaded.notices.push_back(notice);
}

void HubNames::locate_model(LoadedConfig& loaded, Problems& problems) {
  auto& model = loaded.config.model;
  auto folder = model_folder(model.model_name_or_path, {.weights = !model.train_from_scratch});
  if (!folder.ok()) return problems.add("model_name_or_path", folder.status());
  if (where_.empty()) return;
  found(loaded, "model_name_or_path", where_);
  model.model_name_or_path = std::move(*folder);
}

void HubNames::locate_adapters(LoadedConfig& loaded, Problems& problems) {
  auto& finetuning = loaded.config.finetuning;
  const auto locate = [&](const char* key, std::string& name, const hub::ModelFiles& wanted) {
    auto folder = model_folder(name, wanted);
    if (!folder.ok()) {
      problems.add(key, folder.status());
    } else if (!where_.empty()) {
      found(loaded, key, where_);
      name = std::move(*folder);
    }
  };
  for (auto& adapter : finetuning.adapter_name_or_path)
    locate("adapter_name_or_path", adapter, {.folder = finetuning.adapter_folder.value_or("")});
  auto& method = loaded.config.method;
  if (!method.has_reference() || !method.ref_model) return;
  locate("ref_model", *method.ref_model, {});
  for (auto& adapter : method.ref_model_adapters) locate("ref_model_adapters", adapter, {});
}

void HubNames::locate_named_data(LoadedConfig& loaded, Problems& problems) {
  auto& data = loaded.config.data;
  if (data.dataset_dir.starts_with(kRemote)) {
    const std::string name = data.dataset_dir.substr(std::string_view(kRemote).size());
    const auto path =
        hub::is_repository_name(name)
            ? hub().file({.type = hub::RepositoryType::kDataset, .name = name}, "dataset_info.json")
            : Result<std::string>(
                  error(Code::kInvalidArgument, "REMOTE: is followed by OWNER/NAME"));
    if (!path.ok()) return problems.add("dataset_dir", path.status());
    found(loaded, "dataset_dir", name + " on the hub");
    data.dataset_dir = path->substr(0, path->rfind('/'));
  }
  std::vector<std::string> names = data.dataset;
  for (const auto& name : loaded.config.evaluation.eval_dataset) names.push_back(name);
  for (const auto& entry : hub_entries(files_, data.dataset_dir, names)) {
    const auto& evaluated = loaded.config.evaluation.eval_dataset;
    const char* key =
        std::ranges::find(evaluated, entry.name) != evaluated.end() ? "eval_dataset" : "dataset";
    const bool modelscope =
        !entry.ms_hub_url.empty() && (entry.hf_hub_url.empty() || settings_.modelscope);
    const std::string& name = modelscope ? entry.ms_hub_url : entry.hf_hub_url;
    if (!hub::is_repository_name(name)) {
      problems.add(Code::kInvalidArgument, key,
                   fmt::format("{}: '{}' is no name that a hub may have", entry.name, name));
      continue;
    }
    for (const auto& split : entry.splits) {
      auto files =
          data_files(name, "main", {.subset = entry.subset, .split = split, .folder = entry.folder},
                     modelscope);
      if (!files.ok()) {
        problems.add(key, files.status());
        break;
      }
      const bool first = split == entry.splits.front();
      if (first) found(loaded, key, files->where);
      data.hub_files[hub_key(entry.name, split, first)] = std::move(files->paths);
    }
  }
}

void HubNames::locate_rows(LoadedConfig& loaded, json::Array& sets, const char* key,
                           Problems& problems) {
  for (auto& set : sets) {
    auto* entry = set.if_object();
    const auto text_of = [&](const char* member) {
      return json::find_string(set, member).value_or("");
    };
    const std::string name = text_of("path");
    if (!entry || files_.exists(name) || !hub::is_repository_name(name) || is_data_file_name(name))
      continue;
    hub::DatasetSelection selection{.subset = text_of("name"), .split = text_of("split")};
    const auto bracket = selection.split.find('[');
    const std::string slice = bracket == std::string::npos ? "" : selection.split.substr(bracket);
    selection.split = selection.split.substr(0, bracket);
    if (selection.split.empty()) selection.split = "train";
    if (const auto* files = entry->if_contains("data_files")) {
      for (const auto& file : files->is_array() ? files->get_array() : json::Array{*files}) {
        if (file.is_string()) selection.data_files.emplace_back(file.get_string());
      }
    }
    const std::string revision = text_of("revision");
    auto found_files =
        data_files(name, revision.empty() ? "main" : revision, selection, settings_.modelscope);
    if (!found_files.ok()) {
      problems.add(key, found_files.status());
      continue;
    }
    found(loaded, key, found_files->where);
    json::Array paths;
    for (const auto& path : found_files->paths)
      paths.emplace_back(path.substr(found_files->folder.size() + 1));
    (*entry)["path"] = found_files->folder;
    (*entry)["data_files"] = std::move(paths);
    (*entry)["split"] = "train" + slice;
    entry->erase("name");
    entry->erase("revision");
  }
}

void HubNames::locate(LoadedConfig& loaded, Problems& problems) {
  const json::Value given(loaded.source.values);
  const auto& model = loaded.config.model;
  set_overrides({.token = json::find_string(given, "hf_hub_token").value_or(""),
                 .modelscope_token = json::find_string(given, "ms_hub_token").value_or(""),
                 .cache = model.cache_dir.value_or(""),
                 .revision = model.model_revision});
  locate_model(loaded, problems);
  locate_adapters(loaded, problems);
  locate_named_data(loaded, problems);
  auto& rows = loaded.config.data.rows;
  locate_rows(loaded, rows.datasets, "troupe.datasets", problems);
  locate_rows(loaded, rows.eval_datasets, "troupe.eval_datasets", problems);
}

std::optional<std::string> same_snapshot_here(FileSystem& files, const Environment& environment,
                                              const std::optional<std::string>& cache,
                                              const std::string& folder) {
  const auto repository = hub::repository_of_snapshot(folder);
  if (!repository || files.exists(folder)) return std::nullopt;
  auto settings = hub::Settings::from(environment, files);
  return hub::Cache(files, cache.value_or(settings.cache)).find_snapshot(*repository);
}

}  // namespace troupe::train
