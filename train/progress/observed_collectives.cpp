#include "train/progress/observed_collectives.h"

namespace troupe::train {

void ObservedCollectives::begins(collective::Operation operation, std::string_view group,
                                 std::uint64_t sequence, std::uint64_t) {
  recorder_.collective(collective::operation_name(operation), sequence, true, group);
}

void ObservedCollectives::ends(collective::Operation operation, std::string_view group,
                               std::uint64_t sequence, bool) {
  recorder_.collective(collective::operation_name(operation), sequence, false, group);
}

void ObservedCollectives::moved(std::uint64_t bytes) {
  recorder_.moved(moved_bytes_.fetch_add(bytes, std::memory_order_relaxed) + bytes);
}

}  // namespace troupe::train
