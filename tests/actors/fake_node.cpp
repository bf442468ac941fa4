#include "tests/actors/fake_node.h"

#include <signal.h>
#include <sys/socket.h>

#include <cstring>
#include <thread>

#include "runtime/base/check.h"
#include "runtime/memory/unix_socket.h"
#include "tests/support/on_loop.h"

namespace troupe::tests {

using namespace std::chrono_literals;

std::shared_ptr<FakeNode> FakeNode::start(const std::string& host_program, net::Security security) {
  // A client's last callback may be the last owner: it runs on the loop's thread, which cannot join
  // itself.
  std::shared_ptr<FakeNode> node(new FakeNode(host_program, security), [](FakeNode* last) {
    if (last->loop().in_loop_thread()) {
      std::thread([last] { delete last; }).detach();
    } else {
      delete last;
    }
  });
  on_loop(node->loop(), [&] { node->listen(); });
  return node;
}

FakeNode::FakeNode(const std::string& host_program, net::Security security)
    : host_program_(host_program),
      token_(std::vector<std::byte>(32, std::byte{7}), security),
      node_id_(NodeId::make(random_)),
      thread_("fake-node") {}

FakeNode::~FakeNode() { TROUPE_CHECK(stopping_); }

void FakeNode::listen() {
  net::ListenOptions options;
  options.host = "127.0.0.1";
  options.local_name = "troupe-test-" + node_id_.to_string();
  options.hand_over = [](const std::string&) { return true; };
  auto listener = net::listen(
      loop(), options, token_, random_, Logger::discard(), [this](net::AcceptedSocket accepted) {
        const auto id = ActorId::parse(accepted.target.substr(strlen("actor/"), 32));
        const auto it = id.ok() ? actors_.find(*id) : actors_.end();
        if (it == actors_.end() || !it->second->socket.valid()) return;
        send(*it->second,
             wire::HostConnection{accepted.target, accepted.peer, accepted.same_node,
                                  accepted.untouched},
             accepted.socket.fd());
      });
  TROUPE_CHECK(listener.ok(), "{}", listener.status().to_string());
  listener_ = std::move(*listener);
  address_ = listener_->address();
  address_.local_name = options.local_name;
}

std::shared_ptr<detail::ActorClient> FakeNode::make_client(
    int rings_max, const net::ConnectionOptions& connections) {
  return make_client_at(node_id_, rings_max, connections);
}
std::shared_ptr<detail::ActorClient> FakeNode::make_distant_client(bool tries_local) {
  return make_client_at({}, detail::kRingsMax, detail::call_connection_options(), tries_local);
}
void FakeNode::say_local_name(const std::string& name) {
  on_loop(loop(), [&] { address_.local_name = name; });
}

std::shared_ptr<detail::ActorClient> FakeNode::make_client_at(
    NodeId at, int rings_max, const net::ConnectionOptions& connections, bool tries_local) {
  auto environment = std::make_shared<detail::ChannelEnvironment>();
  environment->loop = &loop();
  environment->token = token_;
  environment->node_id = at;
  environment->tries_local = tries_local;
  environment->directory = shared_from_this();
  environment->rings_max = rings_max;
  environment->connections = connections;
  detail::ClientOptions options;
  options.environment = std::move(environment);
  options.image = []() -> Result<wire::Image> { return wire::Image{}; };
  options.random = std::make_shared<SystemRandom>();
  return std::make_shared<detail::ActorClient>(std::move(options));
}

void FakeNode::launch(Actor& actor) {
  auto pair = memory::socket_pair();
  TROUPE_CHECK(pair.ok());
  process::SpawnOptions options;
  options.path = host_program_;
  options.argv = {"test", "host", "--actor", actor.spec.type, "--run", "-", "--rank", "-1"};
  options.descriptors = {{.parent = pair->second.get(), .child = 3}};
  auto child = process::spawn(options);
  TROUPE_CHECK(child.ok(), "{}", child.status().to_string());
  ++started_;
  actor.child = std::move(*child);
  actor.socket = std::move(pair->first);
  actor.input.clear();
  actor.input_fds.clear();
  actor.info.generation++;
  actor.info.pid = actor.child.pid;
  const ActorId id = actor.spec.actor_id;
  process::watch_exit(loop(), actor.child, [this, id](wire::ExitStatus e) { on_exit(id, e); });
  loop().watch_readable(actor.socket.get(), [this, id] { on_host_readable(id); });
  say_start(actor);
}

void FakeNode::say_start(Actor& actor) {
  wire::HostStart start;
  start.spec = actor.spec;
  start.generation = actor.info.generation;
  start.node_id = node_id_;
  start.node_endpoint = {address_.host, address_.port, address_.local_name};
  start.head_endpoint = start.node_endpoint;
  start.token = token_.secret();
  start.security = static_cast<std::uint8_t>(token_.security());
  start.has_saved_state = actor.saved_state.valid();
  send(actor, start, actor.saved_state.get());
}

void FakeNode::send(Actor& actor, const wire::HostMessage& message, int fd) {
  const auto body = wire::encode(message);
  const auto length = static_cast<std::uint32_t>(body.size());
  wire::Bytes frame(sizeof length + body.size());
  std::memcpy(frame.data(), &length, sizeof length);
  std::memcpy(frame.data() + sizeof length, body.data(), body.size());
  const std::span<const int> fds = fd >= 0 ? std::span<const int>(&fd, 1) : std::span<const int>();
  (void)memory::send_with_fds(actor.socket.get(), frame, fds, Deadline::after(5s));
}

void FakeNode::on_host_readable(ActorId id) {
  Actor& actor = *actors_.at(id);
  std::byte bytes[4096];
  iovec piece{bytes, sizeof bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 8)];
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t count = ::recvmsg(actor.socket.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (count <= 0) {
    if (count == 0 || errno != EAGAIN) loop().unwatch(actor.socket.get());
    return;
  }
  actor.input.insert(actor.input.end(), bytes, bytes + count);
  for (auto* c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(c), sizeof fd);
    actor.input_fds.emplace_back(fd);
  }
  while (actor.input.size() >= 4) {
    std::uint32_t length = 0;
    std::memcpy(&length, actor.input.data(), 4);
    if (actor.input.size() < 4 + length) break;
    auto host = wire::decode_host(std::span(actor.input).subspan(4, length));
    actor.input.erase(actor.input.begin(), actor.input.begin() + 4 + length);
    TROUPE_CHECK(host.ok(), "{}", host.status().to_string());
    if (get_if<wire::HostReady>(&*host)) {
      ++actor.times_ready;
      actor.info.state = wire::ActorState::kAlive;
      publish(actor);
    } else if (const auto* failed = get_if<wire::HostFailed>(&*host)) {
      actor.failure = failed->status;
    } else if (get_if<wire::HostSavedState>(&*host)) {
      actor.saved_state = std::move(actor.input_fds.front());
      actor.input_fds.erase(actor.input_fds.begin());
      send(actor, wire::HostSavedState{actor.info.generation}, actor.saved_state.get());
    }
  }
}

void FakeNode::on_exit(ActorId id, wire::ExitStatus exit) {
  Actor& actor = *actors_.at(id);
  while (actor.socket.valid()) {  // what it said last
    const auto before = actor.input.size() + actor.input_fds.size();
    char probe;
    if (::recv(actor.socket.get(), &probe, 1, MSG_PEEK | MSG_DONTWAIT) <= 0) break;
    on_host_readable(id);
    (void)before;
  }
  loop().unwatch(actor.socket.get());
  actor.socket.reset();
  const bool again = !actor.ending && !stopping_ && actor.failure.ok() &&
                     actor.info.restarts < actor.spec.restart.max_restarts;
  actor.info.death =
      actor.failure.ok() ? error(Code::kActorDied, "{}", exit.to_string()) : actor.failure;
  actor.info.state = again ? wire::ActorState::kRestarting : wire::ActorState::kDead;
  publish(actor);
  if (!again) return;
  ++actor.info.restarts;
  actor.info.state = wire::ActorState::kStarting;
  launch(actor);
  publish(actor);
}

void FakeNode::publish(const Actor& actor) {
  std::vector<OnActor> callbacks;
  for (const auto& [id, watcher] : watchers_) {
    if (watcher.actor_id == actor.spec.actor_id) callbacks.push_back(watcher.on_actor);
  }
  for (const auto& callback : callbacks) callback(actor.info);
}

detail::Directory::WatchId FakeNode::watch(ActorId actor_id, const std::string& name,
                                           OnActor on_actor) {
  const WatchId watch = next_watch_++;
  loop().post([this, watch, actor_id, name, on_actor = std::move(on_actor)]() mutable {
    if (actor_id.empty()) {
      for (const auto& [id, actor] : actors_) {
        if (actor->spec.name == name) actor_id = id;
      }
    }
    const auto it = actors_.find(actor_id);
    if (it == actors_.end()) {
      on_actor(error(Code::kNotFound, "no such actor"));
      return;
    }
    watchers_[watch] = {actor_id, on_actor};
    on_actor(it->second->info);
  });
  return watch;
}

void FakeNode::unwatch(WatchId watch) {
  loop().post([this, watch] { watchers_.erase(watch); });
}

void FakeNode::create(std::vector<wire::ActorSpec> specs, bool, bool, OnDone done) {
  loop().post([this, specs = std::move(specs), done] {
    for (const auto& spec : specs) {
      if (spec.resources.contains("unobtainable")) {
        done(error(Code::kResourceExhausted, "no node has 'unobtainable'"));
        return;
      }
    }
    for (const auto& spec : specs) {
      auto actor = std::make_unique<Actor>();
      actor->spec = spec;
      actor->info.actor_id = spec.actor_id;
      actor->info.type = spec.type;
      actor->info.name = spec.name;
      actor->info.light_count = spec.light_count;
      actor->info.state = wire::ActorState::kStarting;
      actor->info.node_id = node_id_;
      actor->info.endpoint = {address_.host, address_.port, address_.local_name};
      launch(*actor);
      actors_[spec.actor_id] = std::move(actor);
    }
    done(Status());
  });
}

void FakeNode::kill(ActorId actor_id, bool allow_restart, std::int64_t grace_ms,
                    const std::string& reason, OnDone done) {
  loop().post([=, this] {
    Actor& actor = *actors_.at(actor_id);
    actor.ending = !allow_restart;
    if (grace_ms > 0) {
      send(actor, wire::HostStop{grace_ms, reason});
    } else {
      ::kill(actor.child.pid, SIGKILL);
    }
    done(Status());
  });
}

void FakeNode::list_nodes(OnNodes done) {
  loop().post([this, done] {
    wire::NodeInfo node;
    node.node_id = node_id_;
    done(std::vector<wire::NodeInfo>{node});
  });
}

int FakeNode::started() const { return started_; }

void FakeNode::kill_process(ActorId actor_id, int signal) {
  ::kill(static_cast<pid_t>(info(actor_id).pid), signal);
}

wire::ActorInfo FakeNode::info(ActorId actor_id) const {
  return on_loop(thread_.loop(), [&] { return actors_.at(actor_id)->info; });
}

void FakeNode::start_again(ActorId actor_id) {
  on_loop(loop(), [&] { say_start(*actors_.at(actor_id)); });
}

int FakeNode::times_ready(ActorId actor_id) const {
  return on_loop(thread_.loop(), [&] { return actors_.at(actor_id)->times_ready; });
}

void FakeNode::stop() {
  on_loop(loop(), [this] {
    stopping_ = true;
    listener_.reset();
    watchers_.clear();
    for (auto& [id, actor] : actors_) {
      if (!actor->socket.valid()) continue;
      loop().unwatch(actor->socket.get());
      process::stop_watching(loop(), actor->child);
      ::kill(actor->child.pid, SIGKILL);
      (void)process::wait(actor->child, Deadline::after(5s));
    }
  });
}

}  // namespace troupe::tests
