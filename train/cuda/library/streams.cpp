// Streams, events and copies.

#include <fmt/format.h>

#include "train/cuda/library/objects.h"

namespace troupe::train::cuda {
namespace {

// --- streams

int stream_create(TroupeCudaContext* context, std::int32_t priority, TroupeCudaStream** stream) {
  *stream = nullptr;
  TROUPE_CUDA_RETURN_IF_FAILED(enter("stream_create", context));
  int least = 0, greatest = 0;
  TROUPE_CUDA_RETURN_IF_FAILED(check(cudaDeviceGetStreamPriorityRange(&least, &greatest),
                                     "cudaDeviceGetStreamPriorityRange"));
  cudaStream_t made = nullptr;
  TROUPE_CUDA_RETURN_IF_FAILED(check(
      cudaStreamCreateWithPriority(&made, cudaStreamNonBlocking, priority > 0 ? greatest : least),
      fmt::format("cudaStreamCreateWithPriority on device {}", context->device)));
  *stream = new TroupeCudaStream{context, made};
  return TROUPE_CUDA_OK;
}

int stream_destroy(TroupeCudaStream* stream) {
  TROUPE_CUDA_RETURN_IF_FAILED(enter("stream_destroy", stream));
  const int code = check(cudaStreamDestroy(stream->stream), "cudaStreamDestroy");
  delete stream;
  return code;
}

int stream_synchronize(TroupeCudaStream* stream) {
  TROUPE_CUDA_RETURN_IF_FAILED(enter("stream_synchronize", stream));
  return check(cudaStreamSynchronize(stream->stream), "cudaStreamSynchronize");
}

int stream_query(TroupeCudaStream* stream) {
  TROUPE_CUDA_RETURN_IF_FAILED(enter("stream_query", stream));
  return check(cudaStreamQuery(stream->stream), "cudaStreamQuery");
}

int stream_wait(TroupeCudaStream* stream, TroupeCudaEvent* event) {
  TROUPE_CUDA_RETURN_IF_FAILED(enter("stream_wait", stream));
  return check(cudaStreamWaitEvent(stream->stream, event->event, 0), "cudaStreamWaitEvent");
}

// --- events

int event_create(TroupeCudaContext* context, std::int32_t timed, TroupeCudaEvent** event) {
  *event = nullptr;
  TROUPE_CUDA_RETURN_IF_FAILED(enter("event_create", context));
  cudaEvent_t made = nullptr;
  TROUPE_CUDA_RETURN_IF_FAILED(
      check(cudaEventCreateWithFlags(&made, timed ? cudaEventDefault : cudaEventDisableTiming),
            fmt::format("cudaEventCreateWithFlags on device {}", context->device)));
  *event = new TroupeCudaEvent{context, made};
  return TROUPE_CUDA_OK;
}

int event_destroy(TroupeCudaEvent* event) {
  TROUPE_CUDA_RETURN_IF_FAILED(enter("event_destroy", event->context));
  const int code = check(cudaEventDestroy(event->event), "cudaEventDestroy");
  delete event;
  return code;
}

int event_record(TroupeCudaEvent* event, TroupeCudaStream* stream) {
  TROUPE_CUDA_RETURN_IF_FAILED(enter("event_record", stream));
  return check(cudaEventRecord(event->event, stream->stream), "cudaEventRecord");
}

int event_query(TroupeCudaEvent* event) {
  TROUPE_CUDA_RETURN_IF_FAILED(enter("event_query", event->context));
  return check(cudaEventQuery(event->event), "cudaEventQuery");
}

int event_synchronize(TroupeCudaEvent* event) {
  TROUPE_CUDA_RETURN_IF_FAILED(enter("event_synchronize", event->context));
  return check(cudaEventSynchronize(event->event), "cudaEventSynchronize");
}

int event_elapsed_ms(TroupeCudaEvent* from, TroupeCudaEvent* to, float* milliseconds) {
  TROUPE_CUDA_RETURN_IF_FAILED(enter("event_elapsed_ms", from->context));
  const cudaError_t error = cudaEventElapsedTime(milliseconds, from->event, to->event);
  // A caller's mistake, which the runtime calls a wait.
  if (error == cudaErrorNotReady) {
    cudaGetLastError();  // as check() does: the next launch must not find it
    return fail(TROUPE_CUDA_INVALID, "cudaEventElapsedTime: an event has not happened yet");
  }
  return check(error, "cudaEventElapsedTime");
}

// --- copies

// Memory that a copy reads or writes behind the caller's back: the device's or pinned.
int is_known(const void* at, bool* known) {
  cudaPointerAttributes attributes{};
  TROUPE_CUDA_RETURN_IF_FAILED(
      check(cudaPointerGetAttributes(&attributes, at), "cudaPointerGetAttributes"));
  *known = attributes.type != cudaMemoryTypeUnregistered;
  return TROUPE_CUDA_OK;
}

// After a copy was enqueued: waits for it where ordinary memory of the host has a part in it.
int finish_copy(TroupeCudaStream* stream, const void* from, const void* to) {
  bool from_known = false, to_known = false;
  TROUPE_CUDA_RETURN_IF_FAILED(is_known(from, &from_known));
  TROUPE_CUDA_RETURN_IF_FAILED(is_known(to, &to_known));
  if (from_known && to_known) return TROUPE_CUDA_OK;
  return check(cudaStreamSynchronize(stream->stream), "waiting for a copy of ordinary memory");
}

int copy(TroupeCudaStream* stream, const void* from, void* to, std::int64_t bytes) {
  TROUPE_CUDA_RETURN_IF_FAILED(enter("copy", stream));
  if (bytes == 0) return TROUPE_CUDA_OK;
  TROUPE_CUDA_RETURN_IF_FAILED(need_positive("copy", "bytes", bytes));
  TROUPE_CUDA_RETURN_IF_FAILED(check(
      cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault, stream->stream),
      fmt::format("cudaMemcpyAsync of {} bytes", bytes)));
  return finish_copy(stream, from, to);
}

int copy_rows(TroupeCudaStream* stream, const void* from, std::int64_t from_stride_bytes, void* to,
              std::int64_t to_stride_bytes, std::int64_t rows, std::int64_t row_bytes) {
  TROUPE_CUDA_RETURN_IF_FAILED(enter("copy_rows", stream));
  TROUPE_CUDA_RETURN_IF_FAILED(need_positive("copy_rows", "rows", rows));
  TROUPE_CUDA_RETURN_IF_FAILED(need_positive("copy_rows", "row_bytes", row_bytes));
  const std::string what = fmt::format("{} rows of {} bytes, {} to {} bytes apart", rows, row_bytes,
                                       from_stride_bytes, to_stride_bytes);
  if (row_bytes > from_stride_bytes || row_bytes > to_stride_bytes)
    return fail(TROUPE_CUDA_INVALID, "copy_rows of " + what + ": rows longer than their distance");
  TROUPE_CUDA_RETURN_IF_FAILED(
      check(cudaMemcpy2DAsync(to, static_cast<std::size_t>(to_stride_bytes), from,
                              static_cast<std::size_t>(from_stride_bytes),
                              static_cast<std::size_t>(row_bytes), static_cast<std::size_t>(rows),
                              cudaMemcpyDefault, stream->stream),
            "cudaMemcpy2DAsync of " + what));
  return finish_copy(stream, from, to);
}

int fill(TroupeCudaStream* stream, void* device, std::int32_t byte, std::int64_t bytes) {
  TROUPE_CUDA_RETURN_IF_FAILED(enter("fill", stream));
  if (bytes == 0) return TROUPE_CUDA_OK;
  TROUPE_CUDA_RETURN_IF_FAILED(need_positive("fill", "bytes", bytes));
  return check(cudaMemsetAsync(device, byte, static_cast<std::size_t>(bytes), stream->stream),
               fmt::format("cudaMemsetAsync of {} bytes", bytes));
}

}  // namespace

void fill_streams(TroupeCudaTable& table) {
  table.stream_create = stream_create;
  table.stream_destroy = stream_destroy;
  table.stream_synchronize = stream_synchronize;
  table.stream_query = stream_query;
  table.stream_wait = stream_wait;
  table.event_create = event_create;
  table.event_destroy = event_destroy;
  table.event_record = event_record;
  table.event_query = event_query;
  table.event_synchronize = event_synchronize;
  table.event_elapsed_ms = event_elapsed_ms;
  table.copy = copy;
  table.copy_rows = copy_rows;
  table.fill = fill;
}

}  // namespace troupe::train::cuda
