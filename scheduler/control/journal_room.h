#pragma once
// How much of the journal what lives takes, and what is refused because there is no room for it.
// With each living thing, its kind is counted.

#include "scheduler/control/context.h"
#include "scheduler/control/journal_bytes.h"
#include "scheduler/control/records.h"

namespace troupe::scheduler {

class JournalRoom {
 public:
  explicit JournalRoom(Context& context) : context_(context) {}

  // What is counted for a thing that lives.
  static std::uint64_t kept_by(const wire::ActorSpec& spec);
  static std::uint64_t kept_by(const wire::PlacementGroupSpec& spec);
  static std::uint64_t kept_by(const wire::SupervisorSpec& spec);
  static std::uint64_t kept_by(const wire::JobInfo& job);
  static std::uint64_t kept_by(const ActorRecord& actor) { return actor.kept_bytes; }
  // How much of the journal a thing takes that has ended.
  template <typename Record>
  static std::uint64_t left_by(const Record& record) {
    return journal_bytes(record.spec) + journal_bytes(record.info);
  }
  static wire::ActorSpec remembered(const wire::ActorSpec& spec);

  // kResourceExhausted, and an event, where so much more cannot be kept.
  Status check_room(std::uint64_t bytes);
  template <typename Kept>
  void take(const Kept& kept) {
    ++count(kept);
    kept_bytes_ += kept_by(kept);
  }
  template <typename Kept>
  void let_go(const Kept& kept) {
    --count(kept);
    give_back(kept_by(kept));
  }

  // An actor counts as much as it takes now: again whenever it has changed. That is not refused.
  void recount(ActorRecord& actor);

  struct Living {
    std::size_t actors = 0;
    std::size_t groups = 0;
    std::size_t supervisors = 0;
    std::size_t jobs = 0;
    friend bool operator==(const Living&, const Living&) = default;
  };
  const Living& living() const { return living_; }
  std::uint64_t kept_bytes() const { return kept_bytes_; }

 private:
  std::size_t& count(const ActorRecord&) { return living_.actors; }
  std::size_t& count(const wire::PlacementGroupSpec&) { return living_.groups; }
  std::size_t& count(const wire::SupervisorSpec&) { return living_.supervisors; }
  std::size_t& count(const wire::JobInfo&) { return living_.jobs; }
  void give_back(std::uint64_t bytes);

  Context& context_;
  Living living_;
  std::uint64_t kept_bytes_ = 0;
  bool full_ = false;  // something was refused for want of room, and there is little still
};

}  // namespace troupe::scheduler
