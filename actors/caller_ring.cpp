#include "actors/caller_ring.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/base/limits.h"
#include "runtime/memory/unix_socket.h"

namespace troupe::detail {
namespace {

// Both ends have the socket's buffer for less than 200 bytes: nobody waits.
constexpr Duration kOfferTimeout = std::chrono::milliseconds(100);
constexpr std::array<std::byte, 8> kPadding{};

}  // namespace

// --- making it

Result<std::shared_ptr<CallerRing>> CallerRing::create(Duration spin_max) {
  auto segment = TROUPE_TRY(memory::Segment::create("troupe-ring", kRingSegmentBytes));
  auto slabs = TROUPE_TRY(RingSlabs::make_segment("troupe-slabs"));
  auto calls = TROUPE_TRY(memory::MirroredMapping::map(segment, kRingPageBytes, kRingBytes));
  auto answers =
      TROUPE_TRY(memory::MirroredMapping::map(segment, kRingPageBytes + kRingBytes, kRingBytes));
  UniqueFd wake_fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_fd.valid()) {
    return error(Code::kResourceExhausted, "no eventfd: {}", std::strerror(errno));
  }
  auto* page = reinterpret_cast<RingPage*>(segment.data());
  page->magic = kRingMagic;
  page->version = kRingVersion;
  page->spin_ns = spin_max.count();
  const CpuSet cpus = cpus_of_thread();
  for (std::size_t i = 0; i < cpus.size(); ++i) {
    if (cpus[i]) page->cpus[i / 64] |= std::uint64_t{1} << (i % 64);
  }
  return std::shared_ptr<CallerRing>(new CallerRing(std::move(segment), std::move(slabs),
                                                    std::move(wake_fd), std::move(calls),
                                                    std::move(answers)));
}

CallerRing::CallerRing(memory::Segment segment, memory::Segment slabs, UniqueFd wake_fd,
                       memory::MirroredMapping calls, memory::MirroredMapping answers)
    : segment_(std::move(segment)),
      data_(segment_.data()),
      slabs_(std::move(slabs)),
      wake_fd_(std::move(wake_fd)),
      calls_(&page().calls, std::move(calls)),
      answers_(&page().answers, std::move(answers)),
      sleeper_(&page().caller_word),
      nudger_(&page().caller_word) {
  sleeper_.announce(memory::WaitState::kEventFd);
}

Status CallerRing::send_offer(int socket, ClientId caller, std::uint64_t number,
                              const Clock& clock) {
  RingOffer offer;
  offer.caller = caller;
  offer.number = number;
  offer.clock_ns = clock.now().time_since_epoch().count();
  const int fds[] = {segment_.fd(), slabs_.fd(), wake_fd_.get()};
  return memory::send_with_fds(socket, std::as_bytes(std::span(&offer, 1)), fds,
                               Deadline::after(kOfferTimeout));
}

Status CallerRing::receive_reply(int socket) {
  RingReply reply;
  const auto bytes = std::as_writable_bytes(std::span(&reply, 1));
  auto fds = memory::receive_with_fds(socket, bytes, 2, Deadline::after(kOfferTimeout));
  if (!fds.ok()) return fds.status();
  if (reply.magic != kRingMagic || reply.code != 0) {
    return error(Code::kProtocol, "the actor's process did not take the ring");
  }
  host_segment_ = TROUPE_TRY(
      memory::Segment::adopt(std::move(fds->front()), kHostPageBytes, memory::Access::kReadWrite));
  results_ = TROUPE_TRY(
      memory::Segment::adopt(std::move(fds->back()), kRingSlabBytes, memory::Access::kReadOnly));
  host_data_ = host_segment_.data();
  host_waker_ = memory::Waker(&host_page().host_word);
  return {};
}

// --- calls

bool CallerRing::write(const Call& call) {
  RingCall header{};
  header.method = call.method;
  header.sequence = call.sequence;
  header.deadline_ns = call.deadline.time_since_epoch().count();
  header.socket_calls = call.socket_calls;
  header.flags = call.retry ? RingCall::kRetry : 0;
  if (call.slab != nullptr) {
    header.flags |= RingCall::kInSlab;
    header.slab_offset = call.slab->offset();
    header.slab_bytes = static_cast<std::uint32_t>(call.slab->bytes().size());
  } else {
    if (call.arguments.size() > kRingInlineBytesMax) return false;
    header.bytes = static_cast<std::uint32_t>(call.arguments.size());
  }
  const std::size_t padded = padded_bytes(header.bytes);
  if (calls_.space(sizeof header + padded) < sizeof header + padded) return false;
  calls_.write(std::as_bytes(std::span(&header, 1)));
  if (header.bytes != 0) {
    calls_.write(call.arguments);
    calls_.write(std::span(kPadding).first(padded - header.bytes));
  }
  calls_.publish();
  ++calls_written_;
  (void)host_waker_.wake();
  return true;
}

std::uint64_t CallerRing::waiting_calls(std::uint64_t socket_calls) const {
  const std::uint64_t sent = calls_written_ + socket_calls;
  const std::uint64_t taken = page().taken.load(std::memory_order_acquire);
  const std::uint64_t on_the_way = taken <= sent ? sent - taken : 0;
  return on_the_way + host_page().mailbox_calls.load(std::memory_order_acquire);
}

std::uint64_t CallerRing::waiting_calls_max() const {
  const std::uint64_t said = host_page().calls_max.load(std::memory_order_relaxed);
  return said == 0 ? limits::kMailboxCallsMax
                   : std::min<std::uint64_t>(said, limits::kLightMailboxCallsMax);
}

// --- answers

std::optional<CallerRing::Answer> CallerRing::front(bool& damaged) {
  const auto readable = answers_.readable(sizeof(RingAnswer));
  damaged = answers_.damaged();
  if (damaged || readable.empty()) return std::nullopt;
  RingAnswer header;
  damaged = readable.size() < sizeof header;
  if (damaged) return std::nullopt;
  std::memcpy(&header, readable.data(), sizeof header);
  pending_bytes_ = sizeof header + padded_bytes(header.bytes);
  // Answers are published whole.
  damaged = header.bytes > kRingInlineBytesMax || readable.size() < pending_bytes_ ||
            header.kind > RingAnswer::kInSlab;
  if (damaged) return std::nullopt;
  Answer answer{.sequence = header.sequence,
                .failed = header.kind == RingAnswer::kFailed,
                .bytes = readable.subspan(sizeof header, header.bytes)};
  if (header.kind != RingAnswer::kInSlab) return answer;
  RingResult result;
  damaged = header.bytes != sizeof result;
  if (damaged) return std::nullopt;
  std::memcpy(&result, answer.bytes.data(), sizeof result);
  damaged = result.slot >= kRingResultsMax || result.offset > results_.size() ||
            result.bytes > results_.size() - result.offset;
  if (damaged) return std::nullopt;
  answer.bytes = std::span<const std::byte>(results_.data() + result.offset, result.bytes);
  answer.slot = result.slot;
  return answer;
}

Duration CallerRing::spin() const {
  const std::int64_t host = host_page().spin_ns.load(std::memory_order_relaxed);
  return std::clamp(Duration(std::min(host, page().spin_ns)), Duration::zero(), kRingSpin);
}

bool CallerRing::begin_wait() {
  if (waiting_.exchange(true, std::memory_order_seq_cst)) return false;
  waits_.store(waits_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  // (Already so where the loop's thread watches: one store less for the host to fetch.)
  if (!watched()) sleeper_.awake();
  return true;
}

void CallerRing::end_wait() {
  bool more = false;
  if (!watched()) {
    sleeper_.announce(memory::WaitState::kEventFd);
    // What came before the host saw that, nobody was told of.
    more = has_answers();
  }
  waiting_.store(false, std::memory_order_seq_cst);
  if (wake_up_missed_.exchange(false, std::memory_order_seq_cst) || more) wake_own_loop();
}

void CallerRing::rearm_wake_up() {
  if (waiting_.exchange(true, std::memory_order_seq_cst)) {
    // Whoever waits looks for answers; when it leaves it must not overlook that the eventfd was
    // written and has been drained.
    wake_up_missed_.store(true, std::memory_order_seq_cst);
    if (waiting_.exchange(true, std::memory_order_seq_cst)) return;
    wake_up_missed_.store(false, std::memory_order_seq_cst);
  }
  end_wait();
}

void CallerRing::wake_own_loop() {
  const std::uint64_t one = 1;
  (void)!::write(wake_fd_.get(), &one, sizeof one);
}

void CallerRing::drain_wake_up() {
  std::uint64_t count = 0;
  (void)!::read(wake_fd_.get(), &count, sizeof count);
}

void CallerRing::nudge() {
  MutexLock lock(nudge_mutex_);
  (void)nudger_.wake();
}

void CallerRing::close() {
  closed_.store(true, std::memory_order_seq_cst);
  nudge();
}

// --- slabs

std::optional<SlabLease> CallerRing::take_slab(std::size_t bytes) {
  if (bytes == 0 || closed()) return std::nullopt;
  const auto offset = slabs_.take(bytes);
  if (!offset) return std::nullopt;
  SlabLease lease;
  lease.ring_ = shared_from_this();
  lease.space_ = slabs_.part(*offset, bytes);
  lease.offset_ = *offset;
  return lease;
}

SlabLease::SlabLease(SlabLease&& other) noexcept
    : ring_(std::move(other.ring_)),
      space_(std::exchange(other.space_, {})),
      offset_(other.offset_),
      used_(other.used_) {}

SlabLease& SlabLease::operator=(SlabLease&& other) noexcept {
  std::swap(ring_, other.ring_);
  std::swap(space_, other.space_);
  std::swap(offset_, other.offset_);
  std::swap(used_, other.used_);
  return *this;
}

SlabLease::~SlabLease() {
  if (ring_) ring_->slabs().give_back(offset_, space_.size());
}

}  // namespace troupe::detail
