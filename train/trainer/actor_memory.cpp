#include "train/trainer/actor_memory.h"

namespace troupe::train {
namespace {

// A process that does not end so long after it was killed hangs in the kernel.
constexpr auto kTakeTimeout = std::chrono::seconds(10);

}  // namespace

Result<std::optional<memory::Segment>> ActorMemory::take(const std::string& name) {
  auto fd = TROUPE_TRY(take_descriptor(name));
  if (!fd) return std::optional<memory::Segment>();
  return std::optional<memory::Segment>(TROUPE_TRY(map_found(std::move(*fd))));
}

Status ActorMemory::keep(const std::string& name, const memory::Segment& segment) {
  return keep_descriptor(name, segment.fd());
}

Result<std::optional<UniqueFd>> ActorMemory::take_descriptor(const std::string& name) {
  auto fd = context_.attach_segment(prefix_ + "/" + name, Deadline::after(kTakeTimeout));
  if (fd.status().code() == Code::kNotFound) return std::optional<UniqueFd>();
  if (!fd.ok()) return fd.status();
  return std::optional<UniqueFd>(std::move(*fd));
}

Status ActorMemory::keep_descriptor(const std::string& name, int descriptor) {
  return context_.keep_segment(prefix_ + "/" + name, descriptor);
}

Status ActorMemory::forget(const std::string& name) {
  return context_.keep_segment(prefix_ + "/" + name, -1);
}

}  // namespace troupe::train
