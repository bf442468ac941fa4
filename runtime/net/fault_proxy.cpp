#include "runtime/net/fault_proxy.h"

#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/base/random.h"
#include "runtime/net/socket.h"

namespace troupe::net {
namespace {

// A chunk is read, delayed and delivered as one.
constexpr std::size_t kChunkBytes = 64 * 1024;
// What waits in one direction before no more is read: a slow link slows its sender.
constexpr std::size_t kQueuedBytesMax = 4 * 1024 * 1024;
constexpr int kProxyBacklog = 128;

// The peer is told with a reset, not with an end of stream.
void reset_socket(UniqueFd& fd) {
  if (!fd.valid()) return;
  const linger hard{.l_onoff = 1, .l_linger = 0};
  (void)::setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
  fd.reset();
}

class Proxy;

// One direction of a connection: what was read and is not delivered yet.
struct Flow {
  LinkDirection direction;
  struct Chunk {
    TimePoint due;
    std::vector<std::byte> bytes;
  };
  std::deque<Chunk> chunks;
  std::size_t queued_bytes = 0;
  std::size_t sent = 0;  // of the first chunk
  TimePoint last_due{};
  std::optional<TimerId> timer;
  bool watching = false;
  bool waits_writable = false;
  bool ended = false;     // its source said so
  bool end_told = false;  // and its sink heard it
};

// A connection through the proxy. Lives in the proxy's map; dies with close().
class Pair {
 public:
  Pair(Proxy& proxy, std::uint64_t id, UniqueFd client, UniqueFd target);
  ~Pair() { close(); }

  // Again from here, after conditions changed. May destroy this.
  void refresh();
  void cut() {
    drop();
    reset_socket(client_);
    reset_socket(target_);
  }
  void half_open(LinkDirection reset_end) {
    drop();
    silent_ = true;
    reset_socket(reset_end == LinkDirection::kToTarget ? target_ : client_);
  }
  // The target's connection stands: bytes may pass.
  void connected() {  // may destroy this
    up_ = true;
    refresh();
  }

 private:
  UniqueFd& source(const Flow& flow) {
    return flow.direction == LinkDirection::kToTarget ? client_ : target_;
  }
  UniqueFd& sink(const Flow& flow) {
    return flow.direction == LinkDirection::kToTarget ? target_ : client_;
  }
  // Takes up whatever the flow may do now: reading, delivering, waiting. May destroy this.
  void pump(Flow& flow);
  void read_some(Flow& flow);
  // False: the connection is gone, this object too.
  bool deliver(Flow& flow);
  void watch(Flow& flow, bool on);
  void wait_writable(Flow& flow);
  // Unwatching takes both kinds of waiting from a descriptor; what is left is asked for again.
  void unwatch(UniqueFd& fd);
  void drop();
  void close() {
    drop();
    client_.reset();
    target_.reset();
  }
  void end();  // both directions have ended, or one failed: destroys this

  Proxy& proxy_;
  const std::uint64_t id_;
  UniqueFd client_, target_;
  Flow to_target_{.direction = LinkDirection::kToTarget};
  Flow from_target_{.direction = LinkDirection::kFromTarget};
  bool up_ = false;
  bool silent_ = false;
};

class Proxy final : public FaultProxy {
 public:
  Proxy(EventLoop& loop, const FaultProxyOptions& options)
      : loop_(loop), target_(options.target), random_(options.seed) {}
  ~Proxy() override {
    if (listener_.valid()) loop_.unwatch(listener_.get());
    pairs_.clear();
  }
  Status listen(const FaultProxyOptions& options);

  const Address& address() const override { return address_; }
  void set_target(const Address& target) override { target_ = target; }
  void set(LinkDirection direction, const LinkConditions& conditions) override {
    conditions_[static_cast<int>(direction)] = conditions;
    for_each([](Pair& pair) { pair.refresh(); });
  }
  void set_both(const LinkConditions& conditions) override {
    conditions_[0] = conditions_[1] = conditions;
    for_each([](Pair& pair) { pair.refresh(); });
  }
  void cut() override {
    for_each([](Pair& pair) { pair.cut(); });
    pairs_.clear();
  }
  void half_open(LinkDirection reset_end) override {
    for_each([&](Pair& pair) { pair.half_open(reset_end); });
  }
  void refuse(bool on) override { refusing_ = on; }
  std::size_t connection_count() const override { return pairs_.size(); }
  std::uint64_t accepted_count() const override { return accepted_; }
  std::uint64_t byte_count(LinkDirection direction) const override {
    return bytes_[static_cast<int>(direction)];
  }

 private:
  friend class Pair;
  void accept_all();
  void connect(UniqueFd client);
  // Pairs may end while they are visited.
  template <typename Work>
  void for_each(Work&& work) {
    std::vector<std::uint64_t> ids;
    for (const auto& [id, pair] : pairs_) ids.push_back(id);
    for (const auto id : ids) {
      const auto it = pairs_.find(id);
      if (it != pairs_.end()) work(*it->second);
    }
  }
  const LinkConditions& conditions(const Flow& flow) const {
    return conditions_[static_cast<int>(flow.direction)];
  }
  TimePoint due(const Flow& flow, std::size_t bytes);

  EventLoop& loop_;
  Address target_;
  SeededRandom random_;
  UniqueFd listener_;
  Address address_;
  LinkConditions conditions_[2];
  std::uint64_t bytes_[2] = {0, 0};
  std::uint64_t accepted_ = 0;
  bool refusing_ = false;
  std::uint64_t next_id_ = 0;
  std::map<std::uint64_t, std::unique_ptr<Pair>> pairs_;
};

Pair::Pair(Proxy& proxy, std::uint64_t id, UniqueFd client, UniqueFd target)
    : proxy_(proxy), id_(id), client_(std::move(client)), target_(std::move(target)) {}

void Pair::drop() {
  for (Flow* flow : {&to_target_, &from_target_}) {
    if (flow->timer) proxy_.loop_.cancel(*std::exchange(flow->timer, std::nullopt));
    flow->watching = flow->waits_writable = false;
    flow->chunks.clear();
    flow->queued_bytes = flow->sent = 0;
  }
  if (client_.valid()) proxy_.loop_.unwatch(client_.get());
  if (target_.valid()) proxy_.loop_.unwatch(target_.get());
}

void Pair::refresh() {
  Proxy& proxy = proxy_;
  const auto id = id_;
  pump(to_target_);
  if (proxy.pairs_.count(id) > 0) pump(from_target_);
}

void Pair::end() { proxy_.pairs_.erase(id_); }

void Pair::unwatch(UniqueFd& fd) {
  if (!fd.valid()) return;
  proxy_.loop_.unwatch(fd.get());
  for (Flow* flow : {&to_target_, &from_target_}) {
    if (&source(*flow) == &fd) flow->watching = false;
    if (&sink(*flow) == &fd && std::exchange(flow->waits_writable, false)) wait_writable(*flow);
  }
}

void Pair::watch(Flow& flow, bool on) {
  if (on == flow.watching) return;
  if (!on) return unwatch(source(flow));
  flow.watching = true;
  proxy_.loop_.watch_readable(source(flow).get(), [this, &flow] { read_some(flow); });
}

void Pair::wait_writable(Flow& flow) {
  if (flow.waits_writable) return;
  flow.waits_writable = true;
  proxy_.loop_.when_writable(sink(flow).get(), [this, &flow] {
    flow.waits_writable = false;
    pump(flow);
  });
}

void Pair::pump(Flow& flow) {
  if (silent_ || !up_) return;
  const bool stalled = proxy_.conditions(flow).stalled;
  watch(flow, !stalled && !flow.ended && flow.queued_bytes < kQueuedBytesMax);
  if (stalled) {
    if (flow.timer) proxy_.loop_.cancel(*std::exchange(flow.timer, std::nullopt));
    return;
  }
  if (!deliver(flow)) return;
  // What was delivered made room.
  watch(flow, !flow.ended && flow.queued_bytes < kQueuedBytesMax);
}

void Pair::read_some(Flow& flow) {
  std::vector<std::byte> bytes(kChunkBytes);
  const ssize_t n = ::recv(source(flow).get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n < 0) {
    // A reset passes through at once, as a router's would.
    cut();
    return end();
  }
  if (n == 0) {
    flow.ended = true;
  } else {
    bytes.resize(static_cast<std::size_t>(n));
    flow.queued_bytes += bytes.size();
    flow.last_due = proxy_.due(flow, bytes.size());
    flow.chunks.push_back({flow.last_due, std::move(bytes)});
  }
  pump(flow);
}

bool Pair::deliver(Flow& flow) {
  const TimePoint now = proxy_.loop_.clock().now();
  while (!flow.chunks.empty() && !flow.waits_writable) {
    Flow::Chunk& chunk = flow.chunks.front();
    if (chunk.due > now) {
      if (!flow.timer) {
        flow.timer = proxy_.loop_.call_after(chunk.due - now, [this, &flow] {
          flow.timer.reset();
          pump(flow);
        });
      }
      return true;
    }
    const ssize_t n = ::send(sink(flow).get(), chunk.bytes.data() + flow.sent,
                             chunk.bytes.size() - flow.sent, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
      wait_writable(flow);
      return true;
    }
    if (n < 0) {
      cut();
      end();
      return false;
    }
    proxy_.bytes_[static_cast<int>(flow.direction)] += static_cast<std::uint64_t>(n);
    flow.sent += static_cast<std::size_t>(n);
    flow.queued_bytes -= static_cast<std::size_t>(n);
    if (flow.sent < chunk.bytes.size()) continue;
    flow.sent = 0;
    flow.chunks.pop_front();
  }
  if (flow.ended && flow.chunks.empty() && !flow.end_told) {
    flow.end_told = true;
    ::shutdown(sink(flow).get(), SHUT_WR);
  }
  if (to_target_.end_told && from_target_.end_told) {
    end();
    return false;
  }
  return true;
}

TimePoint Proxy::due(const Flow& flow, std::size_t bytes) {
  const LinkConditions& link = conditions(flow);
  const TimePoint now = loop_.clock().now();
  Duration late = link.delay;
  if (link.jitter > Duration::zero()) {
    const double share = 2 * random_.unit() - 1;
    late += std::chrono::duration_cast<Duration>(link.jitter * share);
  }
  TimePoint at = std::max(now + std::max(late, Duration::zero()), flow.last_due);
  if (link.bytes_per_s > 0) {
    at += std::chrono::duration_cast<Duration>(std::chrono::duration<double>(
        static_cast<double>(bytes) / static_cast<double>(link.bytes_per_s)));
  }
  return at;
}

Status Proxy::listen(const FaultProxyOptions& options) {
  auto at = TROUPE_TRY(numeric_address(options.host, options.port));
  listener_ = TROUPE_TRY(make_socket(at.family(), true));
  const int on = 1;
  (void)::setsockopt(listener_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(listener_.get(), at.get(), at.length) != 0) {
    if (errno == EADDRINUSE) {
      return error(Code::kAlreadyExists, "{} is taken by another program", to_string(at));
    }
    return errno_status(errno, "bind", to_string(at));
  }
  if (::listen(listener_.get(), kProxyBacklog) != 0) {
    return errno_status(errno, "listen on", to_string(at));
  }
  at.length = sizeof at.storage;
  if (::getsockname(listener_.get(), at.get(), &at.length) != 0) {
    return errno_status(errno, "read the address of", "a socket");
  }
  address_ = {.host = options.host, .port = port_of(at), .local_name = {}};
  loop_.watch_readable(listener_.get(), [this] { accept_all(); });
  return {};
}

void Proxy::accept_all() {
  for (;;) {
    UniqueFd client(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!client.valid()) return;
    ++accepted_;
    if (refusing_) {
      reset_socket(client);
    } else {
      connect(std::move(client));
    }
  }
}

void Proxy::connect(UniqueFd client) {
  auto at = numeric_address(target_.host, target_.port);
  auto socket = at.ok() ? make_socket(at->family(), true) : Result<UniqueFd>(at.status());
  if (!socket.ok()) return reset_socket(client);
  const int failed = ::connect(socket->get(), at->get(), at->length) != 0 ? errno : 0;
  if (failed != 0 && failed != EINPROGRESS) return reset_socket(client);
  set_stream_options(client.get(), at->family());
  set_stream_options(socket->get(), at->family());
  const int fd = socket->get();
  const auto id = next_id_++;
  pairs_.emplace(id, std::make_unique<Pair>(*this, id, std::move(client), std::move(*socket)));
  // Writable: it stands, or it failed, which the first read tells.
  loop_.when_writable(fd, [this, id] {
    const auto it = pairs_.find(id);
    if (it != pairs_.end()) it->second->connected();
  });
}

}  // namespace

Result<std::unique_ptr<FaultProxy>> make_fault_proxy(EventLoop& loop,
                                                     const FaultProxyOptions& options) {
  auto proxy = std::make_unique<Proxy>(loop, options);
  TROUPE_RETURN_IF_ERROR(proxy->listen(options));
  return std::unique_ptr<FaultProxy>(std::move(proxy));
}

}  // namespace troupe::net
