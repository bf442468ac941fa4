#pragma once
// The queues of light actors: each posts to its host's one thread, and drops what comes after its
// own end, so that no continuation refers to an actor that is gone.

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <utility>

#include "runtime/base/status.h"
#include "troupe/executor.h"

namespace troupe::detail {

class LightExecutor;

// The host's queue, and who of its light actors runs now.
class LightHostExecutor final : public Executor {
 public:
  explicit LightHostExecutor(std::shared_ptr<Executor> thread) : thread_(std::move(thread)) {}

  void post(std::function<void()> work) override { thread_->post(std::move(work)); }
  bool in_thread() const override { return thread_->in_thread(); }
  std::shared_ptr<Executor> of_running() override {
    return in_thread() && running_ ? running_() : nullptr;
  }

  // What of_running() asks; the host's thread. Null: nobody runs.
  using Running = std::function<std::shared_ptr<Executor>()>;
  // Returns what was there before. The host's thread.
  Running set_running(Running running) { return std::exchange(running_, std::move(running)); }

 private:
  const std::shared_ptr<Executor> thread_;
  Running running_;
};

class LightExecutor final : public Executor, public std::enable_shared_from_this<LightExecutor> {
 public:
  // `on_throw`: what was posted threw. The host's thread; not after end().
  LightExecutor(std::shared_ptr<LightHostExecutor> host, std::function<void(Status)> on_throw)
      : host_(std::move(host)), on_throw_(std::move(on_throw)) {}

  void post(std::function<void()> work) override {
    host_->post([self = shared_from_this(), work = std::move(work)] {
      if (self->ended_.load(std::memory_order_acquire)) return;
      auto before = self->host_->set_running([self] { return self; });
      Status threw;
      try {
        work();
      } catch (const std::exception& e) {
        threw = error(Code::kActorError, "work that the actor posted threw: {}", e.what());
      } catch (...) {
        threw = Status(Code::kActorError, "work that the actor posted threw no std::exception");
      }
      self->host_->set_running(std::move(before));
      if (!threw.ok() && !self->ended_.load(std::memory_order_acquire)) self->on_throw_(threw);
    });
  }
  bool in_thread() const override { return host_->in_thread(); }
  std::shared_ptr<Executor> of_running() override { return shared_from_this(); }
  // Nothing more is run.
  void end() { ended_.store(true, std::memory_order_release); }

 private:
  const std::shared_ptr<LightHostExecutor> host_;
  const std::function<void(Status)> on_throw_;
  std::atomic<bool> ended_{false};
};

}  // namespace troupe::detail
