#pragma once
// Decisions as the payload of one record of the journal (scheduler/head/journal.h), in which what
// they have in common is written once: actors of one class differ in an id and a few numbers.
//
// Payload: a byte 3, then for each delta
//   u8      its kind (the second byte of delta.h's encoding); with 0x80 it is compared to the last
//           one of its kind in this payload
//   varint  its bytes (delta.h's encoding, without the first two), at most kDeltaBytesMax
//   these bytes, each xor the one at the same place of what it is compared to, in words of eight,
//   as
//           Cap'n Proto packs them: a byte of eight bits that say which of the word's bytes are not
//           zero, and those. 0: a byte follows that says how many more words are zero. 255: the
//           word is followed by a byte that says how many more words follow as they are. The last
//           word is filled up with zeros.
//
// Earlier versions wrote one delta as it is, which begins with a 1, or a 2 and then several, each
// with its u32 length before it. Both are read.

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "runtime/base/status.h"
#include "scheduler/control/delta.h"

namespace troupe::scheduler {

// Never more than journal_bytes() of them, less a record's header.
std::vector<std::byte> encode_deltas(std::span<const Delta> deltas);
// Gives `take` the deltas of a payload, in order, until that fails. Errors as of decode_delta.
Status decode_deltas(std::span<const std::byte> payload, const std::function<Status(Delta)>& take);

}  // namespace troupe::scheduler
