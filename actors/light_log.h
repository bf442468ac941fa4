#pragma once
// What a host of light actors must still know after it was killed: which of them have ended, what
// those were made of that came one by one, and their saved states. A log in a memfd that the node
// keeps, as it keeps saved_state.h's.
//
// Layout, in the machine's own order (the bytes never leave it): a header of 64 bytes (u64 magic
// "TRPLIGH1", u64 salt, zeros), then records, each a RecordHeader and its bytes, filled up to a
// multiple of 8. A record counts when its hash is right and its sequence follows that of the record
// before; the first that is not ends the log. So a process killed in mid-write leaves all records
// before, and a record costs no system call. When the log is full, what still counts of it goes
// into a new one of twice that size.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>

#include "actors/actor_class.h"
#include "runtime/base/status.h"
#include "runtime/base/unique_fd.h"
#include "runtime/memory/segment.h"

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
  struct RecordHeader {
    std::uint64_t hash = 0;  // XXH3-64 of the salt, what follows here, and the bytes
    std::uint64_t sequence = 0;
    std::uint64_t bytes = 0;
    std::uint64_t type_hash = 0;  // of the state
    std::uint32_t version = 0;    // of the state
    std::uint32_t number = 0;
    std::uint32_t kind = 0;
    std::uint32_t zero = 0;
  };
  static_assert(sizeof(RecordHeader) == 48);
  struct Place {
    std::size_t offset = 0;
    std::size_t bytes = 0;  // with its header, filled up
  };
  using Key = std::uint64_t;
  static Key key_of(std::uint32_t number, Kind kind) {
    return std::uint64_t{number} << 2 | static_cast<std::uint64_t>(kind);
  }

  Status append(RecordHeader header, std::span<const std::byte> bytes);
  // A new segment with what counts and room for `extra` bytes more.
  Status renew(std::size_t extra);
  void write(memory::Segment& segment, std::uint64_t salt, std::size_t offset, RecordHeader header,
             std::span<const std::byte> bytes) const;
  void note(const RecordHeader& header, Place place);
  void forget(Key key);
  std::optional<RecordHeader> record_at(std::size_t offset) const;
  std::span<const std::byte> bytes_at(const Place& place) const;

  const Keep keep_;
  memory::Segment segment_;
  std::uint64_t salt_ = 0;
  std::size_t used_ = 0;
  std::uint64_t sequence_ = 0;  // of the last record
  std::size_t live_bytes_ = 0;
  std::unordered_map<Key, Place> live_;
};

}  // namespace troupe::detail
