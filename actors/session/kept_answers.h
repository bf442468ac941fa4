#pragma once
// The last answers of an actor's process, as frames: for callers whose connection broke before they
// had read them, and to be saved with the state of an actor that runs each call once.
//
// Bounded for each caller and over all of them, by count and by bytes: those that were given first
// go first, whatever the numbers of their calls. A call whose answer is gone is not run again; it
// ends with kUnavailable.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <utility>

#include "runtime/base/ids.h"
#include "runtime/wire/call_messages.h"

namespace troupe::detail {

// Not thread-safe.
class KeptAnswers {
 public:
  static constexpr std::size_t kOfCallerMax = 128;
  static constexpr std::size_t kOfCallerBytesMax = 1u << 20;
  static constexpr std::size_t kAnswerBytesMax = kOfCallerBytesMax / 4;  // larger ones are not kept
  static constexpr std::size_t kAllBytesMax = 16u << 20;
  // What a save that writes all of them writes: its cost must not grow with the number of callers.
  static constexpr std::size_t kSavedMax = 1024;
  static constexpr std::size_t kSavedBytesMax = 1u << 20;

  void add(ClientId caller, std::uint64_t sequence, wire::Bytes frame);
  // Null where it is not kept.
  const wire::Bytes* find(ClientId caller, std::uint64_t sequence) const;
  void forget(ClientId caller);
  // The caller's answers of calls after `after`, up to `up_to`.
  void for_calls(ClientId caller, std::uint64_t after, std::uint64_t up_to,
                 const std::function<void(std::uint64_t sequence, const wire::Bytes&)>& take) const;
  // Those that a save of all writes, the newest first.
  void for_saved(
      const std::function<void(ClientId, std::uint64_t sequence, const wire::Bytes&)>& take) const;
  std::size_t bytes() const { return bytes_; }

 private:
  struct Answer {
    wire::Bytes frame;
    std::uint64_t number = 0;  // in the order in which they were added
  };
  struct Caller {
    std::map<std::uint64_t, Answer> answers;
    std::deque<std::uint64_t> by_age;  // their calls' numbers, the oldest answer's first
    std::size_t bytes = 0;
  };
  using Callers = std::map<ClientId, Caller>;
  void drop_oldest(Caller& caller);

  Callers callers_;
  std::map<std::uint64_t, std::pair<ClientId, std::uint64_t>> by_age_;
  std::uint64_t next_number_ = 0;
  std::size_t bytes_ = 0;
};

}  // namespace troupe::detail
