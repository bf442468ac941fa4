#include "train/hub/modelscope.h"

#include <algorithm>
#include <map>

#include "runtime/base/hash.h"
#include "runtime/base/json.h"
#include "train/hub/download_lock.h"
#include "train/hub/errors.h"

namespace troupe::train::hub {
namespace {

// ModelScope lists so many files of a model, and says nothing of those behind.
constexpr std::size_t kListedMax = 3000;
constexpr std::size_t kPageSize = 200;
constexpr std::size_t kPagesMax = 1000;

// LLaMA-Factory's model_revision is main where none is given.
std::string revision_of(const Repository& repository) {
  return repository.revision == "main" ? "master" : repository.revision;
}

std::string snapshot_path(const Settings& settings, const Repository& repository) {
  return fmt::format("{}/{}/{}/snapshots/{}", settings.modelscope_cache, plural(repository.type),
                     repository.flat_name(), revision_of(repository));
}

// The hub of requests is ModelScope's.
Settings asked_settings(Settings settings) {
  settings.endpoint = settings.modelscope_endpoint;
  settings.token = settings.modelscope_token;
  settings.token_as_cookie = true;
  return settings;
}

std::string fetched_by(const Repository& repository) {
  std::string command = repository.download_command();
  return command.insert(1, "USE_MODELSCOPE_HUB=1 ");
}

Status modelscope_error(const Repository& repository, const std::string& url,
                        const Response& response) {
  if (response.status == 404)
    return error(Code::kNotFound,
                 "{}: ModelScope has none of that name, or not at revision {} ({} answers 404); "
                 "one that is private needs a token: MODELSCOPE_API_TOKEN, or ms_hub_token",
                 repository.shown(), revision_of(repository), without_query(url))
        .with("kind", kRepositoryNotFound);
  if (response.status == 401 || response.status == 403)
    return error(Code::kPermissionDenied,
                 "{}: ModelScope does not give it ({} answers {}); give a token of an account that "
                 "may have it: MODELSCOPE_API_TOKEN, or ms_hub_token",
                 repository.shown(), without_query(url), response.status)
        .with("kind", kGatedRepository);
  return http_error(repository, url, response);
}

}  // namespace

std::optional<std::string> find_in_modelscope(FileSystem& files, const Settings& settings,
                                              const Repository& repository) {
  std::string written;
  for (const char c : repository.name) written += c == '.' ? "___" : std::string(1, c);
  const std::string& cache = settings.modelscope_cache;
  const auto below = [&](const std::string& folder) { return join_path(folder, written); };
  const std::string kind = plural(repository.type);
  // The older ones come first, as in ModelScope's library.
  for (const auto& path :
       {below(join_path(cache, kind)), below(join_path(cache, "hub/" + kind)),
        below(join_path(cache, "hub")), below(cache), snapshot_path(settings, repository)}) {
    const auto there = files.list(path);
    if (there.ok() && !there->empty()) return path;
  }
  return std::nullopt;
}

ModelScope::ModelScope(Settings settings, Services services)
    : settings_(asked_settings(std::move(settings))),
      services_(std::move(services)),
      client_(settings_, services_) {}

// Models: all files at once. Data sets: page by page.
Result<std::vector<ModelScope::Entry>> ModelScope::list(Http& http, const Repository& repository,
                                                        bool once) const {
  const bool model = repository.type == RepositoryType::kModel;
  std::vector<Entry> out;
  for (std::size_t page = 1; page <= kPagesMax; ++page) {
    auto path = fmt::format("/api/v1/{}/{}/repo/{}?Revision={}&Recursive=True",
                            plural(repository.type), repository.name, model ? "files" : "tree",
                            quoted(revision_of(repository), false));
    if (!model) path += fmt::format("&PageNumber={}&PageSize={}", page, kPageSize);
    const auto request = client_.to_endpoint("GET", path);
    const auto answer = TROUPE_TRY(client_.ask(http, request, false, once));
    if (answer.response.status != 200)
      return modelscope_error(repository, request.url, answer.response);
    const auto parsed =
        TROUPE_TRY(json::parse(answer.body, request.url, {.bytes_max = answer.body.size() + 1}));
    const auto* data = json::find(parsed, "Data");
    const auto* files = data ? json::find(*data, "Files") : nullptr;
    if (!files || !files->is_array())
      return error(Code::kProtocol,
                   "{} is not answered as ModelScope does; look at MODELSCOPE_ENDPOINT, "
                   "MODELSCOPE_DOMAIN and HTTPS_PROXY",
                   without_query(request.url));
    for (const auto& file : files->get_array()) {
      if (json::find_string(file, "Type") == "tree") continue;
      Entry entry{.path = json::find_string(file, "Path").value_or(""),
                  .sha256 = json::find_string(file, "Sha256").value_or("")};
      const auto size = json::find_integer(file, "Size");
      if (!is_safe_path(entry.path) || !size || *size < 0)
        return error(Code::kProtocol,
                     "{} names a file '{}', which is no path within a folder, or has no size",
                     without_query(request.url), entry.path);
      entry.size_bytes = static_cast<std::uint64_t>(*size);
      out.push_back(std::move(entry));
    }
    const std::size_t listed = files->get_array().size();
    if (model && listed >= kListedMax)
      return error(Code::kUnsupported,
                   "{} has {} files or more, and ModelScope does not list all of them at once; "
                   "'modelscope download' fetches it: give the folder",
                   repository.shown(), kListedMax);
    if (model || listed < kPageSize) return out;
  }
  return error(Code::kUnsupported, "{} has more than {} files", repository.shown(),
               kPagesMax * kPageSize);
}

std::string ModelScope::lock_path(const Repository& repository, const std::string& file) const {
  const std::string kind = repository.type == RepositoryType::kModel ? "model" : "dataset";
  std::string key = "modelscope-hub-download-lock-v2";
  for (const std::string& part : {std::string("file"), kind, repository.name, file})
    key += '\0' + part;
  return fmt::format("{}/.lock/file_{}.lock", settings_.modelscope_cache,
                     to_hex(sha256(bytes_of(key))));
}

Status ModelScope::fetch(Http& http, const Repository& repository, const std::string& folder,
                         const Entry& entry) const {
  FileSystem& files = services_.files;
  const std::string path = join_path(folder, entry.path);
  const std::string incomplete = path + ".incomplete";
  const std::string lock_at = lock_path(repository, entry.path);
  for (const auto& file : {path, lock_at})
    TROUPE_RETURN_IF_ERROR(files.create_directories(file.substr(0, file.rfind('/'))));
  const auto lock = TROUPE_TRY(DownloadLock::take(
      lock_at, [&] { return files.size(incomplete).value_or(0); }, services_.wait));
  if (files.size(path).value_or(~std::uint64_t{0}) == entry.size_bytes) return {};
  FileMetadata metadata{
      .commit = revision_of(repository),
      .etag = entry.sha256,
      .size_bytes = entry.size_bytes,
      .url = fmt::format("{}/api/v1/{}/{}/repo?Revision={}&FilePath={}", settings_.endpoint,
                         plural(repository.type), repository.name,
                         quoted(revision_of(repository), false), quoted(entry.path, false))};
  const BlobRequest request{.repository = repository,
                            .file = entry.path,
                            .metadata = metadata,
                            .path = path,
                            .refresh = [&](Http&) -> Result<FileMetadata> { return metadata; }};
  return download_blob(
      client_, http, request,
      lock.exclusive() ? incomplete : fmt::format("{}.{}.incomplete", path, ::getpid()));
}

Result<Snapshot> ModelScope::snapshot(const Repository& repository, const ChooseFiles& choose) {
  const auto cached = find_in_modelscope(services_.files, settings_, repository);
  const Snapshot from_cache{.folder = cached.value_or(""), .commit = revision_of(repository)};
  if (settings_.offline) {
    if (cached) return from_cache;
    return error(Code::kNotFound,
                 "{} is not in ModelScope's cache {}; {} fetches it where there is a network",
                 repository.shown(), settings_.modelscope_cache, fetched_by(repository))
        .with("kind", kLocalEntryNotFound);
  }
  const auto http = TROUPE_TRY(services_.open_http());
  const auto listed = list(*http, repository, cached.has_value());
  if (!listed.ok()) {
    if (!cached) return listed.status();
    services_.progress.say(fmt::format("warning: {}: {}; the cache's copy is used",
                                       repository.shown(), listed.status().message()));
    return from_cache;
  }
  Snapshot found{.folder = cached.value_or(snapshot_path(settings_, repository)),
                 .commit = from_cache.commit,
                 .asked_hub = true};
  std::map<std::string, const Entry*> entries;
  for (const Entry& entry : *listed) {
    found.all.push_back(entry.path);
    entries[entry.path] = &entry;
  }
  auto chosen = choose(found);
  if (!chosen.ok()) return chosen.status().prefixed(repository.shown());
  std::vector<std::string> missing;
  for (auto& name : *chosen) {
    const auto entry = entries.find(name);
    if (entry == entries.end())
      return error(Code::kNotFound, "{} has no file {}", repository.shown(), name)
          .with("kind", kEntryNotFound);
    const auto there = services_.files.size(join_path(found.folder, name));
    if (!there.ok() || *there != entry->second->size_bytes) missing.push_back(std::move(name));
  }
  TROUPE_RETURN_IF_ERROR(
      for_each_file(services_, missing, kFilesAtATime, [&](Http& own, const std::string& name) {
        return fetch(own, repository, found.folder, *entries.at(name));
      }));
  if (!missing.empty()) services_.progress.finish();
  found.downloaded = static_cast<int>(missing.size());
  return found;
}

Result<std::string> ModelScope::file(const Repository& repository, const std::string& name) {
  const auto found = TROUPE_TRY(snapshot(
      repository, [&](const Snapshot&) { return Result<std::vector<std::string>>({name}); }));
  auto path = join_path(found.folder, name);
  if (services_.files.exists(path)) return path;
  return error(Code::kNotFound, "{}: {} is not in ModelScope's cache", repository.shown(), name)
      .with("kind", kLocalEntryNotFound);
}

}  // namespace troupe::train::hub
