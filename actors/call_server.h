#pragma once
// The calls from an actor's callers: the conversations' state machine (session/callee_session.h)
// with what it needs of the machine: a lock, the callers' connections, their rings, and the mailbox
// that takes what is to be run.
//
// Calls that come over sockets are read on the loop's thread, which puts them into the mailbox.
// Calls that come through rings (call_ring.h) are read by the actor's own thread when its mailbox
// is empty, and by the loop's thread where the order or an end demands it: when the same caller's
// next call or cancellation comes over its socket, and when its connection ends.

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <stop_token>
#include <string>
#include <tuple>
#include <vector>

#include "actors/call_connection.h"
#include "actors/host_ring.h"
#include "actors/mailbox.h"
#include "actors/session/callee_session.h"
#include "actors/session/drain_watch.h"
#include "runtime/net/connection.h"
#include "runtime/net/event_loop.h"
#include "runtime/wire/call_messages.h"
#include "troupe/detail/method_table.h"
#include "troupe/detail/mutex.h"
#include "troupe/unique_fd.h"

namespace troupe::detail {

// How long what an answer refers to is kept for a caller that does not say that it has it.
inline constexpr Duration kLentTime = std::chrono::seconds(60);

// Calls that have left the mailbox and are not answered (call_runner.h). Thread-safe.
class HeldCalls {
 public:
  virtual ~HeldCalls() = default;
  // Takes out a call whose method has not begun; false when there is none such.
  virtual bool remove(ClientId caller, std::uint64_t sequence) = 0;
  // The caller allows the stream more items.
  virtual void credit_changed(ClientId caller, std::uint64_t sequence) = 0;
  // It has read what it was sent: its calls need not be held back any longer.
  virtual void caller_reads(ClientId caller) = 0;
  // Somebody waits for the call (call_cycles.h).
  virtual void probed(ClientId caller, const wire::CallProbe& probe) = 0;
};

// Items of a pipeline (pipelines/stage_end.h), which are calls of one caller, without a connection:
// its link is for answers that an earlier process kept.
class ItemSource : public CalleeLink {
 public:
  // Whether next() may find something. This and next(): the actor's thread.
  virtual bool readable() = 0;
  virtual std::optional<QueuedCall> next() = 0;
  // The result of a call that was taken. Any thread.
  virtual void give(std::uint64_t sequence, const Result<wire::Bytes>& result) = 0;
  // What the result of the call refers to, to be kept as long as it may be read. Before it.
  virtual void keep(std::uint64_t sequence, std::vector<std::shared_ptr<const void>> kept) = 0;
  virtual Duration spin_max() const = 0;
};

// Accepts on the loop's thread; answers come from the actor's thread, or its threads.
class CallServer : public CallSource, public std::enable_shared_from_this<CallServer> {
 public:
  // `host_page`: what the mailbox shares; null: no rings. `connections`: to callers; twice
  // their low_water_bytes may be unread before a caller is held back.
  CallServer(net::EventLoop& loop, ActorId actor_id, std::uint64_t generation,
             ActorInterface interface, std::shared_ptr<Mailbox> mailbox,
             std::shared_ptr<HostPageSegment> host_page = nullptr,
             const net::ConnectionOptions& connections = call_connection_options());

  // Who runs the calls. Before accept().
  void set_held(std::weak_ptr<HeldCalls> held) { held_ = std::move(held); }
  // Called when a caller knows a newer process of this actor: this one is to end. Before accept();
  // runs on the loop's thread.
  void set_on_superseded(std::function<void(const Status& why)> on_superseded) {
    on_superseded_ = std::move(on_superseded);
  }
  // A caller's socket. Loop thread.
  void accept(ByteStream socket, const std::string& peer);
  // A local socket over which a caller offers a ring. Loop thread.
  void accept_ring(UniqueFd socket);
  // From now on the actor's thread takes items there; in the place of another source of the same
  // caller. kFailedPrecondition where the method is another one here. Loop thread.
  Status bind_items(const std::shared_ptr<ItemSource>& items, const wire::Bind& bind);
  void unbind_items(const std::shared_ptr<ItemSource>& items, ClientId caller);
  // The answer of a call; once for each that the mailbox gave out. Any thread.
  void answer(const QueuedCall& call, Result<wire::Bytes> result);
  // The callers whose calls are not to be begun now, since they have not read their answers. Any
  // thread.
  std::vector<ClientId> held_back();
  bool holds_back(ClientId caller);
  // Requested when the caller cancels an open call, or has ended it at its deadline. Any thread.
  std::stop_token stop_token_of(ClientId caller, std::uint64_t sequence);
  // Keeps what the call's result, or an item of its stream, refers to, until its caller has taken
  // it, or for kLentTime. Before it is sent; any thread.
  void lend(const QueuedCall& call, std::vector<std::shared_ptr<const void>> kept,
            std::uint64_t item = 0);
  // The index-th item, from 1, of a stream. kUnavailable: its caller has no connection. Any thread.
  Status send_item(const QueuedCall& call, std::uint64_t index, wire::Bytes item);
  // How many items of a stream its caller allows in all; nothing: nobody takes them any more. Any
  // thread.
  std::optional<std::uint64_t> credit(const QueuedCall& call);
  // Exactly once over deaths: which calls have run, and the answers that are kept, as bytes to be
  // saved with the state; with `result` for `call`, which is answered afterwards. For calls that
  // run one at a time. Actor's thread. (CalleeSession::answered)
  wire::Bytes answered(const QueuedCall& call, const Result<wire::Bytes>& result,
                       SavedAnswers which);
  // What an earlier process saved: the bytes of its saves, one behind the other. Before accept().
  Status restore_answered(std::span<const std::byte> bytes);
  // From now on new calls are answered with `why`; what was said before is accepted first. Loop
  // thread.
  void refuse_new(Status why);
  // From now on new calls go back to their callers, which send them to the actor's next process;
  // callers are told. Loop thread.
  void give_back_new();
  // Gives back a call that the mailbox gave out, and that has not begun. To the numbering it stays
  // one that has not run. Any thread.
  void give_back(const QueuedCall& call);
  // For a DrainWatch: `stopped` is said after give_back_new(). Loop thread.
  CallersProgress callers_progress() const;
  // Accepts, or refuses, what callers have put into their rings. Loop thread.
  void read_rings();
  // Accepted and not answered: queued, or run now.
  std::size_t open_calls();
  // Sends what is queued, for at most `flush_ms`, and closes all connections. Loop thread.
  // `on_closed` is called, and let go, once for each connection that has sent its last.
  void close(std::int64_t flush_ms, const std::function<void()>& on_closed = {});

  std::optional<QueuedCall> take() override;
  void gather() override;
  bool waiting() override;
  Duration spin() override;
  bool connected() override { return source_count_.load(std::memory_order_relaxed) > 0; }

 private:
  class Peer;  // a connection
  using Rings = std::vector<std::shared_ptr<HostRing>>;
  using ItemSources = std::vector<std::shared_ptr<ItemSource>>;
  static constexpr int kWholeRing = 1 << 20;  // more calls than a ring holds

  void on_frame(const std::shared_ptr<Peer>& peer, std::span<const std::byte> frame,
                net::Attachment&& attachment);
  void on_bind(const std::shared_ptr<Peer>& peer, const wire::Bind& bind);
  // refused: why it is not to be run.
  void on_call(const std::shared_ptr<Peer>& peer, wire::Call call, const Status& refused);
  void on_cancel(const std::shared_ptr<Peer>& peer, const wire::CancelCall& cancel);
  void on_credit(const std::shared_ptr<Peer>& peer, const wire::StreamCredit& credit);
  void on_probe(const std::shared_ptr<Peer>& peer, const wire::CallProbe& probe);
  void on_draining(const std::shared_ptr<Peer>& peer);
  void on_taken(const std::shared_ptr<Peer>& peer, const wire::ReferencesTaken& taken);
  void drop_lent();
  void on_close(const std::shared_ptr<Peer>& peer);
  void on_drained(const std::shared_ptr<Peer>& peer);
  void carry_out(CalleeSession::Change change, ClientId caller);
  std::shared_ptr<HostRing> ring_of(const std::shared_ptr<Peer>& peer);
  void read_whole_ring(const std::shared_ptr<Peer>& peer);
  // What becomes of a call that arrived: it is to be run, or it needs nothing more.
  std::optional<QueuedCall> admit(QueuedCall call);
  void push(QueuedCall call);
  void give_item(const QueuedCall& call, Result<wire::Bytes> result);
  std::shared_ptr<Peer> peer_of_locked(ClientId caller) const TROUPE_REQUIRES(mutex_);
  void count_held_back_locked() TROUPE_REQUIRES(mutex_);

  // Rings.
  void on_offer(std::uint64_t number);
  void end_offer(std::uint64_t number);
  Result<std::shared_ptr<HostRing>> attach_ring(HostRing::Arrived arrived);
  void detach_ring(const std::shared_ptr<HostRing>& ring);
  static void release_results_later(net::EventLoop& loop, const std::weak_ptr<HostRing>& ring);
  QueuedCall queued_call(const std::shared_ptr<HostRing>& ring, const HostRing::Call& call) const;
  // Moves up to `count_max` calls from the ring to the mailbox; the ring's reading() is held.
  void pump(const std::shared_ptr<HostRing>& ring, int count_max);
  void on_damaged(const std::shared_ptr<HostRing>& ring);
  void publish_spin_locked() TROUPE_REQUIRES(mutex_);
  const Rings& polled_rings();
  std::optional<QueuedCall> take_from(const std::shared_ptr<HostRing>& ring);
  std::optional<QueuedCall> take_from(ItemSource& items);

  net::EventLoop& loop_;
  const std::shared_ptr<Mailbox> mailbox_;
  const std::shared_ptr<HostPageSegment> host_page_;
  const net::ConnectionOptions connections_;
  std::weak_ptr<HeldCalls> held_;
  std::function<void(const Status& why)> on_superseded_;
  // Lock order: a ring's reading(), then this.
  Mutex mutex_;
  CalleeSession session_ TROUPE_GUARDED_BY(mutex_);
  std::set<std::shared_ptr<Peer>> peers_;  // loop thread
  struct Lent {
    std::vector<std::shared_ptr<const void>> kept;
    TimePoint until;
  };
  // By caller, call and item.
  std::map<std::tuple<ClientId, std::uint64_t, std::uint64_t>, Lent> lent_
      TROUPE_GUARDED_BY(mutex_);
  bool dropping_lent_ TROUPE_GUARDED_BY(mutex_) = false;
  // Loop thread: sockets over which rings are being offered.
  std::map<std::uint64_t, UniqueFd> offers_;
  std::uint64_t next_offer_ = 0;
  Rings rings_ TROUPE_GUARDED_BY(mutex_);
  ItemSources items_ TROUPE_GUARDED_BY(mutex_);
  std::atomic<std::size_t> held_back_count_{0};  // the session's; written under the lock
  std::atomic<std::uint64_t> rings_version_{0};
  std::atomic<int> ring_count_{0};
  std::atomic<std::size_t> source_count_{0};  // with those of items; as rings_version_
  std::atomic<std::int64_t> spin_ns_{0};
  int cpu_limit_ = 0;  // loop thread: the CPUs this process may use; 0: not asked yet
  // The actor's thread.
  Rings polled_;
  ItemSources polled_items_;
  std::uint64_t polled_version_ = 0;
  std::size_t polled_next_ = 0;
};

}  // namespace troupe::detail
