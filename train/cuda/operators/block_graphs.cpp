#include "train/cuda/operators/block_graphs.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/base/hash.h"

namespace troupe::train {
namespace {

// What is remembered of a block's records that have no graph.
constexpr std::size_t kSeenMax = 8;
// A block whose graphs are launched less often than this each is captured no more: its shapes
// change too much, and a graph costs more than the launches that it saves.
constexpr std::int64_t kCapturesFree = 8;
constexpr std::int64_t kUsesPerCapture = 4;

}  // namespace

BlockGraphs::BlockGraphs(CudaStream& stream, const GraphOptions& options)
    : stream_(stream),
      options_(options),
      clock_(options_.clock ? *options_.clock : system_clock_),
      record_(stream.device()->library(), stream.get()) {
  if (options_.use == GraphOptions::Use::kWhereFaster) trial_.emplace();
  in_use_ = options_.use != GraphOptions::Use::kNever;
}

BlockGraphs::~BlockGraphs() { forget(); }

void BlockGraphs::begin(int block) {
  if (!in_use_) return;
  block_ = block;
  record_.open();
}

Status BlockGraphs::end() {
  if (!record_.is_open()) return {};
  record_.close();
  if (record_.calls() == 0) return {};
  if (trial_) {
    trial_->count_block();
    if (const auto verdict = trial_->verdict()) {
      trial_.reset();
      if (!verdict->pays) {
        stop(verdict->why);
        return run();
      }
      options_.notice(fmt::format("CUDA graphs are used: {}", verdict->why));
    }
  }
  Block& block = blocks_[block_];
  const std::uint64_t hash = xxh3_64(std::as_bytes(record_.words()));
  if (Graph* graph = find(block, hash)) {
    ++block.used;
    return trial_ ? compare(*graph) : launch(*graph);
  }
  const bool changes =
      block.captured >= kCapturesFree && block.used < block.captured * kUsesPerCapture;
  if (!seen_before(block, hash) || changes) return run();
  return capture(block, hash);
}

Status BlockGraphs::flush() {
  if (!record_.is_open()) return {};
  record_.close();
  return run();
}

Status BlockGraphs::run() {
  if (record_.calls() == 0) return {};
  ++counts_.run;
  const char* failed = "";
  const int code = record_.run(&failed);
  return stream_.device()->status(code, failed);
}

Status BlockGraphs::launch(Graph& graph) {
  graph.last_used = ++uses_;
  ++counts_.launched;
  return stream_.device()->status(table().graph_launch(stream_.get(), graph.graph),
                                  "a block's graph (troupe.cuda_graphs: false does without)");
}

// The same work in turns: by its launches, and by the graph.
Status BlockGraphs::compare(Graph& graph) {
  constexpr const char* kWhat = "a block that is timed";
  TROUPE_RETURN_IF_ERROR(stream_.wait(kWhat));
  const TimePoint began = clock_.now();
  const std::optional<Duration> without = std::exchange(graph.without, std::nullopt);
  TROUPE_RETURN_IF_ERROR(without ? launch(graph) : run());
  TROUPE_RETURN_IF_ERROR(stream_.wait(kWhat));
  const Duration spent = clock_.now() - began;
  if (without)
    trial_->add(*without, spent);
  else
    graph.without = spent;
  graph.last_used = ++uses_;
  return {};
}

Status BlockGraphs::capture(Block& block, std::uint64_t hash) {
  TroupeCudaGraph* made = nullptr;
  if (const Status captured = make_graph(&made); !captured.ok()) {
    // Nothing of it has run. A device that is lost is told by the launches.
    stop(captured.message());
    return run();
  }
  if (std::ssize(block.graphs) >= options_.graphs_per_block) evict_oldest(block);
  const auto words = record_.words();
  block.graphs.push_back({.hash = hash, .words = {words.begin(), words.end()}, .graph = made});
  ++block.captured;
  ++counts_.captured;
  return launch(block.graphs.back());
}

Status BlockGraphs::make_graph(TroupeCudaGraph** graph) {
  const CudaDevice& device = *stream_.device();
  TROUPE_RETURN_IF_ERROR(
      device.status(table().graph_capture_begin(stream_.get()), "capturing a block"));
  const char* failed = "";
  const Status launched = device.status(record_.run(&failed), failed);
  const Status ended =
      device.status(table().graph_capture_end(stream_.get(), graph), "capturing a block");
  // The first failure says what it was.
  if (launched.ok()) return ended;
  if (ended.ok()) device.given_back(table().graph_destroy(*graph), "ending a graph");
  return launched;
}

BlockGraphs::Graph* BlockGraphs::find(Block& block, std::uint64_t hash) {
  const auto words = record_.words();
  for (Graph& graph : block.graphs)
    if (graph.hash == hash && std::ranges::equal(graph.words, words)) return &graph;
  return nullptr;
}

bool BlockGraphs::seen_before(Block& block, std::uint64_t hash) {
  const auto found = std::find(block.seen.begin(), block.seen.end(), hash);
  if (found != block.seen.end()) {
    block.seen.erase(found);
    return true;
  }
  if (block.seen.size() >= kSeenMax) block.seen.erase(block.seen.begin());
  block.seen.push_back(hash);
  return false;
}

void BlockGraphs::evict_oldest(Block& block) {
  const auto oldest =
      std::min_element(block.graphs.begin(), block.graphs.end(),
                       [](const Graph& a, const Graph& b) { return a.last_used < b.last_used; });
  destroy(*oldest);
  block.graphs.erase(oldest);
  ++counts_.evicted;
}

void BlockGraphs::destroy(Graph& graph) {
  stream_.device()->given_back(table().graph_destroy(graph.graph), "ending a graph");
}

void BlockGraphs::forget() {
  for (auto& [number, block] : blocks_)
    for (Graph& graph : block.graphs) destroy(graph);
  blocks_.clear();
}

void BlockGraphs::stop(const std::string& why) {
  in_use_ = false;
  trial_.reset();
  forget();
  options_.notice(fmt::format("CUDA graphs are not used: {}", why));
}

}  // namespace troupe::train
