#pragma once
// A cluster that many drivers use at once, in virtual time and one thread, all from one seed: nodes
// join and die, actors are created, called, restarted, killed, their owners go.
//
// Real: the head's and the nodes' state machines, the head's journal. Simulated: messages, the
// journal's disk, processes, keepers, drivers, callers, and everything that goes wrong with them.

#include <cstdint>
#include <string>
#include <string_view>

namespace troupe::simulation {

// Faults planted in the simulated surroundings, to see that they are noticed.
enum class SchedulerMistake : std::uint8_t {
  kNone,
  kForgetsFencing,      // a node that cannot reach its head ends none of its actors
  kImpatientHead,       // what a lost node ran is started elsewhere at once
  kEndsTooEarly,        // a process counts as gone while it runs
  kSendsBeforeJournal,  // the head's commands leave before its decisions are kept
  kJournalsOneByOne,    // decisions that belong together may be torn apart
  kLosesMessages,       // a connection that stays loses some of what the head says
  kLeaksDescriptors,    // a node does not close all that it should
  kForgetsRecords,      // a keeper does not hold all that it was given
  kStartsTwice,         // a node starts a generation twice
  kLosesReleases,       // a node holds on to what a placement group was to give back
  kLosesExits,          // a lease is never free again: nobody hears that its process is gone
  kForgetsLeases,       // a new head does not know all leases that the one before had given
  kAnswersTwice,        // a request has two answers
  kFencesAll,           // a node that cannot reach its head ends all its actors
  kKeepsStale,          // a node that comes back does not end what has a successor
};
inline constexpr int kSchedulerMistakes = 16;
std::string_view mistake_name(SchedulerMistake mistake);

struct SchedulerOptions {
  std::uint64_t seed = 1;
  int nodes = 0;    // 0: a few, by the seed
  int actors = 0;   // 0: some dozens, by the seed
  int groups = -1;  // placement groups; -1: some for every hundred actors
  int faults = -1;  // besides the nodes that die for good; -1: as many as fit the size
  int kills = 0;    // of actors' processes, besides
  SchedulerMistake mistake = SchedulerMistake::kNone;
  std::string canary;  // canaries.h; empty: none
  bool trace = false;  // prints what happens
};

struct SchedulerResult {
  std::string violation;  // what was wrong, as a sentence; empty: nothing
  std::uint64_t trace_hash = 0;
  std::uint64_t events = 0;
  std::int64_t virtual_ms = 0;
  // What happened, to see that the faults find something to break.
  int nodes_joined = 0;
  int nodes_lost = 0;   // for good
  int actors = 0;       // accepted
  int gangs = 0;        // asked for
  int groups = 0;       // accepted
  int processes = 0;    // of actors, started
  int kills = 0;        // of processes, by the faults
  int crash_kills = 0;  // of processes, with their machines
  int requests = 0;
  int requests_repeated = 0;  // said again on another connection
  int calls_answered = 0;
  int calls_failed = 0;
  int head_crashes = 0;
  int torn_appends = 0;
  int daemon_kills = 0;
  int cuts = 0;
  int freezes = 0;
  int head_stalls = 0;
  int overlaps = 0;  // a process began while an older one of its actor lived on a lost node
  int owners_gone = 0;

  // The numbers of several seeds together; violation and hash stay.
  SchedulerResult& operator+=(const SchedulerResult& other);
};
SchedulerResult simulate_scheduler(const SchedulerOptions& options);

}  // namespace troupe::simulation
