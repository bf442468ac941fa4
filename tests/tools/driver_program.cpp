// A driver for the tests of the tools, and the process of its actor.
//
//   test_tools_driver HOST:PORT TOKEN_FILE NAME [groups]
//   test_tools_driver HOST:PORT TOKEN_FILE NAME work
//   test_tools_driver NAME [EXIT_CODE]
//
// The second form, as a job's program, finds the cluster in its environment; it ends with the exit
// code after its actor has spoken, or stays.
//
// With "groups" the actor runs in bundle 1 of the placement group "train" under the supervisor
// "crew", and the group "huge" waits for what no node has.
//
// With "work" there are two tasks for one CPU, which stay, a pool and a group, and a pipeline that
// its second stage holds up.
//
// Spawns the actor NAME on a running cluster, lets it say something, prints "ready", and stays
// until it is killed or, without "groups", its standard input ends.

#include <unistd.h>

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <mutex>
#include <stop_token>
#include <string>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/net/parse_address.h"
#include "runtime/net/token.h"
#include "troupe/actor.h"
#include "troupe/actor_group.h"
#include "troupe/actor_pool.h"
#include "troupe/cluster.h"
#include "troupe/pipeline.h"
#include "troupe/tasks.h"

namespace {

class Talker {
 public:
  int say(const std::string& words) {
    std::printf("the actor says %s\n", words.c_str());
    std::fflush(stdout);
    return 0;
  }
  static constexpr auto methods = troupe::methods<&Talker::say>;
};

void wait_until_stopped(const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any changed;
  std::unique_lock lock(mutex);
  changed.wait(lock, stop, [] { return false; });
}

// A stage and a task that run until they are asked to stop.
class Stage {
 public:
  explicit Stage(troupe::ActorContext& context) : context_(context) {}
  int pass(int item) { return item; }
  int stay(int item) {
    wait_until_stopped(context_.call_stop_token());
    return item;
  }
  static constexpr auto methods = troupe::methods<&Stage::pass, &Stage::stay>;

 private:
  troupe::ActorContext& context_;
};
int stay(troupe::ActorContext& context) {
  wait_until_stopped(context.call_stop_token());
  return 0;
}

void work(troupe::Cluster& cluster) {
  const troupe::ActorOptions free{.num_cpus = 0};
  auto tasks = std::vector<troupe::Future<int>>();
  for (int i = 0; i < 3; ++i) tasks.push_back(cluster.submit<&stay>());
  auto pool = troupe::ActorPool<Talker>::create(cluster, {.member = free}).value();
  auto group = troupe::ActorGroup<Talker>::spawn(cluster, {{"dp", 2}, {"tp", 1}}, free).value();
  auto first = cluster.spawn<Stage>(free).value();
  auto second = cluster.spawn<Stage>(free).value();
  auto pipeline = troupe::PipelineBuilder<int>(cluster)
                      .stage<&Stage::pass>("read", first)
                      .stage<&Stage::stay>("slow", second)
                      .build({.in_flight = 4})
                      .value();
  std::vector<troupe::Future<int>> items;
  for (int i = 0; i < 4; ++i) items.push_back(pipeline.push(i).value());
  std::puts("ready");
  std::fflush(stdout);
  while (true) ::pause();  // until it is killed
}

}  // namespace

// In whatever the environment names.
int main_of_job(int argc, char** argv) {
  using namespace std::chrono_literals;
  try {
    auto cluster = troupe::Cluster::connect().value();
    auto talker = cluster.spawn<Talker>({.name = argv[1], .num_cpus = 0.5}).value();
    talker.call<&Talker::say>("hello from " + std::string(argv[1])).get(20s).value();
    cluster.create_placement_group({.bundles = {{{"CPU", 0.5}}}, .name = argv[1]}).value();
    std::puts("ready");
    std::fflush(stdout);
    if (argc == 3) return std::atoi(argv[2]);
    while (true) ::pause();
  } catch (const troupe::StatusError& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return troupe::exit_code(e.status().code());
  }
}

int main(int argc, char** argv) {
  if (const auto code =
          troupe::host_main(argc, argv, troupe::actors<Talker, Stage>, troupe::tasks<&stay>))
    return *code;
  if (argc == 2 || argc == 3) return main_of_job(argc, argv);
  if (argc != 4 && argc != 5) return 2;
  using namespace std::chrono_literals;
  try {
    troupe::PosixFileSystem files;
    const auto head = troupe::net::parse_address(argv[1], "HEAD").value();
    auto cluster =
        troupe::Cluster::connect({.host = head.host,
                                  .port = head.port,
                                  .token = troupe::net::read_token_file(files, argv[2]).value(),
                                  .job_name = "test driver"})
            .value();
    if (argc == 5 && std::string(argv[4]) == "work") work(cluster);
    troupe::ActorOptions options{.name = argv[3]};
    if (argc == 5) {
      auto train =
          cluster
              .create_placement_group({.bundles = {{{"CPU", 0.5}}, {{"CPU", 1}}}, .name = "train"})
              .value();
      cluster.create_placement_group({.bundles = {{{"CPU", 10'000}}}, .name = "huge"}).value();
      options.placement_group = train.id();
      options.bundle_index = 1;
      options.supervisor = cluster.supervise({.name = "crew"}).value().id();
    }
    auto talker = cluster.spawn<Talker>(options).value();
    talker.call<&Talker::say>("hello from " + std::string(argv[3])).get(20s).value();
    std::puts("ready");
    std::fflush(stdout);
    if (argc == 5) ::pause();  // until it is killed
    std::cin.get();
  } catch (const troupe::StatusError& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return troupe::exit_code(e.status().code());
  }
}
