#include "train/trainer/cache_delivery.h"

#include <unistd.h>

#include <algorithm>
#include <thread>

#include "runtime/base/clock.h"
#include "runtime/base/file_lock.h"
#include "runtime/base/limits.h"
#include "train/data/token_cache.h"

namespace troupe::train {
namespace {

enum class Word : std::uint8_t { kWaits = 1, kHas = 2, kWants = 3 };

// For the next bytes of a file.
constexpr auto kPieceTimeout = std::chrono::seconds(60);
// For a word: a cache that was copied is read whole before, and one that came is put on the disk.
constexpr auto kWordTimeout = std::chrono::minutes(10);
constexpr auto kWaitsEvery = std::chrono::milliseconds(500);
// Of another process of this machine that takes the same.
constexpr auto kOtherTimeout = std::chrono::hours(2);

Status say(ByteStream& stream, Word word) {
  return send_all(stream, std::as_bytes(std::span(&word, 1)), Deadline::after(kPieceTimeout));
}

// Whether the samples are the same, wherever and whenever they were written.
bool same_samples(const TokenCache& a, const TokenCache& b) {
  return std::ranges::equal(a.sets, b.sets, [](const auto& x, const auto& y) {
    return x.first == y.first && x.second.kind == y.second.kind &&
           x.second.pad_id == y.second.pad_id && x.second.xxh3 == y.second.xxh3;
  });
}

bool is_here(FileSystem& files, const std::string& folder, const TokenCache& wanted) {
  const auto here = read_token_cache(files, folder);
  return here.ok() && same_samples(*here, wanted);
}

// The one process of this machine that may write the folder; empty where the cache came meanwhile.
Result<std::optional<FileLock>> lock_or_cache(FileSystem& files, ByteStream& stream,
                                              const std::string& folder, const TokenCache& wanted) {
  const auto slash = folder.rfind('/');
  if (slash != std::string::npos && slash > 0)
    TROUPE_RETURN_IF_ERROR(files.create_directories(folder.substr(0, slash)));
  for (const Deadline deadline = Deadline::after(kOtherTimeout); !deadline.passed();) {
    auto lock = FileLock::take(folder + ".taking", fmt::format("process {}", ::getpid()));
    // Looked at behind the lock: whoever had it before may have finished.
    if (lock.ok() || lock.status().code() == Code::kUnsupported) {
      if (is_here(files, folder, wanted)) return std::optional<FileLock>();
      if (lock.ok()) return std::optional(std::move(*lock));
    }
    if (lock.status().code() != Code::kAlreadyExists) return lock.status();
    TROUPE_RETURN_IF_ERROR(say(stream, Word::kWaits));
    std::this_thread::sleep_for(kWaitsEvery);
  }
  return error(Code::kDeadlineExceeded, "another process has been taking it for two hours");
}

Status take_from(FileSystem& files, ByteStream& stream, const std::string& folder,
                 const TokenCache& wanted, const Logger& log) {
  auto lock = TROUPE_TRY(lock_or_cache(files, stream, folder, wanted));
  if (!lock) return {};
  TROUPE_RETURN_IF_ERROR(say(stream, Word::kWants));
  log.info("taking the run's tokenised data over to {}", folder);
  return take_cached_files(files, wanted, folder, [&](std::span<std::byte> piece) {
    return receive_all(stream, piece, Deadline::after(kPieceTimeout));
  });
}

}  // namespace

Status offer_token_cache(FileSystem& files, ByteStream& stream, const std::string& folder) {
  const auto cache = read_token_cache(files, folder);
  const std::string text = cache.ok() ? cache->to_text() : "";
  const std::uint64_t size = text.size();
  const auto send = [&](std::span<const std::byte> piece) {
    return send_all(stream, piece, Deadline::after(kPieceTimeout));
  };
  TROUPE_RETURN_IF_ERROR(send(std::as_bytes(std::span(&size, 1))));
  TROUPE_RETURN_IF_ERROR(send(std::as_bytes(std::span(text))));
  TROUPE_RETURN_IF_ERROR(cache.status());
  Word word = Word::kWaits;
  const auto hear = [&] {
    return receive_all(stream, std::as_writable_bytes(std::span(&word, 1)),
                       Deadline::after(kWordTimeout));
  };
  while (word == Word::kWaits) TROUPE_RETURN_IF_ERROR(hear());
  if (word == Word::kHas) return {};
  TROUPE_RETURN_IF_ERROR(give_cached_files(files, folder, *cache, send));
  return hear();
}

Status take_token_cache(FileSystem& files, ByteStream& stream, const std::string& folder,
                        bool shared, const Logger& log) {
  const auto receive = [&](std::span<std::byte> bytes) {
    return receive_all(stream, bytes, Deadline::after(kPieceTimeout));
  };
  std::uint64_t size = 0;
  TROUPE_RETURN_IF_ERROR(receive(std::as_writable_bytes(std::span(&size, 1))));
  if (size == 0) return {};  // whether it is here is seen when it is mapped
  if (size > limits::kJsonFileBytesMax)
    return error(Code::kProtocol, "a cache's description of {} bytes was announced", size);
  std::string text(static_cast<std::size_t>(size), '\0');
  TROUPE_RETURN_IF_ERROR(receive(std::as_writable_bytes(std::span(text))));
  const auto wanted = TROUPE_TRY(TokenCache::parse(text, "the controller's tokenised data"));
  if (!shared && !is_here(files, folder, wanted))
    TROUPE_RETURN_IF_ERROR(take_from(files, stream, folder, wanted, log));
  return say(stream, Word::kHas);
}

}  // namespace troupe::train
