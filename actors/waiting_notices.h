#pragma once
// What a driver says, once, of actors that have to wait for room: "reader waits: needs CPU 1; vm
// has CPU 0 of 2 free".
//
// The head tells a driver unasked when an actor of its has to wait, also one that another actor of
// the job created. Nothing is asked, and no timer runs, while no actor waits; when one has waited
// for `patience`, the head is asked once for what it waits for now.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/net/event_loop.h"
#include "runtime/wire/types.h"

namespace troupe::detail {

// Loop thread, but for make().
class WaitingNotices : public std::enable_shared_from_this<WaitingNotices> {
 public:
  using Actors = Result<std::vector<wire::ActorInfo>>;
  struct Options {
    Duration patience = std::chrono::seconds(2);
    // Asks the head for the living actors; the answer comes on the loop's thread, or never.
    std::function<void(std::function<void(const Actors&)>)> ask;
    std::function<void(const std::string& line)> say;
    bool name_command = false;  // whether `troupe why` reaches this cluster
  };
  static std::shared_ptr<WaitingNotices> make(net::EventLoop& loop, Options options);

  // The state of an actor, as the head tells it.
  void updated(const wire::ActorInfo& actor);

 private:
  // One stay in the line of those that wait: the actor's generation tells it from a later one.
  struct Wait {
    std::uint64_t generation = 0;
    TimePoint since;
    bool told = false;
  };
  WaitingNotices(net::EventLoop& loop, Options options)
      : loop_(loop), options_(std::move(options)) {}
  void arm();
  void on_timer();
  void tell(const Actors& actors);

  net::EventLoop& loop_;
  const Options options_;
  std::map<ActorId, Wait> waits_;
  bool busy_ = false;  // a timer runs, or the head is asked
};

// The lines for actors that wait, those that wait for the same thing in one: few lines, then a
// count.
std::vector<std::string> lines_of_waiting(const std::vector<wire::ActorInfo>& actors,
                                          bool name_command);

}  // namespace troupe::detail
