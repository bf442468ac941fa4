#pragma once
// The actors of lifetimes_test.cpp and moving_test.cpp.

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <thread>

#include "runtime/base/status.h"
#include "troupe/actor.h"
#include "troupe/handle.h"

namespace troupe::tests {

// Something with a life: others own it, supervise it, ask for its health.
class Life {
 public:
  explicit Life(ActorContext& context) : context_(context) {}

  std::int64_t pid() const { return ::getpid(); }
  std::uint64_t generation() const { return context_.generation(); }
  std::string namespace_name() const { return context_.namespace_name(); }
  // Makes another one, and says which.
  Result<ActorHandle<Life>> have_child(int owner, bool detached) {
    auto child = TROUPE_TRY(context_.spawn<Life>(
        {.num_cpus = 0, .detached = detached, .owner = static_cast<Owner>(owner)}));
    // Before others ask the head about it, that has to know it.
    TROUPE_RETURN_IF_ERROR(child.call<&Life::pid>().get(std::chrono::seconds(20)).status());
    return child;
  }
  Result<ActorHandle<Life>> find(const std::string& name, const std::string& namespace_name) {
    return context_.get_actor<Life>(name, {.namespace_name = namespace_name});
  }
  int work(std::int64_t ms) {
    std::this_thread::sleep_for(std::chrono::milliseconds(ms));
    return ++worked_;
  }
  void fall_ill() { ill_ = true; }
  std::uint64_t ask(ActorHandle<Life> other) {
    return other.call<&Life::generation>().get(std::chrono::seconds(20)).value();
  }

  // The exit code of a child that uses what is its parent's: 0 where all of it was refused.
  int fork_and_call(ActorHandle<Life> other) {
    return exit_code_of([&] {
      const auto refused = [](const Status& status) {
        return status.code() == Code::kFailedPrecondition;
      };
      const bool all = refused(other.call<&Life::pid>().get(std::chrono::seconds(20)).status()) &&
                       refused(context_.spawn<Life>({.num_cpus = 0}).status()) &&
                       refused(context_.get_actor<Life>("x").status()) &&
                       refused(context_.save_now()) && refused(context_.keep_segment("x", -1));
      context_.request_exit();
      return all ? 0 : 9;
    });
  }
  // … of one that returns from the method.
  int fork_and_return() {
    const pid_t child = ::fork();
    return child == 0 ? -1 : wait(child);
  }
  int run_program(const std::string& command) {
    const int status = std::system(command.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  Status health() {
    if (ill_) return error(Code::kUnavailable, "it has a fever");
    return {};
  }

  static constexpr auto methods =
      troupe::methods<&Life::pid, &Life::generation, &Life::namespace_name, &Life::have_child,
                      &Life::find, &Life::work, &Life::fall_ill, &Life::ask, &Life::fork_and_call,
                      &Life::fork_and_return, &Life::run_program>;

 private:
  static int wait(pid_t child) {
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  template <typename F>
  static int exit_code_of(F in_child) {
    const pid_t child = ::fork();
    if (child != 0) return wait(child);
    ::alarm(20);
    std::exit(in_child());
  }

  ActorContext& context_;
  int worked_ = 0;
  bool ill_ = false;
};

// Counts, and saves what it has counted.
class Tally {
 public:
  explicit Tally(ActorContext& context) : context_(context) {}
  int add(int n) { return count_ += n; }
  int add_slowly(int n, std::int64_t ms) {
    std::this_thread::sleep_for(std::chrono::milliseconds(ms));
    return count_ += n;
  }
  int count() const { return count_; }
  std::string node() const { return context_.node_id().to_string(); }
  std::uint64_t generation() const { return context_.generation(); }
  int save() const { return count_; }
  void load(int count) { count_ = count; }
  static constexpr auto methods = troupe::methods<&Tally::add, &Tally::add_slowly, &Tally::count,
                                                  &Tally::node, &Tally::generation>;

 protected:
  ActorContext& context_;
  int count_ = 0;
};

// The same, each call once over whatever dies.
class ExactTally {
 public:
  int add(int n) { return count_ += n; }
  int count() const { return count_; }
  int save() const { return count_; }
  void load(int count) { count_ = count; }
  static constexpr bool kExactlyOnce = true;
  static constexpr auto methods = troupe::methods<&ExactTally::add, &ExactTally::count>;

 private:
  int count_ = 0;
};

// Knows what to do where its state is lost.
class Rebuilder {
 public:
  int add(int n) { return count_ += n; }
  int count() const { return count_; }
  std::string why_lost() const { return why_lost_; }
  int save() const { return count_; }
  void load(int count) { count_ = count; }
  void load_lost(const std::string& why) {
    why_lost_ = why;
    count_ = 1000;
  }
  static constexpr auto methods =
      troupe::methods<&Rebuilder::add, &Rebuilder::count, &Rebuilder::why_lost>;

 private:
  int count_ = 0;
  std::string why_lost_;
};

}  // namespace troupe::tests
