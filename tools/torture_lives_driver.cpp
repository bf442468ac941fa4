// The driver of `tools/torture lives`: makes, calls and ends actors, so many in all, and stops
// after each tenth of them, so that its memory and that of head and node can be looked at.
//
//   PROGRAM HOST PORT TOKEN_FILE ACTORS LIGHT
//
// After each tenth it prints "actors SECONDS CHANNELS" (or "light …") and waits for a line on its
// standard input; SECONDS of that tenth, CHANNELS that its client keeps.

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/net/token.h"
#include "troupe/actor.h"
#include "troupe/cluster.h"
#include "actors/client.h"
#include "runtime/base/clock.h"

namespace {

using namespace troupe;

constexpr int kTenths = 10;
// Actors that live at the same time, and light ones of a host.
constexpr std::size_t kAtOnce = 8;
constexpr std::size_t kPerHost = 1000;
// Of the light actors so many come one by one, of the hosts so many end actor by actor.
constexpr std::size_t kOneByOneEvery = 10;
constexpr std::size_t kEndedEachEvery = 2;

class Brief {
 public:
  int add(int n) { return sum_ += n; }
  static constexpr auto methods = troupe::methods<&Brief::add>;

 private:
  int sum_ = 0;
};

// One call of each, all at once.
Status use(const std::vector<ActorHandle<Brief>>& actors) {
  std::vector<Future<int>> sums;
  sums.reserve(actors.size());
  for (const auto& actor : actors) sums.push_back(actor.call<&Brief::add>(1));
  for (auto& sum : sums) {
    const int value = TROUPE_TRY(sum.get(std::chrono::seconds(60)));
    if (value != 1) return error(Code::kInternal, "a new actor answered {}", value);
  }
  return {};
}

Status live(Cluster& cluster, std::size_t count) {
  for (std::size_t done = 0; done < count;) {
    std::vector<ActorHandle<Brief>> actors;
    for (; actors.size() < kAtOnce && done < count; ++done) {
      actors.push_back(TROUPE_TRY(cluster.spawn<Brief>({.num_cpus = 0})));
    }
    TROUPE_RETURN_IF_ERROR(use(actors));
    for (const auto& actor : actors) TROUPE_RETURN_IF_ERROR(cluster.kill(actor));
  }
  return {};
}

Status live_light(Cluster& cluster, std::size_t count) {
  const ActorOptions options{.num_cpus = 0,
                             .isolation = Isolation::kShared,
                             .light_per_host = static_cast<std::uint32_t>(kPerHost)};
  for (std::size_t host = 0; host * kPerHost < count; ++host) {
    const std::size_t here = std::min(kPerHost, count - host * kPerHost);
    std::vector<ActorHandle<Brief>> actors;
    if (host % kOneByOneEvery == 0) {
      for (std::size_t i = 0; i < here; ++i) {
        actors.push_back(TROUPE_TRY(cluster.spawn<Brief>(options)));
      }
      TROUPE_RETURN_IF_ERROR(use(actors));
      for (const auto& actor : actors) TROUPE_RETURN_IF_ERROR(cluster.kill(actor));
      continue;
    }
    const auto many = TROUPE_TRY(cluster.spawn_many<Brief>(here, options));
    for (const auto actor : many) actors.push_back(actor);
    TROUPE_RETURN_IF_ERROR(use(actors));
    if (host % kEndedEachEvery == 0) {
      for (const auto& actor : actors) TROUPE_RETURN_IF_ERROR(cluster.kill(actor));
    } else {
      TROUPE_RETURN_IF_ERROR(cluster.kill(many));
    }
  }
  return {};
}

template <typename Live>
Status by_tenths(Cluster& cluster, const char* what, std::size_t count, Live live) {
  const SystemClock clock;
  for (int tenth = 0; tenth < kTenths && count > 0; ++tenth) {
    const TimePoint begun = clock.now();
    TROUPE_RETURN_IF_ERROR(live(cluster, count / kTenths));
    std::printf("%s %.6f %zu\n", what, std::chrono::duration<double>(clock.now() - begun).count(),
                detail::Access::client(cluster)->channel_count());
    std::fflush(stdout);
    for (int c = 0; (c = std::getchar()) != '\n';) {
      if (c == EOF) return error(Code::kCancelled, "its input has ended");
    }
  }
  return {};
}

Status drive(char** argv) {
  PosixFileSystem files;
  ConnectOptions options;
  options.host = argv[1];
  options.port = static_cast<std::uint16_t>(std::atoi(argv[2]));
  options.token = TROUPE_TRY(net::read_token_file(files, argv[3]));
  auto cluster = TROUPE_TRY(Cluster::connect(options));
  TROUPE_RETURN_IF_ERROR(
      by_tenths(cluster, "actors", static_cast<std::size_t>(std::atoll(argv[4])), live));
  return by_tenths(cluster, "light", static_cast<std::size_t>(std::atoll(argv[5])), live_light);
}

}  // namespace

int main(int argc, char** argv) {
  if (const auto code = host_main(argc, argv, actors<Brief>)) return *code;
  if (argc != 6) {
    std::fprintf(stderr, "usage: torture_lives_driver HOST PORT TOKEN_FILE ACTORS LIGHT\n");
    return 2;
  }
  const Status status = drive(argv);
  if (status.ok()) return 0;
  std::fprintf(stderr, "torture_lives_driver: %s\n", status.to_string().c_str());
  return exit_code(status.code());
}
