#include "train/cpu/isa.h"

#include <oneapi/dnnl/dnnl.h>

#include <algorithm>
#include <atomic>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace troupe::train {
namespace {

#if defined(__x86_64__)
// The operating system saves tile registers (XCR0 bits 17 and 18, Intel SDM vol. 1, 13.3).
bool saves_tiles() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !(ecx & (1u << 27))) return false;  // OSXSAVE
  unsigned low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low & (3u << 17)) == (3u << 17);
}

// CPUID leaf 7, EDX: AMX-BF16 is bit 22, AMX-TILE 24, AMX-INT8 25.
bool has_amx() {
  constexpr unsigned kAmx = (1u << 22) | (1u << 24) | (1u << 25);
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (edx & kAmx) == kAmx && saves_tiles();
}

int processor_level() {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return kCpuPlain;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
    return kCpuAvx2;
  if (!__builtin_cpu_supports("avx512vnni") || !__builtin_cpu_supports("avx512bf16"))
    return kCpuAvx512;
  return has_amx() ? kCpuAmx : kCpuAvx512Bf16;
}
#else
int processor_level() { return kCpuPlain; }
#endif

constexpr int kNoLimit = -1;
std::atomic<int> limit{kNoLimit};

constexpr dnnl_cpu_isa_t kOneDnnLevels[] = {dnnl_cpu_isa_avx, dnnl_cpu_isa_avx2,
                                            dnnl_cpu_isa_avx512_core, dnnl_cpu_isa_avx512_core_bf16,
                                            dnnl_cpu_isa_avx512_core_amx};

}  // namespace

int cpu_isa_level() {
  const int limited = limit.load();
  return limited == kNoLimit ? processor_level() : std::min(limited, processor_level());
}

const char* cpu_isa_name(int level) {
  constexpr const char* kNames[] = {"plain x86-64", "AVX2", "AVX-512", "AVX-512 with bf16", "AMX"};
  return level >= kCpuPlain && level <= kCpuAmx ? kNames[level] : "unknown";
}

Status limit_cpu_isa(int level) {
  if (level < kCpuPlain || level > kCpuAmx)
    return error(Code::kInvalidArgument, "{} is no level of instruction sets (0 … {})", level,
                 kCpuAmx);
  if (limit.load() == level) return {};
  if (dnnl_set_max_cpu_isa(kOneDnnLevels[level]) != dnnl_success)
    return error(Code::kFailedPrecondition,
                 "instructions cannot be limited to {} any more: oneDNN has chosen its kernels; "
                 "set the limit before operators are made",
                 cpu_isa_name(level));
  limit = level;
  return {};
}

}  // namespace troupe::train
