#pragma once
// Blocks of launches as graphs: one call enqueues what took tens.
//
// A block's launches are recorded (launch_record.h). What was recorded the same twice is captured
// as a graph, and from then on the graph is launched wherever the same is recorded again: every
// address and number is compared, so that a graph does what the launches would do, bit for bit.
// Everything else runs as it was recorded. Numbers that change from step to step are such that no
// graph serves: they belong outside of blocks.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "train/cuda/device/stream.h"
#include "train/cuda/operators/graph_trial.h"
#include "train/cuda/operators/launch_record.h"

namespace troupe::train {

struct GraphOptions {
  // kWhereFaster: both ways are timed over the first blocks, and the faster one stays. Bits are the
  // same, so ranks may differ.
  enum class Use { kNever, kWhereFaster, kAlways };
  Use use = Use::kNever;
  // Of one block: as many shapes and places as it comes back to. The one that was not used for
  // longest goes.
  int graphs_per_block = 4;
  // What was chosen and why; that a graph could not be made.
  std::function<void(const std::string&)> notice = [](const std::string&) {};
  // Null: the system's. Outlives the object.
  const Clock* clock = nullptr;
};

// Of one stream, by one thread. Graphs are an optimisation: where one cannot be captured a notice
// says so, once, and everything runs without.
class BlockGraphs {
 public:
  // `stream` outlives the object.
  BlockGraphs(CudaStream& stream, const GraphOptions& options);
  // What was launched is done.
  ~BlockGraphs();
  BlockGraphs(const BlockGraphs&) = delete;
  BlockGraphs& operator=(const BlockGraphs&) = delete;

  // What the blocks' launches go through, and those between blocks may.
  LaunchRecord& record() { return record_; }

  // Launches up to end() are the block's, which is told from others by its number.
  void begin(int block);
  // Runs them. Errors: the first launch's that failed.
  Status end();
  // Runs those that were recorded so far; the rest of the block is enqueued as it comes. Before
  // anything that must come behind them without being recorded.
  Status flush();
  // Forgets what was recorded of the block, which is not to run.
  void drop() { record_.close(); }
  // Destroys all graphs. Before something goes that launches use, unless the stream waits for it
  // and no block uses it again.
  void forget();

  struct Counts {
    std::int64_t captured = 0, launched = 0;  // graphs
    std::int64_t run = 0;                     // blocks, by their launches
    std::int64_t evicted = 0;
  };
  Counts counts() const { return counts_; }
  // Whether blocks are recorded (still).
  bool in_use() const { return in_use_; }

 private:
  struct Graph {
    std::uint64_t hash = 0;
    std::vector<std::uint64_t> words;
    TroupeCudaGraph* graph = nullptr;
    std::int64_t last_used = 0;
    std::optional<Duration> without;  // timed, and not yet with the graph
  };
  struct Block {
    std::vector<Graph> graphs;
    std::vector<std::uint64_t> seen;  // hashes of what no graph is there for, the oldest first
    std::int64_t captured = 0, used = 0;
  };

  const TroupeCudaTable& table() const { return stream_.device()->table(); }
  Status run();
  Status launch(Graph& graph);
  Status compare(Graph& graph);
  Status capture(Block& block, std::uint64_t hash);
  Status make_graph(TroupeCudaGraph** graph);
  Graph* find(Block& block, std::uint64_t hash);
  static bool seen_before(Block& block, std::uint64_t hash);
  void evict_oldest(Block& block);
  void destroy(Graph& graph);
  void stop(const std::string& why);

  CudaStream& stream_;
  const GraphOptions options_;
  const SystemClock system_clock_;
  const Clock& clock_;
  LaunchRecord record_;
  std::map<int, Block> blocks_;
  int block_ = 0;
  bool in_use_ = true;
  std::optional<GraphTrial> trial_;  // as long as it runs
  std::int64_t uses_ = 0;
  Counts counts_;
};

}  // namespace troupe::train
