#include "scheduler/node/gpu_faults.h"

#include <algorithm>
#include <array>

namespace troupe::scheduler {
namespace {

struct Xid {
  std::uint64_t number;
  GpuFaultMeaning meaning;
};

constexpr std::array kXids{
    Xid{8, {GpuBlame::kProcess, "a program's work did not end in time"}},
    Xid{13,
        {GpuBlame::kProcess,
         "graphics engine exception: usually a kernel that reads or writes out of bounds"}},
    Xid{31,
        {GpuBlame::kProcess,
         "memory page fault: usually a program that uses an address that is not its own"}},
    Xid{32, {GpuBlame::kProcess, "invalid or corrupted push buffer stream"}},
    Xid{43, {GpuBlame::kProcess, "the GPU stopped processing a program that had failed"}},
    Xid{45, {GpuBlame::kProcess, "a program's channel was cleaned up after its end or error"}},
    Xid{48, {GpuBlame::kDevice, "double-bit ECC error: reset the GPU"}},
    Xid{61, {GpuBlame::kDevice, "internal micro-controller breakpoint: reset the GPU"}},
    Xid{62, {GpuBlame::kDevice, "internal micro-controller halt: reset the GPU"}},
    Xid{63, {GpuBlame::kNotice, "a memory row will be remapped at the next reset"}},
    Xid{64, {GpuBlame::kDevice, "a memory row could not be remapped: reset or replace the GPU"}},
    Xid{68, {GpuBlame::kProcess, "video decoder exception"}},
    Xid{69, {GpuBlame::kProcess, "graphics engine class error"}},
    Xid{74, {GpuBlame::kDevice, "NVLink error: reset the GPU, check its links"}},
    Xid{79, {GpuBlame::kDevice, "the GPU has fallen off the bus: power, cooling or its seat"}},
    Xid{92, {GpuBlame::kNotice, "high rate of corrected ECC errors"}},
    Xid{93,
        {GpuBlame::kNotice, "the GPU's configuration memory is written more often than planned"}},
    Xid{94, {GpuBlame::kProcess, "uncorrectable ECC error, contained in the program that met it"}},
    Xid{95, {GpuBlame::kDevice, "uncorrectable ECC error that was not contained: reset the GPU"}},
    Xid{109, {GpuBlame::kProcess, "context switch time-out"}},
    Xid{119, {GpuBlame::kDevice, "the GPU's system processor does not answer: reset the GPU"}},
    Xid{120, {GpuBlame::kDevice, "error of the GPU's system processor: reset the GPU"}},
    Xid{137,
        {GpuBlame::kProcess,
         "an access over NVLink that the other GPU refused: usually a program, or one whose peer "
         "has gone"}},
    Xid{140, {GpuBlame::kDevice, "ECC error without recovery: reset the GPU"}},
    Xid{154, {GpuBlame::kNotice, "the driver says what should be done to recover the GPU"}},
};

}  // namespace

GpuFaultMeaning meaning_of(const GpuFault& fault) {
  if (!fault.xid) return {GpuBlame::kDevice, "double-bit ECC error: reset the GPU"};
  const auto found = std::find_if(kXids.begin(), kXids.end(),
                                  [&](const Xid& xid) { return xid.number == *fault.xid; });
  if (found != kXids.end()) return found->meaning;
  return {GpuBlame::kDevice, "not known here: look it up in NVIDIA's catalogue of Xid errors"};
}

std::string describe(const GpuFault& fault) {
  const GpuFaultMeaning meaning = meaning_of(fault);
  return fault.xid ? fmt::format("Xid {}: {}", *fault.xid, meaning.text)
                   : std::string(meaning.text);
}

}  // namespace troupe::scheduler
