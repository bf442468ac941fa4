// A driver that is shipped to its nodes, for the tests of `troupe submit --ship`.
//
//   test_tools_ship_driver GO_FILE NODE...
//
// When GO_FILE is there it spawns an actor on each node with the label n=NODE, and prints what that
// finds: its folder, the first word of data/words.txt in it, and what the shipped library says.

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "troupe/actor.h"
#include "troupe/cluster.h"

extern "C" const char* shipped_words();

namespace {

std::string found_here() {
  std::string word;
  std::ifstream("data/words.txt") >> word;
  return std::filesystem::current_path().string() + " has '" + word + "' and " + shipped_words();
}

class Scout {
 public:
  std::string look() { return found_here(); }
  static constexpr auto methods = troupe::methods<&Scout::look>;
};

}  // namespace

int main(int argc, char** argv) {
  if (const auto code = troupe::host_main(argc, argv, troupe::actors<Scout>)) return *code;
  using namespace std::chrono_literals;
  const auto by = std::chrono::steady_clock::now() + 30s;
  while (!std::filesystem::exists(argv[1])) {
    if (std::chrono::steady_clock::now() > by) return 9;
    ::usleep(1000);
  }
  std::printf("driver: %s\n", found_here().c_str());
  try {
    auto cluster = troupe::Cluster::connect().value();
    for (int i = 2; i < argc; ++i) {
      auto scout =
          cluster.spawn<Scout>({.num_cpus = 0.1, .label_selector = {{"n", argv[i]}}}).value();
      std::printf("%s: %s\n", argv[i], scout.call<&Scout::look>().get(20s).value().c_str());
      std::fflush(stdout);
    }
  } catch (const troupe::StatusError& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return troupe::exit_code(e.status().code());
  }
}
