#pragma once
// The progress loop under every collective: per peer an ordered list of pieces to send and to
// receive, and reductions that take one piece of each peer. Internal.
//
// A failure of any kind ends the engine: the first reason stays.

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "runtime/collective/communicator.h"
#include "runtime/collective/link.h"
#include "runtime/collective/registered_memory.h"
#include "runtime/collective/shm_link.h"
#include "runtime/memory/segment.h"
#include "troupe/detail/mutex.h"
#include "troupe/unique_fd.h"

namespace troupe::collective {

// First in every stream of an operation: both sides must have meant the same one.
struct MessageHeader {
  std::uint64_t generation;
  std::uint64_t sequence;
  std::uint64_t count;        // elements in all
  std::uint64_t counts_hash;  // of the shards' sizes
  std::uint8_t operation;
  std::uint8_t type;
  std::uint8_t op;
  std::uint8_t reserved;
  std::uint32_t root;
  std::uint64_t group;
  std::uint64_t padding;
  // The sender's own, all before it is equal: where its buffer lies (registered_memory.h), 0 where
  // what it has goes through links.
  std::uint64_t place;
};
static_assert(sizeof(MessageHeader) == kStreamAlignment);

// When a piece is sent, beside the number of a reduction that must be done before.
inline constexpr int kAtOnce = -1;
// Once everything but the last piece of each peer has been received and is known to be good.
inline constexpr int kAfterReads = -2;

struct SendPiece {
  const std::byte* data;
  std::size_t bytes;
  int after;
};
inline constexpr int kNoReduction = -1;
inline constexpr std::size_t kFromLink = SIZE_MAX;

struct ReceivePiece {
  std::byte* out;  // where to, unless it belongs to a reduction
  std::size_t bytes;
  int reduction;
  // Where it is read in place: its offset from the peer's place. Such a piece takes nothing from
  // the link; that what it reads is complete, the pieces before it have told.
  std::size_t from = kFromLink;
};
struct Reduction {
  const std::byte* own;
  std::byte* out;
  std::size_t bytes;
};

struct Peer {
  int rank = 0;
  int group_rank = 0;  // in the group whose operation is under way
  std::unique_ptr<Link> link;
  memory::Segment segment;  // the peer's, where it is on this node
  MessageHeader received_header{};
  const std::byte* place = nullptr;  // its buffer in this operation, where that is read in place
  std::array<std::byte, kStreamAlignment> token{};  // where messages without content go
  // It gave up while its memory was read: what was read may be anything.
  bool spoiled = false;
  std::vector<SendPiece> sends;
  std::vector<ReceivePiece> receives;
  std::size_t send_index = 0, send_offset = 0;
  std::size_t receive_index = 0, receive_offset = 0;
  std::uint64_t bytes_sent = 0, bytes_received = 0, bytes_read = 0;
};

// Who takes part in an operation.
struct Group {
  std::uint64_t id = 0;  // 0: all ranks
  std::string name;
  std::vector<int> ranks;    // of the engine, by group rank
  int rank = 0;              // this one's in the group
  std::vector<Peer*> peers;  // the others, in order of group rank
  bool on_one_node = false;
};

struct EngineOptions {
  int rank;
  std::uint64_t generation;
  Duration spin;
};

class Engine {
 public:
  // slot: this rank's, in `segment` where there are local peers.
  Engine(EngineOptions options, std::vector<Peer> peers, memory::Segment segment, WaitSlot* slot,
         UniqueFd wake_event);
  ~Engine();
  // Begins to watch the peers: before anything else, once. kResourceExhausted.
  Status start();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  std::vector<Reduction>& reductions() { return reductions_; }
  RegisteredMemory& registered() { return registered_; }

  // A group over some of the engine's ranks, this one among them. All its members get the same id:
  // it follows from what they say and from how many equal groups came before.
  Group add_group(std::string name, std::vector<int> ranks);

  // Starts the description of an operation of `group`: sets its header as each member's first
  // piece. Ranks outside the group are left alone: what they sent belongs to later operations.
  Status begin(const MessageHeader& header, const Group& group);
  // Carries it out. `small`: the reduction's output may be what is still being sent, and pieces fit
  // the links whole, so peers may be waited for one after the other.
  Status run(DataType type, ReduceOp op, bool small, Deadline deadline);
  void abort(Status reason);
  // Of the group's ranks, the one whose loss ended an operation, else the one whose hang-up was
  // seen first. From any thread.
  std::optional<int> lost_rank(const Group& group) const;
  // Ends the engine for a reason found between begin() and run(), or after run().
  Status give_up(Status status) { return fail(std::move(status), true); }
  // Between operations.
  void observe(OperationObserver* observer) { observer_ = observer; }
  OperationObserver* observer() const { return observer_; }

 private:
  Status carry_out();
  bool progress();
  bool pump_send(Peer& peer);
  bool pump_receive(Peer& peer);
  bool try_reduce();
  bool sends_done() const;
  bool complete() const;
  bool sends_open(const Peer& peer) const;
  bool far_ahead(const Peer& peer) const;
  bool reads_done() const;
  bool reads_hold();
  bool turn_has_room() const;
  void count_read(Peer& peer, std::size_t bytes);
  bool waits_for(const Peer& peer) const;
  bool lacks_bytes(const Peer& peer) const;
  void check_header(Peer& peer);
  std::string describe(const MessageHeader& header) const;
  Status idle();
  Status check_lost();
  void sleep(Duration at_most);
  void tell_moved();
  std::string missing_ranks() const;
  Status fail(Status status, bool at_once);
  Status aborted_status();
  void say_given_up();
  void wake_self();
  void shut_links();
  bool all_hung_up() const;
  void monitor();

  const EngineOptions options_;
  std::vector<Peer> peers_;
  memory::Segment segment_;
  WaitSlot* slot_;
  UniqueFd wake_event_;  // readable: something happened to this rank itself
  bool polls_ = false;   // sleeps in poll() instead of on the futex

  RegisteredMemory registered_;
  std::map<std::uint64_t, std::string> group_names_;
  OperationObserver* observer_ = nullptr;
  std::uint64_t moved_bytes_ = 0;  // that the observer does not know of

  // The operation under way.
  MessageHeader header_{};
  std::vector<Peer*> active_;  // its peers
  int group_rank_ = 0;
  std::vector<Reduction> reductions_;
  std::size_t reduced_ = 0;
  std::vector<const std::byte*> inputs_;  // by group rank
  DataType type_{};
  ReduceOp op_{};
  bool small_ = false;
  Status failure_;
  Deadline deadline_ = Deadline::at({});
  int idle_turns_ = 0;
  TimePoint spin_until_{};
  bool armed_ = false;
  std::uint32_t observed_word_ = 0;
  std::uint32_t hangups_seen_ = 0;

  std::atomic<std::uint32_t> hangups_{0};
  std::atomic<int> lost_{-1};  // the rank whose loss ended an operation
  std::atomic<bool> aborted_{false};
  Mutex mutex_;
  Status reason_ TROUPE_GUARDED_BY(mutex_);
  TimePoint shut_at_{};  // written before shut_later_ is set
  std::atomic<bool> shut_later_{false};
  std::atomic<bool> stopping_{false};
  UniqueFd monitor_event_;
  std::thread monitor_;
};

}  // namespace troupe::collective
