#pragma once
// What the tests of the daemons share: waiting with a deadline, and the other end of a control
// connection.

#include <doctest/doctest.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/random.h"
#include "runtime/net/connection.h"
#include "runtime/net/event_loop.h"
#include "runtime/net/transport.h"
#include "runtime/wire/control_messages.h"
#include "tests/support/on_loop.h"
#include "troupe/log.h"

namespace troupe::tests {

inline constexpr std::chrono::seconds kPatience{10};
inline const net::Token kToken(32, std::byte{0x5a});

inline Deadline patience() { return Deadline::after(kPatience); }

// What one thread puts in, in order, and another waits for.
template <typename T>
class Inbox {
 public:
  void put(T value) {
    const std::lock_guard lock(mutex_);
    values_.push_back(std::move(value));
    arrived_.notify_all();
  }
  // Takes the first one that is wanted; what came before it stays.
  template <typename Wanted>
  std::optional<T> take_within(std::chrono::milliseconds time, Wanted wanted) {
    std::unique_lock lock(mutex_);
    auto found = values_.end();
    const auto look = [&] {
      found = std::find_if(values_.begin(), values_.end(), wanted);
      return found != values_.end();
    };
    if (!arrived_.wait_for(lock, time, look)) return std::nullopt;
    T value = std::move(*found);
    values_.erase(found);
    return value;
  }
  template <typename Wanted>
  T take(Wanted wanted) {
    auto value = take_within(kPatience, wanted);
    REQUIRE_MESSAGE(value.has_value(), "what was waited for did not come");
    return std::move(*value);
  }
  T take() {
    return take([](const T&) { return true; });
  }
  // Whether one is there now.
  template <typename Wanted>
  bool has(Wanted wanted) {
    const std::lock_guard lock(mutex_);
    return std::any_of(values_.begin(), values_.end(), wanted);
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<T> values_;
};

// A status that a callback brings.
class Answer {
 public:
  std::function<void(Status)> callback() {
    return [inbox = inbox_](Status status) { inbox->put(std::move(status)); };
  }
  Status get() { return inbox_->take(); }
  bool arrived() {
    return inbox_->has([](const Status&) { return true; });
  }

 private:
  std::shared_ptr<Inbox<Status>> inbox_ = std::make_shared<Inbox<Status>>();
};

// A listener of the target "head" that keeps what it is told and says what the test wants, over the
// connection that it accepted last. Earlier ones stay open: that of an attempt which its maker has
// given up may be accepted after the one that counts.
class FakeHead {
 public:
  // What is answered at once to a message; on the loop's thread.
  using Responder = std::function<std::vector<wire::ControlMessage>(const wire::ControlMessage&)>;

  explicit FakeHead(Responder responder) : responder_(std::move(responder)) { listen(); }
  ~FakeHead() { away(); }

  const net::Address& address() const { return address_; }
  net::EventLoop& loop() { return thread_.loop(); }
  // The first message of this type that fits and was not taken yet.
  template <typename Message>
  Message take(std::function<bool(const Message&)> wanted = {}) {
    return get<Message>(inbox_.take(fits<Message>(std::move(wanted))));
  }
  template <typename Message>
  bool has(std::function<bool(const Message&)> wanted = {}) {
    return inbox_.has(fits<Message>(std::move(wanted)));
  }
  template <typename Message>
  std::optional<Message> take_within(std::chrono::milliseconds time) {
    auto message = inbox_.take_within(time, fits<Message>({}));
    if (!message) return std::nullopt;
    return get<Message>(std::move(*message));
  }
  void send(wire::ControlMessage message) {
    REQUIRE(on_loop(thread_.loop(),
                    [&] { return connection_ && connection_->send(wire::encode(message)).ok(); }));
  }
  void drop_connection() {
    on_loop(thread_.loop(), [this] {
      if (connection_) connection_->close();
      connection_.reset();
      earlier_.clear();
      return 0;
    });
  }
  // The head's process is gone: nobody listens.
  void away() {
    on_loop(thread_.loop(), [this] {
      listener_.reset();
      if (connection_) connection_->close();
      connection_.reset();
      earlier_.clear();
      return 0;
    });
  }
  // It is there again, at the same port.
  void listen() {
    on_loop(thread_.loop(), [this] {
      net::ListenOptions options;
      options.host = "127.0.0.1";
      options.port = address_.port;
      auto made =
          net::listen(thread_.loop(), options, kToken, random_, Logger::discard(),
                      [this](net::AcceptedSocket accepted) { accept(std::move(accepted)); });
      listener_ = std::move(made).value();
      address_ = listener_->address();
      return 0;
    });
  }
  // How many connections were accepted so far.
  int accepted() {
    return on_loop(thread_.loop(), [this] { return accepted_; });
  }

 private:
  template <typename Message>
  static auto fits(std::function<bool(const Message&)> wanted) {
    return [wanted = std::move(wanted)](const wire::ControlMessage& message) {
      const auto* typed = get_if<Message>(&message);
      return typed != nullptr && (!wanted || wanted(*typed));
    };
  }
  void accept(net::AcceptedSocket accepted) {
    if (accepted.target != "head") return;
    ++accepted_;
    if (connection_) earlier_.push_back(std::move(connection_));
    connection_ = net::make_connection(thread_.loop(), std::move(accepted.socket), accepted.peer);
    connection_->start({.on_frame =
                            [this, own = connection_.get()](std::span<const std::byte> frame) {
                              auto message = wire::decode_control(frame);
                              if (!message.ok()) return;
                              for (const auto& answer : responder_(*message)) {
                                static_cast<void>(own->send(wire::encode(answer)));
                              }
                              inbox_.put(std::move(*message));
                            },
                        .on_close = [](Status) {}});
  }

  Responder responder_;
  SystemRandom random_;
  Inbox<wire::ControlMessage> inbox_;
  net::Address address_;
  int accepted_ = 0;
  std::shared_ptr<net::Connection> connection_;
  std::vector<std::shared_ptr<net::Connection>> earlier_;
  std::unique_ptr<net::Listener> listener_;
  net::LoopThread thread_{"fake-head"};  // ends first
};

}  // namespace troupe::tests
