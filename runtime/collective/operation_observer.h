#pragma once
// Sees a communicator's operations from the inside: what runs, how far it is. For records of
// progress and for injected faults.

#include <cstdint>
#include <string_view>

namespace troupe::collective {

enum class Operation : std::uint8_t;

// Called on the thread that runs the operation; a slow observer slows it down. An exception from
// begins() leaves through the operation, which has not begun then.
class OperationObserver {
 public:
  virtual ~OperationObserver() = default;
  // Before anything of it is sent. `group`: the subgroup's name, empty for all ranks. `sequence`:
  // the group's own count, from 1. `bytes`: of the whole buffer.
  virtual void begins(Operation operation, std::string_view group, std::uint64_t sequence,
                      std::uint64_t bytes) = 0;
  // After it, whether it succeeded or failed.
  virtual void ends(Operation operation, std::string_view group, std::uint64_t sequence,
                    bool ok) = 0;
  // This many bytes more went into links or came out of them: now and then while they flow, at the
  // latest before the thread sleeps, and when an operation is over.
  virtual void moved(std::uint64_t bytes) = 0;
};

}  // namespace troupe::collective
