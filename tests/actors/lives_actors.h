#pragma once
// The actors of lifetimes_test.cpp.

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <thread>

#include "actors/context.h"
#include "actors/handle.h"

namespace troupe::tests {

// Something with a life: others own it, supervise it, ask for its health.
class Life {
 public:
  explicit Life(ActorContext& context) : context_(context) {}

  std::int64_t pid() const { return ::getpid(); }
  std::uint64_t generation() const { return context_.generation(); }
  std::string namespace_name() const { return context_.namespace_name(); }
  // Makes another one, and says which.
  Result<ActorHandle<Life>> have_child(int owner, bool detached) {
    auto child = TROUPE_TRY(context_.spawn<Life>(
        {.num_cpus = 0, .detached = detached, .owner = static_cast<Owner>(owner)}));
    // Before others ask the head about it, that has to know it.
    TROUPE_RETURN_IF_ERROR(child.call<&Life::pid>().get(std::chrono::seconds(20)).status());
    return child;
  }
  Result<ActorHandle<Life>> find(const std::string& name, const std::string& namespace_name) {
    return context_.get_actor<Life>(name, {.namespace_name = namespace_name});
  }
  int work(std::int64_t ms) {
    std::this_thread::sleep_for(std::chrono::milliseconds(ms));
    return ++worked_;
  }
  void fall_ill() { ill_ = true; }

  Status health() {
    if (ill_) return error(Code::kUnavailable, "it has a fever");
    return {};
  }

  static constexpr auto methods =
      troupe::methods<&Life::pid, &Life::generation, &Life::namespace_name, &Life::have_child,
                      &Life::find, &Life::work, &Life::fall_ill>;

 private:
  ActorContext& context_;
  int worked_ = 0;
  bool ill_ = false;
};

}  // namespace troupe::tests
