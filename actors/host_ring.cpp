#include "actors/host_ring.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "runtime/base/limits.h"
#include "runtime/memory/unix_socket.h"
#include "troupe/serialize.h"

namespace troupe::detail {
namespace {

// An offer is one small message: where it does not come whole, it is none.
constexpr Duration kOfferReadTimeout = std::chrono::milliseconds(50);
// Two processes of one machine see one clock; one with a time namespace of its own does not.
constexpr Duration kClockDifferenceMax = std::chrono::seconds(10);
constexpr std::array<std::byte, 8> kAnswerPadding{};

// Writing to an eventfd neither waits nor raises a signal; to a pipe or a file it might.
bool is_eventfd(int fd) {
  struct stat info {};
  return ::fstat(fd, &info) == 0 && (info.st_mode & S_IFMT) == 0;
}

}  // namespace

Result<std::shared_ptr<HostPageSegment>> HostPageSegment::create() {
  auto segment = TROUPE_TRY(memory::Segment::create("troupe-host-page", kHostPageBytes));
  return std::shared_ptr<HostPageSegment>(new HostPageSegment(std::move(segment)));
}

Result<HostRing::Arrived> HostRing::receive_offer(int socket) {
  Arrived arrived;
  const auto bytes = std::as_writable_bytes(std::span(&arrived.offer, 1));
  arrived.descriptors =
      TROUPE_TRY(memory::receive_with_fds(socket, bytes, 3, Deadline::after(kOfferReadTimeout)));
  return arrived;
}

Result<std::shared_ptr<HostRing>> HostRing::adopt(Arrived arrived, const Clock& clock) {
  const RingOffer& offer = arrived.offer;
  if (offer.magic != kRingMagic || offer.version != kRingVersion ||
      offer.segment_bytes != kRingSegmentBytes || offer.slab_bytes != kRingSlabBytes) {
    return error(Code::kProtocol, "a ring of another version was offered");
  }
  const Duration apart = clock.now().time_since_epoch() - Duration(offer.clock_ns);
  if (std::chrono::abs(apart) > kClockDifferenceMax) {
    return error(Code::kFailedPrecondition, "the caller's monotonic clock is another one");
  }
  if (!is_eventfd(arrived.descriptors[2].get())) {
    return error(Code::kProtocol, "the third descriptor of a ring's offer is no eventfd");
  }
  auto segment = TROUPE_TRY(memory::Segment::adopt(std::move(arrived.descriptors[0]),
                                                   kRingSegmentBytes, memory::Access::kReadWrite));
  auto slabs = TROUPE_TRY(memory::Segment::adopt(std::move(arrived.descriptors[1]), kRingSlabBytes,
                                                 memory::Access::kReadOnly));
  auto calls = TROUPE_TRY(memory::MirroredMapping::map(segment, kRingPageBytes, kRingBytes));
  auto answers =
      TROUPE_TRY(memory::MirroredMapping::map(segment, kRingPageBytes + kRingBytes, kRingBytes));
  auto results = TROUPE_TRY(RingSlabs::make_segment("troupe-results"));
  return std::shared_ptr<HostRing>(
      new HostRing(offer, std::move(segment), std::move(slabs), std::move(results),
                   std::move(arrived.descriptors[2]), std::move(calls), std::move(answers)));
}

Status HostRing::send_reply(int socket, const Result<std::shared_ptr<HostRing>>& ring,
                            int host_page) {
  RingReply reply;
  reply.code = static_cast<std::int32_t>(ring.status().code());
  const auto bytes = std::as_bytes(std::span(&reply, 1));
  const Deadline deadline = Deadline::after(kOfferReadTimeout);
  if (!ring.ok()) return memory::send_with_fds(socket, bytes, {}, deadline);
  const int fds[] = {host_page, (*ring)->results_.fd()};
  return memory::send_with_fds(socket, bytes, fds, deadline);
}

HostRing::HostRing(const RingOffer& offer, memory::Segment segment, memory::Segment slabs,
                   memory::Segment results, UniqueFd wake_fd, memory::MirroredMapping calls,
                   memory::MirroredMapping answers)
    : caller_(offer.caller),
      number_(offer.number),
      segment_(std::move(segment)),
      data_(segment_.data()),
      slabs_(std::move(slabs)),
      wake_fd_(std::move(wake_fd)),
      calls_(&page().calls, std::move(calls)),
      answers_(&page().answers, std::move(answers)),
      caller_waker_(&page().caller_word),
      results_(std::move(results)) {
  spin_max_ = std::clamp(Duration(page().spin_ns), Duration::zero(), kRingSpin);
  for (std::size_t i = 0; i < cpus_.size(); ++i) cpus_[i] = page().cpus[i / 64] >> (i % 64) & 1;
}

// --- calls

std::optional<HostRing::Call> HostRing::fail() {
  damaged_.store(true, std::memory_order_release);
  return std::nullopt;
}

std::optional<HostRing::Call> HostRing::front() {
  if (detached() || damaged()) return std::nullopt;
  const auto readable = calls_.readable(sizeof(RingCall));
  if (calls_.damaged()) return fail();
  if (readable.empty()) return std::nullopt;
  RingCall header;
  if (readable.size() < sizeof header) return fail();
  std::memcpy(&header, readable.data(), sizeof header);
  pending_bytes_ = sizeof header + padded_bytes(header.bytes);
  // Calls are published whole.
  if (header.bytes > kRingInlineBytesMax || readable.size() < pending_bytes_) return fail();
  if (header.socket_calls > socket_calls_) {
    blocked_.store(true, std::memory_order_release);
    return std::nullopt;
  }
  Call call{.sequence = header.sequence,
            .method = header.method,
            .deadline = TimePoint(Duration(header.deadline_ns)),
            .retry = (header.flags & RingCall::kRetry) != 0,
            .in_slab = (header.flags & RingCall::kInSlab) != 0,
            .arguments = readable.subspan(sizeof header, header.bytes)};
  if (call.in_slab) {
    if (header.bytes != 0 || header.slab_offset > slabs_.size() ||
        header.slab_bytes > slabs_.size() - header.slab_offset) {
      return fail();
    }
    call.arguments =
        std::span<const std::byte>(slabs_.data() + header.slab_offset, header.slab_bytes);
  }
  return call;
}

void HostRing::pop() {
  calls_.consume(pending_bytes_);
  calls_.release();
  ++ring_calls_;
  page().taken.store(ring_calls_ + socket_calls_, std::memory_order_release);
}

void HostRing::begin(std::uint64_t socket_calls) {
  socket_calls_ = socket_calls;
  page().taken.store(ring_calls_ + socket_calls_, std::memory_order_release);
}

void HostRing::count_socket_call() {
  begin(socket_calls_ + 1);
  blocked_.store(false, std::memory_order_release);
}

// --- answers

LentResult::~LentResult() {
  if (ring_ != nullptr) ring_->take_back(slot_);
}

LentResult HostRing::lend(const Result<wire::Bytes>& result) {
  if (!is_large(result) || detached()) return {};
  std::size_t slot = 0;
  Part part;
  {
    MutexLock lock(lending_);
    take_back_read_locked();
    while (slot < kRingResultsMax && lent_[slot].bytes > 0) ++slot;
    if (slot == kRingResultsMax) return {};
    // A caller that does not read them is held back for what goes over the socket.
    if (lent_bytes_ > 0 && lent_bytes_ + result->size() > limits::kUnreadAnswerBytesMax) return {};
    const auto offset = results_.take(result->size());
    if (!offset) return {};
    part = lent_[slot] = {*offset, result->size()};
    lent_bytes_ += part.bytes;
    page().results[slot].store(1, std::memory_order_relaxed);
  }
  std::memcpy(results_.part(part.offset, part.bytes).data(), result->data(), part.bytes);
  return LentResult(this, slot);
}

void HostRing::take_back(std::size_t slot) {
  MutexLock lock(lending_);
  page().results[slot].store(0, std::memory_order_relaxed);
  take_back_read_locked();
}

// Those that the caller has read.
void HostRing::take_back_read_locked() {
  for (std::size_t slot = 0; slot < kRingResultsMax; ++slot) {
    Part& part = lent_[slot];
    if (part.bytes == 0 || page().results[slot].load(std::memory_order_acquire) != 0) continue;
    lent_bytes_ -= part.bytes;
    results_.give_back(part.offset, std::exchange(part.bytes, 0));
  }
}

bool HostRing::release_idle() {
  MutexLock lock(lending_);
  take_back_read_locked();
  return results_.release_idle();
}

bool HostRing::answer(std::uint64_t sequence, const Result<wire::Bytes>& result, LentResult lent) {
  RingAnswer header{};
  header.sequence = sequence;
  wire::Bytes failure;
  RingResult in_slab{};
  std::span<const std::byte> bytes;
  if (lent.there()) {
    MutexLock lock(lending_);
    in_slab = {
        .offset = lent_[lent.slot_].offset, .bytes = lent_[lent.slot_].bytes, .slot = lent.slot_};
    header.kind = RingAnswer::kInSlab;
    bytes = std::as_bytes(std::span(&in_slab, 1));
  } else if (result.ok()) {
    bytes = *result;
  } else {
    failure = encode_value(result.status());
    header.kind = RingAnswer::kFailed;
    bytes = failure;
  }
  if (bytes.size() > kRingInlineBytesMax) return false;
  header.bytes = static_cast<std::uint32_t>(bytes.size());
  const std::size_t padded = padded_bytes(bytes.size());
  bool ring = false;
  {
    MutexLock lock(answering_);
    if (answers_.space(sizeof header + padded) < sizeof header + padded) return false;
    lent.ring_ = nullptr;  // it is the caller's now
    answers_.write(std::as_bytes(std::span(&header, 1)));
    if (!bytes.empty()) {
      answers_.write(bytes);
      answers_.write(std::span(kAnswerPadding).first(padded - bytes.size()));
    }
    answers_.publish();
    ring = caller_waker_.wake();
  }
  if (ring) {
    const std::uint64_t one = 1;
    (void)!::write(wake_fd_.get(), &one, sizeof one);
  }
  return true;
}

}  // namespace troupe::detail
