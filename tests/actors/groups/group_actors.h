#pragma once
// The actor classes of the tests of groups and pools.

#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "troupe/actor.h"
#include "troupe/actor_group.h"

namespace troupe::tests {

// A member of a group: knows its number, and saves what it was given.
class Member {
 public:
  Member(ActorContext& context, int number) : context_(context), number_(number) {}
  int number() const { return number_; }
  int add(int n) { return sum_ += n; }
  double part(double scale) const { return scale / (1.0 + number_); }
  std::int64_t pid() const { return ::getpid(); }
  Result<int> fail_if(int number) const {
    if (number == number_) throw std::runtime_error("it was told to");
    return number_;
  }
  void crash() { ::_exit(3); }
  // Until the file is there, or the call's time is over; the process's number.
  std::int64_t wait_for(const std::string& file) const {
    while (::access(file.c_str(), F_OK) != 0 && !context_.deadline()->passed()) ::usleep(1000);
    return ::getpid();
  }
  // Dies in the first call that any member has, and not in the next.
  std::int64_t crash_once(const std::string& file) const {
    if (::access(file.c_str(), F_OK) == 0) return ::getpid();
    std::ofstream(file) << "x";
    ::_exit(3);
  }
  void nothing() {}
  std::string greet(const std::string& a, int n) const { return a + std::to_string(n + number_); }
  // Waits for all members of a group that it is given, itself among them or not.
  Result<int> sum_of(const ActorGroup<Member>& group) {
    return group.reduce<&Member::number>(std::plus<int>()).get();
  }
  int save() const { return sum_; }
  void load(int sum) { sum_ = sum; }

  static constexpr auto constructor = troupe::constructor<int>;
  static constexpr auto methods =
      troupe::methods<&Member::number, &Member::add, &Member::part, &Member::pid, &Member::fail_if,
                      &Member::crash, &Member::nothing, &Member::greet, &Member::wait_for,
                      &Member::crash_once, &Member::sum_of>;

 private:
  ActorContext& context_;
  const int number_;
  int sum_ = 0;
};

// A member with collectives.
class Ranked {
 public:
  explicit Ranked(ActorContext& context) : world_(context), half_(context, "half") {}
  Status join(const CommunicatorSeat& seat) { return world_.form(seat); }
  Status join_half(const CommunicatorSeat& seat) { return half_.form(seat); }
  Result<std::vector<float>> sum(std::vector<float> values) {
    TROUPE_RETURN_IF_ERROR(world_.all_reduce(std::span(values)));
    return values;
  }
  Result<std::int64_t> largest_of_half(std::int64_t value) {
    TROUPE_RETURN_IF_ERROR(half_.all_reduce(std::span(&value, 1), GroupReduce::kMax));
    return value;
  }
  Result<std::vector<int>> gather_after_broadcast(int value) {
    TROUPE_RETURN_IF_ERROR(world_.broadcast(std::span(&value, 1), 1));
    const int own = value + world_.rank();
    std::vector<int> all(static_cast<std::size_t>(world_.world_size()));
    TROUPE_RETURN_IF_ERROR(world_.all_gather(std::span<const int>(&own, 1), std::span(all)));
    TROUPE_RETURN_IF_ERROR(world_.barrier());
    return all;
  }
  void crash() { ::_exit(3); }
  std::uint64_t generation() const { return world_.generation(); }
  static constexpr auto methods =
      troupe::methods<&Ranked::join, &Ranked::join_half, &Ranked::sum, &Ranked::largest_of_half,
                      &Ranked::gather_after_broadcast, &Ranked::crash, &Ranked::generation>;

 private:
  GroupCommunicator world_, half_;
};

}  // namespace troupe::tests
