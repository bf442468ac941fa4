#include "scheduler/node/gpu_faults.h"

#include <algorithm>
#include <array>

namespace troupe::scheduler {
namespace {

struct Xid {
  std::uint64_t first, last;
  GpuFaultMeaning meaning;
};

constexpr GpuFaultMeaning kCopyEngine{
    GpuBlame::kProcess, "copy engine exception: usually a copy to or from an address that is none"};
constexpr GpuFaultMeaning kMedia{GpuBlame::kProcess, "exception of an engine for video or images"};
constexpr GpuFaultMeaning kFirmware{GpuBlame::kNotice,
                                    "the driver's firmware met an error that it goes on from"};

// By the catalogue's immediate action: the program is restarted, nothing is done, the GPU is reset.
// What is left out is the device's.
constexpr std::array kXids{
    Xid{8, 8, {GpuBlame::kProcess, "a program's work did not end in time"}},
    Xid{11, 11, {GpuBlame::kProcess, "a program's command for hardware that is not there"}},
    Xid{13,
        13,
        {GpuBlame::kProcess,
         "graphics engine exception: usually a kernel that reads or writes out of bounds"}},
    Xid{25, 25, {GpuBlame::kProcess, "a program's illegal command"}},
    Xid{31,
        31,
        {GpuBlame::kProcess,
         "memory page fault: usually a program that uses an address that is not its own"}},
    Xid{32, 32, {GpuBlame::kProcess, "invalid or corrupted push buffer stream"}},
    Xid{37, 38, kFirmware},
    Xid{39, 41, kCopyEngine},
    Xid{43, 43, {GpuBlame::kProcess, "the GPU stopped processing a program that had failed"}},
    Xid{44, 44, {GpuBlame::kNotice, "a fault while the GPU changed from one program to another"}},
    Xid{45, 45, {GpuBlame::kProcess, "a program's channel was cleaned up after its end or error"}},
    Xid{46, 46, {GpuBlame::kDevice, "the GPU does not answer: reset it"}},
    Xid{48, 48, {GpuBlame::kDevice, "double-bit ECC error: reset the GPU"}},
    Xid{60, 60, {GpuBlame::kProcess, "security engine exception"}},
    Xid{61, 61, {GpuBlame::kDevice, "internal micro-controller breakpoint: reset the GPU"}},
    Xid{62, 62, {GpuBlame::kDevice, "internal micro-controller halt: reset the GPU"}},
    Xid{63, 63, {GpuBlame::kNotice, "a memory row will be remapped at the next reset"}},
    Xid{64,
        64,
        {GpuBlame::kDevice, "a memory row could not be remapped: reset or replace the GPU"}},
    Xid{66, 67, kFirmware},
    Xid{68, 68, kMedia},
    Xid{69, 69, {GpuBlame::kProcess, "graphics engine class error"}},
    Xid{70, 72, kCopyEngine},
    Xid{74, 74, {GpuBlame::kDevice, "NVLink error: reset the GPU, check its links"}},
    Xid{75, 77, kCopyEngine},
    Xid{79, 79, {GpuBlame::kDevice, "the GPU has fallen off the bus: power, cooling or its seat"}},
    Xid{80, 80, {GpuBlame::kProcess, "a program's commands arrived damaged"}},
    Xid{82, 84, kMedia},
    Xid{85, 85, kCopyEngine},
    Xid{86, 89, kMedia},
    Xid{92, 92, {GpuBlame::kNotice, "high rate of corrected ECC errors"}},
    Xid{93,
        93,
        {GpuBlame::kNotice, "the GPU's configuration memory was written more often than planned"}},
    Xid{94,
        94,
        {GpuBlame::kProcess, "uncorrectable ECC error, contained in the program that met it"}},
    Xid{95,
        95,
        {GpuBlame::kDevice, "uncorrectable ECC error that was not contained: reset the GPU"}},
    Xid{96, 105, kMedia},
    Xid{108, 108, {GpuBlame::kNotice, "an access over NVLink found no address on the other GPU"}},
    Xid{109, 109, {GpuBlame::kDevice, "context switch time-out: reset the GPU"}},
    Xid{110, 110, {GpuBlame::kDevice, "security fault: reset the GPU"}},
    Xid{119, 119, {GpuBlame::kDevice, "the GPU's system processor does not answer: reset the GPU"}},
    Xid{120, 120, {GpuBlame::kDevice, "error of the GPU's system processor: reset the GPU"}},
    Xid{121, 121, {GpuBlame::kNotice, "corrected error of the link between CPU and GPU"}},
    Xid{126, 135, kCopyEngine},
    Xid{136, 136, {GpuBlame::kDevice, "NVLink could not be trained: reset the GPU"}},
    Xid{137,
        137,
        {GpuBlame::kNotice,
         "an access over NVLink that the other GPU refused: usually a program's, or one whose peer "
         "has gone"}},
    Xid{140, 140, {GpuBlame::kDevice, "ECC error without recovery: reset the GPU"}},
    Xid{141, 141, kFirmware},
    Xid{143, 143, {GpuBlame::kDevice, "the GPU could not be started: reset it"}},
    Xid{154, 154, {GpuBlame::kNotice, "the driver says what should be done to recover the GPU"}},
};

}  // namespace

GpuFaultMeaning meaning_of(const GpuFault& fault) {
  if (!fault.xid) return {GpuBlame::kDevice, "double-bit ECC error: reset the GPU"};
  const auto found = std::find_if(kXids.begin(), kXids.end(), [&](const Xid& xid) {
    return xid.first <= *fault.xid && *fault.xid <= xid.last;
  });
  if (found != kXids.end()) return found->meaning;
  return {GpuBlame::kDevice, "not known here: look it up in NVIDIA's catalogue of Xid errors"};
}

std::string describe(const GpuFault& fault) {
  const GpuFaultMeaning meaning = meaning_of(fault);
  return fault.xid ? fmt::format("Xid {}: {}", *fault.xid, meaning.text)
                   : std::string(meaning.text);
}

}  // namespace troupe::scheduler
