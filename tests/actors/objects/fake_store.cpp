#include "tests/actors/objects/fake_store.h"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <future>
#include <utility>

#include "actors/actor_channel.h"
#include "runtime/memory/unix_socket.h"
#include "runtime/process/packet_socket.h"

namespace troupe::tests {
namespace {

Deadline store_deadline() { return Deadline::after(std::chrono::seconds(10)); }

}  // namespace

FakeStore::FakeStore() {
  on_loop([this] {
    net::ListenOptions options;
    options.local_name = "troupe-node-" + node_id_.to_string();
    listener_ = net::listen(thread_.loop(), options, token_, random_, Logger::discard(),
                            [this](net::AcceptedSocket socket) { accept(std::move(socket)); })
                    .value();
  });
  auto environment = std::make_shared<detail::ChannelEnvironment>();
  environment->loop = &thread_.loop();
  environment->token = token_;
  environment->node_id = node_id_;
  client_ = std::make_shared<detail::ObjectClient>(
      detail::ObjectClientOptions{.environment = environment,
                                  .client_id = ClientId::make(random_),
                                  .job_id = JobId::make(random_),
                                  .name = "test",
                                  .random = std::make_shared<SeededRandom>(1),
                                  .nodes = nullptr});
}

FakeStore::~FakeStore() {
  client_->close();
  on_loop([this] {
    if (requests_.valid()) thread_.loop().unwatch(requests_.get());
    listener_.reset();
  });
}

void FakeStore::on_loop(const std::function<void()>& work) {
  std::promise<void> done;
  thread_.loop().post([&] {
    work();
    done.set_value();
  });
  done.get_future().get();
}

void FakeStore::set_pending(bool pending) {
  on_loop([&] { pending_ = pending; });
}

void FakeStore::end_connection() {
  on_loop([this] {
    thread_.loop().unwatch(requests_.get());
    requests_.reset();
    notices_.reset();
  });
}

void FakeStore::grant(const wire::NewSegment& asked) {
  on_loop([&] { send_segment(asked.request, asked.bytes, notices_.get()); });
}

void FakeStore::accept(net::AcceptedSocket socket) {
  const UniqueFd stream = socket.socket.take_socket();
  std::uint32_t length = 0;
  auto fds = memory::receive_with_fds(stream.get(), std::as_writable_bytes(std::span(&length, 1)),
                                      2, store_deadline());
  REQUIRE(fds.ok());
  wire::Bytes hello(length);
  REQUIRE(memory::receive_all(stream.get(), hello, store_deadline()).ok());
  requests_ = std::move((*fds)[0]);
  notices_ = std::move((*fds)[1]);
  next_segment_ = 1;
  answer(wire::ObjectMessage(wire::ObjectWelcome{
      .status = {}, .node_id = node_id_, .endpoint = {}, .memory_max_bytes = 64u << 20}));
  thread_.loop().watch_readable(requests_.get(), [this] { read(); });
}

void FakeStore::answer(const wire::ObjectMessage& message) {
  REQUIRE(process::send_packet(requests_.get(), wire::encode(message), {}, store_deadline()).ok());
}

void FakeStore::send_segment(std::uint64_t request, std::uint64_t bytes, int socket) {
  const UniqueFd memory(::memfd_create("fake store", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(::ftruncate(memory.get(), static_cast<off_t>(bytes)) == 0);
  wire::ObjectAnswer granted;
  granted.request = request;
  granted.place.segment = next_segment_++;
  granted.segment_bytes = bytes;
  granted.has_descriptor = true;
  const int fds[] = {memory.get()};
  REQUIRE(process::send_packet(socket, wire::encode(wire::ObjectMessage(granted)), fds,
                               store_deadline())
              .ok());
}

void FakeStore::read() {
  while (true) {
    auto packet = process::receive_packet(requests_.get());
    if (!packet.ok()) return thread_.loop().unwatch(requests_.get());
    if (!*packet) return;
    auto message = wire::decode_object((*packet)->bytes).value();
    const auto* const segment = get_if<wire::NewSegment>(&message);
    const auto* const get = get_if<wire::GetObject>(&message);
    if (segment != nullptr && !pending_) {
      send_segment(segment->request, segment->bytes, requests_.get());
    } else if (segment != nullptr || get != nullptr) {
      wire::ObjectAnswer answered;
      answered.request = segment != nullptr ? segment->request : get->request;
      answered.pending = pending_;
      if (!pending_) answered.status = Status(Code::kObjectLost, "not here");
      answer(wire::ObjectMessage(std::move(answered)));
    }
    const std::lock_guard lock(mutex_);
    messages_.push_back(std::move(message));
    changed_.notify_all();
  }
}

}  // namespace troupe::tests
