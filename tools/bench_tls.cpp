// Times encrypted connections beside plain ones, on loopback: "name value unit" lines.
//
//   bench_tls [MIB]      size of the streams, 512 by default

#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <thread>
#include <vector>

#include "runtime/base/limits.h"
#include "runtime/collective/cpu_communicator.h"
#include "runtime/net/connection.h"
#include "runtime/net/transport.h"

namespace {

using namespace troupe;

const net::Token kPlain(std::vector<std::byte>(32, std::byte{1}), net::Security::kInsecure);
const net::Token kEncrypted = kPlain.with(net::Security::kTlsAlways);

double seconds_since(TimePoint start) {
  return std::chrono::duration<double>(SystemClock().now() - start).count();
}

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto of = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return of(usage.ru_utime) + of(usage.ru_stime);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void figure(const std::string& name, double value, const char* unit) {
  std::printf("%-52s %10.1f %s\n", name.c_str(), value, unit);
}

struct BenchServer {
  net::LoopThread thread{"server"};
  net::LoopThread client{"client"};
  SystemRandom random;
  std::unique_ptr<net::Listener> listener;
  net::Address address;
  std::function<void(net::AcceptedSocket)> on_accept;  // set before anybody connects
  const net::Token token;

  explicit BenchServer(const net::Token& t) : token(t) {
    run_on(thread.loop(), [this] {
      net::ListenOptions options;
      options.host = "127.0.0.1";
      options.handshakes_max = 4096;
      listener = net::listen(thread.loop(), options, token, random, Logger::discard(),
                             [this](net::AcceptedSocket s) { on_accept(std::move(s)); })
                     .value();
      address = listener->address();
    });
  }
  ~BenchServer() {
    run_on(thread.loop(), [this] { listener.reset(); });
  }
  static void run_on(net::EventLoop& loop, const std::function<void()>& work) {
    std::promise<void> done;
    loop.post([&] {
      work();
      done.set_value();
    });
    done.get_future().get();
  }
  ByteStream connect() {
    return net::connect_blocking(address, "head", token, Deadline::after(std::chrono::seconds(20)))
        .value();
  }
  std::pair<ByteStream, ByteStream> pair() {
    std::promise<ByteStream> accepted;
    run_on(thread.loop(), [&] {
      on_accept = [&](net::AcceptedSocket s) { accepted.set_value(std::move(s.socket)); };
    });
    ByteStream here = connect();
    return {std::move(here), accepted.get_future().get()};
  }
};

void time_handshakes(const std::string& name, const net::Token& token) {
  BenchServer server(token);
  BenchServer::run_on(server.thread.loop(), [&] { server.on_accept = [](net::AcceptedSocket) {}; });
  (void)server.connect();  // its certificates
  constexpr int kCount = 300;
  std::vector<double> times;
  const double cpu = cpu_seconds();
  for (int i = 0; i < kCount; ++i) {
    const TimePoint start = SystemClock().now();
    const ByteStream socket = server.connect();
    times.push_back(seconds_since(start) * 1e6);
  }
  figure(name + ": connect and be accepted", median(times), "us");
  figure(name + ": processor time of both sides", (cpu_seconds() - cpu) / kCount * 1e6, "us");
}

void time_stream(const std::string& name, const net::Token& token, std::size_t bytes) {
  BenchServer server(token);
  auto [here, there] = server.pair();
  const double cpu = cpu_seconds();
  const TimePoint start = SystemClock().now();
  const Deadline deadline = Deadline::after(std::chrono::seconds(60));
  constexpr std::size_t kPiece = 1u << 20;
  std::thread writer([&stream = here, bytes, deadline] {
    const std::vector<std::byte> piece(kPiece, std::byte{'x'});
    for (std::size_t sent = 0; sent < bytes; sent += kPiece) {
      if (!send_all(stream, piece, deadline).ok()) std::_Exit(7);
    }
  });
  std::vector<std::byte> piece(kPiece);
  for (std::size_t got = 0; got < bytes; got += kPiece) {
    if (!receive_all(there, piece, deadline).ok()) std::_Exit(7);
  }
  const double seconds = seconds_since(start);
  writer.join();
  const double mib = static_cast<double>(bytes) / (1 << 20);
  figure(name + ": one raw stream", mib / seconds, "MiB/s");
  figure(name + ": processor time of both sides", (cpu_seconds() - cpu) / mib * 1024e3, "ms/GiB");
}

void time_frames(const std::string& name, const net::Token& token) {
  BenchServer server(token);
  std::shared_ptr<net::Connection> there, here;
  BenchServer::run_on(server.thread.loop(), [&] {
    server.on_accept = [&](net::AcceptedSocket s) {
      there = net::make_connection(server.thread.loop(), std::move(s.socket), "client");
      there->start({.on_frame =
                        [&](std::span<const std::byte> frame) {
                          (void)there->send({frame.begin(), frame.end()});
                        },
                    .on_close = [](const Status&) {}});
    };
  });
  constexpr int kCount = 5000;
  std::vector<double> times;
  std::promise<void> done;
  ByteStream socket = server.connect();
  BenchServer::run_on(server.client.loop(), [&] {
    here = net::make_connection(server.client.loop(), std::move(socket), "server");
    auto start = std::make_shared<TimePoint>(SystemClock().now());
    here->start({.on_frame =
                     [&, start](std::span<const std::byte> frame) {
                       times.push_back(seconds_since(*start) * 1e6);
                       if (times.size() == kCount) return done.set_value();
                       *start = SystemClock().now();
                       (void)here->send({frame.begin(), frame.end()});
                     },
                 .on_close = [](const Status&) {}});
    (void)here->send(net::Bytes(64));
  });
  done.get_future().get();
  figure(name + ": a frame there and back, p50", median(times), "us");
  BenchServer::run_on(server.client.loop(), [&] { here.reset(); });
  BenchServer::run_on(server.thread.loop(), [&] { there.reset(); });
}

// Two ranks on this machine, which talk as ranks of two machines do.
void time_all_reduce(const std::string& name, const net::Token& token) {
  BenchServer server(token);
  auto ends = server.pair();
  constexpr std::size_t kFloats = (64u << 20) / sizeof(float);
  constexpr int kRounds = 15;
  std::vector<double> times;
  const auto rank = [&](int self, ByteStream stream) {
    std::vector<collective::PeerLink> links;
    links.push_back({1 - self, false, std::move(stream)});
    auto communicator =
        collective::make_cpu_communicator({.rank = self, .world_size = 2}, std::move(links))
            .value();
    std::vector<float> data(kFloats, 1.0f);
    for (int round = 0; round < kRounds; ++round) {
      const TimePoint start = SystemClock().now();
      if (!communicator->all_reduce(std::span(data), collective::ReduceOp::kMax).ok())
        std::_Exit(7);
      if (self == 0) times.push_back(seconds_since(start));
    }
  };
  std::thread other(rank, 1, std::move(ends.second));
  rank(0, std::move(ends.first));
  other.join();
  figure(name + ": all-reduce of 64 MiB, two ranks, p50", median(times) * 1e3, "ms");
}

UniqueFd stranger(const net::Address& address) {
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(address.port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)) != 0) std::_Exit(7);
  return socket;
}

// A thousand connections that stay in the middle of their first message.
void time_half_open(const std::string& name, const net::Token& token, const std::string& piece) {
  BenchServer server(token);
  BenchServer::run_on(server.thread.loop(), [&] { server.on_accept = [](net::AcceptedSocket) {}; });
  (void)server.connect();
  std::vector<UniqueFd> strangers;
  const TimePoint begin = SystemClock().now();
  for (int i = 0; i < 1000; ++i) {
    strangers.push_back(stranger(server.address));
    (void)::send(strangers.back().get(), piece.data(), piece.size(), MSG_NOSIGNAL);
  }
  const double opened = seconds_since(begin);
  const TimePoint start = SystemClock().now();
  const ByteStream socket = server.connect();
  figure(name + ": a join beside 1000 half-open ones", seconds_since(start) * 1e3, "ms");
  char byte;
  for (const UniqueFd& s : strangers) (void)!::recv(s.get(), &byte, 1, 0);
  figure(name + ": the last of them closed after", seconds_since(begin), "s");
  figure(name + ": (opening them took)", opened, "s");
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t mib = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 512;
  for (const auto& [name, token] : {std::pair{"plain", kPlain}, std::pair{"TLS", kEncrypted}}) {
    time_handshakes(name, token);
    time_frames(name, token);
    time_stream(name, token, mib << 20);
    time_all_reduce(name, token);
  }
  time_half_open("plain", kPlain, "\x89TRO");
  time_half_open("TLS", kEncrypted, std::string("\x16\x03\x01\2\0\1\0", 7));
  return 0;
}
