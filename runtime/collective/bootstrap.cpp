#include "runtime/collective/bootstrap.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <new>

#include "runtime/base/near_socket.h"
#include "runtime/collective/tcp_link.h"
#include "runtime/memory/unix_socket.h"

namespace troupe::collective {
namespace {

constexpr std::uint64_t kMagic = 0x4c4f4345'50555254;  // "TRUPECOL"
constexpr std::uint32_t kVersion = 3;

// The first bytes on every link, in both directions.
struct Greeting {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t rank;
  std::uint32_t world_size;
  std::uint32_t same_node;
  std::uint64_t generation;
  std::uint64_t ring_count;  // of the sender's segment, where same_node
  std::uint64_t ring_bytes;
  std::uint64_t ring_index;  // the ring in it that leads to the receiver
  std::uint64_t near;        // without same_node: the sender sees both ends on one machine
  char name[kNameBytes];
};
static_assert(sizeof(Greeting) == 128);

Status check_options(const CommunicatorOptions& options, const std::vector<PeerLink>& links) {
  if (options.world_size < 1 || options.rank < 0 || options.rank >= options.world_size)
    return error(Code::kInvalidArgument, "communicator '{}': no rank {} in a world of {}",
                 options.name, options.rank, options.world_size);
  if (options.name.size() >= kNameBytes)
    return error(Code::kInvalidArgument, "communicator '{}': its name is longer than {} characters",
                 options.name, kNameBytes - 1);
  std::vector<bool> seen(static_cast<std::size_t>(options.world_size));
  for (const PeerLink& link : links) {
    if (link.rank < 0 || link.rank >= options.world_size || link.rank == options.rank ||
        seen[static_cast<std::size_t>(link.rank)] || !link.stream.valid())
      return error(Code::kInvalidArgument,
                   "communicator '{}', rank {}: a second or impossible link to rank {}",
                   options.name, options.rank, link.rank);
    seen[static_cast<std::size_t>(link.rank)] = true;
  }
  if (links.size() + 1 != seen.size())
    return error(Code::kInvalidArgument, "communicator '{}', rank {}: {} links for {} other ranks",
                 options.name, options.rank, links.size(), options.world_size - 1);
  return {};
}

std::string describe(const Greeting& greeting) {
  return fmt::format("'{}' generation {} rank {} of {}{}",
                     std::string(greeting.name, ::strnlen(greeting.name, kNameBytes)),
                     greeting.generation, greeting.rank, greeting.world_size,
                     greeting.same_node != 0 ? " on the same node" : "");
}

Status check_greeting(const Greeting& theirs, const Greeting& mine, int expected_rank) {
  if (theirs.magic != kMagic || theirs.version != kVersion)
    return error(Code::kProtocol,
                 "what answered for rank {} does not speak version {} of the collective protocol",
                 expected_rank, kVersion);
  if (theirs.generation == mine.generation && theirs.world_size == mine.world_size &&
      theirs.same_node == mine.same_node && std::cmp_equal(theirs.rank, expected_rank) &&
      std::memcmp(theirs.name, mine.name, kNameBytes) == 0)
    return {};
  return error(Code::kFailedPrecondition,
               "the peer expected as rank {} is {}, while this rank is {}; they do not form one "
               "communicator",
               expected_rank, describe(theirs), describe(mine));
}

memory::RingControl* ring_control(memory::Segment& segment, const SegmentPlan& plan,
                                  std::size_t ring) {
  return reinterpret_cast<memory::RingControl*>(segment.data() + plan.control_offset(ring));
}

WaitSlot* wait_slot(memory::Segment& segment) {
  return reinterpret_cast<WaitSlot*>(segment.data());
}

class Former {
 public:
  Former(const CommunicatorOptions& options, std::vector<PeerLink> links)
      : options_(options),
        links_(std::move(links)),
        deadline_(Deadline::after(options.default_timeout)) {
    std::sort(links_.begin(), links_.end(),
              [](const PeerLink& a, const PeerLink& b) { return a.rank < b.rank; });
    for (const PeerLink& link : links_) (link.same_node ? local_count_ : remote_count_)++;
    plan_ = SegmentPlan::for_peers(local_count_);
  }

  Result<Formed> form() {
    formed_.wake_event = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!formed_.wake_event.valid())
      return error(Code::kResourceExhausted, "no event descriptor for communicator '{}'",
                   options_.name);
    if (local_count_ != 0) {
      formed_.segment = TROUPE_TRY(memory::Segment::create(
          fmt::format("troupe-{}-{}-{}", options_.name, options_.generation, options_.rank),
          plan_.size_bytes()));
      formed_.slot = wait_slot(formed_.segment);
      // Without TCP peers a futex is the faster bed.
      formed_.slot->doorbell.store(remote_count_ != 0 ? 1 : 0);
    }
    // Greetings are small enough for any socket's buffer: all are sent before any is awaited.
    std::size_t ring = 0;
    for (PeerLink& link : links_)
      TROUPE_RETURN_IF_ERROR(at(link, greet(link, link.same_node ? ring++ : 0)));
    ring = 0;
    for (PeerLink& link : links_)
      TROUPE_RETURN_IF_ERROR(at(link, accept(link, link.same_node ? ring++ : 0)));
    return std::move(formed_);
  }

 private:
  Status at(const PeerLink& link, Status status) const {
    if (status.ok()) return status;
    return status
        .prefixed(fmt::format("forming communicator '{}' with rank {}", options_.name, link.rank))
        .with("peer", link.rank)
        .with("rank", options_.rank)
        .with("generation", options_.generation);
  }

  Greeting greeting(const PeerLink& link, std::size_t ring) const {
    Greeting greeting{};
    greeting.magic = kMagic;
    greeting.version = kVersion;
    greeting.rank = static_cast<std::uint32_t>(options_.rank);
    greeting.world_size = static_cast<std::uint32_t>(options_.world_size);
    greeting.same_node = link.same_node ? 1 : 0;
    greeting.generation = options_.generation;
    greeting.ring_count = plan_.ring_count;
    greeting.ring_bytes = plan_.ring_bytes;
    greeting.ring_index = ring;
    greeting.near = !link.same_node && within_machine(link.stream.fd()) ? 1 : 0;
    std::memcpy(greeting.name, options_.name.data(), options_.name.size());
    return greeting;
  }

  Status greet(PeerLink& link, std::size_t ring) {
    const Greeting mine = greeting(link, ring);
    const auto bytes = std::as_bytes(std::span(&mine, 1));
    TROUPE_RETURN_IF_ERROR(send_all(link.stream, bytes, deadline_));
    if (!link.same_node) return {};
    const std::array<int, 1> fds{formed_.segment.fd()};
    const std::byte marker{1};
    return memory::send_with_fds(link.stream.fd(), {&marker, 1}, fds, deadline_);
  }

  Status accept(PeerLink& link, std::size_t ring) {
    Greeting theirs;
    TROUPE_RETURN_IF_ERROR(
        receive_all(link.stream, std::as_writable_bytes(std::span(&theirs, 1)), deadline_));
    const Greeting mine = greeting(link, ring);
    TROUPE_RETURN_IF_ERROR(check_greeting(theirs, mine, link.rank));
    Peer peer;
    peer.rank = link.rank;
    if (link.same_node) {
      TROUPE_RETURN_IF_ERROR(attach(link, theirs, ring, peer));
    } else {
      peer.link =
          std::make_unique<TcpLink>(std::move(link.stream), theirs.near != 0 && mine.near != 0);
    }
    formed_.peers.push_back(std::move(peer));
    return {};
  }

  // Maps the peer's segment and joins the two rings.
  Status attach(PeerLink& link, const Greeting& theirs, std::size_t ring, Peer& peer) {
    const SegmentPlan plan{theirs.ring_count, theirs.ring_bytes};
    const auto smallest = SegmentPlan::for_peers(theirs.world_size);
    if (plan.ring_count == 0 || plan.ring_count >= theirs.world_size ||
        theirs.ring_index >= plan.ring_count || plan.ring_bytes < smallest.ring_bytes ||
        plan.ring_bytes > SegmentPlan::for_peers(1).ring_bytes ||
        plan.ring_bytes % memory::page_bytes() != 0)
      return error(Code::kProtocol, "it announced {} rings of {} bytes", theirs.ring_count,
                   theirs.ring_bytes);
    std::byte marker;
    auto fds = TROUPE_TRY(memory::receive_with_fds(link.stream.fd(), {&marker, 1}, 1, deadline_));
    peer.segment = TROUPE_TRY(
        memory::Segment::adopt(std::move(fds[0]), plan.size_bytes(), memory::Access::kReadWrite));
    memory::RingWriter writer(ring_control(formed_.segment, plan_, ring),
                              TROUPE_TRY(memory::MirroredMapping::map(
                                  formed_.segment, plan_.data_offset(ring), plan_.ring_bytes)));
    memory::RingReader reader(
        ring_control(peer.segment, plan, theirs.ring_index),
        TROUPE_TRY(memory::MirroredMapping::map(peer.segment, plan.data_offset(theirs.ring_index),
                                                plan.ring_bytes)));
    peer.link =
        std::make_unique<ShmLink>(link.stream.take_socket(), options_.rank, wait_slot(peer.segment),
                                  std::move(writer), std::move(reader), remote_count_ != 0);
    return {};
  }

  const CommunicatorOptions& options_;
  std::vector<PeerLink> links_;
  Deadline deadline_;
  std::size_t local_count_ = 0, remote_count_ = 0;
  SegmentPlan plan_{};
  Formed formed_;
};

}  // namespace

Result<Formed> form_links(const CommunicatorOptions& options, std::vector<PeerLink> links) {
  TROUPE_RETURN_IF_ERROR(check_options(options, links));
  return Former(options, std::move(links)).form();
}

}  // namespace troupe::collective
