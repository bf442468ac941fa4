// The driver of `tools/torture head` (cluster_driver.h): a load under which the head is killed,
// stopped and slowed down.
//
// COUNT actors count what they are told, exactly once each, and are called all the time over the
// handles that were made at the beginning. Beside these "kept" ones there are "fenced" ones, which
// their node ends when the head is silent, and "mortal" and "supervised" ones, which are killed
// while the head may be away: those are started again, and count on from what they saved. Actors
// are made, called and ended, one after the other. Drivers connect, find the counters by name, call
// and go. With the end of its standard input the load stops, and one line of JSON says what became
// of it: calls that did not succeed, counts that differ from what was acknowledged, processes that
// are not those of the beginning.
//
// The folder that TROUPE_TORTURE_FOLDER names holds what processes say themselves: "made" a line
// for each start of an actor that was made, "twice" one for each start of a counter while another
// process of it ran.

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <unistd.h>

#include <atomic>
#include <boost/json.hpp>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tools/cluster_driver.h"
#include "troupe/actor.h"
#include "troupe/unique_fd.h"

namespace {

using namespace troupe;
using namespace std::chrono_literals;

// Longer than strikes take that follow on each other: a call which ends by its deadline has met a
// fault. (A restart needs the head for three writes in a row, of 4 s each.)
constexpr auto kCallTimeout = 90s;
constexpr auto kPause = 5ms;
constexpr auto kFindPause = 300ms;
constexpr auto kKillPause = 1500ms;
constexpr int kFenced = 2;
constexpr int kSupervised = 2;

Duration since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::steady_clock::now() - begin;
}

// One write: what several processes add does not mix.
void add_line(const std::string& path, const std::string& text) {
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  const std::string line = text + "\n";
  if (::write(file.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size())) ::abort();
}

class Counter {
 public:
  // Its process holds a lock for as long as it lives.
  Counter(const std::string& folder, const std::string& name)
      : lock_(::open((folder + "/" + name + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {
    if (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) add_line(folder + "/twice", name);
  }
  std::int64_t add(std::int64_t n) { return count_ += n; }
  std::int64_t count() const { return count_; }
  std::int64_t pid() const { return ::getpid(); }
  std::int64_t save() const { return count_; }
  void load(std::int64_t count) { count_ = count; }
  static constexpr bool kExactlyOnce = true;
  static constexpr auto constructor = troupe::constructor<std::string, std::string>;
  static constexpr auto methods = troupe::methods<&Counter::add, &Counter::count, &Counter::pid>;

 private:
  UniqueFd lock_;
  std::int64_t count_ = 0;
};

class Passing {
 public:
  Passing(const std::string& folder, std::int64_t n) {
    add_line(folder + "/made", std::to_string(n));
  }
  std::int64_t twice(std::int64_t n) const { return 2 * n; }
  static constexpr auto constructor = troupe::constructor<std::string, std::int64_t>;
  static constexpr auto methods = troupe::methods<&Passing::twice>;
};

const CallOptions kPatient{.timeout = kCallTimeout, .retry = true};

// What one thread has seen.
struct Seen {
  std::int64_t calls = 0;
  std::int64_t acknowledged = 0;
  std::map<std::string, std::int64_t> failures;  // by what they say, without numbers
  Duration longest{};

  void failed(const Status& why) { ++failures[why.to_string()]; }
};

struct Row {
  std::string kind;
  std::string name;
  ActorHandle<Counter> counter;
  std::int64_t pid = 0;
  Seen called;
};

struct Load {
  Load(Cluster& c, std::string f) : cluster(&c), folder(std::move(f)) {}
  Load(Load&&) = delete;
  ~Load() { report(); }

  Status add(const std::string& kind, ActorOptions options);
  void call(Row& row);
  void make_and_end();
  void find_and_call();
  void kill_mortals();
  Status find(const Row& row, std::int64_t& before);
  void report();

  Cluster* cluster;
  const std::string folder;
  std::atomic<bool> ending = false;
  std::vector<Row> rows;
  Seen made;
  Seen found;
  Seen killed;
  std::vector<std::thread> threads;
};

Status Load::add(const std::string& kind, ActorOptions options) {
  Row row{
      .kind = kind, .name = "counter-" + std::to_string(rows.size()), .counter = {}, .called = {}};
  options.name = row.name;
  options.num_cpus = 0;
  row.counter = TROUPE_TRY(cluster->spawn<Counter>(options, folder, row.name));
  row.pid = TROUPE_TRY(row.counter.call<&Counter::pid>().get(kCallTimeout));
  rows.push_back(std::move(row));
  return {};
}

// Each counter has a thread of its own: one that waits does not keep the others from being called.
void Load::call(Row& row) {
  const auto counter = row.counter.with(kPatient);
  Seen& seen = row.called;
  while (!ending) {
    const auto begin = std::chrono::steady_clock::now();
    const auto count = counter.call<&Counter::add>(1).get(kCallTimeout + 5s);
    seen.longest = std::max<Duration>(seen.longest, since(begin));
    ++seen.calls;
    if (!count.ok()) {
      seen.failed(count.status());
    } else if (*count != ++seen.acknowledged) {
      seen.failed(error(Code::kDataLoss, "a counter is not where its caller is"));
      seen.acknowledged = *count;
    }
    std::this_thread::sleep_for(kPause);
  }
}

void Load::make_and_end() {
  for (std::int64_t n = 0; !ending; ++n) {
    const auto begin = std::chrono::steady_clock::now();
    ++made.calls;
    auto actor = cluster->spawn<Passing>({.num_cpus = 0}, folder, n);
    if (!actor.ok()) {
      made.failed(actor.status());
      continue;
    }
    const auto twice = actor->with(kPatient).call<&Passing::twice>(n).get(kCallTimeout + 5s);
    if (!twice.ok()) {
      made.failed(twice.status());
    } else if (*twice != 2 * n) {
      made.failed(error(Code::kInternal, "a wrong answer"));
    } else {
      ++made.acknowledged;
    }
    // kill() has a deadline of its own, which a disk that is slow for two writes passes.
    Status ended = cluster->kill(*actor);
    while (ended.code() == Code::kDeadlineExceeded && since(begin) < 2 * kCallTimeout) {
      ended = cluster->kill(*actor);
    }
    if (!ended.ok()) made.failed(ended.prefixed("kill"));
    made.longest = std::max<Duration>(made.longest, since(begin));
    std::this_thread::sleep_for(kPause);
  }
}

// A driver of its own, as one that is started while the head is away.
Status Load::find(const Row& row, std::int64_t& before) {
  ConnectOptions options;
  options.host = cluster->head_address().host;
  options.port = cluster->head_address().port;
  options.token = cluster->token();
  options.timeout = kCallTimeout;
  options.follow_output = false;
  auto driver = TROUPE_TRY(Cluster::connect(options));
  const auto counter = TROUPE_TRY(driver.get_actor<Counter>(
      row.name, {.namespace_name = cluster->namespace_name(), .timeout = kCallTimeout}));
  const auto count =
      TROUPE_TRY(counter.with(kPatient).call<&Counter::count>().get(kCallTimeout + 5s));
  if (count < before) return Status(Code::kDataLoss, "a counter went back");
  before = count;
  return {};
}

void Load::find_and_call() {
  std::vector<std::int64_t> before(rows.size());
  for (std::size_t i = 0; !ending; i = (i + 1) % rows.size()) {
    const auto begin = std::chrono::steady_clock::now();
    ++found.calls;
    // Where nobody listens one is told so at once: until the next head is there.
    Status status = find(rows[i], before[i]);
    while (status.code() == Code::kUnavailable && since(begin) < kCallTimeout) {
      std::this_thread::sleep_for(kPause);
      status = find(rows[i], before[i]);
    }
    if (status.ok()) {
      ++found.acknowledged;
    } else {
      found.failed(status);
    }
    found.longest = std::max<Duration>(found.longest, since(begin));
    std::this_thread::sleep_for(kFindPause);
  }
}

// One process after the other, when it has answered.
void Load::kill_mortals() {
  for (std::size_t i = 0; !ending; i = (i + 1) % rows.size()) {
    if (rows[i].kind != "mortal" && rows[i].kind != "supervised") continue;
    const auto begin = std::chrono::steady_clock::now();
    const auto pid = rows[i].counter.with(kPatient).call<&Counter::pid>().get(kCallTimeout + 5s);
    killed.longest = std::max<Duration>(killed.longest, since(begin));
    if (pid.ok()) {
      ++killed.calls;
      ::kill(static_cast<pid_t>(*pid), SIGKILL);
    } else {
      killed.failed(pid.status());
    }
    std::this_thread::sleep_for(kKillPause);
  }
}

boost::json::object described(const Seen& seen) {
  boost::json::object failures;
  for (const auto& [what, count] : seen.failures) failures[what] = count;
  return {{"calls", seen.calls},
          {"acknowledged", seen.acknowledged},
          {"longest_ms", seen.longest / 1ms},
          {"failures", std::move(failures)}};
}

void Load::report() {
  ending = true;
  for (std::thread& thread : threads) thread.join();
  boost::json::array counters;
  for (const Row& row : rows) {
    boost::json::object counter = described(row.called);
    const auto count = row.counter.with(kPatient).call<&Counter::count>().get(kCallTimeout);
    const auto pid = row.counter.with(kPatient).call<&Counter::pid>().get(kCallTimeout);
    counter["kind"] = row.kind;
    counter["count"] = count.ok() ? *count : -1;
    counter["same_process"] = pid.ok() && *pid == row.pid;
    counters.push_back(std::move(counter));
  }
  std::cout << boost::json::serialize(boost::json::object{{"counters", std::move(counters)},
                                                          {"made", described(made)},
                                                          {"found", described(found)},
                                                          {"killed", described(killed)}})
            << std::endl;
}

Result<std::unique_ptr<Load>> start(Cluster& cluster, int count) {
  const char* folder = std::getenv("TROUPE_TORTURE_FOLDER");
  if (folder == nullptr) return Status(Code::kInvalidArgument, "TROUPE_TORTURE_FOLDER is not set");
  auto load = std::make_unique<Load>(cluster, folder);
  for (int i = 0; i < count; ++i) {
    TROUPE_RETURN_IF_ERROR(load->add("kept", {.max_restarts = -1}));
  }
  for (int i = 0; i < kFenced; ++i) {
    TROUPE_RETURN_IF_ERROR(
        load->add("fenced", {.max_restarts = -1, .on_head_loss = OnHeadLoss::kFence}));
  }
  TROUPE_RETURN_IF_ERROR(load->add("mortal", {.max_restarts = -1}));
  const auto group = TROUPE_TRY(cluster.supervise(
      {.name = "pair", .strategy = RestartStrategy::kAllForOne, .max_restarts = -1}));
  for (int i = 0; i < kSupervised; ++i) {
    TROUPE_RETURN_IF_ERROR(load->add("supervised", {.supervisor = group.id()}));
  }
  for (Row& row : load->rows) {
    load->threads.emplace_back([&load = *load, &row] { load.call(row); });
  }
  load->threads.emplace_back([&load = *load] { load.make_and_end(); });
  load->threads.emplace_back([&load = *load] { load.find_and_call(); });
  load->threads.emplace_back([&load = *load] { load.kill_mortals(); });
  return load;
}

}  // namespace

int main(int argc, char** argv) {
  if (const auto code = host_main(argc, argv, actors<Counter, Passing>)) return *code;
  return tools::cluster_driver(argc, argv, "torture_head_driver", start);
}
