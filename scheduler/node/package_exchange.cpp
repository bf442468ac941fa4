#include "scheduler/node/package_exchange.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <map>
#include <optional>
#include <utility>

#include "runtime/base/limits.h"
#include "runtime/net/connection.h"

namespace troupe::scheduler {
namespace {

// Those that come besides wait for one to end, and try again.
constexpr std::size_t kPackagePeersMax = 32;
// A peer that says nothing for so long is let go, with what it had sent of a package.
constexpr Duration kPackagePeerTimeout = std::chrono::minutes(1);
constexpr Duration kPackageConnectTimeout = std::chrono::seconds(3);
// The other node may be unpacking one for somebody else.
constexpr Duration kPackagePieceTimeout = std::chrono::seconds(30);

}  // namespace

// All members but the first are the thread's own.
struct PackageExchange::State {
  struct Peer {
    std::shared_ptr<net::Connection> connection;
    std::unique_ptr<PackageCache::Arrival> arrival;
    wire::Package package;  // that arrives
    TimePoint heard;
  };
  struct Fetch {
    wire::Package package;
    std::vector<net::Address> from;  // the last one is asked
    std::unique_ptr<PackageCache::Arrival> arrival;
    std::uint64_t attempt = 0;  // its number; what belongs to another one is ignored
    std::shared_ptr<net::Connection> connection;
    std::optional<net::TimerId> timer;
  };

  State(std::unique_ptr<PackageCache> c, net::Token t, Logger l, Handlers h)
      : cache(std::move(c)), token(std::move(t)), log(std::move(l)), handlers(std::move(h)) {}

  void take_up();
  void serve(ByteStream socket, const std::string& peer);
  void watch(std::uint64_t id);
  void received(std::uint64_t id, std::span<const std::byte> frame);
  Result<std::unique_ptr<PackageCache::Arrival>> receive(const wire::Package& package);
  Status take(Peer& peer, const wire::WritePackage& piece);
  void fetch(const wire::Package& package, std::vector<net::Address> from);
  Fetch* find(std::uint64_t attempt);
  void attempt(Fetch& fetch);
  void connected(Fetch& fetch, Result<ByteStream> socket);
  void ask(Fetch& fetch);
  void answered(Fetch& fetch, std::span<const std::byte> frame);
  void failed(Fetch& fetch, Status why);
  void end(Fetch& fetch, Status status);

  const std::unique_ptr<PackageCache> cache;
  const net::Token token;
  Logger log;
  const Handlers handlers;
  std::uint64_t next = 1;
  std::map<std::uint64_t, Peer> peers;
  std::map<std::string, Fetch> fetches;     // by hash
  std::unique_ptr<net::LoopThread> thread;  // ends first
};

// One at a time, so that others are answered between them.
void PackageExchange::State::take_up() {
  if (!cache->take_up_next()) return;
  handlers.on_change(cache->all());
  thread->loop().post([this] { take_up(); });
}

// --- peers ---------------------------------------------------------------------------------------

void PackageExchange::State::serve(ByteStream socket, const std::string& peer) {
  if (peers.size() >= kPackagePeersMax) return;
  const std::uint64_t id = next++;
  Peer& added = peers[id];
  added.connection = net::make_connection(thread->loop(), std::move(socket), peer);
  added.heard = thread->loop().clock().now();
  added.connection->start(
      {.on_frame = [this, id](std::span<const std::byte> frame) { received(id, frame); },
       .on_close = [this, id](Status) { peers.erase(id); }});
  watch(id);
}

void PackageExchange::State::watch(std::uint64_t id) {
  thread->loop().call_after(kPackagePeerTimeout, [this, id] {
    const auto found = peers.find(id);
    if (found == peers.end()) return;
    if (thread->loop().clock().now() - found->second.heard < kPackagePeerTimeout) return watch(id);
    found->second.connection->close();
    peers.erase(found);
  });
}

void PackageExchange::State::received(std::uint64_t id, std::span<const std::byte> frame) {
  const auto found = peers.find(id);
  if (found == peers.end()) return;
  Peer& peer = found->second;
  const auto connection = peer.connection;
  const auto message = wire::decode_control(frame);
  Status sent(Code::kProtocol, "no question about packages");
  if (message.ok()) {
    if (const auto* read = get_if<wire::ReadPackage>(&*message)) {
      auto piece = cache->read(*read);
      wire::SegmentBytes answer = piece.ok() ? std::move(*piece) : wire::SegmentBytes();
      answer.request_id = read->request_id;
      answer.status = piece.status();
      sent = connection->send(wire::encode(wire::ControlMessage(std::move(answer))));
    } else if (const auto* piece = get_if<wire::WritePackage>(&*message)) {
      Status taken = take(peer, *piece);
      if (!taken.ok()) peer.arrival.reset();
      sent = connection->send(
          wire::encode(wire::ControlMessage(wire::Reply{piece->request_id, std::move(taken), {}})));
    }
  }
  peer.heard = thread->loop().clock().now();
  if (sent.ok()) return;
  connection->close();
  peers.erase(id);
}

// Others may have to make room for it, which is told at once.
Result<std::unique_ptr<PackageCache::Arrival>> PackageExchange::State::receive(
    const wire::Package& package) {
  const auto before = cache->all();
  auto arrival = cache->receive(package);
  auto after = cache->all();
  if (after != before) handlers.on_change(std::move(after));
  return arrival;
}

Status PackageExchange::State::take(Peer& peer, const wire::WritePackage& piece) {
  if (piece.offset == 0 && piece.bytes.empty()) {
    peer.arrival.reset();
    peer.package = piece.package;
    peer.arrival = TROUPE_TRY(receive(piece.package));
    return {};
  }
  if (!peer.arrival || peer.package != piece.package || piece.offset != peer.arrival->size() ||
      piece.bytes.empty()) {
    return Status(Code::kProtocol, "a piece of a package that does not follow the one before");
  }
  TROUPE_RETURN_IF_ERROR(peer.arrival->append(piece.bytes));
  if (peer.arrival->size() < piece.package.size_bytes) return {};
  const auto arrival = std::move(peer.arrival);
  TROUPE_RETURN_IF_ERROR(arrival->finish());
  log.info("{} has come from {}", piece.package.to_string(), peer.connection->peer());
  handlers.on_change(cache->all());
  return {};
}

// --- from other nodes ----------------------------------------------------------------------------

void PackageExchange::State::fetch(const wire::Package& package, std::vector<net::Address> from) {
  if (fetches.contains(package.sha256)) return;
  auto arrival = receive(package);
  if (!arrival.ok()) {
    // It was sent meanwhile, or has been here since a daemon before.
    if (arrival.status().code() == Code::kAlreadyExists) return handlers.on_change(cache->all());
    return handlers.on_failed(package, arrival.status());
  }
  std::reverse(from.begin(), from.end());
  Fetch& fetch = fetches[package.sha256];
  fetch.package = package;
  fetch.from = std::move(from);
  fetch.arrival = std::move(*arrival);
  attempt(fetch);
}

PackageExchange::State::Fetch* PackageExchange::State::find(std::uint64_t attempt) {
  const auto found = std::ranges::find_if(
      fetches, [&](const auto& entry) { return entry.second.attempt == attempt; });
  return found == fetches.end() ? nullptr : &found->second;
}

void PackageExchange::State::attempt(Fetch& fetch) {
  fetch.attempt = next++;
  log.info("fetching {} from the node at {}", fetch.package.to_string(),
           fetch.from.back().to_string());
  net::connect(thread->loop(), fetch.from.back(), kPackagesTarget, token,
               Deadline::after(kPackageConnectTimeout, thread->loop().clock()),
               [this, number = fetch.attempt](Result<ByteStream> socket) {
                 if (Fetch* it = find(number)) connected(*it, std::move(socket));
               });
}

void PackageExchange::State::connected(Fetch& fetch, Result<ByteStream> socket) {
  if (!socket.ok()) return failed(fetch, socket.status());
  fetch.connection =
      net::make_connection(thread->loop(), std::move(*socket), fetch.from.back().to_string());
  fetch.connection->start({.on_frame =
                               [this, number = fetch.attempt](std::span<const std::byte> frame) {
                                 if (Fetch* it = find(number)) answered(*it, frame);
                               },
                           .on_close =
                               [this, number = fetch.attempt](Status why) {
                                 if (Fetch* it = find(number)) failed(*it, std::move(why));
                               }});
  ask(fetch);
}

void PackageExchange::State::ask(Fetch& fetch) {
  if (fetch.timer) thread->loop().cancel(*fetch.timer);
  fetch.timer = thread->loop().call_after(kPackagePieceTimeout, [this, number = fetch.attempt] {
    Fetch* it = find(number);
    if (it == nullptr) return;
    it->timer.reset();
    failed(*it, Status(Code::kDeadlineExceeded, "it does not answer"));
  });
  const Status sent = fetch.connection->send(wire::encode(wire::ControlMessage(wire::ReadPackage{
      fetch.attempt, fetch.package, fetch.arrival->size(), limits::kPackagePieceBytes})));
  if (!sent.ok()) failed(fetch, sent);
}

void PackageExchange::State::answered(Fetch& fetch, std::span<const std::byte> frame) {
  const auto message = wire::decode_control(frame);
  if (!message.ok()) return failed(fetch, message.status());
  const auto* piece = get_if<wire::SegmentBytes>(&*message);
  if (piece == nullptr) return failed(fetch, Status(Code::kProtocol, "it answers something else"));
  if (!piece->status.ok()) return failed(fetch, piece->status);
  if (piece->size_bytes != fetch.package.size_bytes || piece->bytes.empty()) {
    return failed(fetch, error(Code::kDataLoss, "it has {} bytes of {}", piece->size_bytes,
                               fetch.package.to_string()));
  }
  const Status taken = fetch.arrival->append(piece->bytes);
  if (!taken.ok()) return end(fetch, taken);
  if (fetch.arrival->size() < fetch.package.size_bytes) return ask(fetch);
  Status finished = fetch.arrival->finish();
  if (finished.code() != Code::kDataLoss) return end(fetch, std::move(finished));
  // Somebody has sent something else: the next one sends all of it.
  fetch.arrival.reset();
  auto arrival = receive(fetch.package);
  if (!arrival.ok()) return end(fetch, arrival.status());
  fetch.arrival = std::move(*arrival);
  failed(fetch, std::move(finished));
}

// Another node goes on where this one stopped.
void PackageExchange::State::failed(Fetch& fetch, Status why) {
  if (fetch.timer) thread->loop().cancel(*std::exchange(fetch.timer, std::nullopt));
  if (const auto old = std::exchange(fetch.connection, nullptr)) old->close();
  const std::string where = fmt::format("the node at {}", fetch.from.back().to_string());
  fetch.from.pop_back();
  if (fetch.from.empty()) return end(fetch, why.prefixed(where));
  attempt(fetch);
}

void PackageExchange::State::end(Fetch& fetch, Status status) {
  if (fetch.timer) thread->loop().cancel(*fetch.timer);
  if (fetch.connection) fetch.connection->close();
  const wire::Package package = fetch.package;
  fetches.erase(package.sha256);
  if (!status.ok()) return handlers.on_failed(package, std::move(status));
  handlers.on_change(cache->all());
}

// --- the exchange --------------------------------------------------------------------------------

Result<std::unique_ptr<PackageExchange>> PackageExchange::start(std::unique_ptr<PackageCache> cache,
                                                                net::Token token, Logger log,
                                                                Handlers handlers) {
  auto state = std::make_unique<State>(std::move(cache), std::move(token), std::move(log),
                                       std::move(handlers));
  state->thread = TROUPE_TRY(net::LoopThread::start("troupe-packages"));
  return std::unique_ptr<PackageExchange>(new PackageExchange(std::move(state)));
}

PackageExchange::PackageExchange(std::unique_ptr<State> state) : state_(std::move(state)) {}

PackageExchange::~PackageExchange() {
  std::promise<void> done;
  state_->thread->loop().post([&] {
    for (auto& [id, peer] : state_->peers) peer.connection->close();
    state_->peers.clear();
    for (auto& [sha256, fetch] : state_->fetches) {
      if (fetch.connection) fetch.connection->close();
    }
    state_->fetches.clear();
    done.set_value();
  });
  done.get_future().wait();
}

PackageCache& PackageExchange::cache() { return *state_->cache; }

void PackageExchange::take_up() {
  state_->thread->loop().post([state = state_.get()] { state->take_up(); });
}

void PackageExchange::serve(ByteStream socket, const std::string& peer) {
  state_->thread->loop().post([state = state_.get(),
                               socket = std::make_shared<ByteStream>(std::move(socket)),
                               peer] { state->serve(std::move(*socket), peer); });
}

void PackageExchange::fetch(const wire::Package& package, std::vector<net::Address> from) {
  state_->thread->loop().post([state = state_.get(), package, from = std::move(from)]() mutable {
    state->fetch(package, std::move(from));
  });
}

}  // namespace troupe::scheduler
