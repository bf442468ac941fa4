// Buffers in registered segments: read where they lie, with the bits that links give.

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <numeric>
#include <thread>

#include "runtime/collective/bootstrap.h"
#include "runtime/collective/cpu_communicator.h"
#include "runtime/memory/segment.h"
#include "runtime/memory/unix_socket.h"
#include "tests/runtime/collective/killed_rank.h"
#include "tests/runtime/collective/ranks.h"

namespace troupe::collective {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using tests::options_for;
using tests::run_threads;

memory::Segment segment_of(std::size_t bytes) {
  return memory::Segment::create("in-place-test", std::max<std::size_t>(bytes, 1)).value();
}

template <typename T>
std::span<T> elements(memory::Segment& segment, std::size_t at, std::size_t count) {
  return {reinterpret_cast<T*>(segment.data() + at), count};
}

float float_at(std::size_t rank, std::size_t i) {
  const auto mixed = static_cast<std::uint32_t>(i * 2654435761u) ^
                     static_cast<std::uint32_t>((rank + 1) * 0x9e3779b1u);
  return (static_cast<float>(mixed % 100003) - 50001.0f) / static_cast<float>(1 + mixed % 7);
}

template <typename T>
T element_at(std::size_t rank, std::size_t i) {
  if constexpr (std::is_same_v<T, Bfloat16>) {
    return {static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(float_at(rank, i)) >> 16)};
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<std::int64_t>(float_at(rank, i)));
  } else {
    return float_at(rank, i);
  }
}

template <typename T>
bool equal_bits(std::span<const T> a, std::span<const T> b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

// A third each of what is left, the last one nothing where there are several.
std::vector<std::size_t> shrinking_counts(int world, std::size_t count) {
  std::vector<std::size_t> counts(static_cast<std::size_t>(world));
  std::size_t left = count;
  for (std::size_t r = 0; r + 2 < counts.size(); ++r) left -= counts[r] = left / 3;
  counts[counts.size() > 1 ? counts.size() - 2 : 0] = left;
  return counts;
}

std::uint64_t read_in_place(const Communicator& c) {
  std::uint64_t sum = 0;
  for (const auto& counter : c.counters()) sum += counter.bytes_read_in_place;
  return sum;
}

// Every operation with registered buffers and with others: the number of unequal results.
template <typename T>
std::size_t unequal(Communicator& c, memory::Segment& segment, std::size_t count, ReduceOp op) {
  const auto counts = shrinking_counts(c.world_size(), count);
  const auto r = static_cast<std::size_t>(c.rank());
  const std::size_t begin = std::accumulate(counts.begin(), counts.begin() + c.rank(), 0ul);
  const auto shared = elements<T>(segment, 4096, count);
  std::vector<T> plain(count);
  std::vector<T> original(count);
  for (std::size_t i = 0; i < count; ++i) original[i] = element_at<T>(r, i);
  const auto fill = [&] {
    std::copy(original.begin(), original.end(), shared.begin());
    std::copy(original.begin(), original.end(), plain.begin());
  };
  std::size_t wrong = 0;
  const auto same = [&] { return equal_bits<T>(shared, plain); };

  fill();
  wrong += !c.all_reduce(shared, op).ok() || !c.all_reduce(std::span(plain), op).ok() || !same();

  // Into a shard elsewhere, then into the shard itself: nothing else changes.
  fill();
  std::vector<T> from_shared(counts[r]), from_plain(counts[r]);
  wrong += !c.reduce_scatter(std::span<const T>(shared), std::span(from_shared), counts, op).ok();
  wrong += !c.reduce_scatter(std::span<const T>(plain), std::span(from_plain), counts, op).ok();
  wrong += !equal_bits<T>(from_shared, from_plain) || !same();
  const auto shared_shard = shared.subspan(begin, counts[r]);
  const auto plain_shard = std::span(plain).subspan(begin, counts[r]);
  wrong += !c.reduce_scatter(std::span<const T>(shared), shared_shard, counts, op).ok();
  wrong += !c.reduce_scatter(std::span<const T>(plain), plain_shard, counts, op).ok() || !same();

  wrong += !c.all_gather(std::span<const T>(shared_shard), shared, counts).ok();
  wrong += !c.all_gather(std::span<const T>(plain_shard), std::span(plain), counts).ok() || !same();
  fill();
  wrong += !c.all_gather(std::span<const T>(from_plain), shared, counts).ok();
  wrong += !c.all_gather(std::span<const T>(from_plain), std::span(plain), counts).ok() || !same();

  fill();
  const std::size_t received = counts[r] * static_cast<std::size_t>(c.world_size());
  std::vector<T> to_shared(received), to_plain(received);
  wrong += !c.all_to_all(std::span<const T>(shared), std::span(to_shared), counts).ok();
  wrong += !c.all_to_all(std::span<const T>(plain), std::span(to_plain), counts).ok();
  return wrong + (!equal_bits<T>(to_shared, to_plain) || !same());
}

template <typename T>
std::size_t unequal(Communicator& c, memory::Segment& segment) {
  std::size_t wrong = 0;
  for (const std::size_t count : {0ul, 1ul, 5'000ul, 70'001ul})
    wrong += unequal<T>(c, segment, count, ReduceOp::kSum);
  wrong += unequal<T>(c, segment, 40'003, ReduceOp::kMax);
  return wrong;
}

TEST_CASE("registered buffers: the bits of the links, for every operation, size and type") {
  for (int world = 1; world <= 5; ++world) {
    std::atomic<std::size_t> wrong{0};
    run_threads(std::vector<int>(static_cast<std::size_t>(world)), [&](Communicator& c) {
      auto segment = segment_of(2u << 20);
      wrong += !c.register_segment(segment).ok();
      wrong += unequal<float>(c, segment) + unequal<Bfloat16>(c, segment);
      wrong += unequal<std::int64_t>(c, segment) + unequal<std::uint8_t>(c, segment);
      if (world > 1) wrong += read_in_place(c) == 0;
    });
    CHECK(wrong == 0);
  }
}

TEST_CASE("registered buffers: subgroups, and more than one segment") {
  std::atomic<std::size_t> wrong{0};
  run_threads({0, 0, 0, 0, 0}, [&](Communicator& c) {
    // Segments of unlike sizes; the second time two ranks have none.
    auto first = segment_of((2u << 20) + static_cast<std::size_t>(c.rank()) * 4096);
    wrong += !c.register_segment(first).ok();
    memory::Segment second;
    if (c.rank() % 2 == 0) second = segment_of(2u << 20);
    wrong += !c.register_segment(second).ok();
    const std::vector<int> even{4, 0, 2}, odd{1, 3};
    auto group = c.subgroup(c.rank() % 2 == 0 ? even : odd, "class");
    wrong += unequal<float>(**group, c.rank() % 2 == 0 ? second : first);
    wrong += read_in_place(**group) == 0;
    wrong += unequal<float>(c, first);
    CHECK((*group)->register_segment(first).code() == Code::kInvalidArgument);
    wrong += !c.barrier().ok();
  });
  CHECK(wrong == 0);
}

TEST_CASE("memory that is not registered any more goes through links") {
  std::atomic<std::size_t> wrong{0};
  run_threads({0, 0, 0}, [&](Communicator& c) {
    auto kept = segment_of(2u << 20);
    wrong += !c.register_segment(kept).ok();
    for (int round = 0; round < 3; ++round) {
      auto segment = segment_of(2u << 20);
      wrong += !c.register_segment(segment).ok();
      const std::uint64_t before = read_in_place(c);
      wrong += unequal<float>(c, segment) + (read_in_place(c) == before);
      c.unregister_segment(segment);
      const std::uint64_t after = read_in_place(c);
      wrong += unequal<float>(c, segment) + (read_in_place(c) != after);
      wrong += unequal<float>(c, kept) + (read_in_place(c) == after);
    }
  });
  CHECK(wrong == 0);
}

TEST_CASE("registered buffers: between nodes through links, within one in place") {
  std::atomic<std::size_t> wrong{0};
  run_threads({0, 0, 1, 1}, [&](Communicator& c) {
    auto segment = segment_of(2u << 20);
    // Descriptors come over sockets whose bells ring meanwhile.
    for (int i = 0; i < 50; ++i) wrong += !c.barrier().ok();
    wrong += !c.register_segment(segment).ok();
    wrong += unequal<float>(c, segment) + read_in_place(c);
    const int first = c.rank() / 2 * 2;
    const std::vector<int> node{first, first + 1}, across{c.rank() % 2, c.rank() % 2 + 2};
    auto together = c.subgroup(node, "node"), apart = c.subgroup(across, "across");
    wrong += unequal<float>(**together, segment) + (read_in_place(**together) == 0);
    wrong += unequal<float>(**apart, segment) + read_in_place(**apart);
  });
  CHECK(wrong == 0);
}

TEST_CASE("registered buffers: the formula's bytes, next to none of them through links") {
  run_threads({0, 0}, [](Communicator& c) {
    constexpr std::size_t kCount = 1 << 18;
    auto segment = segment_of(kCount * sizeof(float));
    REQUIRE(c.register_segment(segment).ok());
    REQUIRE(c.all_reduce(elements<float>(segment, 0, kCount)).ok());
    const auto counter = c.counters()[static_cast<std::size_t>(Operation::kAllReduce)];
    CHECK(counter.algorithm_bytes_sent == kCount * sizeof(float));
    CHECK(counter.bytes_read_in_place == kCount * sizeof(float));
    CHECK(counter.wire_bytes_sent < 4096);
    CHECK(counter.wire_bytes_received == counter.wire_bytes_sent);
  });
}

TEST_CASE(
    "registered buffers: small ones through links, for ranks that sleep more than for others") {
  using Bytes = std::size_t;
  const auto read_by_rank_0 = [](Duration spin, Operation operation, Bytes bytes) {
    auto links = make_local_links({0, 0}).value();
    std::array<std::uint64_t, 2> read{};
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < 2; ++rank) {
      ranks.emplace_back([&, rank] {
        CommunicatorOptions options = options_for(rank, 2);
        options.spin = spin;
        options.in_place_bytes.reset();
        auto c = make_cpu_communicator(options, std::move(links[static_cast<Bytes>(rank)])).value();
        auto segment = segment_of(bytes);
        CHECK(c->register_segment(segment).ok());
        const auto all = elements<float>(segment, 0, bytes / sizeof(float));
        const auto half = all.size() / 2;
        const auto mine = all.subspan(static_cast<Bytes>(rank) * half, half);
        const std::vector<Bytes> counts(2, half);
        if (operation == Operation::kAllReduce) {
          CHECK(c->all_reduce(all).ok());
        } else if (operation == Operation::kReduceScatter) {
          CHECK(c->reduce_scatter(std::span<const float>(all), mine, counts).ok());
        } else {
          CHECK(c->all_gather(std::span<const float>(mine), all, counts).ok());
        }
        read[static_cast<Bytes>(rank)] = read_in_place(*c);
      });
    }
    for (auto& rank : ranks) rank.join();
    CHECK(read[0] == read[1]);
    return read[0];
  };
  struct Row {
    Duration spin;
    Operation operation;
    Bytes from;
  };
  for (const auto& [spin, operation, from] :
       {Row{milliseconds(0), Operation::kAllReduce, 512u << 10},
        Row{milliseconds(0), Operation::kReduceScatter, 512u << 10},
        Row{milliseconds(0), Operation::kAllGather, 512u << 10},
        Row{milliseconds(1), Operation::kAllReduce, 128u << 10},
        Row{milliseconds(1), Operation::kReduceScatter, 16u << 10},
        Row{milliseconds(1), Operation::kAllGather, 16u << 10}}) {
    CAPTURE(operation_name(operation));
    CAPTURE(from);
    CHECK(read_by_rank_0(spin, operation, from - 8) == 0);
    CHECK(read_by_rank_0(spin, operation, from) > 0);
  }
}

TEST_CASE("registered on one rank and not on the other: both are named, nobody hangs") {
  std::atomic<int> named{0};
  run_threads({0, 0}, [&](Communicator& c) {
    auto segment = segment_of(1u << 20);
    REQUIRE(c.register_segment(segment).ok());
    std::vector<float> elsewhere(1 << 18);
    const auto data = c.rank() == 0 ? elements<float>(segment, 0, 1 << 18) : std::span(elsewhere);
    const Status status = c.all_reduce(data);
    CHECK((status.code() == Code::kProtocol || status.code() == Code::kAborted));
    if (status.code() == Code::kProtocol &&
        status.message().find("in registered memory") != std::string::npos)
      ++named;
  });
  CHECK(named > 0);
}

TEST_CASE("registered buffers: a deadline names who is missing, an abort ends the others") {
  std::atomic<bool> release{false};
  run_threads({0, 0, 0}, [&](Communicator& c) {
    constexpr std::size_t kCount = 1 << 18;
    auto segment = segment_of(kCount * sizeof(float));
    REQUIRE(c.register_segment(segment).ok());
    const auto data = elements<float>(segment, 0, kCount);
    if (c.rank() == 2) {
      while (!release) std::this_thread::yield();
      return;
    }
    const Status status = c.all_reduce(data, ReduceOp::kSum, Deadline::after(milliseconds(50)));
    if (c.rank() == 0) {
      CHECK((status.code() == Code::kDeadlineExceeded || status.code() == Code::kAborted));
      if (status.code() == Code::kDeadlineExceeded)
        CHECK(status.message().find("2") != std::string::npos);
      CHECK(c.barrier().code() == Code::kAborted);
      release = true;
    }
  });
  run_threads({0, 0}, [](Communicator& c) {
    constexpr std::size_t kCount = 1 << 18;
    auto segment = segment_of(kCount * sizeof(float));
    REQUIRE(c.register_segment(segment).ok());
    const auto data = elements<float>(segment, 0, kCount);
    std::thread other;
    for (int round = 0;; ++round) {
      if (c.rank() == 1 && round == 3)
        other = std::thread([&] { c.abort(Status(Code::kCancelled, "the test says so")); });
      const Status status = c.all_reduce(data);
      if (status.ok()) continue;
      CHECK(status.code() == Code::kAborted);
      break;
    }
    if (other.joinable()) other.join();
  });
}

TEST_CASE("registered buffers: a killed rank is named by all others within a second") {
  tests::check_killed_rank({0, 0, 0}, [](Communicator& c, std::atomic<int>& rounds) {
    constexpr std::size_t kCount = 1 << 20;
    auto segment = segment_of(kCount * sizeof(float));
    Status status = c.register_segment(segment);
    const auto data = elements<float>(segment, 0, kCount);
    if (status.ok())
      while ((status = c.all_reduce(data)).ok()) rounds.fetch_add(1);
    return status;
  });
}

// Rank 1, played by hand: it says what a rank says that comes to all_gather, and that it has read.
class PlayedRank {
 public:
  explicit PlayedRank(std::vector<PeerLink> links)
      : formed_(form_links(options_for(1, 2), std::move(links)).value()) {}

  // Registers `segment`, then answers an operation as rank 0 begins it, from place 0 of it.
  void registers(memory::Segment& segment) {
    const std::byte marker{1};
    const std::array<int, 1> fds{segment.fd()};
    CHECK(memory::send_with_fds(link().socket(), {&marker, 1}, fds, soon()).ok());
    answer(receive_header());
    std::array<std::byte, kStreamAlignment> size{};
    const std::uint64_t bytes = segment.size();
    std::memcpy(size.data(), &bytes, sizeof bytes);
    send(size.data());
    receive(size.data());
  }
  // gives_up: before rank 0 can have read anything.
  void joins(bool gives_up = false) {
    const MessageHeader header = receive_header();
    CHECK(header.place != 0);
    if (gives_up) formed_.slot->given_up.store(1);
    answer(header);
  }
  void says_read() {
    const std::array<std::byte, kStreamAlignment> token{};
    send(token.data());
  }
  void hears_read() {
    std::array<std::byte, kStreamAlignment> token;
    receive(token.data());
  }
  void hangs_up() { ::shutdown(link().socket(), SHUT_RDWR); }

 private:
  static Deadline soon() { return Deadline::after(seconds(10)); }
  Link& link() { return *formed_.peers[0].link; }
  void send(const void* bytes) {
    CHECK(link().send({static_cast<const std::byte*>(bytes), kStreamAlignment}) ==
          kStreamAlignment);
    link().flush();
  }
  void receive(void* out) {
    const Deadline deadline = soon();
    while (link().readable(kStreamAlignment).size() < kStreamAlignment && !deadline.passed())
      std::this_thread::yield();
    CHECK(link().receive({static_cast<std::byte*>(out), kStreamAlignment}) == kStreamAlignment);
  }
  MessageHeader receive_header() {
    MessageHeader header{};
    receive(&header);
    return header;
  }
  void answer(const MessageHeader& header) { send(&header); }

  Formed formed_;
};

TEST_CASE("what was read of a rank that gave up meanwhile is not believed") {
  for (const bool gives_up : {false, true}) {
    auto links = make_local_links({0, 0}).value();
    std::thread other([&] {
      PlayedRank rank(std::move(links[1]));
      auto segment = segment_of(1u << 20);
      rank.registers(segment);
      rank.joins(gives_up);
      rank.says_read();
      if (gives_up)
        rank.hangs_up();
      else
        rank.hears_read();
    });
    auto c = make_cpu_communicator(options_for(0, 2), std::move(links[0])).value();
    auto segment = segment_of(1u << 20);
    REQUIRE(c->register_segment(segment).ok());
    const auto data = elements<float>(segment, 0, 1 << 18);
    const std::vector<std::size_t> counts(2, 1 << 17);
    const Status status = c->all_gather(std::span<const float>(data.first(1 << 17)), data, counts);
    CHECK(status.ok() == !gives_up);
    if (gives_up) CHECK(status.context("lost_rank") == "1");
    other.join();
  }
}

TEST_CASE("a place outside the registered memory is refused") {
  auto links = make_local_links({0, 0}).value();
  std::thread other([&] {
    PlayedRank rank(std::move(links[1]));
    // Smaller than what rank 0 reads.
    auto segment = segment_of(1u << 16);
    rank.registers(segment);
    rank.joins();
  });
  auto c = make_cpu_communicator(options_for(0, 2), std::move(links[0])).value();
  auto segment = segment_of(1u << 20);
  REQUIRE(c->register_segment(segment).ok());
  const Status status = c->all_reduce(elements<float>(segment, 0, 1 << 18));
  CHECK(status.code() == Code::kProtocol);
  other.join();
}

}  // namespace
}  // namespace troupe::collective
