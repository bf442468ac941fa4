#include "runtime/wire/request_id.h"

namespace troupe::wire {

std::optional<std::uint64_t> request_id_of(const ControlMessage& message) {
  return visit(
      []<typename Message>(const Message& m) -> std::optional<std::uint64_t> {
        if constexpr (HasRequestId<Message>) return m.request_id;
        return std::nullopt;
      },
      message);
}

void set_request_id(ControlMessage& message, std::uint64_t request_id) {
  visit(
      [request_id]<typename Message>(Message& m) {
        if constexpr (HasRequestId<Message>) m.request_id = request_id;
      },
      message);
}

}  // namespace troupe::wire
