// Tasks, with workers that are processes.

#include "troupe/tasks.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/actors/tasks/test_tasks.h"
#include "tests/support/test_data.h"
#include "troupe/cluster.h"

// The driver knows their signatures; their code is the workers' (host_program.cpp).
namespace troupe::tests {
int twice(int) { return 0; }
std::int64_t process_id() { return 0; }
void nothing() {}
Status fail(const std::string&) { return {}; }
int throws(int) { return 0; }
Result<std::int64_t> wait_for(ActorContext&, const std::string&) { return 0; }
int crash_times(const std::string&, int) { return 0; }
void stay(const std::string&) {}
void submit_late(ActorContext&, const std::string&, const std::string&) {}
Result<int> sum_of_map(ActorContext&, int) { return 0; }
Result<int> leaves(ActorContext&, int) { return 0; }
Result<int> by_larger_task(ActorContext&, int, double) { return 0; }
Result<ObjectRef<Floats>> filled(ActorContext&, std::size_t, float) { return ObjectRef<Floats>(); }
double sum(Object<Floats>) { return 0; }
int add(int, int) { return 0; }
std::string join(std::string, std::string) { return {}; }
std::string text_of(int) { return {}; }
Result<std::uint64_t> size_in_place(ActorContext&, const std::string&) { return 0u; }
std::uint64_t size_of_view(BytesView) { return 0; }
Status fail_with(const std::string&, int, const std::string&) { return {}; }
Status nested_while_cancelled(ActorContext&, const std::string&, const std::string&) { return {}; }
void look_at_bytes(UntilCancelled, std::vector<std::byte>, const std::string&) {}
void wait_until_cancelled(const std::string&) {}
Stream<int> count_to(int) { co_return; }
Stream<int> count_and_end(int, bool) { co_return; }
Stream<int> count_into(std::string, std::string) { co_return; }
Stream<int> count_and_crash(std::string, int, int, int) { co_return; }
Stream<int> doubles(ActorContext&, int) { co_return; }
Result<int> sum_of_stream(ActorContext&, int, double) { return 0; }
Stream<ObjectRef<Floats>> objects_to(ActorContext&, int) { co_return; }
std::vector<std::byte> bytes_of(std::size_t) { return {}; }
int unlisted(int) { return 0; }
Stream<int> unlisted_stream() { co_return; }

namespace {

using namespace std::chrono_literals;

struct TaskCluster {
  Cluster cluster =
      Cluster::start_embedded({.num_cpus = 2,
                               .on_output = [](const std::string&, std::string_view) {},
                               .tell_waiting_after = 10min,
                               .program = bin_dir() + "/test_actors_tasks_host"})
          .value();
  TemporaryDirectory folder;
};

bool appears(const std::string& file) {
  const Deadline patience = Deadline::after(20s);
  while (::access(file.c_str(), F_OK) != 0) {
    if (patience.passed()) return false;
    std::this_thread::sleep_for(1ms);
  }
  return true;
}
void touch(const std::string& file) { std::ofstream(file) << "x"; }

TEST_CASE_FIXTURE(TaskCluster, "a task's result, its failure, what it throws") {
  CHECK(cluster.submit<&twice>(21).get().value() == 42);
  CHECK(cluster.submit<&nothing>().get().ok());
  const Status failed = cluster.submit<&fail>("no such page").get();
  CHECK(failed.code() == Code::kNotFound);
  CHECK(failed.to_string().find("no such page") != std::string::npos);
  CHECK(failed.to_string().find("task=fail") != std::string::npos);
  const Status thrown = cluster.submit<&throws>(7).get().status();
  CHECK(thrown.code() == Code::kActorError);
  CHECK(thrown.to_string().find("it threw 7") != std::string::npos);
  const Status unknown = cluster.submit<&unlisted>(7).get().status();
  CHECK(unknown.code() == Code::kNotFound);
  CHECK(unknown.to_string().find("host_main") != std::string::npos);
}

TEST_CASE_FIXTURE(TaskCluster, "tasks share few workers, at most as many as there is room for") {
  std::vector<Future<std::int64_t>> futures;
  for (int i = 0; i < 2'000; ++i) futures.push_back(cluster.submit<&process_id>());
  std::set<std::int64_t> workers;
  for (auto& future : futures) workers.insert(future.get().value());
  CHECK(workers.size() <= 2);
  CHECK(workers.count(::getpid()) == 0);
}

TEST_CASE_FIXTURE(TaskCluster, "a task behind a long one goes to another worker") {
  // The worker is known to be quick, so that several tasks lie there.
  for (int i = 0; i < 200; ++i) REQUIRE(cluster.submit<&twice>(i).get().value() == 2 * i);
  const std::string gate = folder.file("gate");
  auto slow = cluster.submit<&wait_for>(gate);
  std::vector<Future<int>> quick;
  for (int i = 0; i < 50; ++i) quick.push_back(cluster.submit<&twice>(i));
  for (int i = 0; i < 50; ++i) CHECK(quick[static_cast<std::size_t>(i)].get().value() == 2 * i);
  CHECK_FALSE(slow.ready());
  touch(gate);
  CHECK(slow.get().ok());
}

// peer: test_reconstruction.retries
TEST_CASE_FIXTURE(TaskCluster, "a task whose worker dies runs again, so often as it may") {
  CHECK(cluster.submit<&crash_times>(folder.file("twice"), 2).get().value() == 2);
  const Status poison = cluster.submit<&crash_times>(folder.file("poison"), 100).get().status();
  CHECK(poison.code() == Code::kActorDied);
  CHECK(std::filesystem::file_size(folder.file("poison")) == 4);
  const Status once =
      cluster.tasks({.retries = 0}).submit<&crash_times>(folder.file("once"), 1).get().status();
  CHECK(once.code() == Code::kActorDied);
  CHECK(std::filesystem::file_size(folder.file("once")) == 1);
  CHECK(cluster.submit<&twice>(1).get().value() == 2);
}

TEST_CASE_FIXTURE(TaskCluster, "beside tasks that kill their worker all others end well") {
  std::vector<Future<int>> good;
  std::vector<Future<int>> bad;
  for (int i = 0; i < 400; ++i) {
    good.push_back(cluster.submit<&twice>(i));
    if (i % 100 == 50) {
      bad.push_back(cluster.submit<&crash_times>(folder.file(std::to_string(i)), 100));
    }
  }
  for (int i = 0; i < 400; ++i) CHECK(good[static_cast<std::size_t>(i)].get().value() == 2 * i);
  for (auto& future : bad) CHECK(future.get().status().code() == Code::kActorDied);
}

TEST_CASE_FIXTURE(TaskCluster,
                  "a task that is cancelled does not begin, or hears of it, or is ended") {
  const std::string gate = folder.file("gate");
  auto runs = cluster.submit<&wait_for>(gate);
  auto also = cluster.submit<&wait_for>(folder.file("second"));
  auto waits = cluster.submit<&crash_times>(folder.file("never"), 0);
  waits.cancel();
  CHECK(waits.get().status().code() == Code::kCancelled);
  auto next = cluster.submit<&twice>(4);
  CHECK_FALSE(runs.ready());
  // (It has begun, if this one does.)
  const std::string began = folder.file("began");
  also.cancel();
  CHECK(next.get().value() == 8);
  runs.cancel();
  CHECK(runs.get().status().code() == Code::kCancelled);
  auto stays = cluster.submit<&stay>(began);
  REQUIRE(appears(began));
  pid_t pid = 0;
  for (const Deadline patience = Deadline::after(20s); pid == 0 && !patience.passed();) {
    std::ifstream(began) >> pid;
  }
  stays.cancel();
  const Deadline patience = Deadline::after(20s);
  while (::kill(pid, 0) == 0 && !patience.passed()) std::this_thread::sleep_for(5ms);
  CHECK(::kill(pid, 0) != 0);
  CHECK_FALSE(std::filesystem::exists(folder.file("never")));
}

// peer: test_nested_get
TEST_CASE_FIXTURE(TaskCluster, "nested tasks end however few workers there are") {
  CHECK(cluster.submit<&leaves>(7).get().value() == 128);
  std::vector<Future<int>> maps;
  for (int i = 0; i < 3; ++i) maps.push_back(cluster.submit<&sum_of_map>(20));
  for (auto& map : maps) CHECK(map.get(20s).value() == 420);
  CHECK(cluster.submit<&chain>(1000).get().value() == 1000);
  CHECK(cluster.submit<&chain>(100'000).get().status().code() == Code::kResourceExhausted);
}

TEST_CASE_FIXTURE(TaskCluster,
                  "a task that is cancelled where another one runs it has its arguments") {
  const std::string began = folder.file("began");
  auto outer =
      cluster.tasks({.num_cpus = 2}).submit<&nested_while_cancelled>(began, folder.file("whole"));
  REQUIRE(appears(began));
  outer.cancel();
  CHECK(appears(folder.file("whole")));
}

TEST_CASE_FIXTURE(TaskCluster, "a nested task looks at its arguments in place, wherever it runs") {
  CHECK(cluster.tasks({.num_cpus = 2}).submit<&size_in_place>("hello").get().value() == 5);
}

TEST_CASE_FIXTURE(TaskCluster, "a failure that a task returns is its result, whatever it says") {
  const std::pair<Code, std::string> failures[] = {
      {Code::kActorDied, "the actor is being stopped and takes no new calls: it is drained"},
      {Code::kActorDied, "the actor was stopped before it came to this call"},
      {Code::kAborted, "a worker gave the task back: another one takes long there"}};
  for (const auto& [code, message] : failures) {
    const std::string file = folder.file("ran");
    const Status failed = cluster.submit<&fail_with>(file, static_cast<int>(code), message).get(5s);
    CHECK(failed.code() == code);
    CHECK(failed.message() == message);
    CHECK(std::filesystem::file_size(file) == 1);
    std::filesystem::remove(file);
  }
}

TEST_CASE_FIXTURE(TaskCluster, "results that are to come are arguments of tasks") {
  auto four = cluster.submit<&twice>(2);
  auto six = cluster.submit<&add>(std::move(four), 2);
  CHECK(cluster.submit<&twice>(std::move(six)).get(20s).value() == 12);
  auto failed = cluster.submit<&throws>(7);
  const auto after = cluster.submit<&add>(1, std::move(failed)).get(20s);
  CHECK(after.status().message().find("it threw 7") != std::string::npos);
}

TEST_CASE_FIXTURE(TaskCluster, "a task that waits for a larger one lends it its CPU") {
  // The node has 2: one of the task that waits, and none more than one that is free.
  CHECK(cluster.submit<&by_larger_task>(21, 2.0).get(20s).value() == 42);
  // And what asks for none waits for none.
  auto blocked = cluster.tasks({.num_cpus = 2}).submit<&wait_for>(folder.file("never"));
  CHECK(cluster.tasks({.num_cpus = 0}).submit<&twice>(4).get(20s).value() == 8);
  blocked.cancel();
}

TEST_CASE_FIXTURE(TaskCluster, "what a task submits after it was given up does not begin") {
  auto late = cluster.submit<&submit_late>(folder.file("began"), folder.file("survived"));
  REQUIRE(appears(folder.file("began")));
  late.cancel();
  CHECK(appears(folder.file("survived")));
}

TEST_CASE_FIXTURE(TaskCluster, "a worker whose task is late is replaced, and others go elsewhere") {
  std::vector<Future<void>> stuck;
  for (int i = 0; i < 2; ++i) {
    stuck.push_back(
        cluster.tasks({.timeout = 200ms}).submit<&stay>(folder.file(std::to_string(i))));
  }
  for (auto& future : stuck) CHECK(future.get().code() == Code::kDeadlineExceeded);
  // (Their workers are ended after 5 s.)
  for (int i = 0; i < 20; ++i) CHECK(cluster.submit<&twice>(i).get(20s).value() == 2 * i);
}

TEST_CASE_FIXTURE(TaskCluster, "references to objects, in arguments and results") {
  auto made = cluster.submit<&filled>(100'000u, 2.0f).get().value();
  // (Nothing of this process had to do with objects before.)
  CHECK((*made.get().value()).size() == 100'000);
  CHECK(cluster.submit<&sum>(made).get().value() == 200'000);
  const auto own = cluster.put(Floats(1'000, 1.0f)).value();
  CHECK(cluster.submit<&sum>(own).get().value() == 1'000);
}

TEST_CASE_FIXTURE(TaskCluster,
                  "map, in order and by a window; map_reduce, in the order of inputs") {
  std::vector<int> numbers(500);
  std::iota(numbers.begin(), numbers.end(), 0);
  auto map = cluster.tasks().map<&twice>(numbers, {.window = 20});
  for (int i = 0; i < 500; ++i) {
    const auto item = map.next().get().value();
    REQUIRE(item.has_value());
    CHECK(item->index == static_cast<std::size_t>(i));
    CHECK(item->result.value() == 2 * i);
  }
  CHECK_FALSE(map.next().get().value().has_value());
  std::string expected;
  for (int i = 0; i < 101; ++i) expected += std::to_string(i) + " ";
  CHECK(
      cluster.tasks()
          .map_reduce<&text_of, &join>(std::vector<int>(numbers.begin(), numbers.begin() + 101), 8)
          .value() == expected);
  CHECK(cluster.tasks().map_reduce<&text_of, &join>(std::vector<int>()).status().code() ==
        Code::kInvalidArgument);
  // The others are given up, and hold nobody up.
  const std::vector<int> ten = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  CHECK(cluster.tasks().map_reduce<&fail_or_wait, &add>(ten).status().code() ==
        Code::kInvalidArgument);
  CHECK(cluster.submit<&twice>(1).get(15s).value() == 2);
}

TEST_CASE_FIXTURE(TaskCluster,
                  "what no node can hold is refused; tasks of other options have room") {
  const Status never = cluster.tasks({.num_cpus = 100}).submit<&twice>(1).get().status();
  CHECK(never.code() == Code::kResourceExhausted);
  CHECK(cluster.tasks({.num_cpus = -1}).submit<&twice>(1).get().status().code() ==
        Code::kInvalidArgument);
  // Workers that have nothing to do give their CPUs to others.
  for (int i = 0; i < 20; ++i) {
    CHECK(cluster.tasks({.num_cpus = 2}).submit<&twice>(i).get().value() == 2 * i);
    CHECK(cluster.submit<&twice>(i).get().value() == 2 * i);
  }
}

// All of a stream, and how it ended.
std::pair<std::vector<int>, Status> read_all(StreamReader<int>& reader) {
  std::vector<int> items;
  for (;;) {
    const auto item = reader.next(20s);
    if (!item.ok()) return {items, item.status()};
    if (!*item) return {items, Status()};
    items.push_back(**item);
  }
}
std::vector<int> up_to(int n) {
  std::vector<int> numbers(static_cast<std::size_t>(n));
  std::iota(numbers.begin(), numbers.end(), 1);
  return numbers;
}

// peer: test_generators.items
TEST_CASE_FIXTURE(TaskCluster, "a task gives a stream, item by item, and its failure behind them") {
  auto numbers = cluster.submit<&count_to>(1000);
  CHECK(read_all(numbers) == std::pair(up_to(1000), Status()));
  auto none = cluster.submit<&count_to>(0);
  CHECK(read_all(none).first.empty());
  for (const bool throws : {false, true}) {
    auto failing = cluster.submit<&count_and_end>(100, throws);
    const auto [items, end] = read_all(failing);
    CHECK(items == up_to(100));
    CHECK(end.code() == (throws ? Code::kActorError : Code::kNotFound));
    CHECK(end.to_string().find("task=count_and_end") != std::string::npos);
  }
  auto by_tasks = cluster.submit<&doubles>(20);
  auto [doubled, end] = read_all(by_tasks);
  for (int& number : doubled) number /= 2;
  CHECK(doubled == up_to(20));
  auto unknown = cluster.submit<&unlisted_stream>();
  CHECK(read_all(unknown).second.code() == Code::kNotFound);
  auto without_window = cluster.tasks({.stream_window = 0}).submit<&count_to>(3);
  CHECK(read_all(without_window).second.code() == Code::kInvalidArgument);
}

// peer: test_generators.backpressure
TEST_CASE_FIXTURE(TaskCluster,
                  "a task's stream goes no further than its window, and ends with its reader") {
  const std::string file = folder.file("items");
  const std::string ended = folder.file("ended");
  {
    auto numbers = cluster.tasks({.stream_window = 4}).submit<&count_into>(file, ended);
    CHECK(numbers.next(20s).value() == 1);
    const Deadline patience = Deadline::after(20s);
    while (std::filesystem::file_size(file) < 4 && !patience.passed()) std::this_thread::yield();
    CHECK(cluster.submit<&twice>(1).get().value() == 2);  // (elsewhere, or beside it)
    CHECK(std::filesystem::file_size(file) == 4);
    for (int i = 2; i < 100; ++i) REQUIRE(numbers.next(20s).value() == i);
    CHECK_FALSE(std::filesystem::exists(ended));
  }
  CHECK(appears(ended));
  auto numbers = cluster.submit<&count_into>(file, ended + "2");
  REQUIRE(numbers.next(20s).value() == 1);
  numbers.cancel();
  CHECK(read_all(numbers).second.code() == Code::kCancelled);
  CHECK(appears(ended + "2"));
  auto late = cluster.tasks({.timeout = 200ms}).submit<&count_into>(file, ended + "3");
  CHECK(read_all(late).second.code() == Code::kDeadlineExceeded);
}

// peer: test_generators.worker_death
TEST_CASE_FIXTURE(TaskCluster, "a stream whose worker dies goes on behind what has come") {
  auto numbers =
      cluster.tasks({.stream_window = 5}).submit<&count_and_crash>(folder.file("twice"), 2, 12, 30);
  CHECK(read_all(numbers) == std::pair(up_to(30), Status()));
  CHECK(std::filesystem::file_size(folder.file("twice")) == 3);
  auto once =
      cluster.tasks({.retries = 0}).submit<&count_and_crash>(folder.file("once"), 1, 12, 30);
  const auto [items, end] = read_all(once);
  CHECK(end.code() == Code::kActorDied);
  CHECK(items == up_to(static_cast<int>(items.size())));
  CHECK(items.size() <= 11);
  CHECK(cluster.submit<&twice>(1).get().value() == 2);
}

TEST_CASE_FIXTURE(TaskCluster, "who waits for a stream, and whose stream waits, lend their CPUs") {
  // Each has all of them.
  CHECK(cluster.tasks({.num_cpus = 2}).submit<&sum_of_stream>(20, 2.0).get(20s).value() == 210);
  const Tasks wide = cluster.tasks({.num_cpus = 2, .stream_window = 2});
  auto first = wide.submit<&count_to>(6);
  auto second = wide.submit<&count_to>(6);
  for (int i = 1; i <= 6; ++i) {
    CHECK(first.next(20s).value() == i);
    CHECK(second.next(20s).value() == i);
  }
}

TEST_CASE_FIXTURE(TaskCluster,
                  "references to objects in a task's stream, which outlive their worker") {
  std::vector<ObjectRef<Floats>> refs;
  auto objects = cluster.submit<&objects_to>(100);
  for (int i = 1; i <= 100; ++i) refs.push_back(*objects.next(20s).value());
  CHECK_FALSE(objects.next(20s).value().has_value());
  for (std::size_t i = 1; i <= 100; ++i) {
    const auto object = refs[i - 1].get().value();
    REQUIRE((*object).size() == i);
    CHECK((*object).back() == static_cast<float>(i));
  }
  refs.clear();
  const Deadline patience = Deadline::after(20s);
  while (cluster.object_store().value().objects > 0 && !patience.passed()) {
    std::this_thread::sleep_for(1ms);
  }
  CHECK(cluster.object_store().value().objects == 0);
}

TEST_CASE_FIXTURE(TaskCluster, "large results of tasks") {
  for (const std::size_t count : {100'000u, 3'000'000u, 100'000u, 3'000'000u}) {
    const auto bytes = cluster.submit<&bytes_of>(count).get(20s).value();
    CHECK(bytes == std::vector<std::byte>(count, std::byte{7}));
  }
}

TEST_CASE_FIXTURE(TaskCluster, "a deadline ends a task that waits; the end of the cluster all") {
  const std::string gate = folder.file("gate");
  std::vector<Future<std::int64_t>> busy;
  for (int i = 0; i < 2; ++i) busy.push_back(cluster.submit<&wait_for>(gate));
  const Status late = cluster.tasks({.timeout = 50ms}).submit<&twice>(1).get(20s).status();
  CHECK(late.code() == Code::kDeadlineExceeded);
  auto waits = cluster.submit<&twice>(2);
  cluster.close();
  CHECK(waits.get().status().code() == Code::kCancelled);
  for (auto& future : busy) CHECK(future.get().status().code() == Code::kCancelled);
  CHECK_FALSE(cluster.submit<&twice>(3).get().ok());
}

}  // namespace
}  // namespace troupe::tests
