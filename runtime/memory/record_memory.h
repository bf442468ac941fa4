#pragma once
// Records (runtime/base/record.h) in a segment that outlives the processes that write it, one after
// the other. To append costs no system call, and whoever opens it after a process was killed finds
// every record that was written.
//
// Layout, in the machine's own order: the magic, a u64 salt, then one or two areas of equal size.
// An area is a u64 number and then records, whose base is the salt plus the number times an odd
// constant: what remains of an earlier use of the area, which had another number, is no record. The
// newest area is the one that holds a record and has the larger number.
//
// With one area it is a log that ends when it is full. With two, whoever finds the newest full
// begins the older one anew, so that the last records and some before them stay.

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <vector>

#include "runtime/base/record.h"
#include "runtime/memory/segment.h"
#include "troupe/unique_fd.h"

namespace troupe::memory {

// Not thread-safe. `kind` stays the caller's, and must outlive it.
class RecordMemory {
 public:
  using Payload = std::span<const std::byte>;
  using Pieces = std::initializer_list<Payload>;

  RecordMemory() = default;
  // New memory, whose areas hold records of `area_bytes` together (bytes_of).
  static Result<RecordMemory> create(const RecordKind& kind, const std::string& name,
                                     std::size_t areas, std::size_t area_bytes,
                                     Populate populate = Populate::kLazily);
  // The memory that another process has filled, or fills no more. kDataLoss where it is of another
  // kind or version, kProtocol where its size may change.
  static Result<RecordMemory> open(const RecordKind& kind, std::size_t areas, UniqueFd fd);

  // What a record takes of an area.
  static constexpr std::size_t bytes_of(std::size_t payload_bytes) {
    return kRecordHeaderBytes + payload_bytes;
  }
  // Whether an area has room for such a payload.
  bool fits(std::size_t payload_bytes) const;

  // Whether the newest area has room for one more such payload.
  bool has_room(std::size_t payload_bytes) const;
  // Adds a record to the newest area, and says where its payload lies; nothing where it has no room
  // any more.
  std::optional<Payload> append(Pieces pieces);
  // Makes the other area, emptied, the newest, with this record, for which there must be room.
  void begin_area(Pieces pieces);

  // The payloads of the newest area, or of the other one, in the order of their writing. kDataLoss
  // where records between them are damaged.
  Result<std::vector<Payload>> newest() const { return records(newest_); }
  Result<std::vector<Payload>> older() const { return records(1 - newest_); }
  // The first of the newest area; without a look at what follows.
  std::optional<Payload> first() const { return reader(newest_).next(); }

  // Stays the memory's own.
  int fd() const { return segment_.fd(); }

 private:
  static constexpr std::uint64_t kBetweenUses = 0x9e37'79b9'7f4a'7c15;
  RecordMemory(const RecordKind& kind, Segment segment, std::size_t areas);
  std::size_t front_of(std::size_t area) const;  // where its first record is
  std::uint64_t number_of(std::size_t area) const;
  std::uint64_t base_of(std::size_t area) const { return salt_ + number_of(area) * kBetweenUses; }
  RecordReader reader(std::size_t area) const;
  Result<std::vector<Payload>> records(std::size_t area) const;

  const RecordKind* kind_ = nullptr;
  Segment segment_;
  std::size_t areas_ = 0;
  std::size_t area_bytes_ = 0;  // with its number
  std::uint64_t salt_ = 0;
  std::size_t newest_ = 0;
  std::size_t end_ = 0;  // of the newest area's last record
};

}  // namespace troupe::memory
