#pragma once
// Collectives among the members of a group, on memory of their own: no value passes the caller.
//
//   class Worker {
//    public:
//     explicit Worker(troupe::ActorContext& context) : world_(context) {}
//     troupe::Status join(const troupe::CommunicatorSeat& seat) { return world_.form(seat); }
//     troupe::Status step() { …; return world_.all_reduce(std::span<float>(gradients_)); }
//     static constexpr auto methods = troupe::methods<&Worker::join, &Worker::step>;
//    private:
//     troupe::GroupCommunicator world_;
//   };
//   group.communicator<&Worker::join>().get();   // then group.cast<&Worker::step>()
//
// All members call the same operations in the same order with the same sizes: one cast of a method
// is one turn of all. Sums have the same bits on all members. Between members of one node they go
// through shared memory, else over TCP.
//
// When a member dies, the operations of the others end with kUnavailable, naming the rank (`peer`),
// and so does every later one (kAborted): the members no longer agree where they are. Once it is
// back, communicator() forms the next generation, of all members. An operation ends at the deadline
// of the call that makes it, or after the timeout that communicator() was given. A class has
// several, under several names, for several slices of a group. Light actors have none: they share a
// process.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "troupe/ids.h"
#include "troupe/status.h"

namespace troupe {

class ActorContext;

// What ActorGroup::communicator() tells a member: its place, and who the others are.
struct CommunicatorSeat {
  std::uint64_t generation = 0;  // of this forming; grows
  std::uint32_t rank = 0;
  std::vector<ActorId> members;  // by rank
  std::int64_t timeout_ms = 0;   // of the forming, and of each operation
};

enum class GroupReduce : std::uint8_t { kSum = 0, kMax = 1, kMin = 2 };

namespace detail {

// As runtime/collective numbers them.
enum class GroupElement : std::uint8_t {
  kByte = 0,
  kInt32 = 1,
  kInt64 = 2,
  kFloat = 3,
  kDouble = 4
};

template <typename T>
constexpr GroupElement group_element() {
  if constexpr (std::is_same_v<T, float>) return GroupElement::kFloat;
  if constexpr (std::is_same_v<T, double>) return GroupElement::kDouble;
  if constexpr (std::is_same_v<T, std::int32_t>) return GroupElement::kInt32;
  if constexpr (std::is_same_v<T, std::int64_t>) return GroupElement::kInt64;
  return GroupElement::kByte;
}

}  // namespace detail

// A member of an actor class that takes an ActorContext. One operation at a time; others wait.
class GroupCommunicator {
 public:
  // `name`: of letters, digits, '-' and '_'; another one for each that a class has.
  explicit GroupCommunicator(ActorContext& context, std::string name = "world");
  ~GroupCommunicator();
  GroupCommunicator(const GroupCommunicator&) = delete;
  GroupCommunicator& operator=(const GroupCommunicator&) = delete;

  // Meets the others, at most until the seat's timeout; what was there before ends.
  // kDeadlineExceeded names who did not come.
  Status form(const CommunicatorSeat& seat);
  // Of the last form() that succeeded; 0 where none did.
  std::uint64_t generation() const;
  int rank() const;
  int world_size() const;

  // Each of the values becomes the sum (…) of those of all members.
  template <typename T>
  Status all_reduce(std::span<T> values, GroupReduce op = GroupReduce::kSum) {
    static_assert(detail::group_element<T>() != detail::GroupElement::kByte,
                  "all_reduce of float, double, int32 or int64");
    return all_reduce(values.data(), values.size(), detail::group_element<T>(), op);
  }
  // The root's values, to all.
  template <typename T>
  Status broadcast(std::span<T> values, int root) {
    static_assert(std::is_trivially_copyable_v<T>);
    return broadcast(values.data(), values.size_bytes(), root);
  }
  // `all` becomes the values of all members by rank; as many of each.
  template <typename T>
  Status all_gather(std::span<const T> own, std::span<T> all) {
    static_assert(std::is_trivially_copyable_v<T>);
    return all_gather(own.data(), own.size_bytes(), all.data(), all.size_bytes());
  }
  // Returns once all members have come.
  Status barrier();

 private:
  struct Meeting;
  struct State;
  Status all_reduce(void* data, std::size_t count, detail::GroupElement element, GroupReduce op);
  Status broadcast(void* data, std::size_t bytes, int root);
  Status all_gather(const void* own, std::size_t own_bytes, void* all, std::size_t all_bytes);
  template <typename Operation>
  Status run(Operation operation);

  const std::unique_ptr<State> state_;
};

}  // namespace troupe
