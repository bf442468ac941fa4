#include "train/sharding/working_memory.h"

#include <algorithm>

#include "runtime/base/check.h"
#include "train/sharding/index.h"

namespace troupe::train {

Result<WorkingMemory> WorkingMemory::allocate(std::int64_t bytes, bool shared) {
  WorkingMemory made;
  made.bytes_ = bytes;
  if (bytes == 0) return made;
  if (shared) {
    made.segment_ = TROUPE_TRY(memory::Segment::create("troupe-working-memory", index(bytes)));
    advise_huge(made.segment_.bytes());
    made.data_ = made.segment_.data();
    return made;
  }
  made.own_.reset(allocate_huge(index(bytes)));
  made.data_ = made.own_.get();
  if (!made.data_)
    return error(Code::kOutOfMemory, "no memory for {} bytes of working buffers", bytes);
  return made;
}

std::span<std::byte> WorkingMemory::take(std::int64_t bytes) {
  TROUPE_CHECK(bytes <= bytes_ - taken_, "{} bytes of {} where {} are taken", bytes, bytes_,
               taken_);
  std::byte* const begin = data_ + taken_;
  taken_ += rounded(bytes);
  return {begin, index(bytes)};
}

}  // namespace troupe::train
