#pragma once
// A driver's way into Troupe: a cluster of its own inside the process, or a running one.
//
//   auto cluster = troupe::Cluster::start_embedded().value();
//   auto counter = cluster.spawn<Counter>({.name = "counter"}, 0).value();
//   int n = counter.call<&Counter::add>(3).get(std::chrono::seconds(5)).value();
//
// Actors that are not detached end with the Cluster object, and with the process however it ends.
// Thread-safe. Handles, futures and watches may outlive it: their calls end with kCancelled. What
// is asked of a Cluster that was closed or moved from ends with kFailedPrecondition, and its
// watches say nothing. So it is with everything here that is moved: futures, stream readers,
// handles, groups.
//
// fork(): the connections stay with the parent, which notices nothing. In the child everything here
// is refused with kFailedPrecondition, close() and the destructor do nothing, and a Cluster of its
// own (connect()) works. A child that a method of an actor forks may not use its parent's context
// either, and must not return from the method.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "troupe/actors.h"
#include "troupe/address.h"
#include "troupe/clock.h"
#include "troupe/ids.h"
#include "troupe/info.h"
#include "troupe/log_level.h"
#include "troupe/output_limits.h"
#include "troupe/placement_group.h"
#include "troupe/status.h"
#include "troupe/timeouts.h"
#include "troupe/token.h"

namespace troupe {

class Environment;  // environment variables; for tests

namespace detail {
class OwnCluster;
}

using OnOutput = std::function<void(const std::string& actor, std::string_view line)>;

// The head, one node and the driver in one process, on the loopback interface, without files.
struct EmbeddedOptions {
  double num_cpus = 0;  // 0: the CPUs this process may use
  std::map<std::string, double> resources = {};
  std::map<std::string, std::string> labels = {};  // of the node
  // Output of the job's actors, line by line and one line at a time, on a thread of Troupe's; by
  // default it goes to standard error with the actor's name before it. Of an actor that writes
  // faster than `output_limits` allow a line says how much was left out. Once an actor of this
  // driver (or of one of its actors) has waited for room for `tell_waiting_after`, a line of
  // "troupe" says so: "reader waits: needs CPU 1; vm has CPU 0 of 2 free".
  OnOutput on_output = {};
  Duration tell_waiting_after = std::chrono::seconds(2);
  OutputLimits output_limits = {};
  // Shared memory for objects, at most; 0: 30 % of what is available. And where they go when it is
  // full; empty: a folder in the system's for temporary files.
  std::uint64_t object_memory_bytes = 0;
  std::string object_spill_dir = {};
  std::string log_dir = {};  // the node's own log files; empty: none
  std::string job_name = "driver";
  std::string program = {};         // that hosts the job's actors (host_main); empty: this one
  std::string namespace_name = {};  // as ConnectOptions::namespace_name
  LogLevel log_level = LogLevel::kWarning;  // of head and node, to standard error
  // An address of this machine and a token that others know: then worker nodes of other machines
  // may join, and end with this cluster. By default nobody else can.
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;  // 0: a free one
  Token token = {};        // empty: a random one
};

// A cluster that runs already. What is left open comes from where the command line takes it: the
// environment (that of a program which `troupe submit` runs has all of it), else the note of the
// head that was started last on this machine, ~/.troupe/current.
struct ConnectOptions {
  std::string host = {};  // empty: host and port of TROUPE_ADDRESS, else of ~/.troupe/current
  std::uint16_t port = 0;
  // Empty: from the file that ~/.troupe/current names, where that names the cluster; else from
  // TROUPE_TOKEN_FILE, else ~/.troupe/token.
  Token token = {};
  // The submitted job that this driver belongs to; empty: TROUPE_JOB_ID where the cluster is that
  // of TROUPE_ADDRESS, else a job of its own. Its actors end with this Cluster, and with the job.
  JobId job_id = {};
  std::string job_name = "driver";
  std::string program = {};  // as EmbeddedOptions::program
  // Where the names that its actors give and ask for are; empty: in one that is this job's own.
  std::string namespace_name = {};
  Duration timeout = kControlTimeout;
  OnOutput on_output = {};  // as EmbeddedOptions::on_output; the nodes' own limits hold
  Duration tell_waiting_after = std::chrono::seconds(2);
  // False: nobody asks the nodes for output, and nothing is said of actors that wait.
  bool follow_output = true;
  const Environment* environment = nullptr;  // null: the process's
};

// What it does with actors is declared in actors.h.
class Cluster : public Actors {
 public:
  static Result<Cluster> start_embedded(const EmbeddedOptions& options = {});
  // kUnavailable (also where the head that ~/.troupe/current names has ended), kUnauthenticated,
  // kDeadlineExceeded; kNotFound where nothing names a cluster;
  // kProtocol where the head is of another version.
  static Result<Cluster> connect(const ConnectOptions& options = {});

  Cluster(Cluster&&) noexcept;
  Cluster& operator=(Cluster&&) noexcept;
  ~Cluster() override;  // close()

  // Asks for resources on the nodes as a whole; returns when the head has accepted, not when it is
  // reserved: PlacementGroup::ready waits for that. It is removed when this Cluster ends, unless
  // detached. kAlreadyExists for a name that is taken, kInvalidArgument for bundles that make no
  // sense.
  Result<PlacementGroup> create_placement_group(const PlacementGroupOptions& options,
                                                Duration timeout = kControlTimeout);
  // The group of this name that was not removed. kNotFound.
  Result<PlacementGroup> get_placement_group(const std::string& name,
                                             Duration timeout = kControlTimeout);
  // Of all jobs, also those that were removed, as far as the head remembers them.
  Result<std::vector<PlacementGroupInfo>> placement_groups(Duration timeout = kControlTimeout);

  // Ends the job's actors, and the cluster where it is embedded; nothing is left behind. The
  // destructor does it too. `reason`: what nodes that joined an embedded cluster are told.
  void close(const std::string& reason = "the driver has ended");

  // Where the head listens, and its token: for other processes that are to join in.
  // (Of one that was moved from all of these are empty.)
  const Address& head_address() const;
  const Token& token() const;
  const JobId& job_id() const;
  // The one that was named, or the job's own.
  const std::string& namespace_name() const;
  // Of the node in this process; empty where the cluster is not embedded.
  const NodeId& node_id() const;

 private:
  friend struct detail::Access;
  struct State;
  explicit Cluster(std::unique_ptr<State> state);
  Result<Client> usable() const override;
  Client client() const;
  const State& state() const;  // an empty one where it was moved from
  void drop();
  // `start` starts head and node in this process, which pass actors' output to what it is given.
  static Result<Cluster> start_own(
      const EmbeddedOptions& options,
      const std::function<Result<std::unique_ptr<detail::OwnCluster>>(OnOutput)>& start);
  static Status join(State& state, NodeId node_id, JobId job_id, const std::string& job_name,
                     const std::string& namespace_name, const std::string& program,
                     Deadline deadline);
  static void follow_output(State& state);
  static void tell_of_waiting(State& state, Duration after);
  std::unique_ptr<State> state_;
};

}  // namespace troupe
