// A test of an actor of one's own under chaos: a ledger that is killed again and again while
// callers add to it, and must neither lose nor count twice what they were told.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include <troupe/actor.h>
#include <troupe/chaos.h>
#include <troupe/cluster.h>

using namespace std::chrono_literals;

class Ledger {
 public:
  // The entry's number makes it idempotent: a call that is sent again after a death, because nobody
  // knows whether it ran, counts once.
  std::int64_t add(std::int64_t number, std::int64_t amount) {
    if (entries_.emplace(number, amount).second) sum_ += amount;
    return sum_;
  }
  std::int64_t size() const { return static_cast<std::int64_t>(entries_.size()); }

  std::map<std::int64_t, std::int64_t> save() const { return entries_; }
  void load(std::map<std::int64_t, std::int64_t> entries) {
    entries_ = std::move(entries);
    sum_ = 0;
    for (const auto& [number, amount] : entries_) sum_ += amount;
  }

  static constexpr auto methods = troupe::methods<&Ledger::add, &Ledger::size>;

 private:
  std::map<std::int64_t, std::int64_t> entries_;
  std::int64_t sum_ = 0;
};

namespace {

int failures = 0;

void expect(bool holds, const std::string& what) {
  if (holds) return;
  ++failures;
  std::printf("FAILED: %s\n", what.c_str());
}

// 300 entries into two ledgers while `killer` strikes; every answer must be the sum so far.
void add_under_fire(const std::vector<troupe::ActorHandle<Ledger>>& ledgers) {
  std::vector<std::int64_t> sums(ledgers.size(), 0);
  for (std::int64_t i = 0; i < 300; ++i) {
    const auto which = static_cast<std::size_t>(i) % ledgers.size();
    const auto ledger = ledgers[which].with({.timeout = 20s, .retry = true});
    const auto sum = ledger.call<&Ledger::add>(i, i + 1).get(20s);
    sums[which] += i + 1;
    if (!sum.ok()) {
      expect(false, sum.status().to_string());
    } else {
      expect(*sum == sums[which], "entry " + std::to_string(i) + ": a sum of " +
                                      std::to_string(*sum) + ", not " +
                                      std::to_string(sums[which]));
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (auto code = troupe::host_main(argc, argv, troupe::actors<Ledger>)) return *code;

  auto cluster = troupe::Cluster::start_embedded().value();
  std::vector<troupe::ActorHandle<Ledger>> ledgers;
  for (const char* name : {"left", "right"}) {
    ledgers.push_back(
        cluster.spawn<Ledger>({.name = name, .num_cpus = 0, .max_restarts = -1}).value());
  }

  // One process killed by hand, and seen to come back.
  const auto before = troupe::process_of(ledgers[0], troupe::Deadline::after(10s)).value();
  expect(troupe::strike(before, troupe::ActorFault::kKill).ok(), "the process can be killed");
  const auto after = troupe::wait_until_back(ledgers[0], before, troupe::Deadline::after(10s));
  expect(after.ok() && after->pid != before.pid, "another process takes its place");

  // Then the same seed's killer, whenever the test runs.
  troupe::RandomKiller killer(cluster, ledgers,
                              {.seed = 4, .strikes_max = 12, .pause = 10ms, .stop_share = 0.25});
  add_under_fire(ledgers);
  const auto report = killer.finish(troupe::Deadline::after(30s));
  expect(report.ok(), "every victim came back: " + report.status().to_string());

  std::int64_t entries = 0;
  for (const auto& ledger : ledgers) {
    entries += ledger.with({.timeout = 20s, .retry = true}).call<&Ledger::size>().get(20s).value();
  }
  expect(entries == 300, "300 entries, not " + std::to_string(entries));
  std::printf("%d kills, %d stops\n", report->count(troupe::ActorFault::kKill) + 1,
              report->count(troupe::ActorFault::kStop));
  std::printf("%lld entries, each once\n", static_cast<long long>(entries));
  return failures == 0 ? 0 : 1;
}
