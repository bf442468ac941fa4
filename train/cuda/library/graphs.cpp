// Graphs: captured from a stream, launched as one.

#include <fmt/format.h>

#include <memory>

#include "train/cuda/library/objects.h"

namespace troupe::train::cuda {
namespace {

// Thread-local: what other threads ask of the device meanwhile (NCCL's state, events) breaks
// nothing off; what this one must not ask within a capture does, and is told.
int graph_capture_begin(TroupeCudaStream* stream) {
  TROUPE_CUDA_RETURN_IF_FAILED(enter("graph_capture_begin", stream));
  return check(cudaStreamBeginCapture(stream->stream, cudaStreamCaptureModeThreadLocal),
               "cudaStreamBeginCapture");
}

int graph_capture_end(TroupeCudaStream* stream, TroupeCudaGraph** graph) {
  *graph = nullptr;
  TROUPE_CUDA_RETURN_IF_FAILED(enter("graph_capture_end", stream));
  cudaGraph_t captured = nullptr;
  const int ended = check(cudaStreamEndCapture(stream->stream, &captured), "cudaStreamEndCapture");
  if (ended != TROUPE_CUDA_OK) {
    if (captured) cudaGraphDestroy(captured);
    return ended;
  }
  cudaGraphExec_t executable = nullptr;
  const int made = check(cudaGraphInstantiate(&executable, captured, 0), "cudaGraphInstantiate");
  cudaGraphDestroy(captured);
  TROUPE_CUDA_RETURN_IF_FAILED(made);
  // Now, where too little memory for it is no failure of the work.
  const int uploaded = check(cudaGraphUpload(executable, stream->stream), "cudaGraphUpload");
  if (uploaded != TROUPE_CUDA_OK) {
    cudaGraphExecDestroy(executable);
    return uploaded;
  }
  *graph = new TroupeCudaGraph{stream->context, executable};
  return TROUPE_CUDA_OK;
}

int graph_launch(TroupeCudaStream* stream, TroupeCudaGraph* graph) {
  TROUPE_CUDA_RETURN_IF_FAILED(enter("graph_launch", stream));
  return check(cudaGraphLaunch(graph->executable, stream->stream), "cudaGraphLaunch");
}

// The runtime frees an executable that runs when it has ended.
int graph_destroy(TroupeCudaGraph* graph) {
  const std::unique_ptr<TroupeCudaGraph> gone(graph);
  TROUPE_CUDA_RETURN_IF_FAILED(enter("graph_destroy", graph->context));
  return check(cudaGraphExecDestroy(graph->executable), "cudaGraphExecDestroy");
}

}  // namespace

void fill_graphs(TroupeCudaTable& table) {
  table.graph_capture_begin = graph_capture_begin;
  table.graph_capture_end = graph_capture_end;
  table.graph_launch = graph_launch;
  table.graph_destroy = graph_destroy;
}

}  // namespace troupe::train::cuda
