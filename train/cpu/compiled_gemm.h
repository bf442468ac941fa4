#pragma once
// Matrix products compiled by oneDNN, by shape and types: private to train/cpu.
//
// oneDNN never starts threads of its own: every primitive is made and run under a limit of one
// OpenMP thread.

#include <cstddef>
#include <memory>

#include "train/tensor/operators.h"

namespace troupe::train {

// Compiles a product when its shape is first asked for and keeps it; a bounded number of them.
// Operands must have one type, kF32 or kBF16 (native_bf16 only), that of the arithmetic. Threads
// call with slots of their own.
class CompiledGemms {
 public:
  explicit CompiledGemms(int slots);
  ~CompiledGemms();

  // The product in the calling thread, with the slot's scratch memory.
  void run(const Gemm& gemm, int slot);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Whether oneDNN computes bf16 products with the processor's own instructions, by the processor,
// limit_cpu_isa and oneDNN's environment variable. No limit can be set after the call.
bool cpu_multiplies_bf16();

}  // namespace troupe::train
