#pragma once
// What injected faults do to the process that they strike, in earnest.

#include <functional>

#include "train/chaos/injector.h"

namespace troupe::train {

class ProcessEffects final : public FaultEffects {
 public:
  // `announce`: see FaultEffects::announce; must have a deadline of its own.
  explicit ProcessEffects(std::function<bool(std::int32_t)> announce);

  bool announce(std::int32_t number) override { return announce_(number); }
  void kill() override;
  void stop() override;
  // Without destructors and exit handlers: what a library that calls exit() at a bad moment does,
  // minus what could hang.
  void exit(int code) override;
  void raise(const std::string& text) override;
  void sleep(Duration duration) override;
  void write_line(const std::string& path, const std::string& line) override;

 private:
  std::function<bool(std::int32_t)> announce_;
};

}  // namespace troupe::train
