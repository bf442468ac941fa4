#pragma once
// All that the rest of Troupe knows of a GPU: a table of C functions, which libtroupe_cuda.so
// offers on a machine with NVIDIA's libraries and tests offer on memory of the host.
//
// Plain C types only, so that the library may be built by another compiler and taken or left when
// the program runs: one build of `troupe` serves machines with and without GPUs. The table is thin
// on purpose: a function launches one thing or asks one thing. What is decided (which algorithm a
// product takes, what an aborted communicator means, where memory lies) is decided by C++ above it,
// which runs the same over the tests' table.
//
// Every function but the texts returns a TroupeCudaCode. After anything but OK, error_text() of the
// calling thread says what failed, with the vendor's name for the failure. Pointers named `device`
// or without a word are addresses of the device's memory; `host_` ones are the host's. What takes a
// stream is enqueued on it and returns at once: memory must stay until the stream is past it, and a
// failure of the work itself is told by a later call.
//
// A context belongs to one device and may be used from several threads, a stream or a communicator
// by one at a time. Streams of one context share its memory.

#include <stdint.h>

#include "train/tensor/operator_list.h"

#ifdef __cplusplus
extern "C" {
#endif

// Changes with anything below. A library of another version is refused by name.
#define TROUPE_CUDA_TABLE_VERSION 5u

typedef enum TroupeCudaCode {
  TROUPE_CUDA_OK = 0,
  TROUPE_CUDA_INVALID = 1,        // an argument: a bug of the caller's
  TROUPE_CUDA_OUT_OF_MEMORY = 2,  // the device's or pinned memory
  TROUPE_CUDA_NOT_READY = 3,      // queried work is still under way
  TROUPE_CUDA_UNSUPPORTED = 4,    // this device, driver or library cannot
  TROUPE_CUDA_DEVICE_LOST = 5,    // nothing in this context works any more
  TROUPE_CUDA_UNAVAILABLE = 6,    // a library or driver is not there
  TROUPE_CUDA_PEER = 7,           // a communicator: another rank failed, or the network did
  TROUPE_CUDA_FAILED = 8          // anything else
} TroupeCudaCode;

typedef enum TroupeCudaType {
  TROUPE_CUDA_F32 = 0,
  TROUPE_CUDA_BF16 = 1,
  TROUPE_CUDA_I32 = 2,
  TROUPE_CUDA_I64 = 3,
  TROUPE_CUDA_F64 = 4,
  TROUPE_CUDA_U8 = 5,
  // OCP's formats of 8 bits: operands of products that are computed in FP8.
  TROUPE_CUDA_E4M3 = 6,
  TROUPE_CUDA_E5M2 = 7
} TroupeCudaType;

typedef struct TroupeCudaContext TroupeCudaContext;
typedef struct TroupeCudaStream TroupeCudaStream;
typedef struct TroupeCudaEvent TroupeCudaEvent;
typedef struct TroupeCudaMemory TroupeCudaMemory;
typedef struct TroupeCudaGroup TroupeCudaGroup;
typedef struct TroupeCudaAttentionPlan TroupeCudaAttentionPlan;
typedef struct TroupeCudaGraph TroupeCudaGraph;

typedef struct TroupeCudaDevice {
  char name[96];
  char uuid[48];     // "GPU-…", as nvidia-smi shows it
  char pci_bus[24];  // "00000000:1B:00.0"
  int32_t compute_major, compute_minor;
  int32_t multiprocessors;
  int64_t memory_bytes;
  int64_t l2_cache_bytes;
  int32_t shared_bytes_per_block;  // at most, opted in
  int32_t can_export_memory;       // POSIX file descriptors of VMM allocations
  int32_t has_bf16;                // tensor cores of bf16
  int32_t driver_version;          // 13000: CUDA 13.0
} TroupeCudaDevice;

// What the library was built and loaded with; 0: not there.
typedef struct TroupeCudaVersions {
  int32_t runtime, cublaslt, cudnn, nccl;
} TroupeCudaVersions;

// A matrix product in row-major terms; see train/tensor/operators.h. What is computed in: F32 (a, b
// fp32), TF32 (a, b fp32, rounded by the unit), BF16 (a, b of either type; an fp32 operand is
// rounded to bf16 by the caller first: types are BF16 here), FP8 (one of a, b is E4M3, the other
// E4M3 or E5M2; rows of k: a is not transposed, b is; k and strides of a and b are multiples of 16,
// and so is n; alignment_bytes is 16).
typedef enum TroupeCudaArithmetic {
  TROUPE_CUDA_COMPUTE_F32 = 0,
  TROUPE_CUDA_COMPUTE_TF32 = 1,
  TROUPE_CUDA_COMPUTE_BF16 = 2,
  TROUPE_CUDA_COMPUTE_FP8 = 3
} TroupeCudaArithmetic;

// What becomes of a product's sums before they are stored: see Epilogue of
// train/tensor/operators.h. Of products in F32, TF32 and BF16 that are not added to c, and of 16
// bytes' alignment.
typedef enum TroupeCudaEpilogue {
  TROUPE_CUDA_EPILOGUE_NONE = 0,
  TROUPE_CUDA_EPILOGUE_BIAS = 1,
  TROUPE_CUDA_EPILOGUE_BIAS_GELU = 2,
  TROUPE_CUDA_EPILOGUE_GELU_GRADIENT = 3
} TroupeCudaEpilogue;

// Everything that chooses an algorithm: a key. Fields not used are 0.
typedef struct TroupeCudaGemm {
  int64_t m, n, k;
  int64_t a_stride, b_stride, c_stride;  // elements from row to row
  int32_t a_type, b_type, c_type;        // TroupeCudaType
  int32_t transpose_a, transpose_b;
  int32_t accumulate;  // C += instead of C =
  int32_t arithmetic;  // TroupeCudaArithmetic
  // Least alignment in bytes of a, b, c, and of a bias and GELU's input: 16 or the element's.
  int32_t alignment_bytes;
  int32_t epilogue;  // TroupeCudaEpilogue
  int32_t reserved;  // 0: every byte is a field's
} TroupeCudaGemm;

// A matrix that becomes one of 8 bits.
typedef struct TroupeCudaQuantize {
  int64_t rows, columns, stride;  // of x; rows lie `stride` elements apart
  int32_t type;                   // of x: F32 or BF16
  int32_t format;                 // of out: E4M3 or E5M2
  int64_t transpose;              // not 0: out is (columns, rows), else (rows, columns)
  // From row to row of out, a multiple of 16: what a row has less is filled with zeros.
  int64_t out_stride;
} TroupeCudaQuantize;

// An algorithm as the vendor's library describes it: to be kept and given back to the same version.
typedef struct TroupeCudaAlgorithm {
  uint64_t opaque[8];
  int64_t workspace_bytes;
} TroupeCudaAlgorithm;

// See AttentionShape of train/tensor/operators.h, field by field.
typedef struct TroupeCudaAttention {
  int64_t batch, query_length, key_length, query_heads, key_heads, head_dim;
  int64_t query_stride, key_stride, key_batch_stride;
  float scale;
  int32_t type;  // of q, k, v, out and their gradients: F32 or BF16
  const int32_t* first_key;
} TroupeCudaAttention;

// Attention as the vendor's library plans it: a key. q, k, v, out and their gradients are BF16, the
// softmax and all sums fp32, log_sum_exp is fp32 (batch, query_heads, query_length). Query t sees
// the keys up to key_length − query_length + t, of them the last `window` (0: all). Strides are
// multiples of 8 elements, addresses of 16 bytes. Fields not used are 0.
typedef struct TroupeCudaFusedAttention {
  int64_t batch, query_length, key_length, query_heads, key_heads, head_dim;
  // As TroupeCudaAttention's; out_stride: of out and of its gradient, from row to row.
  int64_t query_stride, key_stride, key_batch_stride, out_stride;
  int64_t window;
  // 0: no mask. Else a mask (batch, query_length, key_length) of BF16 is added to the scores of all
  // heads, with mask_stride elements from row to row: attention_mask() makes it.
  int64_t mask_stride;
  float scale;
  int32_t backward;
  int32_t ordered;  // backward: sums in a fixed order, the same bits every time
} TroupeCudaFusedAttention;

// See AdamWFactors of train/optimizer/adamw.h.
typedef struct TroupeCudaAdamW {
  float beta1_rest, beta2, beta2_rest, step_size, root_correction, epsilon;
  float keep;              // what a parameter is multiplied with
  int32_t state_type;      // of parameters and moments: F32 or BF16
  int32_t round_randomly;  // BF16 states: stochastic rounding by (seed, element) instead of nearest
  uint64_t seed;           // of the step
  int64_t first_element;   // the flat position of element 0: what counts for rounding
} TroupeCudaAdamW;

// A stretch of what adamw_transacted updates: see UpdateRange of train/optimizer/update_range.h.
// Elements; whole chunks.
typedef struct TroupeCudaUpdateRange {
  int64_t first_chunk;  // ranges are in the chunks' order, the first begins with chunk 0
  int64_t flat;         // what counts for decay and rounding
  int64_t parameters, gradients, moments;
} TroupeCudaUpdateRange;

// Where a stretch of flat positions ends in which weight decay is on throughout, or off.
typedef struct TroupeCudaDecayEnd {
  int64_t end;
  int64_t decays;
} TroupeCudaDecayEnd;

enum {
  TROUPE_CUDA_CHUNK_ELEMENTS = 1024,
  TROUPE_CUDA_UNDO_HEADER_BYTES = 64,
  TROUPE_CUDA_UNDO_SLOTS_PER_WRITER = 2
};

// All that one rank updates, and the log that lets another process finish it. Everything but
// numbers is memory of the device; marks and undo outlive the process and begin as zeros.
typedef struct TroupeCudaUpdate {
  TroupeCudaAdamW adamw;  // keep: of what decays; first_element: not used
  float gradient_scale;
  void* parameters;  // what ranges' offsets count from, as for the next three
  const float* gradients;
  void* first_moments;
  void* second_moments;
  const TroupeCudaUpdateRange* ranges;
  int64_t range_count;
  const TroupeCudaDecayEnd* decays;  // in order, up to the last flat position
  int64_t decay_count;
  int64_t chunks;   // of TROUPE_CUDA_CHUNK_ELEMENTS, of all ranges
  uint64_t step;    // ≥ 1
  uint64_t* marks;  // a chunk's: the step that it was updated in last
  // Slots: their headers, one behind another, then what they saved: a chunk's parameters, first and
  // second moments.
  void* undo;
  int64_t writers;  // blocks that update at a time, at most; each has its slots
} TroupeCudaUpdate;

enum { TROUPE_CUDA_GROUP_ID_BYTES = 128 };
typedef enum TroupeCudaReduce {
  TROUPE_CUDA_SUM = 0,
  TROUPE_CUDA_MAX = 1,
  TROUPE_CUDA_MIN = 2
} TroupeCudaReduce;

// See Dropout of train/tensor/dropout.h. threshold 0: none, nothing else is read.
typedef struct TroupeCudaDropout {
  uint32_t threshold;
  float scale;
  uint32_t seed, epoch, site;
  uint32_t reserved;  // 0: every byte is a field's
  const int32_t* samples;
  const int32_t* tokens;
} TroupeCudaDropout;

typedef struct TroupeCudaTable {
  uint32_t version;  // TROUPE_CUDA_TABLE_VERSION
  uint32_t bytes;    // sizeof(TroupeCudaTable)

  // Of the calling thread's last failure; valid until its next call.
  const char* (*error_text)(void);

  // --- devices. Indices count what CUDA_VISIBLE_DEVICES shows this process.
  int (*versions)(TroupeCudaVersions* versions);
  int (*device_count)(int32_t* count);
  int (*device_info)(int32_t index, TroupeCudaDevice* device);
  int (*context_open)(int32_t index, TroupeCudaContext** context);
  // All of its streams, events and memory must be gone.
  int (*context_close)(TroupeCudaContext* context);
  // Waits for everything enqueued in the context.
  int (*context_synchronize)(TroupeCudaContext* context);
  int (*memory_free_bytes)(TroupeCudaContext* context, int64_t* free_bytes, int64_t* total_bytes);

  // --- memory. An allocation is made of whole granules; its bytes live as long as a handle, a
  // mapping or an exported descriptor does.
  int (*memory_granularity)(TroupeCudaContext* context, int64_t* bytes);
  int (*memory_create)(TroupeCudaContext* context, int64_t bytes, int32_t exportable,
                       TroupeCudaMemory** memory);
  int (*memory_export)(TroupeCudaMemory* memory, int32_t* descriptor);
  // Does not take the descriptor. `bytes` as it was created with.
  int (*memory_import)(TroupeCudaContext* context, int32_t descriptor, int64_t bytes,
                       TroupeCudaMemory** memory);
  // Gives the handle back; the mapping stays.
  int (*memory_release)(TroupeCudaMemory* memory);
  int (*memory_map)(TroupeCudaMemory* memory, void** device);
  int (*memory_unmap)(TroupeCudaContext* context, void* device, int64_t bytes);
  // Pinned, and mapped for the device.
  int (*host_allocate)(TroupeCudaContext* context, int64_t bytes, void** host);
  int (*host_free)(TroupeCudaContext* context, void* host);

  // --- streams and events. priority: 0 ordinary, 1 ahead of it.
  int (*stream_create)(TroupeCudaContext* context, int32_t priority, TroupeCudaStream** stream);
  int (*stream_destroy)(TroupeCudaStream* stream);
  int (*stream_synchronize)(TroupeCudaStream* stream);
  int (*stream_query)(TroupeCudaStream* stream);  // NOT_READY
  int (*event_create)(TroupeCudaContext* context, int32_t timed, TroupeCudaEvent** event);
  int (*event_destroy)(TroupeCudaEvent* event);
  int (*event_record)(TroupeCudaEvent* event, TroupeCudaStream* stream);
  int (*event_query)(TroupeCudaEvent* event);  // NOT_READY
  int (*event_synchronize)(TroupeCudaEvent* event);
  int (*event_elapsed_ms)(TroupeCudaEvent* from, TroupeCudaEvent* to, float* milliseconds);
  int (*stream_wait)(TroupeCudaStream* stream, TroupeCudaEvent* event);

  // --- copies. Either side may be the device's or pinned; other host memory makes them
  // synchronous.
  int (*copy)(TroupeCudaStream* stream, const void* from, void* to, int64_t bytes);
  int (*copy_rows)(TroupeCudaStream* stream, const void* from, int64_t from_stride_bytes, void* to,
                   int64_t to_stride_bytes, int64_t rows, int64_t row_bytes);
  int (*fill)(TroupeCudaStream* stream, void* device, int32_t byte, int64_t bytes);
  // Elements F32 ↔ BF16, to nearest, ties to even.
  int (*convert)(TroupeCudaStream* stream, const void* from, int32_t from_type, void* to,
                 int32_t to_type, int64_t count);
  // out[i] = x[i], rounded to a value that bf16 holds. out may be x.
  int (*round_to_bf16)(TroupeCudaStream* stream, const float* x, float* out, int64_t count);

  // --- products. The algorithms that the vendor's library holds likely, best first, that need at
  // most workspace_bytes; none: it has no way to compute this.
  int (*gemm_algorithms)(TroupeCudaContext* context, const TroupeCudaGemm* gemm,
                         int64_t workspace_bytes, int32_t algorithms_max,
                         TroupeCudaAlgorithm* algorithms, int32_t* count);
  int (*gemm)(TroupeCudaStream* stream, const TroupeCudaGemm* gemm,
              const TroupeCudaAlgorithm* algorithm, const void* a, const void* b, void* c,
              void* workspace, int64_t workspace_bytes);

  // --- operators: those of train/tensor/operators.def, row by row, with a row's arguments behind
  // the stream and the `type` of the activations; statistics, parameters and their gradients are
  // fp32. What is summed over rows is summed in an order that depends on the sizes alone: the same
  // bits every time. `scratch` of such a sum: row_sum_scratch_bytes() of its rows and width; of
  // several sums, of them all. Null where the library has no kernel of the operator.
#define TROUPE_OPERATOR(name, ...) \
  int (*name)(TroupeCudaStream * stream, int32_t type, TROUPE_C_PARAMETERS(__VA_ARGS__));
#define TROUPE_SUMMING_OPERATOR(name, ...)                                               \
  int (*name)(TroupeCudaStream * stream, int32_t type, TROUPE_C_PARAMETERS(__VA_ARGS__), \
              void* scratch);
#define TROUPE_TRANSLATED_OPERATOR(name, ...)
#include "train/tensor/operators.def"
  // Of a sum over `rows` rows of `width` columns, in parts.
  int64_t (*row_sum_scratch_bytes)(int64_t rows, int64_t width);
  // Troupe's own kernels: the reference and what serves where the vendor's do not.
  int (*attention_forward)(TroupeCudaStream* stream, const TroupeCudaAttention* shape,
                           const void* q, const void* k, const void* v, void* out,
                           float* log_sum_exp);
  // `scratch`: attention_scratch_bytes(shape).
  int (*attention_backward)(TroupeCudaStream* stream, const TroupeCudaAttention* shape,
                            const void* q, const void* k, const void* v, const void* out,
                            const float* log_sum_exp, const void* dout, void* dq, void* dk,
                            void* dv, void* scratch);
  int64_t (*attention_scratch_bytes)(const TroupeCudaAttention* shape);

  // --- attention by the vendor's library (cuDNN). UNAVAILABLE: it is not there, or this library
  // was built without its headers; needs no device.
  int (*fused_attention_available)(void);
  // Some tenths of a second. UNSUPPORTED: it does not compute this. A plan belongs to the context,
  // serves any stream of it, and is destroyed when the work that uses it is done.
  int (*attention_plan_create)(TroupeCudaContext* context, const TroupeCudaFusedAttention* shape,
                               TroupeCudaAttentionPlan** plan, int64_t* workspace_bytes);
  int (*attention_plan_destroy)(TroupeCudaAttentionPlan* plan);
  // `mask`: null where the shape has none.
  int (*attention_plan_forward)(TroupeCudaStream* stream, TroupeCudaAttentionPlan* plan,
                                const void* q, const void* k, const void* v, const void* mask,
                                void* out, float* log_sum_exp, void* workspace,
                                int64_t workspace_bytes);
  int (*attention_plan_backward)(TroupeCudaStream* stream, TroupeCudaAttentionPlan* plan,
                                 const void* q, const void* k, const void* v, const void* mask,
                                 const void* out, const float* log_sum_exp, const void* dout,
                                 void* dq, void* dk, void* dv, void* workspace,
                                 int64_t workspace_bytes);
  // mask (BF16; batch, mask_rows, mask_stride): 0 from shape->first_key on, before it a number so
  // low that its exponential is 0. Rows behind the query_length first ones are as the last of them.
  int (*attention_mask)(TroupeCudaStream* stream, const TroupeCudaAttention* shape, void* mask,
                        int64_t mask_rows, int64_t mask_stride);
  int (*embedding_forward)(TroupeCudaStream* stream, const int32_t* ids, const void* table,
                           int32_t table_type, void* out, int32_t type, int64_t rows,
                           int64_t width);
  // Rows of equal ids are added in their order, without atomics. `scratch`:
  // embedding_scratch_bytes(rows).
  int (*embedding_backward)(TroupeCudaStream* stream, int32_t type, const int32_t* ids,
                            const void* dout, float* dweight, int64_t rows, int64_t width,
                            void* scratch);
  int64_t (*embedding_scratch_bytes)(int64_t rows);
  // gradient: where it goes (F32: over the logits when null; BF16), or gradient_type < 0: none is
  // wanted. `logits` fp32 are destroyed.
  int (*cross_entropy)(TroupeCudaStream* stream, float* logits, const int32_t* labels,
                       float* losses, float scale, void* gradient, int32_t gradient_type,
                       int64_t rows, int64_t classes);

  // --- the optimizer, over flat ranges. gradient_scale: an fp32 of the device, what every gradient
  // is multiplied with.
  int (*adamw)(TroupeCudaStream* stream, const TroupeCudaAdamW* step, void* parameters,
               const float* gradients, void* first_moments, void* second_moments, int64_t count,
               const float* gradient_scale);
  // The same over ranges under a log: what a launch for the same step that did not come to its end
  // left half written is restored, and what it did not do is done. The bits are those of an
  // undisturbed one whenever it was ended, and however often.
  int (*adamw_transacted)(TroupeCudaStream* stream, const TroupeCudaUpdate* update);
  // sums[i] = Σ x² of tile i, in double, the last tile possibly shorter. Not finite exactly when an
  // element is not.
  int (*tile_sums_of_squares)(TroupeCudaStream* stream, const float* x, int64_t count,
                              int64_t tile_elements, double* sums);
  // sum[i] = the sum of parts[0][i] … parts[count−1][i] by the fixed tree of
  // runtime/collective/reduce_tree.h. Parts are F32 or BF16, the tree is fp32, `out` of out_type;
  // out may be a part. parts: `count` addresses, on the host, at most TROUPE_CUDA_PARTS_MAX.
  int (*tree_sum)(TroupeCudaStream* stream, const void* const* parts, int32_t count, int32_t type,
                  void* out, int32_t out_type, int64_t elements);

  // --- communicators over NCCL. Initialisation and operations do not block: group_state says where
  // it stands (OK: done; NOT_READY; else what failed). Between begin and end, operations are one.
  int (*group_unique_id)(uint8_t id[TROUPE_CUDA_GROUP_ID_BYTES]);
  int (*group_begin_init)(TroupeCudaContext* context, const uint8_t id[TROUPE_CUDA_GROUP_ID_BYTES],
                          int32_t world_size, int32_t rank, const char* name,
                          TroupeCudaGroup** group);
  int (*group_begin_split)(TroupeCudaGroup* parent, int32_t color, int32_t key, const char* name,
                           TroupeCudaGroup** group);  // color < 0: not a member, *group is null
  int (*group_state)(TroupeCudaGroup* group);
  // Ends what is under way and frees it: from any thread, the others no longer use it. Of several
  // groups: groups_abort().
  int (*group_abort)(TroupeCudaGroup* group);
  // In order: waits for what was enqueued.
  int (*group_destroy)(TroupeCudaGroup* group);
  int (*group_batch_begin)(void);
  int (*group_batch_end)(void);
  int (*group_send)(TroupeCudaGroup* group, TroupeCudaStream* stream, const void* data,
                    int64_t bytes, int32_t peer);
  int (*group_receive)(TroupeCudaGroup* group, TroupeCudaStream* stream, void* data, int64_t bytes,
                       int32_t peer);
  int (*group_all_reduce)(TroupeCudaGroup* group, TroupeCudaStream* stream, const void* input,
                          void* output, int64_t count, int32_t type, int32_t reduce);
  // `count` elements of each rank.
  int (*group_reduce_scatter)(TroupeCudaGroup* group, TroupeCudaStream* stream, const void* input,
                              void* output, int64_t count, int32_t type, int32_t reduce);
  int (*group_all_gather)(TroupeCudaGroup* group, TroupeCudaStream* stream, const void* input,
                          void* output, int64_t count, int32_t type);
  int (*group_broadcast)(TroupeCudaGroup* group, TroupeCudaStream* stream, void* data,
                         int64_t count, int32_t type, int32_t root);

  // --- dropout, by counters: see train/tensor/operators.h. `residual`: or null; `out` may be x or
  // residual.
  int (*dropout)(TroupeCudaStream* stream, int32_t type, const TroupeCudaDropout* dropout,
                 const void* x, const void* residual, void* out, int64_t rows, int64_t width);
  // Troupe's own kernels of attention with a dropout of the weights: as attention_forward and
  // attention_backward, whose scratch they take.
  int (*attention_dropout_forward)(TroupeCudaStream* stream, const TroupeCudaAttention* shape,
                                   const TroupeCudaDropout* dropout, const void* q, const void* k,
                                   const void* v, void* out, float* log_sum_exp);
  int (*attention_dropout_backward)(TroupeCudaStream* stream, const TroupeCudaAttention* shape,
                                    const TroupeCudaDropout* dropout, const void* q, const void* k,
                                    const void* v, const void* out, const float* log_sum_exp,
                                    const void* dout, void* dq, void* dk, void* dv, void* scratch);

  // --- graphs: work that is enqueued by one call, as often as wanted. Between begin and end, by
  // the same thread, what the stream is given is kept and not done; anything but launches and
  // copies within the device breaks the capture off. `end` is called whatever failed in between:
  // the stream is an ordinary one again. *graph is null where it fails.
  int (*graph_capture_begin)(TroupeCudaStream* stream);
  int (*graph_capture_end)(TroupeCudaStream* stream, TroupeCudaGraph** graph);
  // Of the stream's context. Memory, and attention plans, that were captured must be there still.
  int (*graph_launch)(TroupeCudaStream* stream, TroupeCudaGraph* graph);
  // Launches that are under way end undisturbed.
  int (*graph_destroy)(TroupeCudaGraph* graph);

  // --- products of 8 bits (compute capability 8.9 or later).
  // out = x·scale in the format, to nearest, with scale = the format's greatest number / the
  // greatest magnitude of x. scales, two fp32: scale and 1/scale. A product with anything that is
  // not finite in x is no number. out begins at 16 bytes. `scratch`: quantize_scratch_bytes().
  int (*quantize)(TroupeCudaStream* stream, const TroupeCudaQuantize* matrix, const void* x,
                  void* out, float* scales, void* scratch);
  int64_t (*quantize_scratch_bytes)(void);
  // gemm() of FP8, the product multiplied by *a_scale and *b_scale, fp32 of the device: the second
  // of quantize()'s scales.
  int (*gemm_scaled)(TroupeCudaStream* stream, const TroupeCudaGemm* gemm,
                     const TroupeCudaAlgorithm* algorithm, const void* a, const float* a_scale,
                     const void* b, const float* b_scale, void* c, void* workspace,
                     int64_t workspace_bytes);

  // --- communicators of one context, together. group_abort() of one may wait for all that the
  // device is doing, and so for ever where another one's operation hangs: where several may be
  // under way they are aborted by one call. `count` ≥ 1, none of them null; all are freed.
  int (*groups_abort)(TroupeCudaGroup* const* groups, int32_t count);

  // --- products that go on with an epilogue. bias: (n), of c's type; gelu_input: (m, n), of c's
  // type and by its stride; each null where the epilogue has none.
  int (*gemm_fused)(TroupeCudaStream* stream, const TroupeCudaGemm* gemm,
                    const TroupeCudaAlgorithm* algorithm, const void* a, const void* b,
                    const void* bias, void* gelu_input, void* c, void* workspace,
                    int64_t workspace_bytes);
} TroupeCudaTable;

enum { TROUPE_CUDA_PARTS_MAX = 64 };

// The library's one exported function; null where it does not know this version.
typedef const TroupeCudaTable* (*TroupeCudaTableFunction)(uint32_t version);
#define TROUPE_CUDA_TABLE_SYMBOL "troupe_cuda_table"

#ifdef __cplusplus
}
#endif
