#include "scheduler/node/gpu_monitor.h"

#include <optional>
#include <thread>
#include <utility>

#include "runtime/base/clock.h"
#include "troupe/detail/mutex.h"

namespace troupe::scheduler {
namespace {

// How often the devices are read unasked, for those who look at the node.
constexpr Duration kReadUnasked = std::chrono::seconds(5);
// NVML cannot be woken while it waits for errors: a question waits for so long at most.
constexpr unsigned kWaitMs = 50;
constexpr Duration kEndTime = std::chrono::seconds(2);

}  // namespace

struct GpuMonitor::State : std::enable_shared_from_this<GpuMonitor::State> {
  State(net::EventLoop& l, std::shared_ptr<Nvml> n, std::vector<std::string> u, Handlers h)
      : loop(l), nvml(std::move(n)), uuids(std::move(u)), handlers(std::move(h)) {}

  void run();
  // Nothing: it is to end.
  std::optional<std::uint64_t> wait();
  template <typename F>
  void tell(F what) {
    MutexLock lock(mutex);
    // Under the lock: the owner is there, and so is its loop.
    if (stop) return;
    loop.post([weak = weak_from_this(), what = std::move(what)]() mutable {
      const auto self = weak.lock();
      if (self && self->alive) what(self->handlers);
    });
  }

  net::EventLoop& loop;
  std::shared_ptr<Nvml> nvml;  // its own thread's
  const std::vector<std::string> uuids;
  const Handlers handlers;
  bool alive = true;       // loop thread: the owner is there
  bool listening = false;  // its own thread's, as the next one
  Deadline unasked = Deadline::after(kReadUnasked);
  Mutex mutex;
  CondVar changed;
  bool stop TROUPE_GUARDED_BY(mutex) = false;
  bool ended TROUPE_GUARDED_BY(mutex) = false;
  // The number that was asked for last; 0: it was answered.
  std::uint64_t asked TROUPE_GUARDED_BY(mutex) = 0;
};

// The number to read for; 0 where nobody asked.
std::optional<std::uint64_t> GpuMonitor::State::wait() {
  while (true) {
    {
      MutexLock lock(mutex);
      if (!listening) {
        changed.wait_until(mutex, unasked,
                           [this]() TROUPE_NO_ANALYSIS { return stop || asked != 0; });
      }
      if (stop) return std::nullopt;
      if (asked != 0) return std::exchange(asked, 0);
    }
    if (unasked.passed()) return 0;
    if (!listening) continue;
    auto fault = nvml->wait_fault(kWaitMs);
    if (!fault.ok()) {
      // One that has gone is found by its readings.
      if (nvml->listen_to_the_rest()) continue;
      listening = false;
      tell([why = fault.status()](const Handlers& told) { told.on_trouble(why); });
    } else if (*fault) {
      tell([fault = std::move(**fault)](const Handlers& told) { told.on_fault(fault); });
    }
  }
}

void GpuMonitor::State::run() {
  const Status listened = nvml->listen();
  listening = listened.ok();
  if (!listening) {
    tell([listened](const Handlers& told) { told.on_trouble(listened); });
  }
  while (const auto number = wait()) {
    unasked = Deadline::after(kReadUnasked);
    std::vector<GpuReading> readings;
    for (const std::string& uuid : uuids) readings.push_back(nvml->read(uuid));
    tell([number = *number, readings = std::move(readings)](const Handlers& told) mutable {
      told.on_readings(number, std::move(readings));
    });
  }
  // Whoever waits for the end finds the library left, too.
  nvml.reset();
  MutexLock lock(mutex);
  ended = true;
  changed.notify_all();
}

GpuMonitor::GpuMonitor(net::EventLoop& loop, std::shared_ptr<Nvml> nvml,
                       std::vector<std::string> uuids, Handlers handlers)
    : state_(
          std::make_shared<State>(loop, std::move(nvml), std::move(uuids), std::move(handlers))) {
  std::thread([state = state_] { state->run(); }).detach();
}

GpuMonitor::~GpuMonitor() {
  state_->alive = false;
  MutexLock lock(state_->mutex);
  state_->stop = true;
  state_->changed.notify_all();
  state_->changed.wait_until(state_->mutex, Deadline::after(kEndTime),
                             [this]() TROUPE_NO_ANALYSIS { return state_->ended; });
}

void GpuMonitor::read(std::uint64_t number) {
  MutexLock lock(state_->mutex);
  state_->asked = number;
  state_->changed.notify_all();
}

}  // namespace troupe::scheduler
