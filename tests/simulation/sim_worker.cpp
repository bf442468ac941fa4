#include "sim_worker.h"

namespace troupe::simulation {

void Worker::start(MemoryPtr) {
  later(world_.between(1, 30), [this] {
    if (place().spec.type == "Broken") {
      cluster_.tell_node(*this, wire::HostFailed{Status(Code::kInvalidArgument, "it never works")});
      return later(world_.between(0, 2),
                   [this] { cluster_.kill(*this, "its constructor failed"); });
    }
    become_ready();
    if (world_.chance(4)) {
      later(world_.between(0, 400), [this] {
        cluster_.tell_node(*this, wire::HostSavedState{place().incarnation},
                           std::make_shared<SavedState>());
      });
    }
  });
}

void Worker::asked_to_stop(Duration grace) {
  const double grace_ms = std::chrono::duration<double, std::milli>(grace).count();
  // Some take longer than they may.
  later(world_.between(0, grace_ms * 1.3), [this] { cluster_.kill(*this, "it has finished"); });
}

void Worker::connected(MemoryPtr memory) {
  callers_.push_back(memory);
  later(world_.between(0.05, world_.chance(10) ? 300 : 3), [this, call = std::weak_ptr(memory)] {
    const MemoryPtr answered = call.lock();
    if (!answered) return;
    std::erase(callers_, answered);
    dynamic_cast<CallConnection&>(*answered).answer();
  });
}

}  // namespace troupe::simulation
