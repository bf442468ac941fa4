#pragma once
// Who holds a device's memory: what an out-of-memory error tells.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "troupe/detail/mutex.h"

namespace troupe::train {

enum class MemoryPurpose {
  kParameters,
  kGradients,
  kOptimizerState,
  kActivations,
  kWorkspace,  // of products, of sums over rows, of copies that are converted
  kCommunication,
  kOther,
};
inline constexpr int kMemoryPurposes = 7;
// "parameters", "gradients", …
std::string_view memory_purpose_name(MemoryPurpose purpose);

// Bytes of an allocation that serve a purpose.
struct MemoryShare {
  MemoryPurpose purpose = MemoryPurpose::kOther;
  std::int64_t bytes = 0;
};

// Bytes that this process holds on one device, by purpose. From any thread.
class MemoryLedger {
 public:
  using Bytes = std::array<std::int64_t, kMemoryPurposes>;

  void add(std::span<const MemoryShare> shares);
  void remove(std::span<const MemoryShare> shares);
  Bytes held() const;
  // As they were when they were most together.
  Bytes peak() const;

 private:
  mutable Mutex mutex_;
  Bytes held_ TROUPE_GUARDED_BY(mutex_){};
  Bytes peak_ TROUPE_GUARDED_BY(mutex_){};
};

// "parameters 1.5 GiB, activations 3.0 GiB", the largest first; "nothing" where all are 0.
std::string describe_memory(const MemoryLedger::Bytes& bytes);
// Of all purposes.
std::int64_t total_bytes(const MemoryLedger::Bytes& bytes);
MemoryLedger::Bytes by_purpose(std::span<const MemoryShare> shares);
// "512 B", "1.5 KiB", "3.2 GiB".
std::string memory_size_text(std::int64_t bytes);

// What is known of a device's memory when an allocation fails. Bytes; free_bytes < 0: the device
// does not say.
struct MemoryShortage {
  std::string device;  // "GPU 0 (NVIDIA H200)"
  std::string name;    // of what was asked for: "this rank's arena"
  MemoryLedger::Bytes asked{}, held{};
  std::int64_t asked_bytes = 0, granularity_bytes = 1, free_bytes = -1, total_bytes = 0;
};
// The error's words: what was asked for what purpose, what holds the memory now, what is free, what
// would fit and how to get there.
std::string describe_shortage(const MemoryShortage& shortage);

}  // namespace troupe::train
