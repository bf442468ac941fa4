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
#include "troupe/actor_pool.h"

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
  // The process's number, once the file is there.
  Result<std::int64_t> wait_for(const std::string& file) const {
    while (::access(file.c_str(), F_OK) != 0) {
      if (context_.deadline()->passed()) return Status(Code::kDeadlineExceeded, "no file");
      ::usleep(1000);
    }
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

// Has a pool of its own.
class Foreman {
 public:
  explicit Foreman(ActorContext& context) : context_(context) {}
  Status hire(int number) {
    pool_ = TROUPE_TRY(ActorPool<Member>::create(
        context_, {.member = {.num_cpus = 0}, .members_min = 2, .members_max = 2}, number));
    return {};
  }
  Result<int> ask() { return pool_.call<&Member::number>().get(); }
  Result<std::int64_t> ask_to_wait(const std::string& file) {
    return pool_.call<&Member::wait_for>(file).get();
  }
  Task<Result<std::string>> greet_all(std::vector<std::tuple<std::string, int>> greetings) {
    auto map = pool_.map<&Member::greet>(std::move(greetings));
    std::string all;
    for (;;) {
      const auto item = co_await map.next();
      if (!item.ok()) co_return item.status();
      if (!*item) co_return all;
      if (!(*item)->result.ok()) co_return (*item)->result.status();
      all += *(*item)->result + " ";
    }
  }
  std::size_t calls() const { return pool_.status().calls_under_way; }
  static constexpr auto methods =
      troupe::methods<&Foreman::hire, &Foreman::ask, &Foreman::ask_to_wait, &Foreman::greet_all,
                      &Foreman::calls>;

 private:
  ActorContext& context_;
  ActorPool<Member> pool_;
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
