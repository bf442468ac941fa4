// Norms and what is summed down columns.

#include "train/cuda/kernels/column_sums.h"
#include "train/cuda/kernels/norms.h"
#include "train/cuda/kernels/scratch_sizes.h"
#include "train/cuda/library/launch.cuh"

namespace troupe::train::cuda {
namespace {

int need_rows(const char* what, std::int64_t rows, std::int64_t width) {
  TROUPE_CUDA_RETURN_IF_FAILED(need_positive(what, "rows", rows));
  return need_positive(what, "width", width);
}

// --- rows

template <class T, int N>
__global__ void __launch_bounds__(kNormThreads) rms_forward_kernel(RmsForward<T> a) {
  auto& shared = block_shared<NormShared<float>>();
  rms_forward_row<T, N>(NormBlock{blockIdx.x}, shared, a);
}
template <class T, int N>
__global__ void __launch_bounds__(kNormThreads) rms_backward_kernel(RmsBackward<T> a) {
  auto& shared = block_shared<NormShared<float>>();
  rms_backward_row<T, N>(NormBlock{blockIdx.x}, shared, a);
}
template <class T, int N>
__global__ void __launch_bounds__(kNormThreads) layer_forward_kernel(LayerForward<T> a) {
  auto& shared = block_shared<NormShared<float>>();
  layer_forward_row<T, N>(NormBlock{blockIdx.x}, shared, a);
}
template <class T, int N>
__global__ void __launch_bounds__(kNormThreads) layer_backward_kernel(LayerBackward<T> a) {
  auto& shared = block_shared<NormShared<TwoSums>>();
  layer_backward_row<T, N>(NormBlock{blockIdx.x}, shared, a);
}
template <class T, int N>
__global__ void __launch_bounds__(kNormThreads) head_forward_kernel(HeadForward<T> a) {
  auto& shared = block_shared<HeadShared>();
  head_forward_block<T, N>(NormBlock{blockIdx.x}, shared, a);
}
template <class T, int N>
__global__ void __launch_bounds__(kNormThreads) head_backward_kernel(HeadBackward<T> a) {
  auto& shared = block_shared<HeadShared>();
  head_backward_block<T, N>(NormBlock{blockIdx.x}, shared, a);
}

template <class T>
int rms_forward(TroupeCudaStream* stream, const char* what, const RmsForward<T>& a) {
  const auto grid = static_cast<unsigned>(a.rows);
  if (packs_fit(a.width, a.x, a.delta, a.weight, a.sum, a.y))
    start_blocks(stream, rms_forward_kernel<T, kPack>, {grid, kNormThreads}, a);
  else
    start_blocks(stream, rms_forward_kernel<T, 1>, {grid, kNormThreads}, a);
  return launched(what, a.rows, a.width);
}

int rms_norm_forward(TroupeCudaStream* stream, std::int32_t type, const void* x,
                     const float* weight, void* y, float* rstd, std::int64_t rows,
                     std::int64_t width, float eps) {
  constexpr const char* kWhat = "rms_norm_forward";
  TROUPE_CUDA_RETURN_IF_FAILED(enter(kWhat, stream));
  TROUPE_CUDA_RETURN_IF_FAILED(need_rows(kWhat, rows, width));
  return with_type(kWhat, type, [&]<class T>(Tag<T>) {
    return rms_forward<T>(stream, kWhat,
                          {static_cast<const T*>(x), nullptr, weight, nullptr, static_cast<T*>(y),
                           rstd, rows, width, eps});
  });
}

int residual_rms_norm_forward(TroupeCudaStream* stream, std::int32_t type, const void* x,
                              const void* delta, const float* weight, void* sum, void* y,
                              float* rstd, std::int64_t rows, std::int64_t width, float eps) {
  constexpr const char* kWhat = "residual_rms_norm_forward";
  TROUPE_CUDA_RETURN_IF_FAILED(enter(kWhat, stream));
  TROUPE_CUDA_RETURN_IF_FAILED(need_rows(kWhat, rows, width));
  if (!delta || !sum)
    return fail(TROUPE_CUDA_INVALID, std::string(kWhat) + ": delta or sum is null");
  return with_type(kWhat, type, [&]<class T>(Tag<T>) {
    return rms_forward<T>(stream, kWhat,
                          {static_cast<const T*>(x), static_cast<const T*>(delta), weight,
                           static_cast<T*>(sum), static_cast<T*>(y), rstd, rows, width, eps});
  });
}

// --- columns

template <class T, int N, ColumnTerm kTerm>
__global__ void __launch_bounds__(kColumnThreads) column_sums_kernel(ColumnSums<T> a) {
  auto& shared = block_shared<ColumnShared<N, column_sets(kTerm)>>();
  column_sums_block<T, N, kTerm>(ColumnBlock{blockIdx.x, blockIdx.y}, shared, a);
}
__global__ void __launch_bounds__(kColumnThreads) add_parts_kernel(AddParts a) {
  auto& shared = block_shared<AddPartsShared>();
  add_parts_block(ColumnBlock{blockIdx.x}, shared, a);
}

// out[set] += the sums of a's rows. fits: packs may be used.
template <ColumnTerm kTerm, class T>
int add_column_sums(TroupeCudaStream* stream, const char* what, bool fits, ColumnSums<T> a,
                    void* scratch, float* (&&outs)[column_sets(kTerm)]) {
  a.parts = row_parts(a.rows, a.width);
  a.sums = static_cast<float*>(scratch);
  const int n = fits ? kPack : 1;
  a.lanes = column_lanes(a.width, n);
  const dim3 grid(blocks(a.width, a.lanes * n), static_cast<unsigned>(a.parts.count));
  if (fits)
    start_blocks(stream, column_sums_kernel<T, kPack, kTerm>, {grid, kColumnThreads}, a);
  else
    start_blocks(stream, column_sums_kernel<T, 1, kTerm>, {grid, kColumnThreads}, a);
  TROUPE_CUDA_RETURN_IF_FAILED(launched(what, a.rows, a.width));
  for (int set = 0; set < column_sets(kTerm); ++set) {
    const AddParts add{a.sums + set * a.parts.count * a.width, a.parts.count, a.width, outs[set]};
    start_blocks(stream, add_parts_kernel, {blocks(a.width, kPartLanes), kColumnThreads}, add);
  }
  return launched(what, a.parts.count, a.width);
}

int rms_norm_backward(TroupeCudaStream* stream, std::int32_t type, const void* dy, const void* x,
                      const float* weight, const float* rstd, void* dx, float* dweight,
                      std::int64_t rows, std::int64_t width, void* scratch) {
  constexpr const char* kWhat = "rms_norm_backward";
  TROUPE_CUDA_RETURN_IF_FAILED(enter(kWhat, stream));
  TROUPE_CUDA_RETURN_IF_FAILED(need_rows(kWhat, rows, width));
  return with_type(kWhat, type, [&]<class T>(Tag<T>) {
    const RmsBackward<T> a{static_cast<const T*>(dy),
                           static_cast<const T*>(x),
                           weight,
                           rstd,
                           static_cast<T*>(dx),
                           rows,
                           width};
    const ColumnSums<T> sums{.dy = a.dy,
                             .stride = width,
                             .x = a.x,
                             .x_stride = width,
                             .rstd = rstd,
                             .rows = rows,
                             .heads = 1,
                             .width = width};
    TROUPE_CUDA_RETURN_IF_FAILED(add_column_sums<ColumnTerm::kRms>(
        stream, kWhat, packs_fit(width, dy, x), sums, scratch, {dweight}));
    const auto grid = static_cast<unsigned>(rows);
    if (packs_fit(width, dy, x, weight, dx))
      start_blocks(stream, rms_backward_kernel<T, kPack>, {grid, kNormThreads}, a);
    else
      start_blocks(stream, rms_backward_kernel<T, 1>, {grid, kNormThreads}, a);
    return launched(kWhat, rows, width);
  });
}

int layer_norm_forward(TroupeCudaStream* stream, std::int32_t type, const void* x,
                       const float* weight, const float* bias, void* y, float* mean, float* rstd,
                       std::int64_t rows, std::int64_t width, float eps) {
  constexpr const char* kWhat = "layer_norm_forward";
  TROUPE_CUDA_RETURN_IF_FAILED(enter(kWhat, stream));
  TROUPE_CUDA_RETURN_IF_FAILED(need_rows(kWhat, rows, width));
  return with_type(kWhat, type, [&]<class T>(Tag<T>) {
    const LayerForward<T> a{
        static_cast<const T*>(x), weight, bias, static_cast<T*>(y), mean, rstd, rows, width, eps};
    const auto grid = static_cast<unsigned>(rows);
    if (packs_fit(width, x, weight, bias, y))
      start_blocks(stream, layer_forward_kernel<T, kPack>, {grid, kNormThreads}, a);
    else
      start_blocks(stream, layer_forward_kernel<T, 1>, {grid, kNormThreads}, a);
    return launched(kWhat, rows, width);
  });
}

int layer_norm_backward(TroupeCudaStream* stream, std::int32_t type, const void* dy, const void* x,
                        const float* weight, const float* mean, const float* rstd, void* dx,
                        float* dweight, float* dbias, std::int64_t rows, std::int64_t width,
                        void* scratch) {
  constexpr const char* kWhat = "layer_norm_backward";
  TROUPE_CUDA_RETURN_IF_FAILED(enter(kWhat, stream));
  TROUPE_CUDA_RETURN_IF_FAILED(need_rows(kWhat, rows, width));
  return with_type(kWhat, type, [&]<class T>(Tag<T>) {
    const LayerBackward<T> a{static_cast<const T*>(dy),
                             static_cast<const T*>(x),
                             weight,
                             mean,
                             rstd,
                             static_cast<T*>(dx),
                             rows,
                             width};
    const ColumnSums<T> sums{.dy = a.dy,
                             .stride = width,
                             .x = a.x,
                             .x_stride = width,
                             .mean = mean,
                             .rstd = rstd,
                             .rows = rows,
                             .heads = 1,
                             .width = width};
    TROUPE_CUDA_RETURN_IF_FAILED(add_column_sums<ColumnTerm::kLayer>(
        stream, kWhat, packs_fit(width, dy, x), sums, scratch, {dweight, dbias}));
    const auto grid = static_cast<unsigned>(rows);
    if (packs_fit(width, dy, x, weight, dx))
      start_blocks(stream, layer_backward_kernel<T, kPack>, {grid, kNormThreads}, a);
    else
      start_blocks(stream, layer_backward_kernel<T, 1>, {grid, kNormThreads}, a);
    return launched(kWhat, rows, width);
  });
}

int need_heads(const char* what, std::int64_t rows, std::int64_t heads, std::int64_t head_dim) {
  TROUPE_CUDA_RETURN_IF_FAILED(need_rows(what, rows, heads));
  return need_positive(what, "head_dim", head_dim);
}

int head_norm_forward(TroupeCudaStream* stream, std::int32_t type, const void* x,
                      std::int64_t x_stride, const float* weight, void* y, std::int64_t y_stride,
                      float* rstd, std::int64_t rows, std::int64_t heads, std::int64_t head_dim,
                      float eps) {
  constexpr const char* kWhat = "head_norm_forward";
  TROUPE_CUDA_RETURN_IF_FAILED(enter(kWhat, stream));
  TROUPE_CUDA_RETURN_IF_FAILED(need_heads(kWhat, rows, heads, head_dim));
  return with_type(kWhat, type, [&]<class T>(Tag<T>) {
    const HeadForward<T> a{static_cast<const T*>(x),
                           x_stride,
                           weight,
                           static_cast<T*>(y),
                           y_stride,
                           rstd,
                           rows,
                           heads,
                           head_dim,
                           eps};
    const unsigned grid = blocks(rows * heads, kHeadsPerBlock);
    if (packs_fit(head_dim, x, weight, y) && packs_fit(x_stride) && packs_fit(y_stride))
      start_blocks(stream, head_forward_kernel<T, kPack>, {grid, kNormThreads}, a);
    else
      start_blocks(stream, head_forward_kernel<T, 1>, {grid, kNormThreads}, a);
    return launched(kWhat, rows, heads * head_dim);
  });
}

int head_norm_backward(TroupeCudaStream* stream, std::int32_t type, void* dy, std::int64_t stride,
                       const void* x, std::int64_t x_stride, const float* weight, const float* rstd,
                       float* dweight, std::int64_t rows, std::int64_t heads, std::int64_t head_dim,
                       void* scratch) {
  constexpr const char* kWhat = "head_norm_backward";
  TROUPE_CUDA_RETURN_IF_FAILED(enter(kWhat, stream));
  TROUPE_CUDA_RETURN_IF_FAILED(need_heads(kWhat, rows, heads, head_dim));
  return with_type(kWhat, type, [&]<class T>(Tag<T>) {
    const HeadBackward<T> a{static_cast<T*>(dy),
                            stride,
                            static_cast<const T*>(x),
                            x_stride,
                            weight,
                            rstd,
                            rows,
                            heads,
                            head_dim};
    const bool strides_fit = packs_fit(stride) && packs_fit(x_stride);
    // Before dy is replaced.
    const ColumnSums<T> sums{.dy = a.dy,
                             .stride = stride,
                             .x = a.x,
                             .x_stride = x_stride,
                             .rstd = rstd,
                             .rows = rows * heads,
                             .heads = heads,
                             .width = head_dim};
    TROUPE_CUDA_RETURN_IF_FAILED(add_column_sums<ColumnTerm::kRms>(
        stream, kWhat, strides_fit && packs_fit(head_dim, dy, x), sums, scratch, {dweight}));
    const unsigned grid = blocks(rows * heads, kHeadsPerBlock);
    if (strides_fit && packs_fit(head_dim, dy, x, weight))
      start_blocks(stream, head_backward_kernel<T, kPack>, {grid, kNormThreads}, a);
    else
      start_blocks(stream, head_backward_kernel<T, 1>, {grid, kNormThreads}, a);
    return launched(kWhat, rows, heads * head_dim);
  });
}

int bias_backward(TroupeCudaStream* stream, std::int32_t type, const void* dy, std::int64_t stride,
                  float* dbias, std::int64_t rows, std::int64_t width, void* scratch) {
  constexpr const char* kWhat = "bias_backward";
  TROUPE_CUDA_RETURN_IF_FAILED(enter(kWhat, stream));
  TROUPE_CUDA_RETURN_IF_FAILED(need_rows(kWhat, rows, width));
  return with_type(kWhat, type, [&]<class T>(Tag<T>) {
    const ColumnSums<T> sums{.dy = static_cast<const T*>(dy),
                             .stride = stride,
                             .rows = rows,
                             .heads = 1,
                             .width = width};
    return add_column_sums<ColumnTerm::kPlain>(
        stream, kWhat, packs_fit(width, dy) && packs_fit(stride), sums, scratch, {dbias});
  });
}

}  // namespace

void fill_norms(TroupeCudaTable& table) {
  table.rms_norm_forward = rms_norm_forward;
  table.residual_rms_norm_forward = residual_rms_norm_forward;
  table.rms_norm_backward = rms_norm_backward;
  table.layer_norm_forward = layer_norm_forward;
  table.layer_norm_backward = layer_norm_backward;
  table.head_norm_forward = head_norm_forward;
  table.head_norm_backward = head_norm_backward;
  table.bias_backward = bias_backward;
  table.row_sum_scratch_bytes = row_sum_scratch_size;
}

}  // namespace troupe::train::cuda
