// Objects, on this machine, with the raw limit beside each figure in the same run. "name value
// unit" lines.
//
//   bench_objects [--mib N] [--repeats N] [--only one-node|values|nodes]
//   bench_objects --nodes N --source ADDRESS     between the nodes of the cluster that the
//       environment names, labelled machine=0 and up; ADDRESS is that of machine 0
//       (tools/bench_object_transfers.py)

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "troupe/actor.h"
#include "troupe/chaos_cluster.h"
#include "troupe/cluster.h"
#include "troupe/object.h"

namespace {

using namespace troupe;
using namespace std::chrono_literals;

using Floats = std::vector<float>;

void must(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "bench_objects: %s\n", status.to_string().c_str());
  std::exit(exit_code(status.code()));
}
template <typename T>
T must(Result<T> result) {
  must(result.status());
  return std::move(*result);
}

double seconds_of(const std::function<void()>& work) {
  const TimePoint start = SystemClock().now();
  work();
  return std::chrono::duration<double>(SystemClock().now() - start).count();
}

double median_of(int repeats, const std::function<double()>& measure) {
  std::vector<double> values;
  for (int i = 0; i < repeats; ++i) values.push_back(measure());
  std::ranges::nth_element(values, values.begin() + repeats / 2);
  return values[static_cast<std::size_t>(repeats / 2)];
}

void figure(const char* name, double value, const char* unit, const char* bar = "") {
  std::printf("%-66s %12.3f %-6s %s\n", name, value, unit, bar);
  std::fflush(stdout);
}

// What a network, and the processors at its ends, can do: bytes of a small warm buffer into another
// one, by one TCP connection.
constexpr std::size_t kRawPiece = 1u << 20;

void check(bool good, const char* what) {
  if (!good) must(error(Code::kUnavailable, "raw TCP: {} failed", what));
}

// Gives each of `readers` that connect so many bytes. The port.
std::uint16_t serve_raw(std::uint64_t bytes, int readers) {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  socklen_t length = sizeof address;
  check(::bind(listener, any, length) == 0 && ::listen(listener, readers) == 0, "listen");
  check(::getsockname(listener, any, &length) == 0, "getsockname");
  std::thread([listener, bytes, readers] {
    std::vector<std::thread> threads;
    for (int i = 0; i < readers; ++i) {
      threads.emplace_back([socket = ::accept(listener, nullptr, nullptr), bytes] {
        const std::vector<char> buffer(kRawPiece, 1);
        for (std::uint64_t sent = 0; sent < bytes;) {
          const auto now = ::send(socket, buffer.data(), std::min(kRawPiece, bytes - sent), 0);
          check(now > 0, "send");
          sent += static_cast<std::uint64_t>(now);
        }
        ::close(socket);
      });
    }
    for (auto& thread : threads) thread.join();
    ::close(listener);
  }).detach();
  return ntohs(address.sin_port);
}

void fetch_raw(const std::string& host, std::uint16_t port, std::uint64_t bytes) {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  check(::inet_pton(AF_INET, host.c_str(), &address.sin_addr) == 1, "the address");
  check(::connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0, "connect");
  std::vector<char> buffer(kRawPiece, 1);
  for (std::uint64_t have = 0; have < bytes;) {
    const auto now = ::recv(socket, buffer.data(), kRawPiece, 0);
    check(now > 0, "recv");
    have += static_cast<std::uint64_t>(now);
  }
  ::close(socket);
}

// One byte with room for a descriptor, as sendmsg() and recvmsg() take it.
struct DescriptorMessage {
  DescriptorMessage() {
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof control;
  }
  DescriptorMessage(const DescriptorMessage&) = delete;
  cmsghdr* descriptor() { return CMSG_FIRSTHDR(&header); }

  char byte = 0;
  iovec part{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header{};
};

// What mapping another process's memory takes at the least: a question by a socket, an answer with
// the descriptor, the mapping, and its first and last byte. Median microseconds.
double map_raw(std::size_t bytes, int repeats) {
  int sockets[2];
  check(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) == 0, "socketpair");
  std::thread giver([socket = sockets[1], bytes] {
    char question = 0;
    while (::recv(socket, &question, 1, 0) == 1) {
      const int fd = ::memfd_create("raw", MFD_CLOEXEC);
      check(::ftruncate(fd, static_cast<off_t>(bytes)) == 0, "ftruncate");
      void* const data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
      std::memset(data, 1, bytes);
      // It is written before it is asked for.
      check(::send(socket, &question, 1, 0) == 1 && ::recv(socket, &question, 1, 0) == 1, "send");
      DescriptorMessage message;
      cmsghdr* const header = message.descriptor();
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(sizeof fd);
      std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
      check(::sendmsg(socket, &message.header, 0) == 1, "sendmsg");
      ::munmap(data, bytes);
      ::close(fd);
    }
  });
  const double seconds = median_of(repeats, [&] {
    char byte = 0;
    check(::send(sockets[0], &byte, 1, 0) == 1 && ::recv(sockets[0], &byte, 1, 0) == 1, "recv");
    const volatile char* data = nullptr;
    const double taken = seconds_of([&] {
      check(::send(sockets[0], &byte, 1, 0) == 1, "send");
      int fd = -1;
      DescriptorMessage message;
      check(::recvmsg(sockets[0], &message.header, MSG_CMSG_CLOEXEC) == 1, "recvmsg");
      std::memcpy(&fd, CMSG_DATA(message.descriptor()), sizeof fd);
      data =
          static_cast<const volatile char*>(::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0));
      ::close(fd);
      if (data[0] + data[bytes - 1] != 2) std::abort();
    });
    ::munmap(const_cast<char*>(data), bytes);
    return taken;
  });
  ::close(sockets[0]);
  giver.join();
  ::close(sockets[1]);
  return seconds * 1e6;
}

class Reader {
 public:
  explicit Reader(ActorContext& context) : context_(context) {}
  ObjectRef<Floats> make(std::size_t count) { return must(context_.put(Floats(count, 1.0f))); }
  float ends(Object<Floats> numbers) const { return (*numbers).front() + (*numbers).back(); }
  std::uint64_t count(std::vector<ObjectRef<Floats>> refs) const { return refs.size(); }
  // Seconds until its first and last number are read.
  double read(ObjectRef<Floats> ref) const {
    return seconds_of([&] {
      const auto object = must(ref.get(120s));
      if ((*object).front() + (*object).back() != 2) std::abort();
    });
  }
  float take(BytesView bytes) const {
    float last = 0;
    std::memcpy(&last, bytes.data() + bytes.size() - sizeof last, sizeof last);
    return last;
  }
  float take_copy(const Floats& numbers) const { return numbers.back(); }
  Floats give(std::size_t count) const { return Floats(count, 1.0f); }
  std::uint16_t serve(std::uint64_t bytes, int readers) const { return serve_raw(bytes, readers); }
  double fetch(std::string host, std::uint16_t port, std::uint64_t bytes) const {
    return seconds_of([&] { fetch_raw(host, port, bytes); });
  }
  static constexpr auto methods =
      troupe::methods<&Reader::make, &Reader::ends, &Reader::count, &Reader::read, &Reader::take,
                      &Reader::take_copy, &Reader::give, &Reader::serve, &Reader::fetch>;

 private:
  ActorContext& context_;
};

void on_one_node(std::size_t mib, int repeats) {
  auto cluster = must(Cluster::start_embedded({.num_cpus = 4, .object_memory_bytes = 4ull << 30}));
  auto reader = must(cluster.spawn<Reader>({}));
  for (const std::size_t bytes : {std::size_t{4096}, std::size_t{1} << 20, mib << 20}) {
    const auto ref = must(cluster.put(Floats(bytes / sizeof(float), 1.0f)));
    constexpr int kReads = 100'000;
    (void)must(ref.get());
    const double seconds = median_of(repeats, [&] {
      return seconds_of([&] {
        float sum = 0;
        for (int i = 0; i < kReads; ++i) {
          const auto object = *ref.get();
          sum += (*object).front() + (*object).back();
        }
        if (sum == 0) std::abort();
      });
    });
    const std::string name = fmt::format("get, {} KiB, mapped already", bytes / 1024);
    figure(name.c_str(), seconds / kReads * 1e6, "µs", "bar 5");
  }
  // Each object in memory of its own: all of them are kept, so that none is used again.
  std::vector<ObjectRef<Floats>> kept;
  figure("get, 1 MiB, of another process, mapped for it",
         median_of(repeats * 15,
                   [&] {
                     kept.push_back(must(reader.call<&Reader::make>(1u << 18).get()));
                     return seconds_of([&] {
                       const auto object = must(kept.back().get());
                       if ((*object).front() + (*object).back() != 2) std::abort();
                     });
                   }) *
             1e6,
         "µs", "bar 50");
  kept.clear();
  figure("  raw: descriptor by a socket, mmap, first and last byte",
         map_raw(1u << 20, repeats * 15), "µs");

  const std::size_t bytes = mib << 20;
  const Floats numbers(bytes / sizeof(float), 1.0f);
  const int fd = ::memfd_create("raw", MFD_CLOEXEC);
  if (::ftruncate(fd, static_cast<off_t>(bytes)) != 0) std::abort();
  void* const raw = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  std::memset(raw, 1, bytes);
  std::vector<double> ratios, puts, copies;
  for (int i = 0; i < 2; ++i) (void)must(cluster.put(numbers));
  for (int i = 0; i < repeats * 3; ++i) {
    copies.push_back(seconds_of([&] { std::memcpy(raw, numbers.data(), bytes); }));
    ObjectRef<Floats> ref;
    puts.push_back(seconds_of([&] { ref = must(cluster.put(numbers)); }));
    ratios.push_back(copies.back() / puts.back());
  }
  ::munmap(raw, bytes);
  ::close(fd);
  const auto median = [](std::vector<double> v) {
    std::ranges::nth_element(v, v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2));
    return v[v.size() / 2];
  };
  const double gib = static_cast<double>(bytes) / (1u << 30);
  figure(fmt::format("put, {} MiB, memory that was used before", mib).c_str(), gib / median(puts),
         "GiB/s");
  figure("  memcpy of the same bytes", gib / median(copies), "GiB/s");
  figure("  put to memcpy", median(ratios), "", "bar 0.8");

  std::vector<ObjectRef<Floats>> refs;
  for (int i = 0; i < 10'000; ++i) refs.push_back(must(cluster.put(Floats(4, 1.0f))));
  const std::vector<ObjectRef<Floats>> thousand(refs.begin(), refs.begin() + 1000);
  figure(
      "wait for 1,000 references",
      median_of(repeats, [&] { return seconds_of([&] { must(cluster.wait(thousand, 1000)); }); }) *
          1e3,
      "ms", "bar 1");
  figure("10,000 references as arguments of one call",
         median_of(repeats,
                   [&] {
                     return seconds_of([&] {
                       if (must(reader.call<&Reader::count>(refs).get()) != 10'000) std::abort();
                     });
                   }),
         "s", "bar 0.2");
}

// Large arguments and results of calls, as they are and as objects.
void by_value_and_as_objects(std::size_t bytes, int repeats) {
  auto cluster = must(Cluster::start_embedded({.num_cpus = 4, .object_memory_bytes = 4ull << 30}));
  auto reader = must(cluster.spawn<Reader>({}));
  for (int i = 0; i < 100; ++i)
    (void)must(reader.call<&Reader::give>(std::size_t{1}).get());  // its ring
  const Floats numbers(bytes / sizeof(float), 1.0f);
  const std::vector<std::byte> plain(bytes);
  const auto row = [&](const char* what, const std::function<void()>& work) {
    for (int i = 0; i < 2; ++i) work();  // memory that was used before
    const std::string name = fmt::format("{}, {} KiB", what, bytes >> 10);
    figure(name.c_str(), median_of(repeats * 3, [&] { return seconds_of(work); }) * 1e6, "µs");
  };
  row("an argument, read in place (BytesView)",
      [&] { (void)must(reader.call<&Reader::take>(BytesView(plain)).get()); });
  row("an argument that is a vector",
      [&] { (void)must(reader.call<&Reader::take_copy>(numbers).get()); });
  row("an argument that is put, and read in place (Object)",
      [&] { (void)must(reader.call<&Reader::ends>(must(cluster.put(numbers))).get()); });
  row("a result that is a vector", [&] {
    if (must(reader.call<&Reader::give>(numbers.size()).get()).back() != 1) std::abort();
  });
  row("a result that is put, and read in place (ObjectRef)", [&] {
    const auto made = must(must(reader.call<&Reader::make>(numbers.size()).get()).get());
    if ((*made).back() != 1) std::abort();
  });
}

void on_several_nodes(std::size_t mib, int repeats) {
  auto chaos = must(ChaosCluster::start({.nodes = 5, .cpus_per_node = 2}, Deadline::after(60s)));
  auto cluster = must(chaos->connect());
  std::vector<ActorHandle<Reader>> readers;
  for (int i = 0; i < 5; ++i) {
    readers.push_back(must(cluster.spawn<Reader>({.label_selector = on_node(i)})));
  }
  const std::size_t count = (mib << 20) / sizeof(float);
  const double gib = static_cast<double>(mib) / 1024;
  const CallOptions patient{.timeout = 300s};
  double one = 0;
  one = median_of(repeats, [&] {
    const auto ref = must(readers[0].with(patient).call<&Reader::make>(count).get());
    return must(readers[1].with(patient).call<&Reader::read>(ref).get());
  });
  figure(fmt::format("{} MiB to another node (loopback, through a proxy)", mib).c_str(), gib / one,
         "GiB/s");
  const double four = median_of(repeats, [&] {
    const auto ref = must(readers[0].with(patient).call<&Reader::make>(count).get());
    return seconds_of([&] {
      std::vector<Future<double>> reads;
      for (int i = 1; i < 5; ++i) {
        reads.push_back(
            readers[static_cast<std::size_t>(i)].with(patient).call<&Reader::read>(ref));
      }
      for (auto& read : reads) must(read.get());
    });
  });
  figure("  to 4 nodes, against 4 times one", four / (4 * one), "", "bar 1.15");
}

// Objects and raw bytes in turns, from one machine to one and to all others at the same time.
void between_machines(std::size_t mib, int repeats, int nodes, const std::string& source) {
  auto cluster = must(Cluster::connect());
  const CallOptions patient{.timeout = 600s};
  std::vector<ActorHandle<Reader>> readers;
  for (int i = 0; i < nodes; ++i) {
    readers.push_back(
        must(cluster.spawn<Reader>({.label_selector = {{"machine", std::to_string(i)}}}))
            .with(patient));
  }
  const std::uint64_t bytes = std::uint64_t{mib} << 20;
  const double gib = static_cast<double>(mib) / 1024;
  const auto all = [&](const std::function<Future<double>(ActorHandle<Reader>&)>& one) {
    return seconds_of([&] {
      std::vector<Future<double>> reads;
      for (std::size_t i = 1; i < readers.size(); ++i) reads.push_back(one(readers[i]));
      for (auto& read : reads) must(read.get());
    });
  };
  std::vector<double> raw, object, raw_all, object_all;
  for (int i = 0; i < repeats; ++i) {
    const auto port = must(readers[0].call<&Reader::serve>(bytes, 1).get());
    raw.push_back(must(readers[1].call<&Reader::fetch>(source, port, bytes).get()));
    {
      const auto ref = must(readers[0].call<&Reader::make>(bytes / sizeof(float)).get());
      object.push_back(must(readers[1].call<&Reader::read>(ref).get()));
    }
    const auto ports = must(readers[0].call<&Reader::serve>(bytes, nodes - 1).get());
    raw_all.push_back(all(
        [&](auto& reader) { return reader.template call<&Reader::fetch>(source, ports, bytes); }));
    const auto ref = must(readers[0].call<&Reader::make>(bytes / sizeof(float)).get());
    object_all.push_back(
        all([&](auto& reader) { return reader.template call<&Reader::read>(ref); }));
  }
  const auto median = [](std::vector<double> v) {
    std::ranges::nth_element(v, v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2));
    return v[v.size() / 2];
  };
  figure(fmt::format("{} MiB to another machine", mib).c_str(), gib / median(object), "GiB/s");
  figure("  raw TCP", gib / median(raw), "GiB/s");
  figure("  object to raw", median(raw) / median(object), "", "bar 0.8");
  figure(fmt::format("{} MiB to {} machines", mib, nodes - 1).c_str(), median(object_all), "s");
  figure("  as many raw transfers at the same time", median(raw_all), "s");
  figure("  time of objects to raw", median(object_all) / median(raw_all), "", "bar 1.15");
  figure("  time of all to one", median(object_all) / median(object), "", "bar 1.6 (slow links)");
}

}  // namespace

int main(int argc, char** argv) {
  if (const auto code = host_main(argc, argv, actors<Reader>)) return *code;
  std::size_t mib = 100;
  int repeats = 7;
  int nodes = 0;
  std::string source;
  std::string only;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string option = argv[i];
    if (option == "--mib") {
      mib = std::max(1ul, std::strtoul(argv[i + 1], nullptr, 10));
    } else if (option == "--repeats") {
      repeats = std::max(1, std::atoi(argv[i + 1]));
    } else if (option == "--nodes") {
      nodes = std::max(2, std::atoi(argv[i + 1]));
    } else if (option == "--source") {
      source = argv[i + 1];
    } else if (option == "--only") {
      only = argv[i + 1];
    } else {
      std::fprintf(stderr,
                   "bench_objects [--mib N] [--repeats N] [--only one-node|values|nodes] "
                   "[--nodes N --source ADDRESS]\n");
      return 2;
    }
  }
  if (nodes > 0) {
    between_machines(mib, repeats, nodes, source);
    return 0;
  }
  const auto wanted = [&only](const char* part) { return only.empty() || only == part; };
  if (wanted("one-node")) on_one_node(mib, repeats);
  for (const std::size_t bytes : {std::size_t{64} << 10, std::size_t{1} << 20, mib << 20}) {
    if (wanted("values")) by_value_and_as_objects(bytes, repeats);
  }
  if (wanted("nodes")) on_several_nodes(mib, std::min(repeats, 3));
  return 0;
}
