#include "runtime/process/keeper_client.h"

#include <fcntl.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/file_system.h"
#include "runtime/process/executable.h"

namespace troupe::process {
namespace {

constexpr int kKeeperListener = 3;
constexpr int kRetryMs = 5;
// A keeper does nothing that takes long; one that does not answer is stuck.
constexpr Duration kAnswerTimeout = std::chrono::seconds(5);
// Signs of life within a hold time.
constexpr int kSignsPerHold = 6;
constexpr Duration kReapTimeout = std::chrono::seconds(1);

Result<Child> start_keeper(const KeeperOptions& options, int listener) {
  const auto program =
      TROUPE_TRY(options.program.empty() ? Executable::self() : Executable::open(options.program));
  SpawnOptions spawning;
  spawning.path = program->path();
  spawning.executable_fd = program->fd();
  spawning.argv = {"troupe",        "keeper",
                   "--socket-name", options.socket_name,
                   "--hold-ms",     std::to_string(options.hold / std::chrono::milliseconds(1))};
  const UniqueFd nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (nothing.valid()) {
    spawning.descriptors = {{.parent = nothing.get(), .child = 0},
                            {.parent = nothing.get(), .child = 1}};
  }
  spawning.descriptors.push_back({.parent = listener, .child = kKeeperListener});
  return spawn(spawning);
}

// What the keeper said, also where it has closed: with the greeting unread that is an error of the
// first reading, and of that alone.
Result<Packet> receive_from_keeper(int socket, Deadline deadline) {
  auto packet = receive_packet(socket, deadline);
  if (packet.ok() || packet.status().code() != Code::kUnavailable) return packet;
  return receive_packet(socket, deadline);
}

// Everything that it has. kUnavailable: it is on its way out.
Result<KeeperClient::Contents> greet(int socket, Deadline deadline) {
  // One that has a daemon says so and closes, perhaps before it could be greeted.
  const Status greeted = send_packet(socket, wire::encode(wire::KeeperHello{}), {}, deadline);
  if (!greeted.ok() && greeted.code() != Code::kUnavailable) return greeted;
  KeeperClient::Contents contents;
  while (true) {
    auto packet = TROUPE_TRY(receive_from_keeper(socket, deadline));
    auto message = TROUPE_TRY(wire::decode_keeper(packet.bytes));
    if (auto* entry = get_if<wire::KeeperEntry>(&message)) {
      contents.entries.push_back({std::move(entry->key), std::move(entry->bytes), {}});
      if (!packet.descriptors.empty()) {
        contents.entries.back().descriptor = std::move(packet.descriptors.front());
      }
    } else if (const auto* child = get_if<wire::KeeperChild>(&message)) {
      contents.children.push_back(*child);
    } else if (const auto* welcome = get_if<wire::KeeperWelcome>(&message)) {
      TROUPE_RETURN_IF_ERROR(welcome->status);
      return contents;
    }
  }
}

}  // namespace

KeeperClient::KeeperClient(net::EventLoop& loop, KeeperOptions options, UniqueFd socket,
                           std::optional<Child> process, Contents contents)
    : loop_(loop),
      options_(std::move(options)),
      socket_(std::move(socket)),
      process_(std::move(process)),
      contents_(std::move(contents)) {}

Result<std::unique_ptr<KeeperClient>> KeeperClient::open(net::EventLoop& loop,
                                                         KeeperOptions options, Deadline deadline) {
  std::optional<Child> process;
  Status last;
  while (!deadline.passed()) {
    auto socket = connect_packets(options.socket_name);
    if (!socket.ok()) {
      last = socket.status();
      if (last.code() != Code::kUnavailable) return last;
      // It listens before it runs, so that connecting to it succeeds at once.
      const auto listener = listen_packets(options.socket_name);
      if (listener.ok()) {
        process = TROUPE_TRY(start_keeper(options, listener->get()));
        continue;
      }
      last = listener.status();
      if (last.code() != Code::kAlreadyExists) return last;
    } else {
      auto contents = greet(socket->get(), deadline);
      if (contents.ok()) {
        return std::unique_ptr<KeeperClient>(
            new KeeperClient(loop, std::move(options), std::move(*socket), std::move(process),
                             std::move(*contents)));
      }
      last = contents.status();
      if (last.code() != Code::kUnavailable) return last.prefixed("the node's keeper");
    }
    ::poll(nullptr, 0, kRetryMs);  // one that is on its way out is gone soon
  }
  return error(Code::kDeadlineExceeded, "the node's keeper: {}", last.to_string());
}

KeeperClient::~KeeperClient() {
  if (timer_) loop_.cancel(*timer_);
  if (handlers_.on_exit && socket_.valid()) loop_.unwatch(socket_.get());
}

void KeeperClient::start(Handlers handlers) {
  TROUPE_CHECK(!handlers_.on_exit && handlers.on_exit && handlers.on_lost);
  handlers_ = std::move(handlers);
  loop_.watch_readable(socket_.get(), [this] { on_readable(); });
  stay_alive();
}

void KeeperClient::hold_until(TimePoint lease_end) {
  const std::int64_t lease_end_ns = lease_end.time_since_epoch().count();
  if (std::exchange(lease_end_ns_, lease_end_ns) == lease_end_ns) return;
  (void)say(wire::KeeperAlive{lease_end_ns_});
}

void KeeperClient::stay_alive() {
  if (!socket_.valid()) return;
  (void)say(wire::KeeperAlive{lease_end_ns_});
  timer_ = loop_.call_after(options_.hold / kSignsPerHold, [this] { stay_alive(); });
}

Status KeeperClient::say(const wire::KeeperMessage& message, std::span<const int> descriptors) {
  if (!socket_.valid()) return error(Code::kUnavailable, "the node's keeper has ended");
  return send_packet(socket_.get(), wire::encode(message), descriptors,
                     Deadline::after(kAnswerTimeout));
}

// --- what it says --------------------------------------------------------------------------------

void KeeperClient::took(wire::KeeperMessage message) {
  if (auto* exited = get_if<wire::KeeperExited>(&message)) exits_.push_back(*exited);
  if (auto* spawned = get_if<wire::KeeperSpawned>(&message)) spawned_ = std::move(*spawned);
}

void KeeperClient::on_readable() {
  const std::weak_ptr<bool> alive = alive_;
  Status end;
  while (socket_.valid() && end.ok()) {
    auto packet = receive_packet(socket_.get());
    if (packet.ok() && !*packet) break;
    auto message = packet.ok() ? wire::decode_keeper((*packet)->bytes)
                               : Result<wire::KeeperMessage>(packet.status());
    if (message.ok()) {
      took(std::move(*message));
    } else {
      end = message.status();
    }
  }
  deliver();
  if (!alive.expired() && !end.ok()) lost(std::move(end));
}

void KeeperClient::deliver() {
  const std::weak_ptr<bool> alive = alive_;
  while (!alive.expired() && !exits_.empty() && handlers_.on_exit) {
    const wire::KeeperExited exited = exits_.front();
    exits_.pop_front();
    handlers_.on_exit(exited.child_id, exited.exit);
  }
}

void KeeperClient::lost(Status why) {
  if (!socket_.valid()) return;
  if (handlers_.on_exit) loop_.unwatch(socket_.get());
  socket_.reset();
  if (timer_) loop_.cancel(*timer_);
  timer_.reset();
  if (process_) (void)process::wait(*process_, Deadline::after(kReapTimeout));
  process_.reset();
  // It may destroy this object.
  if (const auto on_lost = std::exchange(handlers_.on_lost, nullptr)) on_lost(std::move(why));
}

// --- what it is asked ----------------------------------------------------------------------------

Result<pid_t> KeeperClient::spawn(std::uint64_t child_id, const SpawnOptions& options) {
  wire::KeeperSpawn request;
  request.child_id = child_id;
  request.path = options.path;
  request.argv = options.argv;
  for (const auto& [name, value] : options.environment) {
    request.environment.push_back(name + "=" + value);
  }
  request.by_path = options.executable_fd < 0;
  request.working_directory = options.working_directory;
  request.new_session = options.new_session;
  std::vector<int> descriptors;
  if (!request.by_path) descriptors.push_back(options.executable_fd);
  for (const DescriptorMapping& mapping : options.descriptors) {
    request.descriptors.push_back(mapping.child);
    descriptors.push_back(mapping.parent);
  }
  spawned_.reset();
  TROUPE_RETURN_IF_ERROR(say(request, descriptors));
  const auto deadline = Deadline::after(kAnswerTimeout);
  while (!spawned_ || spawned_->child_id != child_id) {
    auto packet = receive_packet(socket_.get(), deadline);
    // Its end is told by on_readable.
    if (!packet.ok()) return packet.status().prefixed("the node's keeper");
    took(TROUPE_TRY(wire::decode_keeper(packet->bytes)));
  }
  if (!exits_.empty()) {
    loop_.post([this, alive = std::weak_ptr<bool>(alive_)] {
      if (!alive.expired()) deliver();
    });
  }
  TROUPE_RETURN_IF_ERROR(spawned_->status);
  return static_cast<pid_t>(spawned_->pid);
}

Status KeeperClient::put(const std::string& key, const wire::Bytes& bytes, int descriptor) {
  const std::array<int, 1> one{descriptor};
  return say(wire::KeeperPut{key, bytes},
             descriptor >= 0 ? std::span<const int>(one) : std::span<const int>());
}

Status KeeperClient::drop(const std::string& key) { return say(wire::KeeperDrop{key}); }
Status KeeperClient::forget(std::uint64_t child_id) { return say(wire::KeeperForget{child_id}); }

bool KeeperClient::wait_exit(std::uint64_t child_id, Deadline deadline) {
  while (socket_.valid()) {
    const auto found = std::find_if(exits_.begin(), exits_.end(),
                                    [&](const auto& exit) { return exit.child_id == child_id; });
    if (found != exits_.end()) {
      exits_.erase(found);
      return true;
    }
    auto packet = receive_packet(socket_.get(), deadline);
    if (!packet.ok()) return packet.status().code() == Code::kUnavailable;
    auto message = wire::decode_keeper(packet->bytes);
    if (message.ok()) took(std::move(*message));
  }
  return true;  // it ended with the keeper
}

Status KeeperClient::quit(Deadline deadline) {
  if (!socket_.valid()) return {};
  handlers_.on_lost = nullptr;
  TROUPE_RETURN_IF_ERROR(say(wire::KeeperQuit{}));
  while (true) {
    const auto packet = receive_packet(socket_.get(), deadline);
    if (packet.ok()) continue;
    if (packet.status().code() == Code::kDeadlineExceeded) {
      return error(Code::kDeadlineExceeded, "the node's keeper has not ended its processes");
    }
    lost({});
    return {};
  }
}

}  // namespace troupe::process
