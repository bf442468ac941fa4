// What a head's journal costs at its limit: `tools/bench journal`.
//
// Prints "name value unit" lines, for a head that keeps as many actors as it may, of 1 MiB of
// constructor arguments and of none, with all the dead actors and events that it remembers and as
// much history as the file may have: the file, resident memory, and how long a head that is started
// on it takes until it listens, answers, and has written the journal anew. The file lies in the
// folder that is given.

#include <malloc.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/clock.h"
#include "runtime/base/file_system.h"
#include "scheduler/control/head_state.h"
#include "scheduler/control/journal_bytes.h"
#include "scheduler/head/journal.h"

namespace {

using namespace troupe;             // NOLINT
using namespace troupe::scheduler;  // NOLINT

constexpr double kMiB = 1 << 20;

double now_ms() {
  return std::chrono::duration<double, std::milli>(SystemClock().now().time_since_epoch()).count();
}

double processor_ms() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) * 1e-6;
}

double resident_mib() {
  PosixFileSystem files;
  unsigned long long total = 0;
  unsigned long long resident = 0;
  const auto statm = files.read("/proc/self/statm", 4096).value();
  TROUPE_CHECK(std::sscanf(statm.c_str(), "%llu %llu", &total, &resident) == 2);
  return static_cast<double>(resident) * static_cast<double>(::sysconf(_SC_PAGESIZE)) / kMiB;
}

void print(const std::string& name, double value, const char* unit) {
  std::printf("%-52s %10.1f %s\n", name.c_str(), value, unit);
  std::fflush(stdout);
}

// A head without a node, and its driver: what is asked for waits.
struct Head {
  HeadState state;
  Moment now{SystemClock().now(), SystemClock().unix_time_us()};
  std::vector<Delta> deltas;
  std::uint64_t next = 1;

  Outcome say(wire::ControlMessage message) {
    Outcome outcome = state.apply(MessageArrived{1, std::move(message)}, now);
    for (Delta& delta : outcome.deltas) deltas.push_back(std::move(delta));
    return outcome;
  }
  void greet() {
    wire::ClientHello hello;
    hello.request_id = 1;
    hello.client_id = ClientId{1, 1};
    hello.name = "bench";
    static_cast<void>(say(std::move(hello)));
  }
  Status create(std::size_t argument_bytes) {
    wire::CreateActors message;
    message.request_id = 2;
    wire::ActorSpec& spec = message.specs.emplace_back();
    spec.actor_id = ActorId{2, next++};
    spec.type = "Reader";
    spec.resources = {{"CPU", wire::kResourceUnit}, {"memory", wire::kResourceUnit << 20}};
    spec.image.path = "/home/somebody/project/build/release/bin/program";
    spec.environment = {{"OMP_NUM_THREADS", "1"}};
    spec.constructor_arguments.assign(argument_bytes, std::byte{7});
    spec.detached = true;
    const Outcome outcome = say(std::move(message));
    Status made = get<wire::Reply>(get<SendMessage>(outcome.commands.at(0)).message).status;
    if (!made.ok()) --next;
    return made;
  }
  void kill_last() {
    static_cast<void>(say(wire::KillActor{3, ActorId{2, next - 1}, false, 0,
                                          "it is not needed any more, says who measures", false}));
  }
};

void measure(const std::string& what, const std::string& path, std::size_t argument_bytes) {
  PosixFileSystem files;
  static_cast<void>(files.remove(path));
  const double before_mib = resident_mib();
  std::size_t actors = 0;
  std::uint64_t next = 0;
  {
    FileJournal journal(files, path);
    Head head;
    head.greet();
    for (int i = 0; i < 6'000; ++i) {
      TROUPE_CHECK(head.create(0).ok());
      head.kill_last();
      head.deltas.clear();
    }
    while (head.create(argument_bytes).ok()) head.deltas.clear();
    actors = head.state.actors().size();
    print(what + ": actors, of them 1,000 dead", static_cast<double>(actors), "");
    print(what + ": a head's state, resident", resident_mib() - before_mib, "MiB");
    double begin = now_ms();
    auto snapshot = head.state.snapshot();
    print(what + ": a snapshot, on the loop", now_ms() - begin, "ms");
    begin = now_ms();
    TROUPE_CHECK(journal.rewrite(snapshot).ok());
    print(what + ": a rewrite, off the loop", now_ms() - begin, "ms");
    print(what + ": resident after it", resident_mib() - before_mib, "MiB");
    print(what + ": snapshot in the file", static_cast<double>(journal.size_bytes()) / kMiB, "MiB");
    snapshot = {};
    // Room for something small, which comes and goes until the file is to be rewritten.
    head.kill_last();
    head.deltas.clear();
    for (bool full = false; !full;) {
      for (int i = 0; i < 100; ++i) {
        if (head.create(0).ok()) head.kill_last();
      }
      full = journal.wants_rewrite(journal_bytes(head.deltas));
      if (!full) TROUPE_CHECK(journal.append(head.deltas).ok());
      head.deltas.clear();
    }
    print(what + ": the file at its largest", static_cast<double>(journal.size_bytes()) / kMiB,
          "MiB");
    // A last one that lives, for the head that comes back to end.
    TROUPE_CHECK(head.create(0).ok());
    TROUPE_CHECK(journal.append(head.deltas).ok());
    next = head.next;
  }
  ::malloc_trim(0);
  const double begin = now_ms();
  const double processor_begin = processor_ms();
  FileJournal journal(files, path);
  Head head;
  const Status replayed =
      journal.replay([&](Delta delta) { return head.state.replay(std::move(delta)); });
  TROUPE_CHECK(replayed.ok(), "{}", replayed.to_string());
  static_cast<void>(head.state.resume(head.now));
  print(what + ": started again: it listens after", now_ms() - begin, "ms");
  print(what + ": ... on a processor", processor_ms() - processor_begin, "ms");
  head.greet();
  head.next = next;
  head.kill_last();
  TROUPE_CHECK(!head.deltas.empty());
  TROUPE_CHECK(journal.append(head.deltas).ok());
  print(what + ": ... its first answers leave after", now_ms() - begin, "ms");
  auto snapshot = head.state.snapshot();
  TROUPE_CHECK(journal.rewrite(snapshot).ok());
  print(what + ": ... and the journal is written anew after", now_ms() - begin, "ms");
  print(what + ": ... on processors", processor_ms() - processor_begin, "ms");
  static_cast<void>(files.remove(path));
}

}  // namespace

int main(int argc, char** argv) {
  const std::string path = std::string(argc > 1 ? argv[1] : ".") + "/bench-journal.tmp";
  measure("1 MiB of arguments", path, (1u << 20) - 4096);
  ::malloc_trim(0);
  measure("no arguments", path, 0);
}
