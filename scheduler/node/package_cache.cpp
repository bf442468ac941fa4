#include "scheduler/node/package_cache.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "runtime/base/limits.h"
#include "scheduler/packages/package_file.h"
#include "scheduler/packages/unpack.h"

namespace troupe::scheduler {
namespace {

// Daemons of one machine and user.
constexpr int kFoldersMax = 64;
constexpr std::string_view kFileEnding = ".package";
constexpr std::string_view kIncoming = "incoming-";
constexpr std::string_view kUnpacking = "unpacking-";
// Between the answer that a package is here and the job that needs it lies no more than this.
constexpr Duration kHold = std::chrono::minutes(1);

// The file and what is unpacked of it.
std::uint64_t bytes_kept(std::uint64_t file_bytes) { return 2 * file_bytes; }

std::string this_host() {
  char name[256] = {};
  if (::gethostname(name, sizeof name - 1) != 0 || name[0] == '\0') return "host";
  return name;
}

double in_mib(std::uint64_t bytes) { return static_cast<double>(bytes) / (1u << 20); }

}  // namespace

Result<std::unique_ptr<PackageCache>> PackageCache::open(const std::string& directory,
                                                         std::uint64_t bytes_max,
                                                         const Clock& clock) {
  TROUPE_RETURN_IF_ERROR(PosixFileSystem().create_directories(directory, 0700));
  for (int i = 1; i <= kFoldersMax; ++i) {
    const std::string folder =
        join_path(directory, fmt::format("packages-of-{}-{}", this_host(), i));
    auto lock = FileLock::take(folder + ".lock", fmt::format("process {}", ::getpid()));
    if (!lock.ok() && lock.status().code() == Code::kAlreadyExists) continue;
    if (!lock.ok()) return lock.status();
    std::unique_ptr<PackageCache> cache(
        new PackageCache(std::move(*lock), folder, bytes_max, clock));
    TROUPE_RETURN_IF_ERROR(cache->look_around());
    return cache;
  }
  return error(Code::kResourceExhausted, "{} nodes have their packages in {} already", kFoldersMax,
               directory);
}

PackageCache::~PackageCache() {
  (void)::rmdir(folder_.c_str());  // where it is empty
  lock_.reset();
  (void)::rmdir(folder_.substr(0, folder_.rfind('/')).c_str());
}

std::string PackageCache::file_path(const std::string& sha256) const {
  return join_path(folder_, sha256 + std::string(kFileEnding));
}

// --- what a daemon before left -------------------------------------------------------------------

Status PackageCache::look_around() {
  PosixFileSystem files;
  TROUPE_RETURN_IF_ERROR(files.create_directories(folder_, 0700));
  const auto listed = TROUPE_TRY(files.list(folder_));
  for (const DirectoryEntry& entry : listed) {
    if (entry.name.starts_with(kIncoming) || entry.name.starts_with(kUnpacking)) {
      TROUPE_RETURN_IF_ERROR(remove_unpacked(join_path(folder_, entry.name)));
    }
    const std::string sha256 = entry.name.substr(0, entry.name.find('.'));
    const bool of_package = !sha256.empty() && wire::check({sha256, 1}).ok();
    if (of_package && (left_.empty() || left_.back() != sha256)) left_.push_back(sha256);
  }
  return {};
}

bool PackageCache::take_up_next() {
  if (left_.empty()) return false;
  const std::string sha256 = std::move(left_.back());
  left_.pop_back();
  const auto size = PosixFileSystem().size(file_path(sha256));
  if (size.ok() && check(sha256).ok()) {
    add(sha256, *size);
  } else {
    remove(sha256);
  }
  return true;
}

// Whether both are what the hash says. What a living process uses is not looked at: it may have
// written there, and must not lose it.
Status PackageCache::check(const std::string& sha256) const {
  {
    MutexLock lock(mutex_);
    if (needed_.contains(sha256)) return {};
  }
  const auto file = TROUPE_TRY(PosixFileSystem().map(file_path(sha256)));
  if (name_of_package(file->bytes()).sha256 != sha256) {
    return error(Code::kDataLoss, "{} is not what its hash says", file_path(sha256));
  }
  return check_unpacked(file->bytes(), join_path(folder_, sha256));
}

void PackageCache::add(const std::string& sha256, std::uint64_t file_bytes) {
  MutexLock lock(mutex_);
  entries_[sha256] = {bytes_kept(file_bytes), clock_.now()};
}

void PackageCache::remove(const std::string& sha256) {
  {
    MutexLock lock(mutex_);
    entries_.erase(sha256);
  }
  (void)::unlink(file_path(sha256).c_str());
  (void)remove_unpacked(join_path(folder_, sha256));
}

// --- what is here --------------------------------------------------------------------------------

std::vector<std::string> PackageCache::all() const {
  MutexLock lock(mutex_);
  std::vector<std::string> sha256s;
  for (const auto& [sha256, entry] : entries_) sha256s.push_back(sha256);
  return sha256s;
}

std::optional<std::string> PackageCache::directory_of(const wire::Package& package) {
  MutexLock lock(mutex_);
  const auto found = entries_.find(package.sha256);
  if (found == entries_.end()) return std::nullopt;
  found->second.used = clock_.now();
  return join_path(folder_, package.sha256);
}

Result<wire::SegmentBytes> PackageCache::read(const wire::ReadPackage& request) {
  if (!directory_of(request.package)) {
    return error(Code::kNotFound, "{} is not here", request.package.to_string());
  }
  const auto file = TROUPE_TRY(PosixFileSystem().open_readable(file_path(request.package.sha256)));
  wire::SegmentBytes answer;
  answer.size_bytes = file->size();
  const std::uint64_t offset = std::min(request.offset, answer.size_bytes);
  answer.bytes.resize(std::min<std::uint64_t>(
      {request.bytes_max, answer.size_bytes - offset, limits::kPackagePieceBytes}));
  TROUPE_RETURN_IF_ERROR(file->read_at(offset, answer.bytes));
  return answer;
}

void PackageCache::set_needed(std::set<std::string> sha256s) {
  MutexLock lock(mutex_);
  needed_ = std::move(sha256s);
}

// --- arrival -------------------------------------------------------------------------------------

// Of those that nobody needs, longest unused first.
Status PackageCache::make_room(std::uint64_t bytes) {
  for (;;) {
    std::uint64_t held = arriving_bytes_;
    std::string oldest;
    {
      MutexLock lock(mutex_);
      TimePoint used = clock_.now() - kHold;
      for (const auto& [sha256, entry] : entries_) {
        held += entry.bytes;
        if (needed_.contains(sha256) || entry.used > used) continue;
        used = entry.used;
        oldest = sha256;
      }
      if (held + bytes > bytes_max_) entries_.erase(oldest);  // from now on nobody has it
    }
    if (held + bytes <= bytes_max_) return {};
    if (oldest.empty()) {
      return error(Code::kResourceExhausted,
                   "{} holds {:.1f} of at most {:.1f} MiB of packages, which jobs use or were just "
                   "sent, and {:.1f} more are needed: give the node more (--package-bytes), or "
                   "wait for a job to end",
                   folder_, in_mib(held), in_mib(bytes_max_), in_mib(bytes));
    }
    remove(oldest);
  }
}

Result<std::unique_ptr<PackageCache::Arrival>> PackageCache::receive(const wire::Package& package) {
  TROUPE_RETURN_IF_ERROR(wire::check(package));
  if (package.empty()) return Status(Code::kInvalidArgument, "a package without a hash");
  if (package.size_bytes > bytes_max_ / 2) {
    return error(Code::kResourceExhausted,
                 "{} takes twice as much with what is unpacked of it; this node keeps at most "
                 "{:.1f} MiB (--package-bytes)",
                 package.to_string(), in_mib(bytes_max_));
  }
  if (std::erase(left_, package.sha256) > 0) {
    left_.push_back(package.sha256);
    take_up_next();
  }
  if (directory_of(package)) {
    if (check(package.sha256).ok()) {
      return error(Code::kAlreadyExists, "{} is here", package.to_string());
    }
    remove(package.sha256);
  }
  TROUPE_RETURN_IF_ERROR(make_room(bytes_kept(package.size_bytes)));
  std::unique_ptr<Arrival> arrival(new Arrival(
      *this, package, join_path(folder_, fmt::format("{}{}", kIncoming, next_name_++))));
  arriving_bytes_ += bytes_kept(package.size_bytes);
  arrival->file_ = TROUPE_TRY(PosixFileSystem().create(arrival->path_, 0600));
  return arrival;
}

PackageCache::Arrival::~Arrival() {
  (void)::unlink(path_.c_str());
  cache_.arriving_bytes_ -= bytes_kept(package_.size_bytes);
}

Status PackageCache::Arrival::append(std::span<const std::byte> bytes) {
  if (bytes.size() > package_.size_bytes - size_) {
    return error(Code::kDataLoss, "{} comes with more bytes than it has", package_.to_string());
  }
  size_ += bytes.size();
  return file_->append(bytes);
}

Status PackageCache::Arrival::finish() {
  TROUPE_RETURN_IF_ERROR(file_->close());
  return cache_.keep(package_, path_);
}

Status PackageCache::keep(const wire::Package& package, const std::string& file) {
  PosixFileSystem files;
  const auto mapped = TROUPE_TRY(files.map(file));
  if (name_of_package(mapped->bytes()) != package) {
    return error(Code::kDataLoss, "what came of {} is not what its hash says: it is not used",
                 package.to_string());
  }
  if (directory_of(package)) return {};  // it came twice
  const std::string unpacking = join_path(folder_, fmt::format("{}{}", kUnpacking, next_name_++));
  TROUPE_RETURN_IF_ERROR(unpack_package(mapped->bytes(), unpacking));
  remove(package.sha256);  // what could not be removed before
  const std::string path = join_path(folder_, package.sha256);
  Status kept = files.rename(unpacking, path);
  if (kept.ok()) kept = files.rename(file, file_path(package.sha256));
  if (!kept.ok()) {
    (void)remove_unpacked(unpacking);
    (void)remove_unpacked(path);
    return kept;
  }
  (void)::chmod(path.c_str(), 0500);
  add(package.sha256, package.size_bytes);
  return {};
}

}  // namespace troupe::scheduler
