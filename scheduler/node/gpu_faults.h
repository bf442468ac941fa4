#pragma once
// What a driver's report about a GPU means, and whose fault it is: NVIDIA's catalogue of Xid errors
// ("Xid Errors", Analyzing Xid Errors with the Xid Catalog).

#include <string>
#include <string_view>

#include "scheduler/node/nvml.h"

namespace troupe::scheduler {

enum class GpuBlame {
  kProcess,  // an error of the program, or contained in it: it ends by itself, the device is well
  kNotice,   // the device works on; somebody should know
  kDevice,   // it must not be used any more before it is reset or replaced
};

struct GpuFaultMeaning {
  GpuBlame blame = GpuBlame::kDevice;
  std::string_view text;
};

// A number that is not known counts as the device's.
GpuFaultMeaning meaning_of(const GpuFault& fault);
// "Xid 79: the GPU has fallen off the bus", "a double-bit ECC error, …".
std::string describe(const GpuFault& fault);

}  // namespace troupe::scheduler
