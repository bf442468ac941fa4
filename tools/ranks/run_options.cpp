#include "tools/ranks/run_options.h"

#include "runtime/base/suggest.h"
#include "runtime/base/text.h"

namespace troupe::tools {
namespace {

constexpr int kProcessesMax = 4096;
constexpr int kNodesMax = 65536;

std::optional<Streams> streams_of(std::string_view digit) {
  if (digit.size() != 1 || digit[0] < '0' || digit[0] > '3') return std::nullopt;
  const int bits = digit[0] - '0';
  return Streams{.out = (bits & 1) != 0, .err = (bits & 2) != 0};
}

}  // namespace

Result<StreamsByRank> StreamsByRank::parse(std::string_view text) {
  StreamsByRank result;
  if (const auto all = streams_of(text)) {
    result.all_ = *all;
    return result;
  }
  const auto refused = [&] {
    return error(Code::kInvalidArgument,
                 "{} does not match: <^[0123]$> or <^(\\d:[0123],)*(\\d:[0123])$>", text);
  };
  for (const std::string& part : split_words(text, ',')) {
    const std::string_view entry = part;
    if (entry.size() != 3 || entry[0] < '0' || entry[0] > '9' || entry[1] != ':') return refused();
    const auto streams = streams_of(entry.substr(2));
    if (!streams) return refused();
    result.by_rank_[entry[0] - '0'] = *streams;
  }
  if (result.by_rank_.empty()) return refused();
  return result;
}

Streams StreamsByRank::of(int local_rank) const {
  const auto found = by_rank_.find(local_rank);
  return found != by_rank_.end() ? found->second : all_;
}

bool StreamsByRank::any() const {
  if (all_ != Streams()) return true;
  for (const auto& [rank, streams] : by_rank_) {
    if (streams != Streams()) return true;
  }
  return false;
}

Result<std::pair<int, int>> parse_nodes(std::string_view text) {
  const std::size_t colon = text.find(':');
  const auto low = parse_integer<int>(text.substr(0, colon));
  const auto high =
      colon == std::string_view::npos ? low : parse_integer<int>(text.substr(colon + 1));
  if (!low || !high) {
    return error(Code::kInvalidArgument, "nnodes={} is not in \"MIN:MAX\" format", text);
  }
  if (*low < 1 || *high < *low || *high > kNodesMax) {
    return error(Code::kInvalidArgument,
                 "nnodes={}: at least 1 node, MIN at most MAX, and at most {} nodes", text,
                 kNodesMax);
  }
  return std::pair(*low, *high);
}

Result<int> processes_of_node(const std::string& text, int cpus, int gpus) {
  if (text == "cpu") return std::max(1, cpus);
  if (text == "gpu") {
    if (gpus > 0) return gpus;
    return Status(Code::kFailedPrecondition,
                  "nproc_per_node=gpu: Cuda is not available. Give a number, or cpu");
  }
  if (text == "auto") return gpus > 0 ? gpus : std::max(1, cpus);
  const auto number = parse_integer<int>(text);
  if (!number) {
    return error(Code::kInvalidArgument,
                 "Unsupported nproc_per_node value: {}. It is a number, auto, cpu or gpu", text);
  }
  if (*number < 1 || *number > kProcessesMax) {
    return error(Code::kInvalidArgument, "nproc_per_node={}: from 1 to {} processes", text,
                 kProcessesMax);
  }
  return *number;
}

}  // namespace troupe::tools
