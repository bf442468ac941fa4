// The fake's graphs: what a stream was given, given to it again.

#include <fmt/format.h>

#include "tests/train/cuda/fake/fake_state.h"

struct TroupeCudaGraph {
  TroupeCudaContext* context = nullptr;
  std::vector<troupe::tests::fake::Work> work;
};

namespace troupe::tests::fake {
namespace {

int capture_begin(TroupeCudaStream* stream) {
  if (const int code = state().enter("graph_capture_begin", stream->context->device)) return code;
  return stream->begin_capture();
}

int capture_end(TroupeCudaStream* stream, TroupeCudaGraph** graph) {
  *graph = nullptr;
  std::vector<Work> kept;
  const int ended = stream->end_capture(kept);
  // A fault comes when the stream is an ordinary one again.
  if (const int code = state().enter("graph_capture_end", stream->context->device)) return code;
  if (ended) return ended;
  *graph = new TroupeCudaGraph{stream->context, std::move(kept)};
  state().count_object("graph", 1);
  return TROUPE_CUDA_OK;
}

// As a GPU would not do, it tells what has gone since the capture.
int launch(TroupeCudaStream* stream, TroupeCudaGraph* graph) {
  if (const int code = state().enter("graph_launch", stream->context->device)) return code;
  if (graph->context != stream->context)
    return state().fail(TROUPE_CUDA_INVALID, "a graph of another context");
  for (const Work& work : graph->work) {
    for (const Work::Use& use : work.uses)
      if (!state().known(use.at, use.bytes))
        return state().fail(
            TROUPE_CUDA_INVALID,
            fmt::format("graph_launch: {} has memory that is the device's no more", work.function));
    if (work.attention_plan != 0 && !state().has_plan(work.attention_plan))
      return state().fail(
          TROUPE_CUDA_INVALID,
          fmt::format("graph_launch: {} has a plan that was destroyed", work.function));
  }
  for (const Work& work : graph->work) stream->enqueue(work);
  return TROUPE_CUDA_OK;
}

int destroy(TroupeCudaGraph* graph) {
  const int code = state().enter("graph_destroy", graph->context->device);
  state().count_object("graph", -1);
  delete graph;
  return code;
}

}  // namespace

void fill_graphs(TroupeCudaTable& table) {
  table.graph_capture_begin = capture_begin;
  table.graph_capture_end = capture_end;
  table.graph_launch = launch;
  table.graph_destroy = destroy;
}

}  // namespace troupe::tests::fake
