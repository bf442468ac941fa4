#pragma once
// Effects of faults as words instead of deaths.

#include <string>
#include <vector>

#include "runtime/base/check.h"
#include "train/chaos/injector.h"

namespace troupe::tests {

class RecordedEffects final : public train::FaultEffects {
 public:
  explicit RecordedEffects(ManualClock& clock) : clock_(clock) {}
  bool refuse = false;  // announcements

  // What happened since the last call.
  std::string take() { return std::exchange(said_, {}); }

  bool announce(std::int32_t number) override {
    say(fmt::format("told {}", number));
    return !refuse;
  }
  void kill() override { say("kill"); }
  void stop() override { say("stop"); }
  void exit(int code) override { say(fmt::format("exit {}", code)); }
  void raise(const std::string& text) override { say("raise " + text); }
  void sleep(Duration duration) override {
    say(fmt::format("sleep {} ms",
                    std::chrono::duration_cast<std::chrono::milliseconds>(duration).count()));
    clock_.advance(duration);
  }
  void write_line(const std::string& path, const std::string& line) override {
    say(path + ": " + line);
  }

 private:
  void say(const std::string& text) { said_ += (said_.empty() ? "" : ", ") + text; }
  ManualClock& clock_;
  std::string said_;
};

// The faults of a text with their numbers.
inline std::vector<train::PlannedFault> planned(const char* text) {
  const auto faults = train::parse_faults(text);
  TROUPE_CHECK(faults.ok(), "{}", faults.status().to_string());
  std::vector<train::PlannedFault> out;
  for (std::size_t i = 0; i < faults->size(); ++i) {
    out.push_back({static_cast<std::int32_t>(i), (*faults)[i]});
  }
  return out;
}

}  // namespace troupe::tests
