#pragma once
// The actors of Ray's test cases, as they are written here.

#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "troupe/actor.h"
#include "troupe/handle.h"

namespace troupe::tests {

class Counter {
 public:
  Counter(ActorContext& context, int start) : context_(context), count_(start) {}
  int add(int n) { return count_ += n; }
  int get() const { return count_; }
  void reset() { count_ = 0; }
  std::int64_t pid() const { return ::getpid(); }
  bool was_restarted() const { return context_.generation() > 1; }
  void end_process() { ::_exit(1); }
  void fail() { throw std::runtime_error("a wrong turn"); }
  std::vector<std::uint64_t> reversed(std::vector<std::uint64_t> numbers) const {
    return {numbers.rbegin(), numbers.rend()};
  }
  std::string variable(const std::string& name) const {
    const char* value = std::getenv(name.c_str());
    return value != nullptr ? value : "";
  }

  static constexpr auto constructor = troupe::constructor<int>;
  static constexpr auto methods =
      troupe::methods<&Counter::add, &Counter::get, &Counter::reset, &Counter::pid,
                      &Counter::was_restarted, &Counter::end_process, &Counter::fail,
                      &Counter::reversed, &Counter::variable>;

 private:
  ActorContext& context_;
  int count_;
};

class OtherCounter {
 public:
  int multiply(int n) const { return 2 * n; }
  static constexpr auto methods = troupe::methods<&OtherCounter::multiply>;
};

class Thrower {
 public:
  Thrower() { throw std::invalid_argument("no such thing can be made"); }
  void nothing() {}
  static constexpr auto methods = troupe::methods<&Thrower::nothing>;
};

// Has handles of others, and makes actors.
class Parent {
 public:
  explicit Parent(ActorContext& context) : context_(context) {}
  Result<int> add_to(ActorHandle<Counter> counter, int n) {
    return counter.call<&Counter::add>(n).get(std::chrono::seconds(20));
  }
  Result<ActorHandle<Counter>> make(const std::string& name, bool detached) {
    return context_.spawn<Counter>({.name = name, .num_cpus = 0, .detached = detached}, 7);
  }
  static constexpr auto methods = troupe::methods<&Parent::add_to, &Parent::make>;

 private:
  ActorContext& context_;
};

inline constexpr auto kRayActors = troupe::actors<Counter, OtherCounter, Thrower, Parent>;

}  // namespace troupe::tests
