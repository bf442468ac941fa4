#pragma once
// What a controller saves, so that its next process takes its run over.

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "train/trainer/run_memory.h"
#include "train/trainer/trainer_processes.h"
#include "troupe/handle.h"
#include "troupe/serialize.h"

namespace troupe {

// Times of the machine's monotonic clock: they mean something to processes of this machine only.
template <>
struct Codec<TimePoint> {
  static constexpr bool kSupported = true;
  static constexpr std::size_t kBytesMin = Codec<Duration>::kBytesMin;
  static constexpr std::uint64_t kHash =
      TypeHash::mix(TypeHash::of("monotonic time"), Codec<Duration>::kHash);
  static void encode(Encoder& out, const TimePoint& value) {
    Codec<Duration>::encode(out, value.time_since_epoch());
  }
  static bool decode(Decoder& in, TimePoint& value) {
    Duration since_zero{};
    if (!Codec<Duration>::decode(in, since_zero)) return false;
    value = TimePoint(since_zero);
    return true;
  }
};

}  // namespace troupe

namespace troupe::train {

class TrainerActor;

struct ControllerMemory {
  struct Trainer {
    ActorHandle<TrainerActor> handle;
    TrainerProcesses::Saved process;
  };
  RunMemory run;
  std::vector<Trainer> trainers;
  bool spares_wanted = true;        // not placed yet
  std::vector<std::int64_t> fired;  // how often each fault struck
  std::string last_checkpoint;
  std::int64_t total_steps = 0;
};

}  // namespace troupe::train
