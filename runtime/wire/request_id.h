#pragma once
// The request_id of those control messages that have one.

#include <cstdint>
#include <optional>

#include "runtime/wire/control_messages.h"

namespace troupe::wire {

template <typename Message>
concept HasRequestId = requires(const Message& message) {
  message.request_id;
};

// Nothing where the message is neither a request nor an answer.
std::optional<std::uint64_t> request_id_of(const ControlMessage& message);

// No effect on a message that has none.
void set_request_id(ControlMessage& message, std::uint64_t request_id);

}  // namespace troupe::wire
