#pragma once
// The callers of one actor: their connections, what they believe the actor's methods to be, and
// which of their calls were answered already.

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "actors/mailbox.h"
#include "actors/method_table.h"
#include "runtime/base/mutex.h"
#include "runtime/base/unique_fd.h"
#include "runtime/net/connection.h"
#include "runtime/net/event_loop.h"
#include "runtime/wire/call_messages.h"

namespace troupe::detail {

// Accepts on the loop's thread; answers come from the actor's thread.
class CallServer : public std::enable_shared_from_this<CallServer> {
 public:
  CallServer(net::EventLoop& loop, ActorId actor_id, std::uint64_t generation,
             ActorInterface interface, std::shared_ptr<Mailbox> mailbox);

  // A caller's socket. Loop thread.
  void accept(UniqueFd socket, const std::string& peer);
  // The answer of a call; once for each that the mailbox gave out. Any thread.
  void answer(ClientId caller, std::uint64_t sequence, Result<wire::Bytes> result);
  // Sends what is queued, for at most `flush_ms`, and closes all connections. Loop thread.
  void close(std::int64_t flush_ms);

 private:
  // A caller, across its connections: one that comes back with calls it sent before gets their
  // answers, and none is run twice.
  struct Session {
    std::shared_ptr<net::Connection> connection;   // null between two
    std::vector<std::uint32_t> methods;            // the caller's method numbers → ours
    std::uint64_t highest = 0;                     // sequence of the last call that was accepted
    std::set<std::uint64_t> open;                  // accepted and not answered
    std::map<std::uint64_t, wire::Bytes> answers;  // the last answers, as frames
    std::size_t answer_bytes = 0;
  };
  struct Peer;  // a connection before and after it has bound

  void on_frame(const std::shared_ptr<Peer>& peer, std::span<const std::byte> frame);
  void on_bind(const std::shared_ptr<Peer>& peer, const wire::Bind& bind);
  void on_call(const std::shared_ptr<Peer>& peer, wire::Call call);
  void on_cancel(const std::shared_ptr<Peer>& peer, const wire::CancelCall& cancel);
  void on_close(const std::shared_ptr<Peer>& peer);
  Result<std::vector<std::uint32_t>> translate(const wire::Bind& bind) const;
  void remember_locked(Session& session, std::uint64_t sequence, const wire::Bytes& frame)
      TROUPE_REQUIRES(mutex_);
  void forget_old_sessions_locked() TROUPE_REQUIRES(mutex_);

  net::EventLoop& loop_;
  const ActorId actor_id_;
  const std::uint64_t generation_;
  const ActorInterface interface_;
  const std::shared_ptr<Mailbox> mailbox_;
  Mutex mutex_;
  std::map<ClientId, Session> sessions_ TROUPE_GUARDED_BY(mutex_);
  std::deque<ClientId> disconnected_ TROUPE_GUARDED_BY(mutex_);  // oldest first
  std::set<std::shared_ptr<Peer>> peers_;                        // loop thread
};

}  // namespace troupe::detail
