#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/environment.h"
#include "runtime/base/hash.h"
#include "runtime/base/ids.h"
#include "runtime/base/random.h"
#include "runtime/base/sort_by.h"
#include "runtime/base/suggest.h"
#include "troupe/detail/mutex.h"
#include "troupe/log.h"

namespace troupe {
namespace {

TEST_CASE("hashes equal their published vectors") {
  CHECK(to_hex(sha256(bytes_of("abc"))) ==
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  // RFC 4231, test case 2.
  CHECK(to_hex(hmac_sha256(bytes_of("Jefe"), bytes_of("what do ya want for nothing?"))) ==
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  Xxh3Stream stream;
  stream.update(bytes_of("hello "));
  stream.update(bytes_of("world"));
  CHECK(stream.digest() == xxh3_64(bytes_of("hello world")));
  CHECK(equal_constant_time(bytes_of("ab"), bytes_of("ab")));
  CHECK(!equal_constant_time(bytes_of("ab"), bytes_of("ac")));
  CHECK(!equal_constant_time(bytes_of("ab"), bytes_of("abc")));
}

TEST_CASE("seeded random numbers repeat; ids round-trip") {
  SeededRandom a(7);
  SeededRandom b(7);
  CHECK(a.next_u64() == b.next_u64());
  for (int i = 0; i < 1000; ++i) CHECK(a.below(10) < 10);
  const auto id = NodeId::make(a);
  CHECK(*NodeId::parse(id.to_string()) == id);
  CHECK(!NodeId::parse("12").ok());
  CHECK(!NodeId::parse(std::string(32, 'g')).ok());
}

TEST_CASE("log lines carry time, level and component") {
  std::string seen;
  Logger log(
      "head", LogLevel::kInfo, [&](LogLevel, std::string_view line) { seen = line; },
      std::make_shared<ManualClock>());
  log.debug("quiet");
  CHECK(seen.empty());
  log.info("node {} joined", 3);
  CHECK(seen == "2023-11-14T22:13:20.000000Z I head: node 3 joined");
}

TEST_CASE("environment values are on as LLaMA-Factory reads them") {
  const MapEnvironment env({{"A", "True"}, {"B", "1"}, {"C", "yes"}, {"D", "y"}});
  CHECK(env.enabled("A"));
  CHECK(env.enabled("B"));
  CHECK(!env.enabled("C"));
  CHECK(env.enabled("D"));
  CHECK(!env.enabled("E"));
}

TEST_CASE("a wait ends at its deadline") {
  Mutex mutex;
  CondVar changed;
  MutexLock lock(mutex);
  const auto deadline = Deadline::after(std::chrono::milliseconds(1));
  CHECK(!changed.wait_until(mutex, deadline, [] { return false; }));
  CHECK(deadline.passed());
}

TEST_CASE("a deadline beyond the end of the clock never passes") {
  ManualClock clock;
  const Deadline never = Deadline::after(Duration::max(), clock);
  CHECK(never.time() == TimePoint::max());
  clock.advance(std::chrono::hours(24 * 365));
  CHECK(!never.passed(clock.now()));
}

TEST_CASE("few, large values are sorted, equals in their order") {
  std::vector<std::pair<int, std::string>> values;
  SeededRandom random(3);
  for (int i = 0; i < 200; ++i) {
    values.emplace_back(static_cast<int>(random.below(20)), std::to_string(i));
  }
  auto expected = values;
  const auto less = [](const auto& a, const auto& b) { return a.first < b.first; };
  std::stable_sort(expected.begin(), expected.end(), less);
  stable_sort_by(values, less);
  CHECK(values == expected);
  std::vector<std::string> none;
  stable_sort_by(none, std::less<>());
  CHECK(none.empty());
}

TEST_CASE("lists in texts") {
  CHECK(join_numbers(std::vector<int>{3, -1, 2}) == "3, -1, 2");
  CHECK(join_numbers(std::vector<std::size_t>{7}, ",") == "7");
  CHECK(join_numbers(std::vector<std::int64_t>()).empty());
  CHECK(join_words({"a", "b"}, " -> ") == "a -> b");
}

}  // namespace
}  // namespace troupe
