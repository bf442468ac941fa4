#include "scheduler/objects/store_processes.h"

#include <utility>

#include "runtime/memory/unix_socket.h"
#include "runtime/process/packet_socket.h"

namespace troupe::scheduler {
namespace {

constexpr Duration kHelloTime = std::chrono::seconds(5);
constexpr std::uint32_t kHelloBytesMax = 64u << 10;
constexpr int kPacketsInTurn = 256;
// More than a socket's buffer holds: all that was sent when the reading began.
constexpr int kPacketsQueuedMax = 1 << 14;
// Answers and notices that a process does not read.
constexpr std::size_t kUnreadPacketsMax = 100'000;

}  // namespace

Result<StoreGreeting> receive_greeting(const UniqueFd& socket, OpenStreams& open) {
  const OpenStreams::Entry entry(open, socket.get());
  const Deadline deadline = Deadline::after(kHelloTime);
  std::uint32_t length = 0;
  auto fds = TROUPE_TRY(memory::receive_with_fds(
      socket.get(), std::as_writable_bytes(std::span(&length, 1)), 2, deadline));
  if (length == 0 || length > kHelloBytesMax)
    return Status(Code::kProtocol, "not the greeting of a process");
  wire::Bytes bytes(length);
  TROUPE_RETURN_IF_ERROR(memory::receive_all(socket.get(), bytes, deadline));
  auto message = TROUPE_TRY(wire::decode_object(bytes));
  auto* hello = get_if<wire::ObjectHello>(&message);
  if (hello == nullptr) return Status(Code::kProtocol, "not the greeting of a process");
  return StoreGreeting{std::move(*hello), std::move(fds[0]), std::move(fds[1])};
}

StoreProcesses::~StoreProcesses() {
  for (auto& [process, client] : clients_) {
    for (Outbox* outbox : {&client->requests, &client->notices}) {
      loop_.unwatch(outbox->socket.get());
    }
  }
}

void StoreProcesses::join(ProcessKey process, StoreGreeting greeting) {
  const wire::ObjectHello& hello = greeting.hello;
  const int fd = greeting.requests.get();
  wire::ObjectWelcome welcome = options_.welcome;
  if (hello.protocol_version != wire::kObjectProtocolVersion) {
    welcome.status =
        error(Code::kProtocol,
              "node {} speaks version {} of the object store's protocol, this process "
              "{}. Install the same build on every node",
              options_.node_name, wire::kObjectProtocolVersion, hello.protocol_version);
    (void)process::send_packet(fd, wire::encode(wire::ObjectMessage(std::move(welcome))), {},
                               Deadline::after({}));
    return;
  }
  auto client = std::make_shared<Client>();
  client->name = hello.name;
  client->requests.socket = std::move(greeting.requests);
  client->notices.socket = std::move(greeting.notices);
  clients_[process] = client;
  options_.joined(process, hello.name);
  send(process, /*notice=*/false, wire::encode(wire::ObjectMessage(std::move(welcome))));
  loop_.watch_readable(fd, [this, process] { read(process, kPacketsInTurn); });
}

void StoreProcesses::read(ProcessKey process, int packets_max) {
  const auto found = clients_.find(process);
  if (found == clients_.end()) return;
  const std::shared_ptr<Client> client = found->second;
  for (int i = 0; i < packets_max; ++i) {
    auto packet = process::receive_packet(client->requests.socket.get());
    if (!packet.ok()) {
      disconnect(process);
      break;
    }
    if (!*packet) break;
    const auto message = wire::decode_object((*packet)->bytes);
    const Status status = message.ok() ? options_.on_message(process, *message) : message.status();
    if (!status.ok()) {
      options_.log.warning("{} is disconnected from the object store: {}", client->name,
                           status.to_string());
      disconnect(process);
      break;
    }
  }
  options_.told();
}

void StoreProcesses::read_all() {
  std::vector<ProcessKey> all;
  for (const auto& [process, client] : clients_) all.push_back(process);
  for (const ProcessKey process : all) read(process, kPacketsQueuedMax);
}

void StoreProcesses::disconnect(ProcessKey process) {
  const auto found = clients_.find(process);
  if (found == clients_.end()) return;
  loop_.unwatch(found->second->requests.socket.get());
  loop_.unwatch(found->second->notices.socket.get());
  clients_.erase(found);
  options_.gone(process);
}

void StoreProcesses::send(ProcessKey process, bool notice, wire::Bytes bytes,
                          std::shared_ptr<ObjectMemory> memory) {
  const auto found = clients_.find(process);
  if (found == clients_.end()) return;
  Outbox& outbox = notice ? found->second->notices : found->second->requests;
  outbox.waiting.push_back({std::move(bytes), std::move(memory)});
  if (outbox.waiting.size() == 1) {
    flush(process, notice);
  } else if (outbox.waiting.size() > kUnreadPacketsMax) {
    loop_.post([this, process, alive = std::weak_ptr(alive_)] {
      if (alive.expired()) return;
      disconnect(process);  // it does not read what it is told
      options_.told();
    });
  }
}

void StoreProcesses::flush(ProcessKey process, bool notices) {
  const auto found = clients_.find(process);
  if (found == clients_.end()) return;
  Outbox& outbox = notices ? found->second->notices : found->second->requests;
  while (!outbox.waiting.empty()) {
    const Outbox::Packet& packet = outbox.waiting.front();
    std::vector<int> fds;
    if (packet.memory) fds.push_back(packet.memory->fd());
    const auto sent = process::try_send_packet(outbox.socket.get(), packet.bytes, fds);
    if (!sent.ok()) {  // its end is read on the other socket
      outbox.waiting.clear();
      return;
    }
    if (!*sent) {
      loop_.when_writable(outbox.socket.get(),
                          [this, process, notices] { flush(process, notices); });
      return;
    }
    outbox.waiting.pop_front();
  }
}

}  // namespace troupe::scheduler
