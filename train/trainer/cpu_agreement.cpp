#include "train/trainer/cpu_agreement.h"

#include "train/cpu/isa.h"

namespace troupe::train {

Status agree_on_cpu(collective::Communicator& world) {
  const std::int32_t mine = cpu_isa_level();
  std::int32_t least = mine;
  TROUPE_RETURN_IF_ERROR(world.all_reduce(std::span(&least, 1), collective::ReduceOp::kMin));
  if (least == mine) return {};
  const Status limited = limit_cpu_isa(least);
  if (limited.ok()) return {};
  return error(limited.code(),
               "a trainer that joined computes with {} at most, this one (rank {}) has begun with "
               "{}: start the run again, it goes on from its last checkpoint",
               cpu_isa_name(least), world.rank(), cpu_isa_name(mine));
}

}  // namespace troupe::train
