#include "scheduler/node/state_fetcher.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <utility>

#include "runtime/base/limits.h"
#include "runtime/memory/segment.h"
#include "runtime/net/connection.h"
#include "runtime/wire/control_messages.h"

namespace troupe::scheduler {
namespace {

constexpr Duration kConnectTimeout = std::chrono::seconds(3);
// Without a further piece for so long, an attempt is over.
constexpr Duration kPieceTimeout = std::chrono::seconds(5);
constexpr Duration kBackOffFirst = std::chrono::milliseconds(20);
constexpr Duration kBackOffMost = std::chrono::seconds(1);
// Attempts in a row that bring nothing. With their pauses they outlast the time in which the head
// finds a node dead.
constexpr int kFruitlessMax = 10;
// Pieces that are asked for ahead, so that the distance to the other node costs little.
constexpr std::size_t kPiecesAhead = 16;

}  // namespace

struct StateFetcher::State : std::enable_shared_from_this<StateFetcher::State> {
  State(net::EventLoop& l, net::Address f, net::Token t, ActorId id, Done d)
      : loop(l), from(std::move(f)), token(std::move(t)), actor_id(id), done(std::move(d)) {}

  void attempt();
  void connected(Result<ByteStream> socket);
  void ask();
  void received(std::span<const std::byte> frame);
  Status take(const wire::SegmentBytes& piece);
  void failed(const Status& why);
  void end(Result<UniqueFd> result);
  void drop_connection();
  void watch_progress();

  net::EventLoop& loop;
  const net::Address from;
  const net::Token token;
  const ActorId actor_id;
  Done done;                         // null: it has been called, or nobody is there any more
  std::uint64_t attempt_number = 0;  // what belongs to an earlier one is ignored
  std::shared_ptr<net::Connection> connection;
  std::optional<net::TimerId> timer;
  int fruitless = 0;
  Duration back_off = kBackOffFirst;
  std::optional<memory::Segment> segment;  // once its size is known
  std::size_t have = 0;                    // bytes, from the first one on
  std::size_t asked = 0;                   // … and how far this attempt has asked
};

void StateFetcher::State::attempt() {
  const std::uint64_t number = ++attempt_number;
  net::connect(loop, from, "node", token, Deadline::after(kConnectTimeout, loop.clock()),
               [weak = weak_from_this(), number](Result<ByteStream> socket) {
                 auto self = weak.lock();
                 if (self && self->attempt_number == number) self->connected(std::move(socket));
               });
}

void StateFetcher::State::connected(Result<ByteStream> socket) {
  if (!socket.ok()) return failed(socket.status());
  connection = net::make_connection(loop, std::move(*socket), from.to_string());
  const std::weak_ptr<State> weak = weak_from_this();
  connection->start({.on_frame =
                         [weak, number = attempt_number](std::span<const std::byte> frame) {
                           auto self = weak.lock();
                           if (self && self->attempt_number == number) self->received(frame);
                         },
                     .on_close =
                         [weak, number = attempt_number](Status why) {
                           auto self = weak.lock();
                           if (self && self->attempt_number == number) self->failed(why);
                         }});
  asked = have;
  watch_progress();
  ask();
}

// The first piece says how many there are.
void StateFetcher::State::ask() {
  const std::size_t piece = limits::kSegmentReadBytesMax;
  const std::size_t end = segment ? segment->size() : asked + 1;
  while (asked < end && asked < have + kPiecesAhead * piece) {
    const wire::ReadSavedState request{asked + 1, actor_id, asked, piece};
    asked += piece;
    const Status sent = connection->send(wire::encode(wire::ControlMessage(request)));
    if (!sent.ok()) return failed(sent);
  }
}

void StateFetcher::State::received(std::span<const std::byte> frame) {
  const auto message = wire::decode_control(frame);
  if (!message.ok()) return failed(message.status());
  const auto* piece = get_if<wire::SegmentBytes>(&*message);
  if (piece == nullptr) return failed(Status(Code::kProtocol, "it answers something else"));
  if (piece->status.code() == Code::kNotFound) return end(piece->status);
  if (!piece->status.ok()) return failed(piece->status);
  if (const Status taken = take(*piece); !taken.ok()) return failed(taken);
  if (have < segment->size()) {
    watch_progress();
    return ask();
  }
  end(segment->duplicate_fd());
}

// Pieces come in the order in which they were asked for.
Status StateFetcher::State::take(const wire::SegmentBytes& piece) {
  if (!segment) {
    if (piece.size_bytes == 0) return Status(Code::kProtocol, "it keeps a state of no bytes");
    segment = TROUPE_TRY(memory::Segment::create("troupe-saved-state", piece.size_bytes));
  }
  if (piece.size_bytes != segment->size()) {
    segment.reset();
    have = 0;
    return Status(Code::kUnavailable, "the state was replaced while it was read");
  }
  if (piece.request_id != have + 1 || piece.bytes.empty() ||
      piece.bytes.size() > segment->size() - have) {
    return Status(Code::kProtocol, "a piece that was not asked for");
  }
  std::memcpy(segment->data() + have, piece.bytes.data(), piece.bytes.size());
  have += piece.bytes.size();
  fruitless = 0;
  back_off = kBackOffFirst;
  return {};
}

void StateFetcher::State::watch_progress() {
  if (timer) loop.cancel(*timer);
  timer = loop.call_after(kPieceTimeout, [weak = weak_from_this()] {
    auto self = weak.lock();
    if (!self) return;
    self->timer.reset();
    self->failed(Status(Code::kDeadlineExceeded, "it does not answer"));
  });
}

void StateFetcher::State::drop_connection() {
  ++attempt_number;
  if (timer) loop.cancel(*std::exchange(timer, std::nullopt));
  if (auto old = std::exchange(connection, nullptr)) old->close();
}

void StateFetcher::State::failed(const Status& why) {
  drop_connection();
  if (++fruitless >= kFruitlessMax) {
    return end(Status(why.code() == Code::kNotFound ? Code::kUnavailable : why.code(),
                      fmt::format("the node at {}: {}", from.to_string(), why.message())));
  }
  timer = loop.call_after(back_off, [weak = weak_from_this()] {
    auto self = weak.lock();
    if (!self) return;
    self->timer.reset();
    self->attempt();
  });
  back_off = std::min(2 * back_off, kBackOffMost);
}

void StateFetcher::State::end(Result<UniqueFd> result) {
  drop_connection();
  if (const Done tell = std::exchange(done, nullptr)) tell(std::move(result));
}

StateFetcher::StateFetcher(net::EventLoop& loop, net::Address from, net::Token token,
                           ActorId actor_id, Done done)
    : state_(std::make_shared<State>(loop, std::move(from), std::move(token), actor_id,
                                     std::move(done))) {
  state_->attempt();
}

StateFetcher::~StateFetcher() {
  state_->done = nullptr;
  state_->drop_connection();
}

}  // namespace troupe::scheduler
