#pragma once
// The operator table on a GPU.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "train/cuda/device/device.h"
#include "train/cuda/device/host_transfer.h"
#include "train/cuda/device/stream.h"
#include "train/cuda/operators/block_graphs.h"
#include "train/cuda/operators/device_attention.h"
#include "train/cuda/operators/gemm_algorithms.h"
#include "train/tensor/operators.h"

namespace troupe::train {

struct CudaOptions {
  // fp32 products with operands that the unit rounds to TF32 (10 bits of fraction): about 8 times
  // as fast on tensor cores, with errors of 1e-3 of the result.
  bool tf32 = false;
  // Products in bf16 whose operands may be narrow are computed in 8 bits where their sizes allow:
  // see fp8_products.h. The device must have them (check_fp8).
  bool fp8 = false;
  AttentionOptions attention;
  // Whether blocks of launches that come again are graphs.
  GraphOptions graphs;
  // Told once, of the first product that fp8 does not reach.
  std::function<void(const std::string&)> fp8_notice = [](const std::string&) {};
};

// Enqueues on one stream and returns; downloads wait. Activations are fp32, or bf16 where the
// device multiplies it. Products in bf16 take bf16 operands as they are and round fp32 ones into
// scratch memory first. Sums over rows have an order that depends on the sizes alone.
//
// A failure (a lost device, too little scratch) is kept: nothing is run after the first one, and
// downloads give bytes of ones, which are no numbers. failure() tells it.
class CudaOperators final : public Operators {
 public:
  // `stream` and `algorithms` must outlive the object. `scratch`: memory of the device that nobody
  // else uses, aligned to 256 bytes: as much as scratch_needed() of a meter says.
  static Result<std::unique_ptr<CudaOperators>> create(CudaStream& stream,
                                                       GemmAlgorithms& algorithms,
                                                       std::span<std::byte> scratch,
                                                       const CudaOptions& options = {});
  // Operators that compute nothing, touch no memory and note the scratch that they would take:
  // what a model needs is found by a pass over it. Downloads give zeros. `workspace_bytes`: of the
  // algorithms. `options`: those of the operators that will run.
  static std::unique_ptr<CudaOperators> meter(std::shared_ptr<const CudaLibrary> library,
                                              std::int64_t workspace_bytes,
                                              const CudaOptions& options = {});
  // All enqueued work is waited for.
  ~CudaOperators() override;

  // --- planning: what is asked of the vendor's libraries once, asked before there is memory
  // From here on nothing is run and no memory is touched: a pass over any addresses of the device
  // chooses the products' algorithms and makes attention's plans as it will with `scratch_bytes` of
  // scratch memory, given tensors that begin at multiples of 16 bytes. Downloads give zeros.
  void begin_planning(std::int64_t scratch_bytes);
  // What failed meanwhile: it will fail again, or come about, when it is run.
  Status end_planning();
  // Instead of create()'s, before anything was run.
  void use_scratch(std::span<std::byte> scratch);

  // Of any call so far, at most: bytes.
  std::int64_t scratch_needed() const { return scratch_needed_; }
  // Who computed attention so far.
  DeviceAttention::Passes attention_passes() const { return attention_.passes(); }
  // Of blocks so far; null where graphs are not asked for.
  const BlockGraphs* graphs() const { return graphs_.get(); }
  // Waits for all that is enqueued; then what failure() says.
  Status synchronize();
  Status failure() const override { return failure_; }

  // A block's work is enqueued when it ends. An upload, a download or a wait within a block
  // enqueues what came before it, and the rest of the block as it comes.
  void begin_block(int block) override;
  void end_block() override;

  bool fast_bf16() const override;
  bool stores_bf16() const override { return fast_bf16(); }
  // Products in fp32 and bf16 whose matrices, bias and GELU's input begin at multiples of 16 bytes,
  // where the library has an algorithm; GELU's from compute capability 9.0 on.
  bool fuses(const Gemm& gemm) override;
  // Whether the library has the operator's kernel.
  bool supports(OperatorName name) const override;
#define TROUPE_OPERATOR(name, ...) void name(TROUPE_PARAMETERS(__VA_ARGS__)) override;
#include "train/tensor/operators.def"

 private:
  class Cut;
  CudaOperators(std::shared_ptr<const CudaLibrary> library, std::int64_t workspace_bytes,
                const CudaOptions& options, std::unique_ptr<BlockGraphs> graphs);

  const TroupeCudaTable& table() const {
    return graphs_ ? graphs_->record().table() : library_->table();
  }
  bool metering() const { return stream_ == nullptr; }
  // Whether anything is run.
  bool launches() const { return !metering() && !planned_scratch_bytes_; }
  // What a call may choose by.
  std::int64_t scratch_available() const {
    if (metering()) return std::numeric_limits<std::int64_t>::max();
    return planned_scratch_bytes_.value_or(static_cast<std::int64_t>(scratch_.size()));
  }
  // Calls launch() unless it is metering or something failed; keeps what it answers otherwise.
  template <typename Launch>
  void run(const char* name, Launch launch);
  void keep(Status status);
  // An operator that the library's table has a function for, of the same arguments.
  template <typename Function, typename... Arguments>
  void call(const char* name, Function TroupeCudaTable::*function, const Arguments&... arguments);
  void plan_attention(const AttentionCall& call, AttentionPass pass, std::int64_t scratch_bytes);
  // Before anything that comes behind a block's launches without being one.
  void flush_block();
  // Whether the product's operands are to be of 8 bits, if its sizes allow.
  bool wants_fp8(const Gemm& gemm) const;
  // What the algorithm is chosen by; a, b: operands as they are multiplied.
  TroupeCudaGemm key_of(const Gemm& gemm, const void* a, const void* b) const;
  // Whether the product was computed in 8 bits, or failed. False: bf16 is to compute it.
  bool gemm_in_fp8(const Gemm& gemm);
  bool refuse_fp8(const Gemm& gemm, const std::string& why);
  // An operand of a bf16 product: itself, or rounded into scratch.
  const void* bf16_operand(const void* data, DType type, std::int64_t elements, Cut& cut);

  std::shared_ptr<const CudaLibrary> library_;
  std::int64_t workspace_bytes_;
  CudaOptions options_;
  std::unique_ptr<BlockGraphs> graphs_;  // null: everything is launched as it comes
  DeviceAttention attention_;
  std::int64_t plans_dropped_ = 0;  // of attention, when graphs were forgotten last
  CudaStream* stream_ = nullptr;
  GemmAlgorithms* algorithms_ = nullptr;
  std::unique_ptr<HostTransfer> transfer_;
  std::span<std::byte> scratch_;
  std::int64_t scratch_needed_ = 0;
  std::optional<std::int64_t> planned_scratch_bytes_;  // while planning
  // Products of 8 bits that the library has no algorithm for.
  std::set<std::string> without_fp8_;
  bool fp8_told_ = false;
  Status failure_;
};

}  // namespace troupe::train
