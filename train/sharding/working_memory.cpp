#include "train/sharding/working_memory.h"

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"
#include "train/sharding/index.h"

namespace troupe::train {

Result<WorkingMemory> WorkingMemory::allocate(const WorkingBytes& bytes, bool shared) {
  WorkingMemory made;
  const bool in_segment = shared && bytes.sent > 0;
  if (in_segment) {
    made.segment_ = TROUPE_TRY(memory::Segment::create("troupe-working-memory", index(bytes.sent)));
    advise_huge(made.segment_.bytes());
  }
  const std::int64_t rest = in_segment ? bytes.own : bytes.total();
  if (rest > 0) {
    made.allocated_.reset(allocate_huge(index(rest)));
    if (!made.allocated_)
      return error(Code::kOutOfMemory, "no memory for {} bytes of working buffers", rest);
  }
  std::byte* const own = made.allocated_.get();
  made.sent_ = {in_segment ? made.segment_.data() : own, bytes.sent, 0};
  made.own_ = {in_segment || bytes.sent == 0 ? own : own + bytes.sent, bytes.own, 0};
  return made;
}

WorkingMemory WorkingMemory::over(std::span<std::byte> stretch, const WorkingBytes& bytes,
                                  std::shared_ptr<void> owner) {
  TROUPE_CHECK(static_cast<std::int64_t>(stretch.size()) >= bytes.total());
  WorkingMemory made;
  made.owner_ = std::move(owner);
  made.sent_ = {stretch.data(), bytes.sent, 0};
  made.own_ = {stretch.data() + bytes.sent, bytes.own, 0};
  return made;
}

std::span<std::byte> WorkingMemory::Stretch::take(std::int64_t count) {
  TROUPE_CHECK(count <= bytes - taken, "{} bytes of {} where {} are taken", count, bytes, taken);
  std::byte* const begin = data + taken;
  taken += rounded(count);
  return {begin, index(count)};
}

}  // namespace troupe::train
