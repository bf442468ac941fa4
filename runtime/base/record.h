#pragma once
// Records in bytes that outlive the process that writes them: the head's journal, and the memory
// that a node keeps for its actors (runtime/memory/record_memory.h). One format, one writer, one
// reader.
//
// Format. Eight bytes say what the records are: seven characters and the version, a digit
// ("TRPJRNL2"). Behind them, and whatever else the kind has there, records follow each other:
//
//   u32  bytes of the payload, at least 1
//   u64  XXH3-64 of the payload
//   u64  XXH3-64 of the twelve bytes before and of the record's place (u64)
//   the payload
//
// Numbers are little-endian. A record's place is its offset from the first of the eight bytes plus
// a base, which is 0 in a file. Bytes within a payload that look like a record are therefore none,
// nor is what remains of an earlier use of the same memory, whose base was another.
//
// Reading ends where no sound record begins. If one follows later, it was written later, so the
// bytes before it were whole once: they are damaged. If none follows and the bytes end before the
// record does, its write did not come to its end: the end is torn, and what was written there was
// never acted upon. What else is left at the end is either what a power cut left of an append (the
// file has its new size but not its bytes) or the last record, damaged; nobody can tell which.
// Zeros are never a record.

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string_view>

#include "runtime/base/status.h"

namespace troupe {

inline constexpr std::size_t kRecordMagicBytes = 8;
inline constexpr std::size_t kRecordHeaderBytes = 4 + 8 + 8;

// What records of one kind are, with the ends of the sentences by which others are refused.
struct RecordKind {
  std::string_view magic;               // the eight bytes
  std::string_view name;                // "X is no …"
  std::string_view of_another_version;  // "X was written by another version of troupe; …"
};

// kDataLoss unless `bytes`, which are those of `whose`, begin with the magic of this kind.
Status check_magic(const RecordKind& kind, std::string_view bytes, std::string_view whose);

// Writes a record whose payload is the pieces one behind the other, 1 to 2^32-1 bytes. There must
// be room for it at `out`. Its header is written last: to a process that reads after this one was
// killed, the record is there whole or not at all.
void write_record(std::byte* out, std::uint64_t place,
                  std::initializer_list<std::span<const std::byte>> pieces);

// Reads the records of `bytes` from `offset` on. The bytes must stay; payloads point into them.
class RecordReader {
 public:
  explicit RecordReader(std::span<const std::byte> bytes, std::uint64_t offset = kRecordMagicBytes,
                        std::uint64_t base = 0)
      : bytes_(bytes), offset_(offset), base_(base) {}

  // The payload of the next record; nothing where no sound one begins.
  std::optional<std::span<const std::byte>> next();
  // Behind the last record that was read.
  std::uint64_t offset() const { return offset_; }

  enum class End {
    kWhole,    // no bytes are left
    kTorn,     // what is left is the beginning of a record, as far as it goes
    kUnsound,  // what is left neither is a record nor begins one
    kDamaged,  // a sound record follows somewhere
  };
  // Of where next() gave nothing. Takes a nanosecond or two for each byte that is left.
  End end() const;

 private:
  // Whether a record begins there, whose payload may be cut or damaged.
  bool header_at(std::uint64_t offset) const;
  std::optional<std::span<const std::byte>> record_at(std::uint64_t offset) const;

  std::span<const std::byte> bytes_;
  std::uint64_t offset_;
  std::uint64_t base_;
};

}  // namespace troupe
