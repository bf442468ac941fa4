// Actor calls through Ray's C++ API on one node: "name value unit" lines, medians.
//
//   RAY_CALLS_REPEATS=N ray_calls --ray_code_search_path=LIBRARY --ray_head_args=…

#include <ray/api.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

class Echo {
 public:
  static Echo* make() { return new Echo(); }
  int add(int n) { return n + 1; }
  int size(std::string data) { return static_cast<int>(data.size()); }
};
RAY_REMOTE(Echo::make, &Echo::add, &Echo::size);

namespace {

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double part_of(std::vector<double> values, double part) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(part * static_cast<double>(values.size() - 1) + 0.5)];
}

void out(const char* name, double value, const char* unit) {
  std::printf("%s\t%.6g\t%s\n", name, value, unit);
  std::fflush(stdout);
}

// Runs a second: the median of `repeats` rounds of a second each.
template <typename F>
double rate(int repeats, int calls, F once) {
  once();
  std::vector<double> rates;
  for (int i = 0; i < repeats; ++i) {
    int count = 0;
    const double start = now_s();
    for (; now_s() - start < 1; count += calls) once();
    rates.push_back(count / (now_s() - start));
  }
  return part_of(rates, 0.5);
}

}  // namespace

int main(int argc, char** argv) {
  const char* text = std::getenv("RAY_CALLS_REPEATS");
  const int repeats = text != nullptr ? std::atoi(text) : 5;
  double start = now_s();
  ray::RayConfig config;
  ray::Init(config, argc, argv);
  out("start", (now_s() - start) * 1e3, "ms");
  auto echo = ray::Actor(Echo::make).Remote();
  ray::Get(echo.Task(&Echo::add).Remote(1));
  std::vector<double> times;
  for (int i = 0; i < 3000; ++i) {
    start = now_s();
    ray::Get(echo.Task(&Echo::add).Remote(1));
    times.push_back((now_s() - start) * 1e6);
  }
  out("sync p50", part_of(times, 0.5), "us");
  out("sync p99", part_of(times, 0.99), "us");
  out("async", rate(repeats, 1000, [&] {
        std::vector<ray::ObjectRef<int>> open;
        open.reserve(1000);
        for (int i = 0; i < 1000; ++i) open.push_back(echo.Task(&Echo::add).Remote(1));
        ray::Get(open);
      }), "1/s");
  const std::string data(1 << 20, 'x');
  out("1 MiB", rate(repeats, 1, [&] { ray::Get(echo.Task(&Echo::size).Remote(data)); }), "1/s");
  echo.Kill();
  std::vector<double> created;
  for (int i = 0; i < 4 * repeats; ++i) {
    start = now_s();
    auto other = ray::Actor(Echo::make).Remote();
    ray::Get(other.Task(&Echo::add).Remote(1));
    created.push_back((now_s() - start) * 1e3);
    other.Kill();
    ::usleep(100'000);
  }
  out("create", part_of(created, 0.5), "ms");
  ray::Shutdown();
  return 0;
}
