#pragma once
// What a host of light actors must still know after it was killed: which of them have ended, what
// those were made of that came one by one, and their saved states. A log that the node keeps
// (runtime/memory/record_memory.h, "TRPLIGH2"), as it keeps saved_state.h's.
//
// A record is a RecordHead, in the machine's own order, and its bytes. When the log is full, what
// still counts of it goes into a new one of twice that size.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>

#include "runtime/base/status.h"
#include "runtime/memory/record_memory.h"
#include "troupe/detail/actor_class.h"
#include "troupe/unique_fd.h"

namespace troupe::detail {

// Not thread-safe.
class LightLog {
 public:
  // Gives the node a new segment, which replaces the one before.
  using Keep = std::function<Status(int fd)>;
  explicit LightLog(Keep keep) : keep_(std::move(keep)) {}

  // Goes on with what an earlier process wrote. kDataLoss or kProtocol where it is no such log.
  Status open(UniqueFd fd);

  // Each replaces what was said before of this light actor and kind; ended() everything. An error
  // (kOutOfMemory, kUnavailable) leaves the log as it was.
  Status created(std::uint32_t number, std::span<const std::byte> arguments);
  Status saved(std::uint32_t number, const SavedState& state);
  Status ended(std::uint32_t number, const Status& why);

  struct Entry {
    std::optional<Status> end;
    std::optional<std::span<const std::byte>> arguments;  // until the next record is written
    std::optional<SavedState> state;
  };
  Entry find(std::uint32_t number) const;

 private:
  enum class Kind : std::uint32_t { kCreated = 1, kSaved = 2, kEnded = 3 };
  struct RecordHead {
    std::uint64_t type_hash = 0;  // of the state
    std::uint32_t version = 0;    // of the state
    std::uint32_t number = 0;
    std::uint32_t kind = 0;
    std::uint32_t zero = 0;
  };
  using Payload = memory::RecordMemory::Payload;
  using Key = std::uint64_t;
  static Key key_of(std::uint32_t number, Kind kind) {
    return std::uint64_t{number} << 2 | static_cast<std::uint64_t>(kind);
  }

  Status append(const RecordHead& head, std::span<const std::byte> bytes);
  // A new log with what counts and room for `extra` bytes more.
  Status renew(std::size_t extra);
  void note(Payload record);
  void forget(Key key);
  static RecordHead head_of(Payload record);

  const Keep keep_;
  memory::RecordMemory records_;
  std::size_t live_bytes_ = 0;  // of the records that count
  std::unordered_map<Key, Payload> live_;
};

}  // namespace troupe::detail
