#pragma once
// A connection between a caller and an actor's process in the simulation of calls: both ends of the
// links that the sessions of actors/session see. Messages of one direction arrive in order; they
// are delayed, wait for room, and where the connection breaks its tail is lost.

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "actors/session/call_link.h"
#include "actors/session/callee_session.h"
#include "world.h"

namespace troupe::simulation {

class CallWire : public std::enable_shared_from_this<CallWire> {
 public:
  // Whoever holds an end. What is told comes through `run`, which does nothing once its process is
  // dead, and later where that is stopped.
  struct Holder {
    std::function<void(std::function<void()>)> run;
    std::function<void(wire::CallMessage)> on_message;
    std::function<void()> on_room;   // half of what waited has been read
    std::function<void()> on_ended;  // once, last
    // A caller's: a call with these arguments leaves. At once.
    std::function<void(std::span<const std::byte> arguments)> on_sent = {};
  };
  explicit CallWire(World& world) : world_(world) {}

  // The caller's end, and the actor's once its process has the connection.
  std::shared_ptr<detail::CallLink> begin(Holder caller);
  std::shared_ptr<detail::CalleeLink> accept(Holder callee);

  // This end is closed: the other one hears of it, after what is under way, some of which may be
  // lost. What is under way to the closed end still arrives there, as from another thread.
  void close(bool callees_end);
  // The process at this end is gone. `told`: the other end hears of it, as of close(); else it
  // finds out by itself after a while (net/socket.cpp: keep-alive).
  void die(bool callees_end, bool told);
  // Both ends hear that it is over; what is under way in each direction may be lost.
  void cut();
  // Messages take so many times as long from now on.
  void slow(double factor) { slowness_ = factor; }
  bool over() const { return over_; }

 private:
  class CallerEnd;
  class CalleeEnd;
  enum Direction : std::uint8_t { kToCallee, kToCaller };
  struct Way {
    Holder to;
    bool open = true;  // somebody is there to read
    bool told_end = false;
    TimePoint lost_from = TimePoint::max();  // what arrives then or later is lost
    std::size_t under_way = 0;               // messages
    bool waits_for_room = false;
    std::vector<std::function<void()>> early;  // what came before anybody took this end
    TimePoint last{};                          // when the last of them arrives
  };

  Status send(Direction direction, wire::EncodedCall message);
  bool full(Direction direction);
  void arrive(Direction direction, const wire::EncodedCall& message);
  void tell_end(Direction direction, bool may_lose);
  void give(Direction direction, std::function<void()> what);

  World& world_;
  std::array<Way, 2> ways_;
  bool over_ = false;
  double slowness_ = 1;
};

}  // namespace troupe::simulation
