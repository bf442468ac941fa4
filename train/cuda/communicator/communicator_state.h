#pragma once
// Where a communicator over a GPU's library stands, without the library: forming, ready, operations
// under way, aborted for a reason, ended. Pure: told what happens and what time it is, it says what
// is overdue, what a failure is called and what it usually comes from.

#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <string>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/collective/communicator.h"

namespace troupe::train {

// One rank's, for all groups of a generation together. Used under its owner's lock.
class CommunicatorState {
 public:
  enum class Phase { kForming, kReady, kOperating, kAborted, kEnded };

  // What an operation is called in errors.
  struct Note {
    collective::Operation operation{};
    std::string group;
    std::uint64_t sequence = 0;  // in its group, from 1
  };

  // `transport`: "NCCL 2.28.9". Forming must end within `form_limit` from `now`.
  CommunicatorState(int rank, std::uint64_t generation, std::string transport, TimePoint now,
                    Duration form_limit);

  Phase phase() const;

  // A group is being formed, the first one or one more: not while operations are under way.
  void begins_forming(std::string group, TimePoint now, Duration limit);
  void formed();

  // An operation begins, behind those under way; its number counts all groups' from 1. It must end
  // within `limit` from now, or from when the one before it ended. Errors: see ended_status().
  Result<std::uint64_t> begin(Note note, Duration limit, TimePoint now);
  // Its connections stand and it is on the device: what hangs from here on is another thing.
  void launched(std::uint64_t number);
  // All up to `number` are done.
  void completed(std::uint64_t number, TimePoint now);
  std::uint64_t completed_number() const { return completed_; }
  std::uint64_t begun_number() const { return begun_; }

  // Why what waits longest has to be given up at `now`, if it has.
  std::optional<Status> overdue(TimePoint now) const;
  // `found`, which concerns what waits longest, with where it happened; explained: and with what it
  // usually comes from.
  Status located(Status found) const;
  Status explained(Status found) const;

  // The first reason stays. True where this is the first.
  bool abort(Status reason);
  // What a call answers that finds the communicator aborted: the first one that was waiting is told
  // the reason itself unless abort() was asked for, all others kAborted with it in their words.
  Status aborted_status(bool waited);
  // An end was asked for: not a failure, so the waiting are told kAborted like all others.
  bool abort_on_request(Status reason);
  // No operation comes any more.
  void end();

 private:
  struct Running {
    Note note;
    std::uint64_t number = 0;
    Duration limit{};
    TimePoint begun{};
    bool launched = false;
  };
  const Running* oldest() const { return running_.empty() ? nullptr : &running_.front(); }
  TimePoint since(const Running& running) const;
  std::string causes() const;

  const int rank_;
  const std::uint64_t generation_;
  const std::string transport_;
  bool forming_ = true;
  bool ended_ = false;
  bool aborted_ = false;
  bool reason_told_ = false;
  std::string forming_group_;
  TimePoint forming_since_{};
  Duration forming_limit_{};
  Status reason_;
  std::deque<Running> running_;
  std::set<std::string> proven_groups_;  // that have done something
  TimePoint last_completion_{};
  std::uint64_t begun_ = 0, completed_ = 0;
};

}  // namespace troupe::train
