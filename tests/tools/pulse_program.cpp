// A driver that calls its actor all the time, and the process of that actor.
//
//   test_tools_pulse HOST:PORT TOKEN_FILE STOP_FILE
//
// Prints "ready" after the first call. When STOP_FILE is there: how many calls were made and
// failed, why the last did, how long the longest took, and how many processes answered; then it
// ends.

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <set>
#include <thread>

#include "runtime/base/file_system.h"
#include "runtime/base/json.h"
#include "runtime/net/parse_address.h"
#include "runtime/net/token.h"
#include "troupe/actor.h"
#include "troupe/cluster.h"

namespace {

class Pulse {
 public:
  std::int64_t pid() const { return ::getpid(); }
  static constexpr auto methods = troupe::methods<&Pulse::pid>;
};

}  // namespace

int main(int argc, char** argv) {
  if (const auto code = troupe::host_main(argc, argv, troupe::actors<Pulse>)) return *code;
  if (argc != 4) return 2;
  using namespace std::chrono_literals;
  try {
    troupe::PosixFileSystem files;
    const auto head = troupe::net::parse_address(argv[1], "HEAD").value();
    auto cluster =
        troupe::Cluster::connect({.host = head.host,
                                  .port = head.port,
                                  .token = troupe::net::read_token_file(files, argv[2]).value(),
                                  .job_name = "pulse"})
            .value();
    auto pulse = cluster.spawn<Pulse>({.max_restarts = -1}).value();
    std::set<std::int64_t> pids{pulse.call<&Pulse::pid>().get(20s).value()};
    std::printf("ready %lld\n", static_cast<long long>(*pids.begin()));
    std::fflush(stdout);
    int calls = 0;
    int failed = 0;
    std::string why;  // the last one
    std::chrono::steady_clock::duration longest{};
    while (!files.exists(argv[3])) {
      const auto begin = std::chrono::steady_clock::now();
      const auto pid = pulse.call<&Pulse::pid>().get(20s);
      longest = std::max(longest, std::chrono::steady_clock::now() - begin);
      ++calls;
      if (pid.ok())
        pids.insert(*pid);
      else
        why = pid.status().to_string(), ++failed;
      std::this_thread::sleep_for(1ms);
    }
    troupe::json::Object counts;
    counts["calls"] = calls;
    counts["failed"] = failed;
    if (failed > 0) counts["why"] = why;
    counts["longest_ms"] = longest / 1ms;
    counts["processes"] = pids.size();
    std::printf("%s\n", troupe::json::write(counts).c_str());
    std::fflush(stdout);
  } catch (const troupe::StatusError& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return troupe::exit_code(e.status().code());
  }
}
