#include "train/hub/hub.h"

#include <fnmatch.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "runtime/base/json.h"
#include "runtime/base/start_thread.h"
#include "runtime/base/text.h"
#include "train/hub/download_lock.h"
#include "train/hub/errors.h"

namespace troupe::train::hub {
namespace {

// The hub lists so many files with a repository; of larger ones only a part.
constexpr std::size_t kFilesMax = 50'000;

std::string parent_of_path(const std::string& path) { return path.substr(0, path.rfind('/')); }

std::string plain_etag(std::string etag) {
  if (etag.starts_with("W/")) etag.erase(0, 2);
  std::erase(etag, '"');
  return etag;
}

// What stands in a path must be a name.
bool is_etag(std::string_view etag) {
  return !etag.empty() && etag.size() <= 128 && is_safe_path(etag) &&
         etag.find('/') == std::string_view::npos;
}

Status no_traffic(const Repository& repository) {
  return error(
             Code::kNotFound,
             "{}: Cannot find an appropriate cached snapshot folder for the specified revision on "
             "the local disk and outgoing traffic has been disabled. To enable downloads, set "
             "HF_HUB_OFFLINE=0; or fetch it where there is a network, by {}",
             repository.shown(), repository.download_command())
      .with("kind", kLocalEntryNotFound);
}

Status not_located(const Repository& repository, const Status& why) {
  return error(
             Code::kUnavailable,
             "{}: An error happened while trying to locate the files on the Hub and we cannot "
             "find the requested files in the local cache ({}). Check the connection, HF_ENDPOINT "
             "and HTTPS_PROXY, and try again",
             repository.shown(), why.message())
      .with("kind", kLocalEntryNotFound);
}

// The hub was not reached, or would not say: the cache may answer. What it says of the repository
// itself counts.
bool is_no_answer(const Status& status) {
  return !is_kind(status, kRepositoryNotFound) && !is_kind(status, kRevisionNotFound) &&
         !is_kind(status, kEntryNotFound) && !is_kind(status, kGatedRepository) &&
         status.code() != Code::kUnauthenticated;
}

}  // namespace

std::vector<std::string> matching(const std::vector<std::string>& names,
                                  const std::vector<std::string>& include,
                                  const std::vector<std::string>& exclude) {
  const auto any = [](const std::vector<std::string>& patterns, const std::string& name) {
    return std::ranges::any_of(patterns, [&](std::string pattern) {
      if (pattern.ends_with('/')) pattern += '*';
      return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
    });
  };
  std::vector<std::string> out;
  for (const auto& name : names) {
    if ((include.empty() || any(include, name)) && !any(exclude, name)) out.push_back(name);
  }
  return out;
}

Status for_each_file(const Services& services, const std::vector<std::string>& names,
                     int files_at_a_time,
                     const std::function<Status(Http& http, const std::string& name)>& work) {
  std::atomic<std::size_t> next = 0;
  std::mutex mutex;
  Status failure;
  const auto stop = [&](const Status& status) {
    const std::lock_guard lock(mutex);
    if (failure.ok() && !status.ok()) failure = status;
    next = names.size();
  };
  const auto run = [&] {
    const auto http = services.open_http();
    if (!http.ok()) return stop(http.status());
    for (std::size_t i; (i = next++) < names.size();)
      if (const Status done = work(**http, names[i]); !done.ok()) return stop(done);
  };
  if (names.empty()) return {};
  std::vector<std::thread> threads;
  const auto count = std::min(names.size(), static_cast<std::size_t>(files_at_a_time));
  while (threads.size() + 1 < count) {
    auto thread = start_thread("download", run);
    if (!thread.ok()) break;  // those that are there do it
    threads.push_back(std::move(*thread));
  }
  run();
  for (auto& thread : threads) thread.join();
  return failure;
}

Hub::Hub(Settings settings, Services services)
    : settings_(std::move(settings)),
      services_(std::move(services)),
      client_(settings_, services_),
      cache_(services_.files, settings_.cache) {}

Result<FileMetadata> Hub::metadata(Http& http, const Repository& repository,
                                   const std::string& name, bool once) {
  const auto request = client_.to_endpoint("HEAD", repository.file_path(name));
  const auto answer = TROUPE_TRY(client_.ask(http, request, true, once));
  const auto& response = answer.response;
  FileMetadata out{.commit = response.header("x-repo-commit"), .url = answer.url};
  if (response.status >= 400) {
    Status status = http_error(repository, request.url, response);
    if (is_kind(status, kEntryNotFound) && is_commit(out.commit)) {
      (void)cache_.note_absent(repository, out.commit, name);  // it saves a question later
      note_commit(repository, out.commit);
    }
    return status;
  }
  const auto linked_etag = response.header("x-linked-etag");
  out.etag = plain_etag(linked_etag.empty() ? response.header("etag") : linked_etag);
  const auto linked_size = response.header("x-linked-size");
  const auto size = parse_integer<std::uint64_t>(
      linked_size.empty() ? response.header("content-length") : linked_size);
  const char* missing = !is_commit(out.commit) ? "commit"
                        : !is_etag(out.etag)   ? "ETag"
                        : !size                ? "size"
                                               : nullptr;
  if (missing) {
    return error(Code::kProtocol,
                 "Distant resource does not have a {}: {} is not answered as a hub does; look at "
                 "HF_ENDPOINT and HTTPS_PROXY",
                 missing, request.url)
        .with("kind", "FileMetadataError");
  }
  out.size_bytes = *size;
  if (const auto location = response.header("location"); !location.empty()) {
    out.url = redirect_of(answer.url, location);
    out.on_hub = out.url.starts_with(settings_.endpoint + "/");
  }
  return out;
}

// A cache that cannot be written may have everything.
void Hub::note_commit(const Repository& repository, const std::string& commit) {
  const Status written = cache_.write_ref(repository, commit);
  if (written.ok()) return;
  services_.progress.say(fmt::format("warning: the cache does not remember which commit {} is: {}",
                                     repository.shown(), written.message()));
}

Result<std::string> Hub::fetch(Http& http, const Repository& repository, const std::string& name,
                               const FileMetadata& metadata) {
  FileSystem& files = services_.files;
  const auto blob = cache_.blob(repository, metadata.etag);
  if (!files.exists(blob)) {
    TROUPE_RETURN_IF_ERROR(files.create_directories(parent_of_path(blob)));
    const auto lock_path = cache_.lock(repository, metadata.etag);
    TROUPE_RETURN_IF_ERROR(files.create_directories(parent_of_path(lock_path)));
    std::string incomplete = blob + ".incomplete";
    const auto lock = TROUPE_TRY(DownloadLock::take(
        lock_path, [&] { return files.size(incomplete).value_or(0); }, services_.wait));
    if (!lock.exclusive()) incomplete = fmt::format("{}.{}.incomplete", blob, ::getpid());
    if (!files.exists(blob)) {
      BlobRequest request{.repository = repository,
                          .file = name,
                          .metadata = metadata,
                          .path = blob,
                          .refresh = [&](Http& other) -> Result<FileMetadata> {
                            return this->metadata(other, repository, name, false);
                          },
                          .connections = 1,
                          .piece_bytes = piece_bytes};
      std::unique_lock large(large_file_, std::defer_lock);
      if (connections > 1 && metadata.size_bytes >= 4 * piece_bytes) {
        large.lock();
        request.connections = connections;
      }
      TROUPE_RETURN_IF_ERROR(download_blob(client_, http, request, incomplete));
    }
  }
  return cache_.place(repository, metadata.commit, name, metadata.etag);
}

Result<std::string> Hub::file(const Repository& repository, const std::string& name) {
  auto cached = cache_.find_file(repository, name);
  if (cached && (repository.is_commit() || settings_.offline)) return std::move(*cached);
  if (settings_.offline) return no_traffic(repository);
  const auto http = TROUPE_TRY(services_.open_http());
  auto metadata = this->metadata(*http, repository, name, cached.has_value());
  if (!metadata.ok()) {
    if (!is_no_answer(metadata.status())) return metadata.status();
    if (!cached) return not_located(repository, metadata.status());
    services_.progress.say(fmt::format("warning: {}: {}; the cache's copy is used",
                                       repository.shown(), metadata.status().message()));
    return std::move(*cached);
  }
  note_commit(repository, metadata->commit);
  return fetch(*http, repository, name, *metadata);
}

Result<Snapshot> Hub::info(Http& http, const Repository& repository, bool once) {
  const auto request = client_.to_endpoint("GET", repository.info_path());
  const auto answer = TROUPE_TRY(client_.ask(http, request, false, once));
  if (answer.response.status != 200) return http_error(repository, request.url, answer.response);
  const auto parsed =
      TROUPE_TRY(json::parse(answer.body, request.url, {.bytes_max = answer.body.size() + 1}));
  Snapshot out{.commit = json::find_string(parsed, "sha").value_or(""), .asked_hub = true};
  const auto* siblings = json::find(parsed, "siblings");
  if (!is_commit(out.commit) || !siblings || !siblings->is_array()) {
    return error(Code::kProtocol,
                 "{} is not answered as a hub does; look at HF_ENDPOINT and HTTPS_PROXY",
                 request.url);
  }
  for (const auto& sibling : siblings->get_array()) {
    auto name = json::find_string(sibling, "rfilename").value_or("");
    if (!is_safe_path(name))
      return error(Code::kProtocol, "{} names a file '{}', which is no path within a folder",
                   request.url, name);
    out.all.push_back(std::move(name));
  }
  if (out.all.size() >= kFilesMax) {
    return error(Code::kUnsupported,
                 "{} has {} files or more, and the hub does not list all of them at once; download "
                 "it by huggingface-cli, and give the folder",
                 repository.shown(), kFilesMax);
  }
  out.folder = cache_.snapshot_folder(repository, out.commit);
  return out;
}

Result<std::string> Hub::fetch_named(Http& http, const Repository& at_commit,
                                     const std::string& name) {
  const auto found = TROUPE_TRY(metadata(http, at_commit, name, false));
  return fetch(http, at_commit, name, found);
}

Result<Snapshot> Hub::snapshot(const Repository& repository, const ChooseFiles& choose) {
  const auto cached = cache_.find_snapshot(repository);
  const auto from_cache = [&]() -> Snapshot {
    return {.folder = *cached, .commit = cached->substr(cached->rfind('/') + 1)};
  };
  if (settings_.offline) {
    if (cached) return from_cache();
    return no_traffic(repository);
  }
  const auto http = TROUPE_TRY(services_.open_http());
  auto found = info(*http, repository, cached.has_value());
  if (!found.ok()) {
    // Also where the hub does not know the repository any more, or the token is another.
    const Status& why = found.status();
    if (is_kind(why, kRevisionNotFound) || (!cached && !is_no_answer(why))) return why;
    if (!cached) return not_located(repository, why);
    services_.progress.say(fmt::format("warning: {}: {}; the cache's copy is used",
                                       repository.shown(), why.message()));
    return from_cache();
  }
  note_commit(repository, found->commit);
  Repository at_commit = repository;
  at_commit.revision = found->commit;
  std::vector<std::string> missing;
  auto chosen = choose(*found);
  if (!chosen.ok()) return chosen.status().prefixed(repository.shown());
  for (auto& name : *chosen) {
    if (!cache_.find_file(at_commit, name)) missing.push_back(std::move(name));
  }
  TROUPE_RETURN_IF_ERROR(
      for_each_file(services_, missing, files_at_a_time, [&](Http& own, const std::string& name) {
        return fetch_named(own, at_commit, name).status();
      }));
  services_.progress.finish();
  found->downloaded = static_cast<int>(missing.size());
  return std::move(*found);
}

}  // namespace troupe::train::hub
