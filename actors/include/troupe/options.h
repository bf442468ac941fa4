#pragma once
// Options of actors and calls, and how actors are ended.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "troupe/clock.h"
#include "troupe/detail/durations.h"
#include "troupe/ids.h"
#include "troupe/info.h"
#include "troupe/timeouts.h"

namespace troupe {

enum class Isolation {
  kProcess,  // a process of its own: can crash, be killed, hold a GPU, without harm to others
  kShared,   // light: thousands in a host process and its one thread (light_actors.h)
};

// With whom something ends that an actor creates. What a driver creates ends with the driver.
enum class Owner : std::uint8_t {
  // The actor's process that creates it: a successor begins anew and nothing is left over.
  kProcess,
  // The actor, and not yet when it gets another process, which finds it by its name, or by a handle
  // in its saved state.
  kActor,
  // The driver of the actor's job.
  kJob,
};

// How an actor is placed, named and restarted.
struct ActorOptions {
  std::string name = {};  // unique among living actors of its namespace; empty: unnamed
  double num_cpus = 1;
  // Whole ones, or a part of one that others share. Its process sees these and no others, as
  // CUDA_VISIBLE_DEVICES has it, and none with 0, unless `environment` sets that variable.
  double num_gpus = 0;
  double memory_bytes = 0;
  std::map<std::string, double> resources = {};  // the user's own kinds; multiples of 1/10,000
  // How often it may be restarted within the window; -1 without limit. Its last saved state comes
  // back, on another node too (examples/guide/lifetimes.md).
  int max_restarts = 0;
  // What an actor saved is kept in the memory of its node, and is lost with that. Then it goes on
  // with load_lost(), where its class has one; otherwise it dies with kDataLoss in its cause,
  // unless this says that it may as well begin anew.
  bool start_empty_on_state_loss = false;
  // 1: what it saves has a copy on another node (in another `rack`, where nodes have that label),
  // brought in step before a call is answered, so that the loss of a node loses no acknowledged
  // call. On the only node it goes on without, and says so; a copy is made when it saves and there
  // is another node. Of a class with save() and load().
  int replicas = 0;
  std::chrono::milliseconds restart_window{60'000};  // 0: over the actor's whole life
  std::chrono::milliseconds backoff_initial{10};
  std::chrono::milliseconds backoff_max{2'000};
  std::optional<NodeId> node_affinity = {};  // this node or nowhere
  bool node_affinity_soft = false;           // this node first, then others
  // Conditions on the node's labels, by label: "a", "!a", "in(a,b)", "!in(a,b)", "exists()" and
  // "!exists()"; a negated one also holds where the label is missing. The selector is hard. Nodes
  // of the preference are tried first, then others.
  std::map<std::string, std::string> label_selector = {};
  std::map<std::string, std::string> label_preference = {};
  // Runs in a bundle of this group (placement_group.h) and takes its resources from it; ends when
  // the group is removed. bundle_index -1: any bundle with room.
  GroupId placement_group = {};
  int bundle_index = -1;
  // An actor (or a gang) that no present node could hold, were it idle, is refused with
  // kResourceExhausted; one that says this is not asked: it waits for nodes that may yet join.
  bool awaits_nodes = false;
  // While it waits for room: larger ones are tried first. Nothing that runs is stopped for it. 0 is
  // that of the submitted job, where the driver is in one.
  int priority = 0;
  bool detached = false;  // ends with nobody
  Owner owner = Owner::kProcess;
  // The namespace of the name; empty: that of the driver, or of the actor, that creates it.
  std::string namespace_name = {};
  // Who restarts it, with others (supervision.h); max_restarts is 0 then. Empty: nobody.
  SupervisorId supervisor = {};
  // How often the actor is asked for its health, 0: never. Its class's `Status health()` or
  // `bool healthy()` runs on the actor's thread between calls; without either, that the thread
  // comes to answer is enough. Where the answer is no, or none comes for interval + timeout (so
  // that is longer than its longest call), the process is killed, and max_restarts applies.
  std::chrono::milliseconds health_interval{0};
  std::chrono::milliseconds health_timeout{5'000};
  OnHeadLoss on_head_loss = OnHeadLoss::kKeep;
  // How many calls may be in progress at once, and how many more may wait before callers are told
  // kOverloaded; 0: as the class declares (concurrency.h).
  int max_concurrency = 0;
  int max_pending_calls = 0;
  // Shown in the process's command line, so that ps tells processes apart.
  std::string run = {};
  int rank = -1;                                        // -1: none
  std::map<std::string, std::string> environment = {};  // at most 64 KiB
  std::string log_path = {};  // the process's output is appended here too; empty: nowhere else
  // kShared: everything above is said of the host process. Light actors of one class and the same
  // options share hosts.
  Isolation isolation = Isolation::kProcess;
  std::uint32_t light_per_host = 10'000;  // how many light actors a host takes at most
};

// How one call is made: handle.with(CallOptions{.timeout = …}).call<…>(…).
struct CallOptions {
  // Covers everything: waiting for the actor to start or restart, its mailbox, and the method. The
  // actor does not begin a call whose time is over.
  Duration timeout = kCallTimeout;
  // Send the call again when its connection or process is lost before its answer came. Without it a
  // call runs at most once, and is sent again only where its process has said that it did not begin
  // it (a node that is drained). A living actor never runs a repeated call twice; after a death the
  // call may have run and been saved already: its method is idempotent, or its class kExactlyOnce.
  // Of calls with one result: one that returns a Stream is refused with it (kInvalidArgument).
  bool retry = false;
  // When an actor goes on without the state that it had saved, which was lost with its node, the
  // next call of each caller that knew it before ends with kDataLoss, sent or not again, with
  // `retry` or without: once, so that nobody goes on in the belief that nothing was lost. True:
  // this call is sent all the same, for what does not depend on what was said before.
  bool despite_state_loss = false;
  // A call made inside an actor's method ends with the call that the method answers: at its
  // deadline where that is earlier than `timeout`, and when it is cancelled. False: it is on its
  // own, and may outlive it.
  bool inherit = true;
  // Of methods that return a Stream: how many items may be on the way or not taken yet.
  std::uint32_t stream_window = 64;
};

// Where an actor is looked for.
struct GetOptions {
  std::string namespace_name = {};  // empty: the caller's own
  Duration timeout = kControlTimeout;
};

// How an actor is ended. Without grace it is killed at once, and kill() returns when the process is
// gone: no later call is answered by it. (Where its node cannot be reached that is
// kDeadlineExceeded: the head remembers, and ends it when the node is back.)
struct KillOptions {
  // The actor's restart policy applies, as if it had died by itself.
  bool allow_restart = false;
  // The method that runs may finish within this time, and the actor's destructor runs.
  std::chrono::milliseconds grace{0};
  std::string reason = "killed by its user";
};

// How an actor is ended when it has done what it was asked to. At once it takes no new calls: they
// end with kActorDied.
struct StopOptions {
  // Calls that are queued run, too; without it, only the one that runs.
  bool drain = true;
  // After this the process is ended, whatever it still had to do; calls that it did not begin end
  // with kActorDied, the one that ran with kUnavailable.
  std::chrono::milliseconds timeout{10'000};
  std::string reason = "stopped by its user";
};
struct StopReport {
  // Calls that were accepted and not finished. Nothing where its process could not say.
  std::optional<std::size_t> calls_dropped;
};

}  // namespace troupe
