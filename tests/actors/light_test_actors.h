#pragma once
// Actor classes for the tests of light actors; besides those of test_actors.h.

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "tests/actors/test_actors.h"
#include "troupe/actor.h"
#include "troupe/byte_stream.h"
#include "troupe/handle.h"

namespace troupe::tests {

// Knows where it is, and its neighbours.
class Cell {
 public:
  Cell(ActorContext& context, int start) : context_(context), value_(start) {
    if (start < 0) throw std::runtime_error("a negative start");
  }
  int add(int n) { return value_ += n; }
  int get() const { return value_; }
  std::uint64_t index() const { return context_.light_index(); }
  ActorId id() const { return context_.id(); }
  std::uint64_t generation() const { return context_.generation(); }
  std::int64_t pid() const { return ::getpid(); }
  void fail(const std::string& why) { throw std::runtime_error(why); }
  void crash() { ::abort(); }
  void leave() { context_.request_exit(); }
  ActorHandle<Cell> self() const { return context_.self<Cell>(); }

  // Waits for another one.
  Result<int> ask(ActorHandle<Cell> other) {
    return other.call<&Cell::get>().get(std::chrono::seconds(20));
  }
  // Does not wait: what it heard is told by value().
  void ask_later(ActorHandle<Cell> other) {
    (void)other.call<&Cell::get>().then(
        [this](Result<int> n) { value_ = std::move(n).value_or(-1); });
  }
  // Adds when its own thread has nothing else to do.
  void add_later(int n) {
    context_.executor().post([this, n] { value_ += n; });
  }
  void throw_later() {
    context_.executor().post([] { throw std::runtime_error("posted"); });
  }
  Status end(ActorHandle<Cell> other) { return context_.kill(other); }
  void listen() {
    context_.accept_connections("echo", [](ByteStream, std::string, bool) {});
  }

  static constexpr auto constructor = troupe::constructor<int>;
  static constexpr auto methods =
      troupe::methods<&Cell::add, &Cell::get, &Cell::index, &Cell::id, &Cell::generation,
                      &Cell::pid, &Cell::fail, &Cell::crash, &Cell::leave, &Cell::self, &Cell::ask,
                      &Cell::ask_later, &Cell::add_later, &Cell::throw_later, &Cell::end,
                      &Cell::listen>;

 private:
  ActorContext& context_;
  int value_;
};

// Saves when it is told to, and after every third call.
class Thrifty {
 public:
  explicit Thrifty(ActorContext& context) : context_(context) {}
  int add(int n) { return value_ += n; }
  Status keep() { return context_.save_now(); }
  int get() const { return value_; }
  std::int64_t pid() const { return ::getpid(); }
  int save() const { return value_; }
  void load(int value) { value_ = value; }
  static constexpr auto kSavePolicy = SavePolicy::every(3);
  static constexpr auto methods =
      troupe::methods<&Thrifty::add, &Thrifty::keep, &Thrifty::get, &Thrifty::pid>;

 private:
  ActorContext& context_;
  int value_ = 0;
};

// Calls light actors from a process of its own.
class CellCaller {
 public:
  Result<int> add(ActorHandle<Cell> cell, int n) {
    return cell.call<&Cell::add>(n).get(std::chrono::seconds(20));
  }
  Result<int> add_to_all(LightActors<Cell> cells, int n) {
    int sum = 0;
    for (const auto cell : cells) {
      sum += TROUPE_TRY(cell.call<&Cell::add>(n).get(std::chrono::seconds(20)));
    }
    return sum;
  }
  // Light actors of its own: one alone, and some.
  Result<int> own(int n) {
    auto one =
        TROUPE_TRY(context_.spawn<Cell>({.num_cpus = 0, .isolation = Isolation::kShared}, n));
    auto many = TROUPE_TRY(
        context_.spawn_many<Cell>(3, {.num_cpus = 0, .isolation = Isolation::kShared}, n));
    return TROUPE_TRY(one.template call<&Cell::add>(1).get(std::chrono::seconds(20))) +
           TROUPE_TRY(many[2].template call<&Cell::add>(1).get(std::chrono::seconds(20)));
  }
  explicit CellCaller(ActorContext& context) : context_(context) {}
  static constexpr auto methods =
      troupe::methods<&CellCaller::add, &CellCaller::add_to_all, &CellCaller::own>;

 private:
  ActorContext& context_;
};

}  // namespace troupe::tests
