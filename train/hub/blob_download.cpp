#include "train/hub/blob_download.h"

#include <algorithm>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <thread>

#include "runtime/base/start_thread.h"
#include "runtime/base/text.h"
#include "train/hub/content_hash.h"
#include "train/hub/errors.h"

namespace troupe::train::hub {
namespace {

// How often the URL is asked for anew without a byte in between.
constexpr int kRefreshesMax = 2;

class BlobDownload {
 public:
  BlobDownload(const Client& client, const BlobRequest& request, std::string incomplete)
      : client_(client),
        files_(client.services().files),
        progress_(client.services().progress),
        request_(request),
        incomplete_(std::move(incomplete)),
        source_(request.metadata) {}

  Status run(Http& http) {
    TROUPE_RETURN_IF_ERROR(open());
    const bool began_before = written_ > 0;
    TROUPE_RETURN_IF_ERROR(transfer(http));
    bool right = hash_->matches();
    if (!right && began_before) {
      progress_.say(fmt::format("{}: what was downloaded before is damaged; downloading it anew",
                                request_.file));
      TROUPE_RETURN_IF_ERROR(restart());
      TROUPE_RETURN_IF_ERROR(transfer(http));
      right = hash_->matches();
    }
    return finish(right);
  }

 private:
  std::uint64_t size() const { return request_.metadata.size_bytes; }

  Status open() {
    // Hashed as far as it goes.
    if (const auto there = files_.size(incomplete_); there.ok() && *there > size()) {
      TROUPE_RETURN_IF_ERROR(files_.remove(incomplete_));
    } else if (there.ok() && *there > 0) {
      const auto mapped = TROUPE_TRY(files_.map(incomplete_));
      const auto bytes = mapped->bytes();
      hash_.emplace(request_.metadata.etag, size());
      hash_->update({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
      written_ = bytes.size();
    }
    if (!hash_) hash_.emplace(request_.metadata.etag, size());
    std::error_code failed;
    const auto room = std::filesystem::space(incomplete_.substr(0, incomplete_.rfind('/')), failed);
    if (!failed && room.available < size() - written_) {
      return error(Code::kResourceExhausted,
                   "{} of {} needs {} MB more, and {} MB are free in {}: free some, or name "
                   "another cache by HF_HUB_CACHE or cache_dir",
                   request_.file, request_.repository.name, (size() - written_) / 1'000'000 + 1,
                   room.available / 1'000'000, incomplete_.substr(0, incomplete_.rfind('/')));
    }
    out_ = TROUPE_TRY(files_.open_append(incomplete_));
    progress_.begin(request_.file, size() - written_);
    return {};
  }

  Status restart() {
    progress_.lost(written_);
    out_.reset();
    TROUPE_RETURN_IF_ERROR(files_.remove(incomplete_));
    out_ = TROUPE_TRY(files_.open_append(incomplete_));
    hash_.emplace(request_.metadata.etag, size());
    written_ = 0;
    return {};
  }

  Status transfer(Http& http) {
    if (request_.connections > 1 && size() - written_ > request_.piece_bytes) {
      const Status status = in_pieces();
      if (status.code() != Code::kUnsupported) return status;
      TROUPE_RETURN_IF_ERROR(restart());
    }
    return get(http, written_, size(), true, [&](std::string_view bytes) { return write(bytes); });
  }

  // Every connection takes the next piece, and writes it when all before it are written.
  Status in_pieces() {
    pieces_ = {.begin = written_,
               .count = (size() - written_ + request_.piece_bytes - 1) / request_.piece_bytes};
    std::vector<std::thread> threads;
    const auto count =
        std::min<std::uint64_t>(pieces_.count, static_cast<std::uint64_t>(request_.connections));
    while (threads.size() < count) {
      auto thread = start_thread("download", [this] { stop_at(take_pieces()); });
      if (!thread.ok()) {
        stop_at(thread.status());
        break;
      }
      threads.push_back(std::move(*thread));
    }
    for (auto& thread : threads) thread.join();
    return pieces_.failure;
  }

  void stop_at(const Status& failure) {
    if (failure.ok()) return;
    const std::lock_guard lock(mutex_);
    if (pieces_.failure.ok()) pieces_.failure = failure;
    changed_.notify_all();
  }

  Status take_pieces() {
    const auto http = TROUPE_TRY(client_.services().open_http());
    std::string bytes;
    std::unique_lock lock(mutex_);
    while (pieces_.failure.ok() && pieces_.claimed < pieces_.count) {
      const auto piece = pieces_.claimed++;
      lock.unlock();
      const auto at = pieces_.begin + piece * request_.piece_bytes;
      bytes.clear();
      TROUPE_RETURN_IF_ERROR(get(*http, at, std::min(at + request_.piece_bytes, size()), false,
                                 [&](std::string_view more) -> Status {
                                   bytes += more;
                                   const std::lock_guard look(mutex_);
                                   return pieces_.failure;
                                 }));
      lock.lock();
      // The others end, or fail, in bounded time: every request has its timeouts and its retries.
      changed_.wait(lock, [&] { return pieces_.written == piece || !pieces_.failure.ok(); });
      if (!pieces_.failure.ok()) break;
      TROUPE_RETURN_IF_ERROR(write(bytes));
      ++pieces_.written;
      changed_.notify_all();
    }
    return {};
  }

  Status write(std::string_view piece) {
    hash_->update(piece);
    TROUPE_RETURN_IF_ERROR(out_->append(piece));
    written_ += piece.size();
    return {};
  }

  Status finish(bool right) {
    TROUPE_RETURN_IF_ERROR(out_->sync());
    TROUPE_RETURN_IF_ERROR(out_->close());
    out_.reset();
    if (!right) {
      TROUPE_RETURN_IF_ERROR(files_.remove(incomplete_));
      return error(Code::kDataLoss,
                   "Consistency check failed: {} of {} came from {} with another hash than {}; "
                   "try again, or ask who runs that server",
                   request_.file, request_.repository.name, without_query(source_.url),
                   request_.metadata.etag);
    }
    TROUPE_RETURN_IF_ERROR(files_.rename(incomplete_, request_.path));
    progress_.end(request_.file);
    return {};
  }

  // A URL that is not good any more is asked for again.
  Status refresh(Http& http) {
    auto fresh = TROUPE_TRY(request_.refresh(http));
    if (fresh.etag != request_.metadata.etag || fresh.size_bytes != size())
      return error(Code::kAborted, "{} of {} was changed on the hub meanwhile; try again",
                   request_.file, request_.repository.name);
    const std::lock_guard lock(mutex_);
    source_ = std::move(fresh);
    return {};
  }

  Request request_from(std::uint64_t at, std::uint64_t end, bool whole) {
    Request request = client_.to_endpoint("GET", "");
    {
      const std::lock_guard lock(mutex_);
      request.url = source_.url;
      if (!source_.on_hub) request.token.clear();
    }
    if (!whole) {
      request.headers.push_back(fmt::format("range: bytes={}-{}", at, end - 1));
    } else if (at > 0) {
      request.headers.push_back(fmt::format("range: bytes={}-", at));
    }
    return request;
  }

  // The bytes [at, end) to `consume`, in order, whatever happens to connections. `whole`: to the
  // file's end; then a server without ranges makes it begin anew. kUnsupported: the server sends
  // no ranges.
  template <typename Consume>
  Status get(Http& http, std::uint64_t at, std::uint64_t end, bool whole, const Consume& consume) {
    int failures = 0, refreshes = 0;
    bool restarted = false;
    Duration waited{};
    while (at < end) {
      const Request request = request_from(at, end, whole);
      Status wrong;
      const std::uint64_t before = at;
      bool begun = false;
      auto exchange =
          client_.fetch(http, request, [&](const Response& response, std::string_view bytes) {
            if (!std::exchange(begun, true)) wrong = begin_body(response, at, whole);
            if (wrong.ok() && bytes.size() > end - at)
              wrong = error(Code::kProtocol,
                            "Consistency check failed: {} of {} should be of size {} and is longer",
                            request_.file, request_.repository.name, size());
            if (wrong.ok()) wrong = consume(bytes);
            if (!wrong.ok()) return false;
            at += bytes.size();
            progress_.received(bytes.size());
            return true;
          });
      if (!wrong.ok()) return wrong;
      if (at == end) return {};
      if (at > before) failures = refreshes = 0, waited = {};
      const int status = exchange.response.status;
      // Cut after a part had come: the rest is asked for at once.
      if (at > before) continue;
      const bool expired = status == 401 || status == 403 || status == 404 || status == 410;
      if (expired && ++refreshes <= kRefreshesMax) {
        TROUPE_RETURN_IF_ERROR(refresh(http));
        continue;
      }
      if (status == 416 && whole && at > 0) {
        // What an earlier download left may not be of this file; what came just now is.
        if (std::exchange(restarted, true)) {
          return error(
              Code::kDataLoss,
              "Consistency check failed: {} of {} should be of size {} and {} has {} bytes "
              "of it; try again later, or look at HF_ENDPOINT",
              request_.file, request_.repository.name, size(), without_query(request.url), at);
        }
        TROUPE_RETURN_IF_ERROR(restart());
        at = 0;
        continue;
      }
      if (status == 200 || status == 206)
        exchange.response.status = 0;  // cut before its first byte
      const auto wait = client_.wait_before_retry(exchange.response, ++failures, waited);
      if (!wait) {
        if (status >= 300) return http_error(request_.repository, request.url, exchange.response);
        const std::string why =
            exchange.end.ok() ? "the connection ended early" : exchange.end.message();
        return error(
            Code::kUnavailable,
            "{} of {} stopped after {} of {} bytes, and {} tries brought no more: {} ({}). "
            "The same command goes on from there",
            request_.file, request_.repository.name, written_, size(), failures, why,
            without_query(request.url));
      }
      client_.services().wait(*wait);
      waited += *wait;
    }
    return {};
  }

  // Whether an answer's body is what was asked for; `at`: where it begins.
  Status begin_body(const Response& response, std::uint64_t& at, bool whole) {
    if (response.status == 206) {
      const auto said = response.header("content-range");
      const auto first = said.starts_with("bytes ")
                             ? parse_integer<std::uint64_t>(said.substr(6, said.find('-') - 6))
                             : std::nullopt;
      if (first == at) return {};
      return error(Code::kProtocol, "{}: the server sent another range than was asked for",
                   request_.file);
    }
    if (!whole) return error(Code::kUnsupported, "the server sends no ranges");
    if (at > 0) TROUPE_RETURN_IF_ERROR(restart());
    at = 0;
    return {};
  }

  const Client& client_;
  FileSystem& files_;
  Progress& progress_;
  const BlobRequest& request_;
  const std::string incomplete_;
  std::unique_ptr<WritableFile> out_;
  std::optional<ContentHash> hash_;
  std::uint64_t written_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  FileMetadata source_;
  struct Pieces {
    std::uint64_t begin = 0, count = 0;      // where the first begins in the file; of all
    std::uint64_t claimed = 0, written = 0;  // of them, from the first on
    Status failure;
  } pieces_;
};

}  // namespace

Status download_blob(const Client& client, Http& http, const BlobRequest& request,
                     const std::string& incomplete) {
  return BlobDownload(client, request, incomplete).run(http);
}

}  // namespace troupe::train::hub
