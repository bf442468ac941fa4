// Times the CPU communicator with forked ranks: "name value unit" lines on standard output.
//
//   bench_collective [MIB]      size of the large operations, 64 by default
//   bench_collective sizes      4 KiB to 1 MiB, through the link and in place

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "runtime/collective/cpu_communicator.h"
#include "runtime/memory/segment.h"

namespace {

using namespace troupe;
using namespace troupe::collective;

constexpr int kRepeats = 15;

double seconds_of(const std::function<void()>& work) {
  const TimePoint start = SystemClock().now();
  work();
  return std::chrono::duration<double>(SystemClock().now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void must(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "bench_collective: %s\n", status.to_string().c_str());
  std::_Exit(exit_code(status.code()));
}

// Forks a process per rank; rank 0's return value comes back. pin: rank r on core r.
double with_ranks(const std::vector<int>& nodes, Duration spin, bool pin,
                  const std::function<double(Communicator&)>& body,
                  std::optional<std::size_t> in_place_bytes = std::nullopt) {
  auto links = make_local_links(nodes).value();
  memory::Segment shared = memory::Segment::create("bench-result", 4096).value();
  std::vector<pid_t> children;
  for (std::size_t r = 0; r < nodes.size(); ++r) {
    const pid_t child = ::fork();
    if (child == 0) {
      auto mine = std::move(links[r]);
      links.clear();
      if (pin) {
        cpu_set_t cores;
        CPU_ZERO(&cores);
        CPU_SET(r, &cores);
        ::sched_setaffinity(0, sizeof cores, &cores);
      }
      CommunicatorOptions options;
      options.rank = static_cast<int>(r);
      options.world_size = static_cast<int>(nodes.size());
      options.spin = spin;
      options.in_place_bytes = in_place_bytes;
      auto c = make_cpu_communicator(options, std::move(mine)).value();
      const double result = body(*c);
      must(c->barrier());
      if (r == 0) std::memcpy(shared.data(), &result, sizeof result);
      std::_Exit(0);
    }
    children.push_back(child);
  }
  links.clear();
  bool failed = false;
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    failed |= status != 0;
  }
  if (failed) std::exit(7);
  double result;
  std::memcpy(&result, shared.data(), sizeof result);
  return result;
}

// Floats in memory that the peers may read in place, or in this rank's own.
class Buffer {
 public:
  Buffer(Communicator& c, std::size_t count, bool registered) {
    if (!registered) {
      own_.assign(count, 1.0f);
      floats_ = own_;
      return;
    }
    segment_ =
        memory::Segment::create("bench-buffer", count * sizeof(float), memory::Populate::kNow)
            .value();
    floats_ = {reinterpret_cast<float*>(segment_.data()), count};
    std::fill(floats_.begin(), floats_.end(), 1.0f);
    must(c.register_segment(segment_));
  }
  std::span<float> floats() const { return floats_; }

 private:
  std::vector<float> own_;
  memory::Segment segment_;
  std::span<float> floats_;
};

struct Large {
  const char* name;
  std::vector<int> nodes;
  Duration spin{0};
  bool registered = false;
};

void large(const Large& how, std::size_t count) {
  const double gigabytes = static_cast<double>(count) * sizeof(float) / 1e9;
  const auto timed = [&](const char* name, auto operation) {
    const double time = with_ranks(how.nodes, how.spin, false, [&](Communicator& c) {
      const Buffer whole_buffer(c, count, how.registered);
      const Buffer shard_buffer(c, count / 2, how.registered);
      const std::span<float> whole = whole_buffer.floats(), shard = shard_buffer.floats();
      const std::vector<std::size_t> counts(2, count / 2);
      std::vector<double> times;
      for (int i = 0; i < kRepeats; ++i) {
        must(c.barrier());
        times.push_back(seconds_of([&] { must(operation(c, whole, shard, counts)); }));
      }
      return median(times);
    });
    std::printf("%s_%s %.2f GB/s\n", name, how.name, gigabytes / time);
    std::fflush(stdout);
  };
  using Floats = std::span<float>;
  using Counts = std::vector<std::size_t>;
  timed("all_reduce",
        [](Communicator& c, Floats whole, Floats, const Counts&) { return c.all_reduce(whole); });
  timed("reduce_scatter", [](Communicator& c, Floats whole, Floats shard, const Counts& counts) {
    return c.reduce_scatter(std::span<const float>(whole), shard, counts);
  });
  timed("all_gather", [](Communicator& c, Floats whole, Floats shard, const Counts& counts) {
    return c.all_gather(std::span<const float>(shard), whole, counts);
  });
  // Half of each rank's buffer changes places, and comes to lie beside what stayed.
  timed("all_to_all", [](Communicator& c, Floats whole, Floats, const Counts& counts) {
    static std::vector<float> received(whole.size());
    return c.all_to_all(std::span<const float>(whole), std::span(received), counts);
  });
}

void latency(const char* name, const std::vector<int>& nodes, Duration spin, bool pin, int rounds,
             bool in_pairs = false) {
  const double time = with_ranks(nodes, spin, pin, [&](Communicator& world) {
    // Pairs of neighbours at once, where there are groups.
    const int first = world.rank() / 2 * 2;
    const std::vector<int> pair{first, first + 1};
    const auto group = in_pairs ? world.subgroup(pair, "pair").value() : nullptr;
    Communicator& c = in_pairs ? *group : world;
    float value = 1.0f;
    std::vector<double> times;
    for (int block = 0; block < kRepeats; ++block) {
      times.push_back(seconds_of([&] {
        for (int i = 0; i < rounds; ++i) must(c.all_reduce(std::span(&value, 1), ReduceOp::kMax));
      }));
    }
    return median(times) / rounds;
  });
  std::printf("%s %.3f us\n", name, time * 1e6);
  std::fflush(stdout);
}

// Operations on a rank's own memory and on registered memory in turns, so that both meet the same
// machine: what in_place_from() (cpu_communicator.cpp) is set by.
void by_size(const std::string& name, const std::vector<int>& nodes, Duration spin,
             const std::function<Status(Communicator&, std::span<float>)>& operation) {
  for (std::size_t bytes = 4096; bytes <= 1u << 20; bytes *= 2) {
    const int rounds = static_cast<int>(std::clamp<std::size_t>((4u << 20) / bytes, 8, 200));
    // Ranks tell one figure at a time; both are taken each time.
    for (const bool registered : {false, true}) {
      const auto body = [&](Communicator& c) {
        const Buffer own(c, bytes / sizeof(float), false), shared(c, bytes / sizeof(float), true);
        std::vector<double> times[2];
        for (int block = 0; block < 2 * kRepeats; ++block) {
          const Buffer& buffer = block % 2 == 0 ? own : shared;
          must(c.barrier());
          times[block % 2].push_back(seconds_of([&] {
            for (int i = 0; i < rounds; ++i) must(operation(c, buffer.floats()));
          }));
        }
        return median(times[registered ? 1 : 0]) / rounds;
      };
      const double time = with_ranks(nodes, spin, spin > Duration{0}, body, 1);
      std::printf("%s_%zu_KiB_%s %.2f us\n", name.c_str(), bytes >> 10,
                  registered ? "in_place" : "link", time * 1e6);
      std::fflush(stdout);
    }
  }
}

void sizes() {
  const auto all_reduce = [](Communicator& c, std::span<float> whole) {
    return c.all_reduce(whole, ReduceOp::kMax);
  };
  const auto counts_of = [](Communicator& c, std::span<float> whole) {
    const auto world = static_cast<std::size_t>(c.world_size());
    return std::vector<std::size_t>(world, whole.size() / world);
  };
  const auto shard = [](Communicator& c, std::span<float> whole) {
    const std::size_t count = whole.size() / static_cast<std::size_t>(c.world_size());
    return whole.subspan(static_cast<std::size_t>(c.rank()) * count, count);
  };
  const auto reduce_scatter = [=](Communicator& c, std::span<float> whole) {
    return c.reduce_scatter(std::span<const float>(whole), shard(c, whole), counts_of(c, whole),
                            ReduceOp::kMax);
  };
  const auto all_gather = [=](Communicator& c, std::span<float> whole) {
    return c.all_gather(std::span<const float>(shard(c, whole)), whole, counts_of(c, whole));
  };
  constexpr auto kSpin = std::chrono::milliseconds(10);
  const auto every = [&](const char* operation, const auto& body) {
    const std::string name = operation;
    by_size(name + "_2_ranks_spin", {0, 0}, kSpin, body);
    by_size(name + "_2_ranks", {0, 0}, Duration{0}, body);
    by_size(name + "_4_ranks", {0, 0, 0, 0}, Duration{0}, body);
  };
  every("all_reduce", all_reduce);
  every("reduce_scatter", reduce_scatter);
  every("all_gather", all_gather);
}

// What the memory allows: two processes that add their halves and write the sum into both buffers,
// with nothing around it.
void naive_exchange(std::size_t count) {
  memory::Segment shared =
      memory::Segment::create("bench-naive", 2 * count * sizeof(float), memory::Populate::kNow)
          .value();
  auto* const floats = reinterpret_cast<float*>(shared.data());
  const double time =
      with_ranks({0, 0}, std::chrono::milliseconds(10), false, [&](Communicator& c) {
        const std::size_t begin = c.rank() == 0 ? 0 : count / 2;
        float* const __restrict a = floats + begin;
        float* const __restrict b = floats + count + begin;
        std::vector<double> times;
        for (int i = 0; i < kRepeats; ++i) {
          must(c.barrier());
          times.push_back(seconds_of([&] {
            for (std::size_t k = 0; k < count / 2; ++k) a[k] = b[k] = a[k] + b[k];
            must(c.barrier());
          }));
        }
        return median(times);
      });
  std::printf("naive_exchange %.2f GB/s\n",
              static_cast<double>(count) * sizeof(float) / 1e9 / time);
}

// What the sockets allow: two processes that send each other `bytes` at once and look at nothing.
// An all-reduce moves as much each way, the other operations half of it.
void tcp_both_ways(std::size_t bytes) {
  constexpr std::size_t kPiece = 256u << 10;
  auto links = make_local_links({0, 1}).value();
  double times[kRepeats];
  const pid_t child = ::fork();
  const int mine = child == 0 ? 1 : 0;
  const int fd = links[static_cast<std::size_t>(mine)][0].stream.fd();
  (void)::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
  links[static_cast<std::size_t>(1 - mine)].clear();
  const std::vector<char> out(bytes, 1);
  std::vector<char> in(bytes, 2);
  const auto give_up = [&] {
    std::perror("bench_collective: raw sockets");
    std::_Exit(7);
  };
  for (double& time : times) {
    char ready = 1;
    if (::send(fd, &ready, 1, MSG_NOSIGNAL) != 1 || ::recv(fd, &ready, 1, MSG_WAITALL) != 1)
      give_up();
    time = seconds_of([&] {
      std::size_t sent = 0, received = 0;
      while (sent < bytes || received < bytes) {
        const std::size_t to_send = std::min(kPiece, bytes - sent);
        const std::size_t to_receive = std::min(kPiece, bytes - received);
        ssize_t gone = 0, come = 0;
        if (to_send != 0)
          gone = ::send(fd, out.data() + sent, to_send, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (gone < 0 && errno != EAGAIN) give_up();
        if (to_receive != 0) come = ::recv(fd, in.data() + received, to_receive, MSG_DONTWAIT);
        if (come < 0 ? errno != EAGAIN : come == 0 && to_receive != 0) give_up();
        if (gone > 0) sent += static_cast<std::size_t>(gone);
        if (come > 0) received += static_cast<std::size_t>(come);
        if (gone > 0 || come > 0) continue;
        pollfd entry{fd, 0, 0};
        if (received < bytes) entry.events |= POLLIN;
        if (sent < bytes) entry.events |= POLLOUT;
        ::poll(&entry, 1, 1000);
      }
    });
  }
  if (child == 0) std::_Exit(0);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (status != 0) std::exit(7);
  std::printf("tcp_both_ways %.2f GB/s\n",
              static_cast<double>(bytes) / 1e9 / median({std::begin(times), std::end(times)}));
  std::fflush(stdout);
}

void memcpy_rate(std::size_t bytes) {
  std::vector<char> from(bytes, 1), to(bytes, 2);
  std::vector<double> times;
  for (int i = 0; i < kRepeats; ++i)
    times.push_back(seconds_of([&] { std::memcpy(to.data(), from.data(), bytes); }));
  std::printf("memcpy %.2f GB/s\n", static_cast<double>(bytes) / 1e9 / median(times));
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "sizes") == 0) {
    sizes();
    return 0;
  }
  const long mib = argc > 1 ? std::atol(argv[1]) : 64;
  if (mib < 1 || mib > 1024) {
    std::fprintf(stderr, "usage: bench_collective [MIB, 1 to 1024 | sizes]\n");
    return 2;
  }
  const auto count = static_cast<std::size_t>(mib) * (1 << 20) / sizeof(float);
  memcpy_rate(count * sizeof(float));
  naive_exchange(count);
  constexpr auto kSpin = std::chrono::milliseconds(10);
  large({.name = "registered_spin", .nodes = {0, 0}, .spin = kSpin, .registered = true}, count);
  large({.name = "registered", .nodes = {0, 0}, .registered = true}, count);
  large({.name = "shm", .nodes = {0, 0}}, count);
  tcp_both_ways(count * sizeof(float));
  large({.name = "tcp", .nodes = {0, 1}}, count);
  latency("all_reduce_4_bytes_2_ranks_spin", {0, 0}, std::chrono::milliseconds(10), true, 20'000);
  latency("all_reduce_4_bytes_2_ranks_futex", {0, 0}, Duration{0}, false, 2'000);
  latency("all_reduce_4_bytes_4_ranks_futex", {0, 0, 0, 0}, Duration{0}, false, 2'000);
  latency("all_reduce_4_bytes_2_pairs_of_4_ranks_futex", {0, 0, 0, 0}, Duration{0}, false, 2'000,
          true);
  latency("all_reduce_4_bytes_2_ranks_tcp", {0, 1}, Duration{0}, false, 2'000);
}
