#include "actors/session/state_loss.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "actors/session/light_batch.h"
#include "runtime/base/canary.h"
#include "runtime/base/limits.h"
#include "troupe/detail/light_actor.h"

namespace troupe::detail {

void StateLoss::bound(std::uint64_t generation, const wire::ActorInfo& info) {
  const std::uint64_t before = std::exchange(generation_, generation);
  const NodeId ran_on = std::exchange(node_, info.node_id);
  const std::uint64_t lost = info.state_lost_generation;
  const bool concerns = before != 0 && before < lost && generation >= lost;
  if (!concerns || (interface_.light && !interface_.saves)) return;
  if (TROUPE_CANARY("forgets-lost-state")) return;
  untold_ = error(Code::kDataLoss,
                  "what the actor had saved was lost with node {}, and it goes on without that. "
                  "This is said once: later calls reach it as it is now",
                  ran_on.brief());
  untold_lights_ = called_;
}

Status StateLoss::tell(std::uint32_t method, std::span<const std::byte> arguments) {
  if (!interface_.light) return untold_.ok() ? Status() : std::exchange(untold_, Status());
  if (!interface_.saves) return {};
  bool untold = false;
  if (method == light_method(interface_, LightMethod::kEach)) {
    Decoder in(arguments);
    LightBatch batch;
    if (!batch.read(in, limits::kLightPerHostMax)) return {};  // which its host says, too
    for (const LightRun& run : batch.runs) {
      for (std::uint32_t i = 0; i < run.count; ++i) untold |= take_untold(run.first + i);
    }
  } else {
    std::uint32_t number = 0;  // light_actor.h
    if (arguments.size() < sizeof number) return {};
    std::memcpy(&number, arguments.data(), sizeof number);
    untold = take_untold(number);
  }
  return untold ? untold_ : Status();
}

bool StateLoss::take_untold(std::uint32_t number) {
  if (number >= called_.size()) called_.resize(number + std::size_t{1});
  called_[number] = true;
  if (number >= untold_lights_.size() || !untold_lights_[number]) return false;
  untold_lights_[number] = false;
  return true;
}

}  // namespace troupe::detail
