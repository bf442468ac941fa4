#include "process.h"

#include "cluster.h"

namespace troupe::simulation {

Process::Process(Cluster& cluster, Place place)
    : cluster_(cluster),
      world_(cluster.world()),
      place_(std::move(place)),
      label_(fmt::format("{} process {}",
                         place_.spec.name.empty()
                             ? fmt::format("{} {}", place_.spec.type, place_.spec.actor_id.brief())
                             : place_.spec.name,
                         place_.pid)) {}

void Process::later(Duration delay, std::function<void()> what) {
  world_.timeline.after(delay, [this, what = std::move(what)] { run(what); });
}

void Process::run(std::function<void()> what) {
  if (!alive_) return;
  if (stopped_) {
    held_.push_back(std::move(what));
  } else {
    what();
  }
}

void Process::told(const wire::HostMessage& message, MemoryPtr memory) {
  if (holds_alternative<wire::HostStart>(message)) {
    // Said again by a new daemon: the one before may have died with the answer.
    if (std::exchange(started_, true)) {
      if (ready_) run([this] { cluster_.tell_node(*this, wire::HostReady{}); });
      return;
    }
    run([this, memory] { start(memory); });
  } else if (const auto* reply = get_if<wire::HostAttachReply>(&message)) {
    run([this, id = reply->request_id, status = reply->status, memory] {
      attached(id, status, memory);
    });
  } else if (const auto* stop = get_if<wire::HostStop>(&message)) {
    run([this, moves = stop->drain && stop->comes_back,
         grace = std::chrono::milliseconds(stop->grace_ms)] {
      moves ? asked_to_move(grace) : asked_to_stop(grace);
    });
  } else if (holds_alternative<wire::HostSavedState>(message)) {
    run([this] { state_known(); });
  } else if (holds_alternative<wire::HostConnection>(message)) {
    run([this, memory = std::move(memory)] { connected(memory); });
  }
}

void Process::become_ready() {
  ready_ = true;
  cluster_.tell_node(*this, wire::HostReady{});
}

void Process::stop() { stopped_ = true; }

void Process::go_on() {
  stopped_ = false;
  while (!held_.empty() && alive_ && !stopped_) {
    const auto what = std::move(held_.front());
    held_.pop_front();
    what();
  }
}

void Process::die() {
  if (!std::exchange(alive_, false)) return;
  held_.clear();
  on_death();
}

}  // namespace troupe::simulation
