#pragma once
// The records of one kind. Everybody reads them; only the class that owns them, which derives from
// Table, changes them, in functions that are named for what happened.

#include <algorithm>

#include "scheduler/control/context.h"

// In a function that returns what must hold and does not, as a sentence.
#define TROUPE_HOLDS(condition, ...)                   \
  do {                                                 \
    if (!(condition)) return fmt::format(__VA_ARGS__); \
  } while (false)

namespace troupe::scheduler {

// Those of a kind that have ended and are remembered for people, oldest first, and how much of the
// journal they take.
template <typename Id>
class Ended {
 public:
  struct Entry {
    Id id;
    std::uint64_t bytes = 0;
  };
  void add(Id id, std::uint64_t bytes) {
    entries_.push_back({id, bytes});
    bytes_ += bytes;
  }
  void erase(Id id) {
    const auto found = std::find_if(entries_.begin(), entries_.end(),
                                    [&](const Entry& entry) { return entry.id == id; });
    if (found == entries_.end()) return;
    bytes_ -= found->bytes;
    entries_.erase(found);
  }
  // Whether the oldest is to go.
  bool too_many(std::size_t count_max, std::uint64_t bytes_max) const {
    return !entries_.empty() && (entries_.size() > count_max || bytes_ > bytes_max);
  }
  Id oldest() const { return entries_.front().id; }
  std::size_t size() const { return entries_.size(); }
  auto begin() const { return entries_.begin(); }
  auto end() const { return entries_.end(); }

 private:
  std::deque<Entry> entries_;
  std::uint64_t bytes_ = 0;
};

// A Record has id(), delta() (its journal record), ended(), and a type Forgotten.
template <typename Id, typename Record>
class Table {
 public:
  const std::map<Id, Record>& all() const { return records_; }
  bool contains(const Id& id) const { return records_.contains(id); }
  // Null where there is none.
  const Record* find(const Id& id) const {
    const auto found = records_.find(id);
    return found == records_.end() ? nullptr : &found->second;
  }
  const Record& at(const Id& id) const { return records_.at(id); }
  template <typename Wanted>
  std::vector<Id> ids_where(Wanted wanted) const {
    std::vector<Id> ids;
    for (const auto& [id, record] : records_) {
      if (wanted(record)) ids.push_back(id);
    }
    return ids;
  }

  // At the end of an apply(): journals each record that changed, once, and passes it to `tell`.
  template <typename Tell>
  void journal_changes(Tell tell) {
    for (const Id& id : changed_) {
      const Record* record = find(id);
      if (record == nullptr) continue;
      context_.record(record->delta());
      tell(*record);
    }
    changed_.clear();
  }
  Status replay(const typename Record::Forgotten& delta) {
    const auto& [id] = delta;
    forget(id);
    return {};
  }
  // The shortest list of journal records that makes the table: what has ended in the order in which
  // it did, then what lives.
  template <typename Put>
  void snapshot(Put put) const {
    for (const auto& entry : ended_) put(at(entry.id));
    for (const auto& [id, record] : records_) {
      if (!record.ended()) put(record);
    }
  }

 protected:
  explicit Table(Context& context) : context_(context) {}
  // A record that somebody reads is named to the table by that reference: no second look-up.
  Record& edit(const Record& record) { return const_cast<Record&>(record); }
  void changed(const Record& record) { changed_.insert(record.id()); }
  // Drops the oldest of what has ended, as long as `may_go` says so.
  template <typename MayGo>
  void forget_old(std::size_t count_max, MayGo may_go) {
    while (ended_.too_many(count_max, context_.config().ended_bytes_max)) {
      const Id oldest = ended_.oldest();
      if (!may_go(at(oldest))) return;
      forget(oldest);
      context_.record(typename Record::Forgotten{oldest});
    }
  }
  void forget(const Id& id) {
    ended_.erase(id);
    records_.erase(id);
  }

  Context& context_;
  std::map<Id, Record> records_;
  std::set<Id> changed_;
  Ended<Id> ended_;
};

}  // namespace troupe::scheduler
