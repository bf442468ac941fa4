// A rank sleeps only where something is missing that its sleep watches for.

#include <doctest/doctest.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "runtime/collective/progress.h"

namespace troupe::collective {
namespace {

// A peer that says what it is told, like a socket: bytes come when they are asked for. The last
// of what a reduction needs comes with the `complete_at`-th question for it.
class EchoLink final : public Link {
 public:
  EchoLink(UniqueFd socket, int complete_at)
      : socket_(std::move(socket)), complete_at_(complete_at) {}

  std::size_t send(std::span<const std::byte> bytes) override {
    echo_.insert(echo_.end(), bytes.begin(), bytes.end());
    return bytes.size();
  }
  void flush() override {}
  bool unsent() const override { return false; }
  std::span<const std::byte> readable(std::size_t want) override {
    if (known_.size() < want) {
      const std::size_t withheld = ++questions_ < complete_at_ ? 1 : 0;
      known_.assign(echo_.begin(), echo_.end() - static_cast<std::ptrdiff_t>(withheld));
    }
    return known_;
  }
  void consume(std::size_t count) override {
    echo_.erase(echo_.begin(), echo_.begin() + static_cast<std::ptrdiff_t>(count));
    known_.clear();
  }
  std::size_t receive(std::span<std::byte> out) override {
    const std::size_t count = std::min(out.size(), echo_.size());
    std::copy_n(echo_.begin(), count, out.begin());
    consume(count);
    return count;
  }
  bool broken() const override { return false; }
  std::size_t ahead_bytes() const override { return SIZE_MAX / 2; }
  std::size_t lag_chunks() const override { return 2; }
  int socket() const override { return socket_.get(); }
  short poll_events(bool, bool) const override {
    ++watched_;
    return POLLIN;
  }
  int watched() const { return watched_; }

 private:
  UniqueFd socket_;
  const int complete_at_;
  int questions_ = 0;
  mutable int watched_ = 0;
  std::vector<std::byte> echo_, known_;
};

struct Outcome {
  bool watched, slept;
};

Outcome reduce_with_echo(int complete_at) {
  std::array<int, 2> ends{};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0);
  const UniqueFd far_end(ends[1]);
  // Never read: who watches the link does not sleep long.
  const char waiting = 1;
  REQUIRE(::write(far_end.get(), &waiting, 1) == 1);
  // Readable from the beginning, so that a sleep ends at once, and empty after it.
  UniqueFd wake_event(::eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK));
  const UniqueFd wake_event_too(::dup(wake_event.get()));
  auto owned = std::make_unique<EchoLink>(UniqueFd(ends[0]), complete_at);
  const EchoLink& link = *owned;
  std::vector<Peer> peers(1);
  peers[0].rank = 1;
  peers[0].link = std::move(owned);
  WaitSlot slot{};
  Engine engine({0, 7, Duration{0}}, std::move(peers), {}, &slot, std::move(wake_event));
  const int watched_before = link.watched();

  const Group group = engine.add_group("test", {0, 1});
  std::array<float, 16> data, sum{};
  data.fill(3.0f);
  MessageHeader header{};
  header.count = data.size();
  header.type = static_cast<std::uint8_t>(DataType::kFloat32);
  REQUIRE(engine.begin(header, group).ok());
  const auto* bytes = reinterpret_cast<const std::byte*>(data.data());
  engine.reductions().push_back({bytes, reinterpret_cast<std::byte*>(sum.data()), sizeof data});
  group.peers[0]->sends.push_back({bytes, sizeof data, kAtOnce});
  group.peers[0]->receives.push_back({nullptr, sizeof data, 0});
  const Status status = engine.run(DataType::kFloat32, ReduceOp::kSum, false,
                                   Deadline::after(std::chrono::seconds(20)));
  CHECK_MESSAGE(status.ok(), status.to_string());
  CHECK(sum[15] == 6.0f);

  std::uint64_t count = 0;
  const bool untouched = ::read(wake_event_too.get(), &count, sizeof count) == sizeof count;
  return {link.watched() != watched_before, !untouched};
}

TEST_CASE("what comes while a rank is about to sleep does not go unseen") {
  bool ever_slept = false, ever_awake = false;
  for (int complete_at = 1; complete_at <= 8; ++complete_at) {
    CAPTURE(complete_at);
    const Outcome outcome = reduce_with_echo(complete_at);
    CHECK(outcome.slept == outcome.watched);
    ever_slept |= outcome.slept;
    ever_awake |= !outcome.slept;
  }
  CHECK(ever_slept);
  CHECK(ever_awake);
}

}  // namespace
}  // namespace troupe::collective
