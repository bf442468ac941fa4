#pragma once
// A program to be run in several ranks: the flags of `troupe run`, as torchrun has them
// (torch/distributed/run.py), in values.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"

namespace troupe::tools {

// A choice among standard output and standard error.
struct Streams {
  bool out = false;
  bool err = false;
  friend bool operator==(const Streams&, const Streams&) = default;
};

// torchrun's --redirects and --tee: one choice for all ranks, or by local rank.
class StreamsByRank {
 public:
  // "0" none, "1" standard output, "2" standard error, "3" both; or "0:1,1:3" by local rank, none
  // for the others. kInvalidArgument in torchrun's words.
  static Result<StreamsByRank> parse(std::string_view text);
  Streams of(int local_rank) const;
  bool any() const;

 private:
  Streams all_;
  std::map<int, Streams> by_rank_;
};

// How the machines of a run find each other.
enum class Rendezvous : std::uint8_t {
  kStatic,   // every machine was told its number
  kDynamic,  // machines come, in any order, and may go (torchrun's c10d)
};

// A machine that ranks are started on, and the numbers of its places (its GPUs).
struct RunHost {
  std::string name;
  std::vector<int> slots;
  friend bool operator==(const RunHost&, const RunHost&) = default;
};

// The launcher whose variables a rank finds in its environment.
enum class RankVariables : std::uint8_t { kTorchrun, kDeepSpeed };

struct RunOptions {
  // A rank's program and arguments, [0] a path or a name in PATH.
  std::vector<std::string> program;

  int nodes_min = 1;
  int nodes_max = 1;
  std::string processes = "1";  // of each node: a number, auto, cpu or gpu
  Rendezvous rendezvous = Rendezvous::kStatic;
  int node_rank = 0;  // of this machine; kStatic
  // Where machine 0 is; empty where there is one machine.
  std::string head_host;
  std::optional<std::uint16_t> head_port;
  std::string run_id = "none";
  std::string role = "default";
  int max_restarts = 0;
  // The machines by name, machine 0 first, with a rank a slot; empty: nobody named them.
  std::vector<RunHost> hosts;
  // This machine starts the run on `hosts`, over ssh; else each was given the command line.
  bool starts_hosts = false;
  // Flags of ssh besides those that are always given: {"-p", "2222"}.
  std::vector<std::string> ssh_arguments;
  // Every rank of a host sees the host's slots as its GPUs (CUDA_VISIBLE_DEVICES).
  bool slots_are_gpus = false;
  // Whoever started the machines' processes signals all of them (SLURM): machine 0 alone ends the
  // run. And whether it numbered and addressed the machines, too.
  bool head_gets_signals = false;
  bool machines_from_slurm = false;
  Duration join_timeout = std::chrono::seconds(600);  // until nodes_min are there
  Duration last_call = std::chrono::seconds(30);      // for more than nodes_min
  Duration stop_grace = std::chrono::seconds(30);     // between SIGTERM and SIGKILL

  StreamsByRank redirects;         // into files, not onto the console
  StreamsByRank tee;               // into files and onto the console
  std::vector<int> console_ranks;  // local ranks that the console shows; empty: all
  std::string log_dir;             // empty: a temporary folder that goes with the run

  RankVariables variables = RankVariables::kTorchrun;
  // Variables of every rank besides those of the launcher's own environment.
  std::map<std::string, std::string> environment;
  // Whether Python interpreters that have done the script's imports wait for a restart. They take
  // the memory of those imports; of ranks whose output goes to files there are none.
  bool standbys = true;
  Duration standby_after = std::chrono::seconds(5);  // an attempt's start: its own imports are done
  // ${local_rank} in an argument becomes the rank's number, as torchrun does.
  bool substitutes_local_rank = true;
  // "--local_rank=N" stands before the script's arguments, at this place of `program` (deepspeed).
  std::optional<std::size_t> local_rank_argument_at;
  // The one rank is told of no world, and finds `environment` alone (accelerate's simple launcher).
  bool alone = false;
  // When a rank has failed the launcher ends with the rank's own code; else with 1, as torchrun.
  bool ends_with_ranks_code = true;
};

// "4", "1:4". kInvalidArgument in torchrun's words.
Result<std::pair<int, int>> parse_nodes(std::string_view text);

// The processes of a node with so many logical CPUs and GPUs. kInvalidArgument in torchrun's words.
Result<int> processes_of_node(const std::string& text, int cpus, int gpus);

}  // namespace troupe::tools
