#pragma once
// Which GPUs of a node go to one actor: those that are nearest to each other.

#include <cstddef>
#include <vector>

#include "runtime/wire/gpu.h"

namespace troupe::scheduler {

class GpuTopology {
 public:
  explicit GpuTopology(const std::vector<wire::GpuDevice>& devices);

  // How near two devices are, by their positions: larger is nearer. NVLinks count most, then what
  // lies between them on the PCI bus, then peer access; of devices without links (instances), the
  // same NUMA node.
  int nearness(std::size_t a, std::size_t b) const { return nearness_[a * count_ + b]; }

  // `count` of the positions in `free`: those whose worst pair is the nearest, then whose pairs are
  // together, then those that leave the least near of the others (so the smallest island with
  // room), then the first ones. Exact for up to 16 free devices, else grown from the best start.
  // Empty where there are not so many. Sorted.
  std::vector<std::size_t> choose(const std::vector<std::size_t>& free, std::size_t count) const;

 private:
  std::size_t count_;
  std::vector<int> nearness_;
};

}  // namespace troupe::scheduler
