// simulate: seeds, one after another, each a run with faults of its own.

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "calls_simulation.h"
#include "canaries.h"
#include "objects_simulation.h"
#include "scheduler_figures.h"
#include "scheduler_simulation.h"
#include "simulation.h"
#include "tasks_simulation.h"

namespace {

using namespace troupe::simulation;

constexpr int kUsageCode = 2;
constexpr int kViolationCode = 7;

constexpr const char* kUsage =
    "simulate [--scenario training|scheduler|calls|objects|tasks] [--seeds N] [--first-seed N] "
    "[--seed N] "
    "[--trace]\n"
    "         [--nodes N] [--faults N] [--mistake NAME]\n"
    "         training:  [--elastic] [--ranks-per-node N] [--steps N] [--canary NAME]\n"
    "         scheduler: [--actors N] [--groups N] [--kills N] [--canary NAME]\n"
    "         calls:     [--actors N] [--drivers N] [--link-faults N] [--canary NAME]\n"
    "         objects:   [--steps N] [--canary NAME]\n"
    "         tasks:     [--tasks N] [--canary NAME]\n"
    "simulate --figures [--minutes N]\n"
    "\n"
    "Runs N seeds (200) on a simulated cluster, in virtual time: of a training run, of a\n"
    "cluster that many drivers use while its nodes join and half of them die, of drivers and\n"
    "actors that call each other while connections are cut and slowed, of processes that put\n"
    "objects, pass them on and let them go while memory is short, or of tasks whose workers die,\n"
    "are late or have no room. A violation ends it\n"
    "with code 7 and the seed; --seed N --trace shows what happened. The same seeds give the same\n"
    "trace hash, printed at the end. --elastic: the training's world changes, --nodes machines\n"
    "come, leave and are lost. --faults: of all kinds, 0 for none; --kills: of actors'\n"
    "processes besides. --mistake plants a known one in the surroundings, --canary one in the "
    "code\n"
    "itself; it must be found (code 7). --figures\n"
    "measures the head's decisions at 1,000 nodes, N minutes (60) of heartbeats, and how soon a\n"
    "node that stands still is noticed.";

// What all scenarios take, and what the command line says to one of them.
struct Seeds {
  std::uint64_t count = 200;
  std::uint64_t first = 1;
};
using Flags = std::map<std::string_view, std::function<bool(const char* value)>>;
using Switches = std::map<std::string_view, bool*>;  // without a value

template <typename Number>
bool parse(const char* text, Number& number) {
  const auto [end, problem] = std::from_chars(text, text + std::strlen(text), number);
  return problem == std::errc() && *end == 0;
}

template <typename Number>
std::function<bool(const char*)> at_least(Number least, Number& number) {
  return [least, &number](const char* text) { return parse(text, number) && number >= least; };
}

template <typename Mistake>
std::function<bool(const char*)> one_of(int count, Mistake& mistake) {
  return [count, &mistake](const char* text) {
    for (int i = 0; i < count; ++i) {
      if (mistake_name(static_cast<Mistake>(i)) != text) continue;
      mistake = static_cast<Mistake>(i);
      return true;
    }
    return false;
  };
}

std::function<bool(const char*)> canary_of(std::span<const std::string_view> known,
                                           std::string& canary) {
  return [known, &canary](const char* text) {
    canary = text;
    return std::find(known.begin(), known.end(), canary) != known.end();
  };
}

template <typename Mistake>
void print_mistakes(std::FILE* to, const char* scenario, int count) {
  fmt::print(to, "Mistakes ({}): ", scenario);
  for (int i = 1; i < count; ++i) {
    fmt::print(to, "{}{}", i == 1 ? "" : ", ", mistake_name(static_cast<Mistake>(i)));
  }
  fmt::print(to, "\n");
}

void print_help(std::FILE* to) {
  fmt::print(to, "{}\n", kUsage);
  print_mistakes<Mistake>(to, "training", kMistakes);
  print_mistakes<SchedulerMistake>(to, "scheduler", kSchedulerMistakes);
  fmt::print(to, "Canaries (training): {}\n", fmt::join(kTrainingCanaries, ", "));
  fmt::print(to, "Canaries (scheduler): {}\n", fmt::join(kHeadSessionCanaries, ", "));
  fmt::print(to, "Canaries (calls): {}\n", fmt::join(kCallSessionCanaries, ", "));
  fmt::print(to, "Canaries (objects): {}\n", fmt::join(kObjectCanaries, ", "));
  fmt::print(to, "Canaries (tasks): {}\n", fmt::join(kTaskCanaries, ", "));
}

// False, and what is wrong is said, for what is no flag or no value of it.
bool read_flags(int argc, char** argv, const Flags& flags, const Switches& switches) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    if (const auto on = switches.find(name); on != switches.end()) {
      *on->second = true;
      continue;
    }
    const auto flag = flags.find(name);
    if (flag != flags.end() && i + 1 < argc && flag->second(argv[i + 1])) {
      ++i;
      continue;
    }
    if (flag == flags.end()) {
      fmt::print(stderr, "simulate: there is no option '{}' here; see --help\n", name);
    } else if (i + 1 == argc) {
      fmt::print(stderr, "simulate: {} needs a value; see --help\n", name);
    } else {
      fmt::print(stderr, "simulate: {} does not take '{}'; see --help\n", name, argv[i + 1]);
    }
    return false;
  }
  return true;
}

// Besides the scenario's own.
bool read_seed_flags(int argc, char** argv, Flags flags, Seeds& seeds, Switches switches) {
  flags["--scenario"] = [](const char*) { return true; };
  flags["--seeds"] = at_least<std::uint64_t>(1, seeds.count);
  flags["--first-seed"] = at_least<std::uint64_t>(0, seeds.first);
  flags["--seed"] = [&seeds](const char* text) {
    seeds.count = 1;
    return parse(text, seeds.first);
  };
  return read_flags(argc, argv, flags, switches);
}

// Until a seed finds something; `total` of the others.
template <typename Options, typename Result>
int run_seeds(const Seeds& seeds, Options options, const std::string& scenario,
              Result (*simulate_one)(const Options&), Result& total) {
  const auto began = std::chrono::steady_clock::now();
  std::uint64_t traces = 0;
  for (std::uint64_t seed = seeds.first; seed < seeds.first + seeds.count; ++seed) {
    options.seed = seed;
    const Result result = simulate_one(options);
    if (!result.violation.empty()) {
      fmt::print("seed {}: {}\n  (after {} events, {} ms; see it with {}--seed {} --trace)\n", seed,
                 result.violation, result.events, result.virtual_ms, scenario, seed);
      return kViolationCode;
    }
    total += result;
    traces = traces * 0x9E3779B97F4A7C15u + result.trace_hash;
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  fmt::print(
      "{} seeds, no violation: {} events in {:.1f} s ({:.0f} s of virtual time), trace "
      "{:016x}\n",
      seeds.count, total.events, seconds, static_cast<double>(total.virtual_ms) / 1000, traces);
  return 0;
}

int run_training(int argc, char** argv) {
  Options options;
  Seeds seeds;
  const Flags flags = {{"--nodes", at_least(1, options.nodes)},
                       {"--ranks-per-node", at_least(1, options.ranks_per_node)},
                       {"--steps", at_least(1, options.steps)},
                       {"--faults", at_least(0, options.faults)},
                       {"--mistake", one_of(kMistakes, options.mistake)},
                       {"--canary", canary_of(kTrainingCanaries, options.canary)}};
  const Switches switches = {{"--trace", &options.trace}, {"--elastic", &options.elastic}};
  if (!read_seed_flags(argc, argv, flags, seeds, switches)) return kUsageCode;
  Result total;
  const int code = run_seeds(seeds, options, options.elastic ? "--elastic " : "", simulate, total);
  if (code != 0) return code;
  fmt::print(
      "{} generations: {} loads, {} states copied, {} taken from buddies, {} finished a step left "
      "behind, {} computed one "
      "again\n"
      "{} trainers, {} controllers, {} heads, {} daemons killed; {} nodes cut off or lost\n",
      total.generations, total.loads, total.copies, total.takeovers, total.finishes, total.discards,
      total.kills, total.controller_kills, total.head_crashes, total.daemon_kills,
      total.node_losses);
  if (!options.elastic) return 0;
  fmt::print(
      "{} machines joined, {} left in order; the world changed {} times, {} states were handed "
      "over\n",
      total.joins, total.leaves, total.resizes, total.hand_overs);
  return 0;
}

int run_scheduler(int argc, char** argv) {
  SchedulerOptions options;
  Seeds seeds;
  const Flags flags = {{"--nodes", at_least(2, options.nodes)},
                       {"--actors", at_least(1, options.actors)},
                       {"--groups", at_least(0, options.groups)},
                       {"--faults", at_least(0, options.faults)},
                       {"--kills", at_least(0, options.kills)},
                       {"--mistake", one_of(kSchedulerMistakes, options.mistake)},
                       {"--canary", canary_of(kHeadSessionCanaries, options.canary)}};
  if (!read_seed_flags(argc, argv, flags, seeds, {{"--trace", &options.trace}})) return kUsageCode;
  SchedulerResult total;
  const int code = run_seeds(seeds, options, "--scenario scheduler ", simulate_scheduler, total);
  if (code != 0) return code;
  fmt::print(
      "{} nodes joined, {} died for good; {} actors, {} gangs, {} placement groups, {} processes\n"
      "{} processes killed, {} died with their machines\n"
      "{} requests, {} of them said again on another connection; {} calls answered, {} failed\n"
      "{} heads ({} in a flush), {} daemons killed; {} times a node was cut off, {} times one "
      "stood still, {} times the head; {} owners gone\n",
      total.nodes_joined, total.nodes_lost, total.actors, total.gangs, total.groups,
      total.processes, total.kills, total.crash_kills, total.requests, total.requests_repeated,
      total.calls_answered, total.calls_failed, total.head_crashes, total.torn_appends,
      total.daemon_kills, total.cuts, total.freezes, total.head_stalls, total.owners_gone);
  return 0;
}

int run_calls(int argc, char** argv) {
  CallsOptions options;
  Seeds seeds;
  const Flags flags = {{"--nodes", at_least(2, options.nodes)},
                       {"--actors", at_least(2, options.actors)},
                       {"--drivers", at_least(1, options.drivers)},
                       {"--faults", at_least(0, options.faults)},
                       {"--link-faults", at_least(0, options.link_faults)},
                       {"--canary", canary_of(kCallSessionCanaries, options.canary)}};
  if (!read_seed_flags(argc, argv, flags, seeds, {{"--trace", &options.trace}})) return kUsageCode;
  CallsResult total;
  const int code = run_seeds(seeds, options, "--scenario calls ", simulate_calls, total);
  if (code != 0) return code;
  fmt::print(
      "{} calls, {} runs of methods: {} answered, {} failed, {} cancelled; {} items of streams\n"
      "{} states lost, {} calls told of it\n"
      "{} connections cut, {} slowed; {} processes killed, {} died with their machines\n"
      "{} heads, {} daemons killed; {} times a node was cut off, {} times one stood still, {} "
      "times the head; {} nodes drained; {} drivers gone\n",
      total.calls, total.runs, total.answered, total.failed, total.cancelled, total.items,
      total.losses, total.told_of_losses, total.links_cut, total.links_slowed, total.cluster.kills,
      total.cluster.crash_kills, total.cluster.head_crashes, total.cluster.daemon_kills,
      total.cluster.cuts, total.cluster.freezes, total.cluster.head_stalls, total.drains,
      total.cluster.owners_gone);
  return 0;
}

int run_objects(int argc, char** argv) {
  ObjectsOptions options;
  Seeds seeds;
  const Flags flags = {{"--nodes", at_least(2, options.nodes)},
                       {"--steps", at_least(1, options.steps)},
                       {"--faults", at_least(0, options.faults)},
                       {"--canary", canary_of(kObjectCanaries, options.canary)}};
  if (!read_seed_flags(argc, argv, flags, seeds, {{"--trace", &options.trace}})) return kUsageCode;
  ObjectsResult total;
  const int code = run_seeds(seeds, options, "--scenario objects ", simulate_objects, total);
  if (code != 0) return code;
  fmt::print(
      "{} objects put, {} references passed on, {} reads, {} of them of lost objects, {} without "
      "room\n"
      "{} segments moved to disk, {} read back; {} transfers, {} of them from copies, {} "
      "found where a home was lost\n"
      "{} processes killed, {} nodes lost, {} connections cut\n",
      total.puts, total.passed, total.reads, total.lost, total.no_room, total.spills,
      total.restores, total.fetches, total.fetches_from_copies, total.orphans_found,
      total.process_deaths, total.node_losses, total.cuts);
  return 0;
}

int run_tasks(int argc, char** argv) {
  TasksOptions options;
  Seeds seeds;
  const Flags flags = {{"--tasks", at_least(1, options.tasks)},
                       {"--faults", at_least(0, options.faults)},
                       {"--canary", canary_of(kTaskCanaries, options.canary)}};
  if (!read_seed_flags(argc, argv, flags, seeds, {{"--trace", &options.trace}})) return kUsageCode;
  TasksResult total;
  const int code = run_seeds(seeds, options, "--scenario tasks ", simulate_tasks, total);
  if (code != 0) return code;
  fmt::print(
      "{} tasks, {} begun: {} answered, {} failed, {} cancelled, {} late; {} given back\n"
      "{} workers, {} of which ran and ended\n",
      total.submitted, total.begun, total.answered, total.failed, total.cancelled, total.late,
      total.given_back, total.workers, total.deaths);
  return 0;
}

int print_figures(int argc, char** argv) {
  int minutes = 60;
  const Flags flags = {{"--minutes", at_least(1, minutes)}};
  if (!read_flags(argc - 1, argv + 1, flags, {})) return kUsageCode;
  for (const Figure& figure : measure_scheduler(minutes)) {
    fmt::print("{} {:.4g} {}\n", figure.name, figure.value, figure.unit);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--help") != 0) continue;
    print_help(stdout);
    return 0;
  }
  if (argc > 1 && std::strcmp(argv[1], "--figures") == 0) return print_figures(argc, argv);
  std::string_view scenario = "training";
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::strcmp(argv[i], "--scenario") == 0) scenario = argv[i + 1];
  }
  if (scenario == "training") return run_training(argc, argv);
  if (scenario == "scheduler") return run_scheduler(argc, argv);
  if (scenario == "calls") return run_calls(argc, argv);
  if (scenario == "objects") return run_objects(argc, argv);
  if (scenario == "tasks") return run_tasks(argc, argv);
  fmt::print(stderr,
             "simulate: there is no scenario '{}': take training, scheduler, calls, objects or "
             "tasks\n",
             scenario);
  return kUsageCode;
}
