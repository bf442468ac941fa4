#pragma once
// Carries the run's data: from the driver to the controller, from a controller to its next process,
// and from the controller to each trainer.

#include <functional>
#include <optional>
#include <string>

#include "runtime/memory/segment.h"
#include "troupe/actor.h"

namespace troupe::train {

// One thread, unless said otherwise.
class BundleCourier {
 public:
  explicit BundleCourier(ActorContext& context) : context_(context) {}

  bool has_bundle() const { return bundle_.has_value(); }
  // Whether the driver is to send the data again.
  bool wants_bundle() const { return wants_bundle_; }
  void want_bundle() { wants_bundle_ = true; }

  // From the driver. They are kept on this node for the controller's next process.
  Status receive(ByteStream stream, bool same_node);
  // Takes what the process before this one kept.
  Status restore();

  // Sends the data to a trainer and waits until it has them, or for a limit. Any thread.
  using Delivery = std::function<Status(ActorId trainer)>;
  // A delivery of the data that are here, and of the token cache in `token_cache` (empty: there is
  // none) to other nodes, whatever becomes of the courier.
  Result<Delivery> delivery(const std::string& token_cache) const;

 private:
  ActorContext& context_;
  std::optional<memory::Segment> bundle_;
  bool wants_bundle_ = false;
};

}  // namespace troupe::train
