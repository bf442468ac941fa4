#include "runtime/collective/progress.h"

#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "runtime/base/check.h"
#include "runtime/base/hash.h"
#include "runtime/base/start_thread.h"
#include "runtime/base/suggest.h"
#include "runtime/collective/reduce_tree.h"
#include "runtime/memory/futex.h"

namespace troupe::collective {
namespace {

// No sleep is longer, so that even a lost wake-up costs little.
constexpr Duration kSleepMax = std::chrono::milliseconds(50);
// How long a rank that lost a peer keeps its other links open.
constexpr Duration kNoticeTime = std::chrono::milliseconds(50);
// The observer is told of moved bytes when they are so many, and what is read in place, all of it
// there at once, is read in turns of so many, between which aborts are seen.
constexpr std::uint64_t kMovedBytes = 1 << 20;
// The clock is read once in so many idle turns.
constexpr int kTurnsPerClock = 64;
constexpr std::byte kZeros[kStreamAlignment] = {};

std::size_t padded(std::size_t bytes) {
  return (bytes + kStreamAlignment - 1) / kStreamAlignment * kStreamAlignment;
}

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

Engine::Engine(EngineOptions options, std::vector<Peer> peers, memory::Segment segment,
               WaitSlot* slot, UniqueFd wake_event)
    : options_(options),
      peers_(std::move(peers)),
      segment_(std::move(segment)),
      slot_(slot),
      wake_event_(std::move(wake_event)),
      monitor_event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  TROUPE_CHECK(monitor_event_.valid() && wake_event_.valid());
  for (const Peer& peer : peers_) polls_ |= peer.link->poll_events(true, false) != 0;
}

Status Engine::start() {
  if (peers_.empty()) return {};
  monitor_ = TROUPE_TRY(start_thread("watch a communicator's peers", [this] { monitor(); }));
  return {};
}

Engine::~Engine() {
  stopping_.store(true);
  const std::uint64_t one = 1;
  (void)!::write(monitor_event_.get(), &one, sizeof one);
  if (monitor_.joinable()) monitor_.join();
}

Group Engine::add_group(std::string name, std::vector<int> ranks) {
  Group group{0, std::move(name), std::move(ranks), 0, {}};
  for (std::size_t i = 0; i < group.ranks.size(); ++i) {
    if (group.ranks[i] == options_.rank) group.rank = static_cast<int>(i);
    for (Peer& peer : peers_)
      if (peer.rank == group.ranks[i]) group.peers.push_back(&peer);
  }
  TROUPE_CHECK(group.peers.size() + 1 == group.ranks.size(), "group '{}'", group.name);
  group.on_one_node = std::all_of(group.peers.begin(), group.peers.end(),
                                  [](const Peer* peer) { return peer->segment.valid(); });
  // The first group is that of all ranks.
  for (int turn = 0; group_names_.contains(group.id); ++turn) {
    const std::string said =
        fmt::format("{} {} {}", join_numbers(group.ranks, ","), turn, group.name);
    group.id = xxh3_64(std::as_bytes(std::span(said)));
  }
  group_names_[group.id] = group.name;
  return group;
}

Status Engine::begin(const MessageHeader& header, const Group& group) {
  if (aborted_.load(std::memory_order_acquire)) return aborted_status();
  header_ = header;
  header_.group = group.id;
  reductions_.clear();
  reduced_ = 0;
  active_ = group.peers;
  group_rank_ = group.rank;
  inputs_.resize(group.ranks.size());
  for (std::size_t i = 0; i < active_.size(); ++i) {
    Peer& peer = *active_[i];
    peer.group_rank = static_cast<int>(i) + (static_cast<int>(i) >= group.rank ? 1 : 0);
    peer.sends.clear();
    peer.receives.clear();
    peer.send_index = peer.send_offset = peer.receive_index = peer.receive_offset = 0;
    peer.place = nullptr;
    peer.sends.push_back({reinterpret_cast<const std::byte*>(&header_), sizeof header_, kAtOnce});
    peer.receives.push_back(
        {reinterpret_cast<std::byte*>(&peer.received_header), sizeof(MessageHeader), kNoReduction});
  }
  return {};
}

Status Engine::run(DataType type, ReduceOp op, bool small, Deadline deadline) {
  type_ = type;
  op_ = op;
  small_ = small;
  deadline_ = deadline;
  idle_turns_ = 0;
  armed_ = false;
  failure_ = {};
  hangups_seen_ = 0;
  moved_bytes_ = 0;
  Status status = carry_out();
  tell_moved();
  return status;
}

Status Engine::carry_out() {
  for (;;) {
    // Read before the attempt: what a peer published before it hung up is still taken.
    const std::uint32_t hangups = hangups_.load(std::memory_order_acquire);
    const bool progressed = progress();
    if (!failure_.ok()) return fail(failure_, true);
    if (complete()) break;
    hangups_seen_ = hangups;
    if (progressed) {
      idle_turns_ = 0;
      if (moved_bytes_ < kMovedBytes) continue;
      tell_moved();
      if (aborted_.load(std::memory_order_acquire)) return aborted_status();
    } else {
      TROUPE_RETURN_IF_ERROR(idle());
    }
  }
  if (armed_) slot_->waiting_for.store(0, std::memory_order_relaxed);
  return {};
}

// Whether another piece may be read in place in this turn.
bool Engine::turn_has_room() const { return moved_bytes_ < kMovedBytes; }

void Engine::tell_moved() {
  if (observer_ && moved_bytes_ != 0) observer_->moved(moved_bytes_);
  moved_bytes_ = 0;
}

bool Engine::progress() {
  bool progressed = false;
  for (Peer* peer : active_) progressed |= pump_send(*peer);
  for (Peer* peer : active_) {
    if (small_) peer->link->flush();
    progressed |= pump_receive(*peer);
    if (!failure_.ok()) return true;
  }
  progressed |= try_reduce();
  for (Peer* peer : active_) peer->link->flush();
  return progressed;
}

bool Engine::sends_open(const Peer& peer) const {
  if (peer.send_index >= peer.sends.size() || far_ahead(peer)) return false;
  const int after = peer.sends[peer.send_index].after;
  return after == kAfterReads ? reads_done() : after < static_cast<int>(reduced_);
}

// Of a peer that still has something to send, which takes this rank's part for that.
bool Engine::far_ahead(const Peer& peer) const {
  return peer.bytes_sent > peer.bytes_received + peer.link->ahead_bytes() &&
         peer.receive_index < peer.receives.size();
}

bool Engine::reads_done() const {
  return std::all_of(active_.begin(), active_.end(), [](const Peer* peer) {
    return !peer->spoiled && peer->receive_index + 1 >= peer->receives.size();
  });
}

// Whether all that was read was what its owner meant: a rank that gives an operation up says so
// before it may change its memory. Asked after everything has been read, of all peers: what one of
// them made of another one's memory is only as good as that.
bool Engine::reads_hold() {
  std::atomic_thread_fence(std::memory_order_acquire);
  bool hold = true;
  for (Peer* peer : active_) hold &= !(peer->spoiled = peer->link->gave_up());
  return hold;
}

bool Engine::pump_send(Peer& peer) {
  bool progressed = false;
  while (sends_open(peer)) {
    const SendPiece& piece = peer.sends[peer.send_index];
    if (piece.after == kAfterReads && !reads_hold()) return progressed;
    const std::size_t total = padded(piece.bytes);
    while (peer.send_offset < total) {
      const std::size_t offset = peer.send_offset;
      const std::size_t sent = offset < piece.bytes
                                   ? peer.link->send({piece.data + offset, piece.bytes - offset})
                                   : peer.link->send({kZeros, total - offset});
      if (sent == 0) return progressed;
      progressed = true;
      peer.send_offset += sent;
      peer.bytes_sent += sent;
      moved_bytes_ += sent;
    }
    peer.send_offset = 0;
    ++peer.send_index;
  }
  return progressed;
}

bool Engine::pump_receive(Peer& peer) {
  bool progressed = false;
  while (peer.receive_index < peer.receives.size()) {
    const ReceivePiece& piece = peer.receives[peer.receive_index];
    if (piece.reduction >= 0) return progressed;
    if (piece.from != kFromLink) {
      if (!turn_has_room()) return true;
      std::memcpy(piece.out, peer.place + piece.from, piece.bytes);
      count_read(peer, piece.bytes);
      progressed = true;
      continue;
    }
    const std::size_t total = padded(piece.bytes);
    while (peer.receive_offset < total) {
      const std::size_t offset = peer.receive_offset;
      std::byte pad[kStreamAlignment];
      const std::size_t got = offset < piece.bytes
                                  ? peer.link->receive({piece.out + offset, piece.bytes - offset})
                                  : peer.link->receive({pad, total - offset});
      if (got == 0) return progressed;
      progressed = true;
      peer.receive_offset += got;
      peer.bytes_received += got;
      moved_bytes_ += got;
    }
    peer.receive_offset = 0;
    if (peer.receive_index++ == 0) {
      check_header(peer);
      if (!failure_.ok()) return true;
    }
  }
  return progressed;
}

// A piece that was read in place is done.
void Engine::count_read(Peer& peer, std::size_t bytes) {
  peer.bytes_read += bytes;
  moved_bytes_ += bytes;
  ++peer.receive_index;
}

void Engine::check_header(Peer& peer) {
  const MessageHeader& theirs = peer.received_header;
  if (std::memcmp(&theirs, &header_, offsetof(MessageHeader, place)) == 0) {
    if (header_.place == 0 && theirs.place == 0) return;
    const std::size_t element = size_of(static_cast<DataType>(header_.type));
    peer.place = registered_.find(peer.rank, theirs.place, header_.count * element);
    if (header_.place != 0 && peer.place != nullptr && theirs.place % element == 0) return;
  }
  failure_ = error(Code::kProtocol,
                   "rank {} is in another operation: it runs {}, rank {} runs {}; all ranks must "
                   "call the same operations with the same sizes",
                   peer.rank, describe(peer.received_header), options_.rank, describe(header_))
                 .with("peer", peer.rank);
}

std::string Engine::describe(const MessageHeader& header) const {
  const auto known = group_names_.find(header.group);
  return fmt::format(
      "{} of {} {}{} in group '{}' (reduction {}, root {}, shards {:016x}), sequence {}, "
      "generation "
      "{}",
      operation_name(static_cast<Operation>(header.operation)), header.count,
      data_type_name(static_cast<DataType>(header.type)),
      header.place != 0 ? " in registered memory" : "",
      known != group_names_.end() ? known->second : fmt::format("unknown, {:016x}", header.group),
      header.op, header.root, header.counts_hash, header.sequence, header.generation);
}

bool Engine::sends_done() const {
  return std::all_of(active_.begin(), active_.end(),
                     [](const Peer* peer) { return peer->send_index == peer->sends.size(); });
}

bool Engine::try_reduce() {
  bool progressed = false;
  while (reduced_ < reductions_.size()) {
    const Reduction& reduction = reductions_[reduced_];
    const std::size_t total = padded(reduction.bytes);
    if (small_ && !sends_done()) return progressed;
    for (Peer* peer : active_) {
      if (peer->receive_index >= peer->receives.size()) return progressed;
      const ReceivePiece& piece = peer->receives[peer->receive_index];
      if (piece.reduction != static_cast<int>(reduced_)) return progressed;
      if (piece.from != kFromLink) {
        if (!turn_has_room()) return true;
        inputs_[static_cast<std::size_t>(peer->group_rank)] = peer->place + piece.from;
        continue;
      }
      const auto bytes = peer->link->readable(total);
      if (bytes.size() < total) return progressed;
      inputs_[static_cast<std::size_t>(peer->group_rank)] = bytes.data();
    }
    inputs_[static_cast<std::size_t>(group_rank_)] = reduction.own;
    tree_reduce(inputs_, reduction.out, reduction.bytes / size_of(type_), type_, op_);
    ++reduced_;
    progressed = true;
    for (Peer* peer : active_) {
      if (peer->receives[peer->receive_index].from != kFromLink) {
        count_read(*peer, reduction.bytes);
        continue;
      }
      peer->link->consume(total);
      peer->bytes_received += total;
      moved_bytes_ += total;
      ++peer->receive_index;
    }
    // The result goes out while it is in the cache, and the room goes back to the senders.
    for (Peer* peer : active_) {
      pump_send(*peer);
      peer->link->flush();
      pump_receive(*peer);
      if (!failure_.ok()) return true;
    }
  }
  return progressed;
}

bool Engine::complete() const {
  return std::all_of(active_.begin(), active_.end(), [](const Peer* peer) {
    return peer->send_index == peer->sends.size() && peer->receive_index == peer->receives.size() &&
           !peer->link->unsent();
  });
}

bool Engine::waits_for(const Peer& peer) const {
  return sends_open(peer) || peer.link->unsent() || peer.spoiled || lacks_bytes(peer);
}

// Whether its next piece is still to come, or not there to its end, as far as the last attempt
// knows. Nothing new is taken from the link: who sleeps watches for what this finds missing, and
// what was taken here would wake nobody any more.
bool Engine::lacks_bytes(const Peer& peer) const {
  if (peer.receive_index >= peer.receives.size()) return false;
  const ReceivePiece& piece = peer.receives[peer.receive_index];
  if (piece.from != kFromLink) return false;
  return piece.reduction < 0 || peer.link->readable(0).size() < padded(piece.bytes);
}

Status Engine::idle() {
  if (aborted_.load(std::memory_order_acquire)) return aborted_status();
  if (hangups_seen_ != 0 || polls_) TROUPE_RETURN_IF_ERROR(check_lost());
  if (armed_) {
    tell_moved();
    sleep(std::min(kSleepMax, deadline_.remaining()));
    slot_->waiting_for.store(0, std::memory_order_relaxed);
    armed_ = false;
    if (deadline_.passed())
      return fail(error(Code::kDeadlineExceeded, "the deadline passed while waiting for rank {}",
                        missing_ranks())
                      .with("peer", missing_ranks()),
                  true);
    // Awake because something came: it may be spun for once more.
    return {};
  }
  if (options_.spin > Duration::zero()) {
    if (++idle_turns_ % kTurnsPerClock != 0) {
      pause_cpu();
      return {};
    }
    const TimePoint now = SystemClock().now();
    if (idle_turns_ == kTurnsPerClock) spin_until_ = now + options_.spin;
    if (now < spin_until_ && !deadline_.passed(now)) return {};
  }
  std::uint64_t mask = 0;
  for (const Peer* peer : active_) {
    if (!waits_for(*peer)) continue;
    mask |= wait_bit(peer->rank);
    if (small_ && sends_done()) break;
  }
  observed_word_ = slot_->wake_word.load(std::memory_order_acquire);
  slot_->waiting_for.store(mask, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  armed_ = true;  // one more attempt before the sleep
  return {};
}

void Engine::sleep(Duration at_most) {
  if (!polls_) {
    memory::futex_wait(slot_->wake_word, observed_word_, at_most);
    return;
  }
  std::vector<pollfd> entries{{wake_event_.get(), POLLIN, 0}};
  for (const Peer& peer : peers_) {
    if (waits_for(peer)) {
      const short events = peer.link->poll_events(lacks_bytes(peer), sends_open(peer));
      entries.push_back({peer.link->socket(), events, 0});
    } else if (peer.segment.valid() && peer.link->hung_up.load(std::memory_order_relaxed) == 0) {
      // Whoever empties the mask rings, on its own socket.
      entries.push_back({peer.link->socket(), POLLIN, 0});
    }
  }
  timespec time{0, static_cast<long>(at_most.count())};
  ::ppoll(entries.data(), entries.size(), &time, nullptr);
  for (Peer& peer : peers_) peer.link->drain_doorbell();
  std::uint64_t count;
  (void)!::read(wake_event_.get(), &count, sizeof count);
}

Status Engine::check_lost() {
  // Of several that are gone, the one that went first: the others may have left because of it.
  const Peer* lost = nullptr;
  bool needed = false;
  std::uint32_t first = 0;
  for (const Peer& peer : peers_) {
    const std::uint32_t order = peer.link->hung_up.load(std::memory_order_acquire);
    const bool broken = peer.link->broken();
    if (order == 0 && !broken) continue;
    needed |= waits_for(peer);
    const std::uint32_t place = order != 0 ? order : UINT32_MAX;
    if (lost != nullptr && place >= first) continue;
    lost = &peer;
    first = place;
  }
  if (!needed) return {};
  // A hang-up may be newer than the attempt that found nothing.
  if (hangups_seen_ != hangups_.load(std::memory_order_acquire)) return {};
  lost_.store(lost->rank, std::memory_order_release);
  return fail(
      error(Code::kAborted, "rank {} was lost: its process ended or its link broke", lost->rank)
          .with("peer", lost->rank)
          .with("lost_rank", lost->rank),
      false);
}

std::optional<int> Engine::lost_rank(const Group& group) const {
  std::optional<int> lost;
  std::uint32_t first = UINT32_MAX;
  // What an operation has ended with is the answer from then on: it may have met the broken link
  // before the monitor did.
  const int known = lost_.load(std::memory_order_acquire);
  for (const Peer* peer : group.peers) {
    if (peer->rank == known) return known;
    const std::uint32_t order = peer->link->hung_up.load(std::memory_order_acquire);
    if (order == 0 || order >= first) continue;
    lost = peer->rank;
    first = order;
  }
  return lost;
}

std::string Engine::missing_ranks() const {
  std::string text;
  for (const Peer* peer : active_)
    if (waits_for(*peer)) text += fmt::format("{}{}", text.empty() ? "" : ", ", peer->rank);
  return text;
}

Status Engine::fail(Status status, bool at_once) {
  status.with("operation", operation_name(static_cast<Operation>(header_.operation)))
      .with("group", group_names_[header_.group])
      .with("sequence", header_.sequence)
      .with("rank", options_.rank)
      .with("generation", options_.generation);
  {
    MutexLock lock(mutex_);
    if (reason_.ok()) reason_ = status;
  }
  say_given_up();
  slot_->waiting_for.store(0, std::memory_order_relaxed);
  if (at_once) {
    shut_links();
  } else {
    // The other ranks first get the time to notice by themselves who was lost.
    shut_at_ = SystemClock().now() + kNoticeTime;
    shut_later_.store(true, std::memory_order_release);
    const std::uint64_t one = 1;
    (void)!::write(monitor_event_.get(), &one, sizeof one);
  }
  return status;
}

Status Engine::aborted_status() {
  MutexLock lock(mutex_);
  Status status = error(Code::kAborted, "the communicator was given up: {}", reason_.to_string());
  for (const auto& [key, value] : reason_.context())
    if (key == "lost_rank" || key == "peer") status.with(key, value);
  return status.with("rank", options_.rank).with("generation", options_.generation);
}

void Engine::abort(Status reason) {
  {
    MutexLock lock(mutex_);
    if (!reason_.ok()) return;
    reason_ = reason.ok() ? Status(Code::kAborted, "no reason given") : std::move(reason);
  }
  say_given_up();
  wake_self();
  shut_links();
}

// Before the caller gets its memory back, which others may still be reading.
void Engine::say_given_up() {
  slot_->given_up.store(1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  aborted_.store(true, std::memory_order_release);
}

void Engine::wake_self() {
  wake(*slot_);
  const std::uint64_t one = 1;
  (void)!::write(wake_event_.get(), &one, sizeof one);
}

void Engine::shut_links() {
  for (const Peer& peer : peers_) ::shutdown(peer.link->socket(), SHUT_RDWR);
}

bool Engine::all_hung_up() const {
  return std::all_of(peers_.begin(), peers_.end(),
                     [](const Peer& peer) { return peer.link->hung_up.load() != 0; });
}

// Watches the sockets for peers that close theirs. After a peer was lost it keeps the other links
// open until shut_at_, even while the engine is being destroyed: a hang-up of ours must not be
// mistaken for the cause.
void Engine::monitor() {
  std::vector<pollfd> entries{{monitor_event_.get(), POLLIN, 0}};
  for (const Peer& peer : peers_) entries.push_back({peer.link->socket(), POLLRDHUP, 0});
  for (;;) {
    int timeout_ms = -1;
    if (shut_later_.load(std::memory_order_acquire)) {
      const Duration left = Deadline::at(shut_at_).remaining();
      timeout_ms =
          static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(left).count() + 1);
      if (left == Duration::zero() || all_hung_up()) {
        shut_links();
        shut_later_.store(false);
        timeout_ms = -1;
      }
    }
    if (stopping_.load() && !shut_later_.load()) return;
    if (::poll(entries.data(), entries.size(), timeout_ms) <= 0) continue;
    std::uint64_t count;
    if (entries[0].revents != 0) (void)!::read(monitor_event_.get(), &count, sizeof count);
    // Of those that are seen at once, whoever gave up left because of another one.
    for (const bool gave_up : {false, true}) {
      for (std::size_t i = 1; i < entries.size(); ++i) {
        Link& link = *peers_[i - 1].link;
        if (entries[i].fd < 0 || entries[i].revents == 0 || link.gave_up() != gave_up) continue;
        entries[i].fd = -1;  // told once
        link.hung_up.store(hangups_.load() + 1, std::memory_order_release);
        hangups_.fetch_add(1, std::memory_order_release);
        wake_self();
      }
    }
  }
}

}  // namespace troupe::collective
