#pragma once
// The actor classes that the tests host.

#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "runtime/wire/types.h"
#include "troupe/actor.h"
#include "troupe/byte_stream.h"
#include "troupe/handle.h"
#include "troupe/unique_fd.h"

namespace troupe::tests {

class Counter {
 public:
  explicit Counter(int start) : count_(start) {}
  int add(int n) { return count_ += n; }
  int get() const { return count_; }
  int fail(const std::string& text) {
    ++count_;
    throw std::runtime_error(text);
  }
  Result<int> refuse() { return error(Code::kNotFound, "no such thing"); }
  void exit_now(int code) { ::_exit(code); }
  std::int64_t pid() const { return ::getpid(); }
  wire::Bytes echo(const wire::Bytes& bytes) const { return bytes; }
  std::uint64_t size_of(const wire::Bytes& bytes) const { return bytes.size(); }

  int save() const { return count_; }
  void load(int count) { count_ = count; }

  static constexpr auto constructor = troupe::constructor<int>;
  static constexpr auto methods =
      troupe::methods<&Counter::add, &Counter::get, &Counter::fail, &Counter::refuse,
                      &Counter::exit_now, &Counter::pid, &Counter::echo, &Counter::size_of>;

 private:
  int count_;
};

class Sleeper {
 public:
  explicit Sleeper(ActorContext& context) : context_(context) {}
  // Returns when the actor is asked to stop, or the time is over. Opening `fifo` for reading
  // succeeds when it runs.
  bool wait_after(const std::string& fifo, std::int64_t timeout_ms) {
    const UniqueFd started(::open(fifo.c_str(), O_WRONLY | O_CLOEXEC));
    return wait(timeout_ms);
  }
  bool wait(std::int64_t timeout_ms) {
    const Deadline deadline = Deadline::after(std::chrono::milliseconds(timeout_ms));
    while (!deadline.passed() && !context_.stop_token().stop_requested()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return context_.stop_token().stop_requested();
  }
  int touch() { return ++touched_; }
  std::string where() const {
    return context_.name() + "/" + std::to_string(context_.rank()) + "/" + context_.run() + "/" +
           std::to_string(context_.generation());
  }
  // A call to itself, waited for: would wait for ever.
  Result<int> ask_itself() {
    return context_.self<Sleeper>().call<&Sleeper::touch>().get(std::chrono::seconds(20));
  }
  void leave() { context_.request_exit(); }

  static constexpr auto methods =
      troupe::methods<&Sleeper::wait, &Sleeper::wait_after, &Sleeper::touch, &Sleeper::where,
                      &Sleeper::ask_itself, &Sleeper::leave>;

 private:
  ActorContext& context_;
  int touched_ = 0;
};

// Notices calls that come in another order than that of their numbers, or damaged.
class Recorder {
 public:
  bool next(int number, troupe::BytesView bytes) {
    bool good = number == ++count_;
    for (const std::byte b : bytes) good = good && b == static_cast<std::byte>(number);
    return good;
  }
  int count() const { return count_; }
  static constexpr auto methods = troupe::methods<&Recorder::next, &Recorder::count>;

 private:
  int count_ = 0;
};

class Broken {
 public:
  explicit Broken(const std::string& why) { throw std::runtime_error(why); }
  void nothing() {}
  static constexpr auto constructor = troupe::constructor<std::string>;
  static constexpr auto methods = troupe::methods<&Broken::nothing>;
};

// Holds what it was created with.
class Holder {
 public:
  Holder(wire::Bytes bytes, int mark) : bytes_(std::move(bytes)), mark_(mark) {}
  std::uint64_t bytes() const { return bytes_.size(); }
  std::uint64_t sum() const {
    std::uint64_t sum = 0;
    for (const std::byte b : bytes_) sum = sum * 31 + std::to_integer<unsigned>(b);
    return sum;
  }
  int mark() const { return mark_; }
  std::int64_t pid() const { return ::getpid(); }
  static constexpr auto constructor = troupe::constructor<wire::Bytes, int>;
  static constexpr auto methods =
      troupe::methods<&Holder::bytes, &Holder::sum, &Holder::mark, &Holder::pid>;

 private:
  const wire::Bytes bytes_;
  const int mark_;
};

// Calls another actor through a handle that it was given.
class Relay {
 public:
  Result<int> add(ActorHandle<Counter> counter, int n) {
    return counter.call<&Counter::add>(n).get(std::chrono::seconds(10));
  }
  static constexpr auto methods = troupe::methods<&Relay::add>;
};

// Answers raw sockets of purpose "echo" with what came, reversed in order of connection.
class RawPeer {
 public:
  explicit RawPeer(ActorContext& context) : context_(context) {
    context_.accept_connections("echo", [](ByteStream stream, std::string target, bool) {
      const std::string tail = target.substr(target.find("/echo"));
      (void)stream.write(std::as_bytes(std::span(tail)));
    });
  }
  void nothing() {}
  static constexpr auto methods = troupe::methods<&RawPeer::nothing>;

 private:
  ActorContext& context_;
};

inline constexpr auto kTestActors =
    troupe::actors<Counter, Sleeper, Recorder, Broken, Holder, Relay, RawPeer>;

}  // namespace troupe::tests
