#pragma once
// Surviving memory of an actor: its job's segments at the node, under a prefix.

#include <string>

#include "train/trainer/surviving_memory.h"
#include "troupe/actor.h"

namespace troupe::train {

class ActorMemory final : public SurvivingMemory {
 public:
  // Names become "PREFIX/NAME". `context` outlives it.
  ActorMemory(ActorContext& context, std::string prefix)
      : context_(context), prefix_(std::move(prefix)) {}

  // Waits for the end of the process that had it before.
  Result<std::optional<memory::Segment>> take(const std::string& name) override;
  Status keep(const std::string& name, const memory::Segment& segment) override;
  Result<std::optional<UniqueFd>> take_descriptor(const std::string& name) override;
  Status keep_descriptor(const std::string& name, int descriptor) override;
  Status forget(const std::string& name) override;

 private:
  ActorContext& context_;
  const std::string prefix_;
};

}  // namespace troupe::train
