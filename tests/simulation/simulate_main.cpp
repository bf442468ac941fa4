// simulate: seeds, one after another, each a run with faults of its own.

#include <fmt/format.h>

#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>

#include "simulation.h"

namespace {

using namespace troupe::simulation;

constexpr const char* kUsage =
    "simulate [--seeds N] [--first-seed N] [--seed N [--trace]] [--nodes N] [--ranks-per-node N]\n"
    "         [--steps N] [--faults N] [--mistake NAME]\n"
    "\n"
    "Runs N seeds (200) of a training run on a simulated cluster, in virtual time. A violation "
    "ends\n"
    "it with code 7 and the seed; --seed N --trace shows what happened. --mistake plants a known\n"
    "one, which must be found: ";

template <typename Number>
bool parse(const char* text, Number& number) {
  const auto [end, problem] = std::from_chars(text, text + std::strlen(text), number);
  return problem == std::errc() && *end == 0;
}

int usage() {
  fmt::print(stderr, "{}", kUsage);
  for (int i = 1; i < kMistakes; ++i) {
    fmt::print(stderr, "{}{}", i == 1 ? "" : ", ", mistake_name(static_cast<Mistake>(i)));
  }
  fmt::print(stderr, "\n");
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  std::uint64_t seeds = 200;
  std::uint64_t first = 1;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--trace") {
      options.trace = true;
      continue;
    }
    const char* value = i + 1 < argc ? argv[++i] : nullptr;
    if (value == nullptr) return usage();
    bool good = false;
    if (flag == "--seeds") {
      good = parse(value, seeds);
    } else if (flag == "--first-seed") {
      good = parse(value, first);
    } else if (flag == "--seed") {
      good = parse(value, first);
      seeds = 1;
    } else if (flag == "--nodes") {
      good = parse(value, options.nodes) && options.nodes >= 1;
    } else if (flag == "--ranks-per-node") {
      good = parse(value, options.ranks_per_node) && options.ranks_per_node >= 1;
    } else if (flag == "--steps") {
      good = parse(value, options.steps) && options.steps >= 1;
    } else if (flag == "--faults") {
      good = parse(value, options.faults) && options.faults >= 0;
    } else if (flag == "--mistake") {
      for (int m = 0; m < kMistakes; ++m) {
        if (mistake_name(static_cast<Mistake>(m)) != value) continue;
        options.mistake = static_cast<Mistake>(m);
        good = true;
      }
    }
    if (!good) return usage();
  }
  const auto began = std::chrono::steady_clock::now();
  Result total;
  for (std::uint64_t seed = first; seed < first + seeds; ++seed) {
    options.seed = seed;
    const Result result = simulate(options);
    if (!result.violation.empty()) {
      fmt::print("seed {}: {}\n  (after {} events, {} ms; see it with --seed {} --trace)\n", seed,
                 result.violation, result.events, result.virtual_ms, seed);
      return 7;
    }
    total += result;
    if (seeds == 1) fmt::print("trace {:016x}\n", result.trace_hash);
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  fmt::print(
      "{} seeds, no violation: {} events in {:.1f} s ({:.0f} s of virtual time)\n"
      "{} generations: {} loads, {} finished a step left behind, {} computed one again\n"
      "{} trainers, {} controllers, {} heads, {} daemons killed; {} nodes cut off or lost\n",
      seeds, total.events, seconds, static_cast<double>(total.virtual_ms) / 1000, total.generations,
      total.loads, total.finishes, total.discards, total.kills, total.controller_kills,
      total.head_crashes, total.daemon_kills, total.node_losses);
  return 0;
}
