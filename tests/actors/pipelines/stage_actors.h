#pragma once
// The actor classes of the tests of pipelines.

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "troupe/actor.h"
#include "troupe/object.h"
#include "troupe/pipeline.h"
#include "troupe/task.h"

namespace troupe::tests {

// Keeps nothing.
class Square {
 public:
  std::int64_t square(int n) const { return std::int64_t{n} * n; }
  std::string text(int n) const { return std::to_string(n); }
  std::string join(std::int64_t square, const std::string& text) const {
    return text + "^2=" + std::to_string(square);
  }
  std::int64_t odd_fails(int n) const {
    if (n % 2 == 1) throw std::runtime_error("it is odd");
    return n;
  }
  Task<std::int64_t> later(int n) { co_return n + 1; }
  // Waits for the file.
  std::int64_t when_there(const std::string& file) const {
    while (::access(file.c_str(), F_OK) != 0) ::usleep(1000);
    return 1;
  }
  std::int64_t crash(int) const { ::_exit(3); }
  std::int64_t crash_at_13(int n) const {
    if (n == 13) ::_exit(3);
    return n;
  }
  static constexpr auto methods =
      troupe::methods<&Square::square, &Square::text, &Square::join, &Square::odd_fails,
                      &Square::later, &Square::when_there, &Square::crash, &Square::crash_at_13>;
};

// What it was given counts once, whatever happens to its process.
class Adder {
 public:
  std::int64_t add(std::int64_t n) { return sum_ += n; }
  std::int64_t sum() const { return sum_; }
  int pid() const { return ::getpid(); }
  std::int64_t save() const { return sum_; }
  void load(std::int64_t sum) { sum_ = sum; }
  static constexpr bool kExactlyOnce = true;
  static constexpr auto methods = troupe::methods<&Adder::add, &Adder::sum, &Adder::pid>;

 private:
  std::int64_t sum_ = 0;
};

// Counts in its process alone: an item that is run twice shows.
class Tally {
 public:
  std::int64_t add(int n) { return sum_ += n; }
  std::int64_t pass(std::int64_t n) {
    ++count_;
    return n;
  }
  std::int64_t count() const { return count_; }
  // Waits for the file; says that it has begun by one beside it.
  std::int64_t wait_for(const std::string& file) {
    ++count_;
    std::ofstream(file + ".begun") << count_;
    while (::access(file.c_str(), F_OK) != 0) ::usleep(1000);
    return count_;
  }
  static constexpr auto methods =
      troupe::methods<&Tally::add, &Tally::pass, &Tally::count, &Tally::wait_for>;

 private:
  std::int64_t sum_ = 0, count_ = 0;
};

// Large items, read where they lie.
class Blob {
 public:
  std::vector<std::byte> make(std::uint64_t bytes) const {
    return std::vector<std::byte>(bytes, std::byte{7});
  }
  std::uint64_t count(BytesView bytes) const {
    std::uint64_t sum = 0;
    for (const std::byte byte : bytes) sum += static_cast<std::uint64_t>(byte) == 7 ? 1 : 0;
    return sum;
  }
  static constexpr auto methods = troupe::methods<&Blob::make, &Blob::count>;
};

// Items that are objects.
class Maker {
 public:
  explicit Maker(ActorContext& context) : context_(context) {}
  Result<ObjectRef<std::vector<int>>> make(int n) {
    return context_.put(std::vector<int>(1000, n));
  }
  void die() const { ::_exit(3); }
  static constexpr auto methods = troupe::methods<&Maker::make, &Maker::die>;

 private:
  ActorContext& context_;
};
class Taker {
 public:
  int last(Object<std::vector<int>> numbers) const { return (*numbers).back(); }
  void wait_for(const std::string& file) const {
    while (::access(file.c_str(), F_OK) != 0) ::usleep(1000);
  }
  static constexpr auto methods = troupe::methods<&Taker::last, &Taker::wait_for>;
};

}  // namespace troupe::tests
