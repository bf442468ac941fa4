#include "train/trainer/actor_memory.h"

namespace troupe::train {
namespace {

// A process that does not end so long after it was killed hangs in the kernel.
constexpr auto kTakeTimeout = std::chrono::seconds(10);

}  // namespace

Result<std::optional<memory::Segment>> ActorMemory::take(const std::string& name) {
  auto fd = context_.attach_segment(prefix_ + "/" + name, Deadline::after(kTakeTimeout));
  if (fd.status().code() == Code::kNotFound) return std::optional<memory::Segment>();
  if (!fd.ok()) return fd.status();
  return std::optional<memory::Segment>(TROUPE_TRY(map_found(std::move(*fd))));
}

Status ActorMemory::keep(const std::string& name, const memory::Segment& segment) {
  return context_.keep_segment(prefix_ + "/" + name, segment.fd());
}

}  // namespace troupe::train
