#pragma once
// The processor's instruction sets as levels that ranks on unequal machines can agree on.
//
// oneDNN picks its kernels by the instruction set, and kernels of different sets round differently.
// Ranks that must give the same bits therefore take the least of their levels before they make
// their first operators. (Everything else in train/cpu gives the same bits on every set.)

#include "runtime/base/status.h"

namespace troupe::train {

// Ordered: each includes the ones before it.
inline constexpr int kCpuPlain = 0;       // x86-64 without AVX2
inline constexpr int kCpuAvx2 = 1;        // and FMA
inline constexpr int kCpuAvx512 = 2;      // F, BW, DQ, VL
inline constexpr int kCpuAvx512Bf16 = 3;  // and VNNI
inline constexpr int kCpuAmx = 4;         // TILE, INT8, BF16, allowed by the operating system

// The level of this process: what the processor has, or the limit that was set.
int cpu_isa_level();

// Uses no instructions above `level`, one of the levels above, from now on. Overrides oneDNN's own
// environment variable (ONEDNN_MAX_CPU_ISA). Must come before the first operators are made, in a
// process where nothing else runs oneDNN; the same limit again is accepted. kFailedPrecondition
// when it comes too late, kInvalidArgument for another number.
Status limit_cpu_isa(int level);

// "AVX-512" …, for messages.
const char* cpu_isa_name(int level);

}  // namespace troupe::train
