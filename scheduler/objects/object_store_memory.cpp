// The store's memory: who gets it, and what leaves when it is short.

#include <algorithm>

#include "runtime/base/canary.h"
#include "scheduler/objects/object_store.h"

namespace troupe::scheduler {
namespace {

using Kind = ObjectEffect::Kind;

// A segment that is in use is not asked for again before so long.
constexpr Duration kBusyTime = std::chrono::milliseconds(50);
// A process that does not answer for so long is stopped, or at work on its loop's thread.
constexpr Duration kAnswerTime = std::chrono::milliseconds(250);
// Where room is made, it is made for this part of the memory besides.
constexpr std::uint64_t kRoomParts = 16;
// A disk that writes more slowly is taken for stuck.
constexpr std::uint64_t kDiskBytesPerSecond = 8u << 20;

// What an object takes in a segment of several: each begins where a tensor may.
std::uint64_t in_segment(std::uint64_t bytes) {
  constexpr std::uint64_t kAlignment = 64;
  return std::max((bytes + kAlignment - 1) / kAlignment, std::uint64_t{1}) * kAlignment;
}

}  // namespace

void ObjectStore::want(Want want, TimePoint now) {
  want.since = now;
  wants_.push_back(std::move(want));
  serve_wants(now);
  if (wants_.empty()) return;
  // It is still there, the last one.
  Want& last = wants_.back();
  if (last.kind == Want::Kind::kSegment && !last.waiter.told) tell_pending(last.waiter);
}

bool ObjectStore::still_wanted(const Want& want) const {
  switch (want.kind) {
    case Want::Kind::kSegment:
      return processes_.contains(want.waiter.process);
    case Want::Kind::kRestore: {
      const auto object = objects_.find(want.object);
      if (object == objects_.end() || object->second.getting.empty()) return false;
      const auto segment = segments_.find(object->second.segment);
      return segment != segments_.end() && segment->second.place == Place::kSpilled;
    }
    case Want::Kind::kFetch: {
      const auto object = objects_.find(want.object);
      return object != objects_.end() && object->second.fetch == Object::Fetch::kWantsMemory;
    }
  }
  return false;
}

void ObjectStore::serve_wants(TimePoint now) {
  while (!wants_.empty()) {
    const Want& front = wants_.front();
    if (!still_wanted(front)) {
      wants_.pop_front();
      continue;
    }
    const SegmentKey spare = spare_for(front);
    if (spare == 0 && memory_bytes_ + front.bytes > config_.memory_max_bytes) {
      make_room(front.bytes, now);
      // Empty segments of processes that have gone leave at once.
      if (memory_bytes_ + front.bytes > config_.memory_max_bytes) return;
    }
    const Want served = std::move(wants_.front());
    wants_.pop_front();
    for (Want& other : wants_) other.since = now;
    serve(served, spare);
  }
}

void ObjectStore::serve(const Want& want, SegmentKey spare) {
  if (want.kind == Want::Kind::kRestore) return serve_restore(want);
  const SegmentKey key = next_segment_++;
  Segment& segment = segments_[key];
  segment.bytes = want.bytes;
  segment.used = ++uses_;
  ObjectEffect& create = effect(Kind::kCreateSegment);
  create.segment = key;
  create.bytes = want.bytes;
  create.process = want.kind == Want::Kind::kSegment ? want.waiter.process : 0;
  if (spare != 0) {
    create.file = spare;
    drop_segment(spare);
  }
  memory_bytes_ += want.bytes;
  if (want.kind == Want::Kind::kFetch) {
    segment.for_copy = true;
    Object& object = objects_.at(want.object);
    segment.fresh = false;
    segment.place = Place::kRestoring;
    segment.objects.insert(want.object);
    object.segment = key;
    object.offset = 0;
    if (object.standing == Standing::kBorrowed) return find_source(want.object, object);
    if (object.standing == Standing::kOrphan) return fetch_from({}, want.object, object);
    // Its home has gone while it waited for memory.
    return lose(want.object, object, object.lost);
  }
  Process& process = processes_[want.waiter.process];
  segment.writer = want.waiter.process;
  segment.mapped.insert(want.waiter.process);
  process.written.insert(key);
  process.mapped.insert(key);
  wire::ObjectAnswer granted;
  granted.place.segment = key;
  granted.segment_bytes = want.bytes;
  answer(want.waiter, std::move(granted), key);
}

// --- memory that was used before -----------------------------------------------------------------

bool ObjectStore::keep_spare(SegmentKey key, Segment& segment) {
  const bool read = std::ranges::any_of(
      segment.mapped, [&](ProcessKey process) { return processes_[process].reader; });
  if (!segment.for_copy || segment.abandoned || read || segment.place != Place::kMemory ||
      segment.bytes < config_.spare_bytes ||
      spare_bytes_ + segment.bytes > config_.memory_max_bytes / 2)
    return false;
  for (const ProcessKey process : segment.mapped) {
    tell_process(process, wire::ObjectMessage(wire::RevokeSegments{.segments = {key}}));
  }
  segment.place = Place::kSpare;
  spares_.emplace(segment.bytes, key);
  spare_bytes_ += segment.bytes;
  effect(Kind::kSpareSegment).segment = key;
  return true;
}

SegmentKey ObjectStore::spare_for(const Want& want) const {
  if (want.kind != Want::Kind::kFetch) return 0;
  const auto [first, last] = spares_.equal_range(want.bytes);
  const auto found = std::find_if(
      first, last, [&](const auto& spare) { return segments_.at(spare.second).mapped.empty(); });
  return found == last ? 0 : found->second;
}

void ObjectStore::drop_spare(SegmentKey key) {
  const auto found = segments_.find(key);
  if (found != segments_.end() && found->second.place == Place::kSpare) drop_segment(key);
}

// What leaves the disk with the object: nothing where it is large enough for a segment of its own,
// else the small ones that lie in the same file, as a descriptor and a mapping of each would cost
// more than its bytes.
ObjectStore::Comrades ObjectStore::come_back_with(ObjectId id) const {
  const Object& object = objects_.at(id);
  if (object.bytes >= config_.alone_bytes)
    return {.objects = {id}, .bytes = in_segment(object.bytes)};
  Comrades all;
  for (const ObjectId& other : segments_.at(object.segment).objects) {
    const std::uint64_t bytes = objects_.at(other).bytes;
    if (bytes >= config_.alone_bytes) continue;
    all.objects.push_back(other);
    all.bytes += in_segment(bytes);
  }
  return all;
}

void ObjectStore::serve_restore(const Want& want) {
  const SegmentKey file = objects_.at(want.object).segment;
  const Comrades back = come_back_with(want.object);
  const SegmentKey key = next_segment_++;
  Segment& segment = segments_[key];
  segment.fresh = false;
  segment.place = Place::kRestoring;
  segment.used = ++uses_;
  ObjectEffect& restore = effect(Kind::kRestore);
  restore.segment = key;
  restore.file = file;
  for (const ObjectId& id : back.objects) {
    Object& object = objects_.at(id);
    restore.pieces.push_back({object.offset, segment.bytes, object.bytes});
    object.segment = key;
    if (!TROUPE_CANARY("keeps-the-place-before-the-disk")) object.offset = segment.bytes;
    segment.bytes += in_segment(object.bytes);
    segment.objects.insert(id);
    segments_.at(file).objects.erase(id);
  }
  restore.bytes = segment.bytes;
  memory_bytes_ += segment.bytes;
  drop_if_empty(file);
}

void ObjectStore::segment_failed(SegmentKey key, const Status& why) {
  const auto found = segments_.find(key);
  if (found == segments_.end()) return;
  Segment& segment = found->second;
  segment.fresh = false;
  for (const ProcessKey process : std::exchange(segment.mapped, {})) {
    processes_[process].mapped.erase(key);
  }
  const std::set<ObjectId> objects = segment.objects;
  for (const ObjectId& id : objects) lose(id, objects_.at(id), why);
  if (objects.empty()) drop_segment(key);
}

// --- making room ---------------------------------------------------------------------------------

bool ObjectStore::is_copy(const Segment& segment) const {
  return std::ranges::all_of(segment.objects, [&](const ObjectId& id) {
    return objects_.at(id).standing == Standing::kBorrowed ||
           TROUPE_CANARY("drops-what-cannot-be-fetched");
  });
}

void ObjectStore::make_room(std::uint64_t bytes, TimePoint now) {
  // Those that are asked, the cheapest first: empty ones, copies, then what must go to disk; of
  // each the least recently used.
  struct Candidate {
    int cost;
    std::uint64_t used;
    SegmentKey key;
  };
  const auto short_of = [&](std::uint64_t more) {
    const std::uint64_t wanted = memory_bytes_ + more;
    const std::uint64_t to_come = config_.memory_max_bytes + leaving_bytes_;
    return wanted > to_come;
  };
  // Where memory is short it will be again: all segments are looked at once for several requests.
  const std::uint64_t besides = config_.memory_max_bytes / kRoomParts;
  while (!spares_.empty() && memory_bytes_ + bytes + besides > config_.memory_max_bytes)
    drop_segment(spares_.rbegin()->second);
  if (!short_of(bytes)) return;
  std::vector<Candidate> candidates;
  for (const auto& [key, segment] : segments_) {
    if (segment.place != Place::kMemory || segment.fresh || segment.busy_until > now) continue;
    const bool read = std::ranges::any_of(
        segment.mapped, [&](ProcessKey process) { return processes_[process].reader; });
    if (read) continue;
    const int cost = segment.objects.empty() ? 0 : is_copy(segment) ? 1 : 2;
    if (cost == 2 && !last_spill_error_.ok()) continue;
    candidates.push_back({cost, segment.used, key});
  }
  std::ranges::sort(candidates, [](const Candidate& a, const Candidate& b) {
    return std::pair(a.cost, a.used) < std::pair(b.cost, b.used);
  });
  for (const Candidate& candidate : candidates) {
    if (!short_of(bytes + besides)) return;
    const auto segment = segments_.find(candidate.key);
    if (segment == segments_.end() || (segment->second.bytes > besides && !short_of(bytes)))
      continue;
    revoke(candidate.key, segment->second, now);
  }
}

void ObjectStore::revoke(SegmentKey key, Segment& segment, TimePoint now) {
  segment.place = Place::kRevoking;
  segment.refused = false;
  segment.answer_by = now + kAnswerTime;
  segment.written_by =
      segment.answer_by + std::chrono::seconds(segment.bytes / kDiskBytesPerSecond);
  segment.unanswered = segment.mapped;
  if (!segment.unanswered.empty()) revoked_.emplace_back(segment.answer_by, key);
  leaving_bytes_ += segment.bytes;
  for (const ProcessKey process : segment.mapped) {
    tell_process(process, wire::ObjectMessage(wire::RevokeSegments{.segments = {key}}));
  }
  if (segment.unanswered.empty()) revocation_answered(key, {});
}

void ObjectStore::give_up_revocations(TimePoint now) {
  for (; !revoked_.empty() && revoked_.front().first <= now; revoked_.pop_front()) {
    const auto [answer_by, key] = revoked_.front();
    const auto found = segments_.find(key);
    if (found == segments_.end()) continue;
    Segment& segment = found->second;
    if (segment.place != Place::kRevoking || segment.answer_by != answer_by) continue;
    segment.place = Place::kMemory;
    segment.unanswered.clear();
    segment.busy_until = now + kBusyTime;
    leaving_bytes_ -= segment.bytes;
    drop_if_empty(key);  // its writer may have given it up meanwhile
  }
}

Status ObjectStore::on(ProcessKey process, const wire::SegmentsRevoked& message, TimePoint now) {
  const auto answered = [&](SegmentKey key, bool unmapped) {
    const auto found = segments_.find(key);
    if (found == segments_.end()) return;
    Segment& segment = found->second;
    if (unmapped) {
      segment.mapped.erase(process);
      if (segment.writer == process) {  // it writes there no more
        segment.writer = 0;
        processes_[process].written.erase(key);
      }
      processes_[process].mapped.erase(key);
    } else {
      segment.refused = true;
      segment.busy_until = now + kBusyTime;
    }
    if (segment.place == Place::kRevoking) {
      segment.unanswered.erase(process);
      if (segment.unanswered.empty()) revocation_answered(key, now);
    } else if (segment.place == Place::kSpare && !unmapped) {
      drop_segment(key);  // who has a view of what was lost reads on
    } else if (unmapped) {
      drop_if_empty(key);
    }
  };
  for (const SegmentKey key : message.inherited) {
    const auto found = segments_.find(key);
    if (found == segments_.end()) continue;
    found->second.abandoned = true;
    drop_spare(key);
  }
  for (const SegmentKey key : message.unmapped) answered(key, true);
  for (const SegmentKey key : message.in_use) answered(key, false);
  serve_wants(now);
  return {};
}

void ObjectStore::revocation_answered(SegmentKey key, TimePoint now) {
  Segment& segment = segments_.at(key);
  const bool in_use = segment.refused || !segment.mapped.empty();
  if (in_use && !TROUPE_CANARY("moves-what-is-in-use")) {
    segment.place = Place::kMemory;
    leaving_bytes_ -= segment.bytes;
    return drop_if_empty(key);  // its writer may have gone meanwhile
  }
  if (segment.objects.empty()) {
    segment.fresh = false;
    drop_segment(key);
    return moved(now);
  }
  if (is_copy(segment)) {
    for (const ObjectId& id : std::set<ObjectId>(segment.objects)) {
      Object& object = objects_.at(id);
      tell_home(object, wire::ObjectMessage(wire::CopyChanged{.object_id = id, .is_here = false}));
      drop_bytes(id, object);  // the last one drops the segment
    }
    return moved(now);
  }
  segment.place = Place::kSpilling;
  ObjectEffect& spill = effect(Kind::kSpill);
  spill.segment = key;
  segment.disk_bytes = 0;
  for (const ObjectId& id : segment.objects) {
    const Object& object = objects_.at(id);
    spill.pieces.push_back({object.offset, object.offset, object.bytes});
    segment.disk_bytes += object.bytes;
  }
}

void ObjectStore::moved(TimePoint now) {
  if (now == TimePoint{}) return;
  for (Want& want : wants_) want.since = now;
}

bool ObjectStore::spilled(SegmentKey key, Status status, TimePoint now) {
  const auto found = segments_.find(key);
  if (found == segments_.end() || found->second.place != Place::kSpilling) return false;
  Segment& segment = found->second;
  leaving_bytes_ -= segment.bytes;
  last_spill_error_ = status;
  const bool wanted = std::ranges::any_of(
      segment.objects, [&](const ObjectId& id) { return !objects_.at(id).getting.empty(); });
  const bool leaves = status.ok() && !wanted;
  if (status.ok()) counted_.spilled_bytes_total += segment.disk_bytes;
  if (leaves) {
    segment.place = Place::kSpilled;
    memory_bytes_ -= segment.bytes;
    counted_.spilled_bytes += segment.disk_bytes;
    effect(Kind::kForgetMemory).segment = key;
    moved(now);
  } else {
    segment.place = Place::kMemory;
    segment.busy_until = now + kBusyTime;
    for (const ObjectId& id : std::set<ObjectId>(segment.objects)) {
      if (!TROUPE_CANARY("forgets-what-waits-for-disk")) answer_getting(id, objects_.at(id));
    }
  }
  serve_wants(now);
  return leaves;
}

bool ObjectStore::restored(SegmentKey key, Status status) {
  const auto found = segments_.find(key);
  if (found == segments_.end() || found->second.place != Place::kRestoring) return false;
  Segment& segment = found->second;
  segment.place = Place::kMemory;
  segment.used = ++uses_;
  const std::set<ObjectId> objects = segment.objects;
  for (const ObjectId& id : objects) {
    Object& object = objects_.at(id);
    if (!status.ok()) {
      lose(id, object, status);
      continue;
    }
    counted_.restored_bytes_total += object.bytes;
    answer_getting(id, object);
  }
  return status.ok();
}

// --- what is stuck -------------------------------------------------------------------------------

bool ObjectStore::tick(TimePoint now) {
  last_spill_error_ = wants_.empty() ? Status() : last_spill_error_;
  give_up_revocations(now);
  serve_wants(now);
  if (wants_.empty()) return false;
  const Want& front = wants_.front();
  if (now - front.since < config_.stuck_after) return true;
  const bool disk_works = std::ranges::any_of(segments_, [&](const auto& entry) {
    return entry.second.place == Place::kSpilling && now < entry.second.written_by;
  });
  if (disk_works) return true;
  const Status why =
      error(Code::kResourceExhausted,
            "no room for an object of {} bytes in the object store of node {} ({} bytes): {}. Let "
            "go of objects and of views of them, or start the node with a larger "
            "--object-store-memory",
            front.bytes, config_.node_name, config_.memory_max_bytes, what_is_in_the_way());
  const Want stuck = front;
  wants_.pop_front();
  fail_want(stuck, why);
  for (Want& other : wants_) other.since = now;
  last_spill_error_ = {};  // it may go better next time
  serve_wants(now);
  return !wants_.empty();
}

void ObjectStore::fail_want(const Want& want, Status why) {
  switch (want.kind) {
    case Want::Kind::kSegment:
      return fail(want.waiter, std::move(why));
    case Want::Kind::kRestore: {
      for (const Waiter& waiter : std::exchange(objects_.at(want.object).getting, {})) {
        fail(waiter, why);
      }
      return;
    }
    case Want::Kind::kFetch: {
      Object& object = objects_.at(want.object);
      object.fetch = Object::Fetch::kNone;
      for (const Waiter& waiter : std::exchange(object.getting, {})) fail(waiter, why);
      return;
    }
  }
}

std::string ObjectStore::what_is_in_the_way() const {
  if (!last_spill_error_.ok()) {
    return fmt::format("objects cannot be moved to disk ({})", last_spill_error_.to_string());
  }
  std::uint64_t being_written = 0;
  std::map<std::string, std::uint64_t> viewed;
  for (const auto& [key, segment] : segments_) {
    if (segment.place == Place::kSpilled) continue;
    if (segment.fresh && segment.writer != 0) {
      being_written += segment.bytes;
      continue;
    }
    for (const ProcessKey process : segment.mapped) {
      const auto found = processes_.find(process);
      if (found != processes_.end()) viewed[found->second.name] += segment.bytes;
    }
  }
  std::string text;
  for (const auto& [name, bytes] : viewed) {
    text += fmt::format("{}{} uses {} bytes", text.empty() ? "" : ", ", name, bytes);
  }
  if (being_written > 0) {
    text += fmt::format("{}{} bytes are being written", text.empty() ? "" : ", ", being_written);
  }
  return text.empty() ? "all of it is on its way to or from disk" : text;
}

ObjectStore::Totals ObjectStore::totals() const {
  Totals totals = counted_;
  totals.objects = objects_.size();
  totals.memory_bytes = memory_bytes_;
  totals.spare_bytes = spare_bytes_;
  totals.memory_max_bytes = config_.memory_max_bytes;
  totals.waiting = wants_.size();
  return totals;
}

std::string ObjectStore::inconsistency() const {
  std::uint64_t memory = 0;
  std::uint64_t spilled_bytes = 0;
  std::uint64_t leaving = 0;
  std::uint64_t spare = 0;
  for (const auto& [key, segment] : segments_) {
    if (segment.place == Place::kSpilled) {
      spilled_bytes += segment.disk_bytes;
    } else {
      memory += segment.bytes;
    }
    if (segment.place == Place::kRevoking || segment.place == Place::kSpilling) {
      leaving += segment.bytes;
    }
    for (const ObjectId& id : segment.objects) {
      const auto object = objects_.find(id);
      if (object == objects_.end() || object->second.segment != key) {
        return fmt::format("segment {} holds object {}, which is not there", key, id);
      }
    }
    for (const ProcessKey process : segment.mapped) {
      if (!processes_.contains(process)) {
        return fmt::format("segment {} is mapped by process {}, which is gone", key, process);
      }
    }
    if (segment.place == Place::kSpare) spare += segment.bytes;
    if (segment.objects.empty() && segment.writer == 0 && segment.place != Place::kRevoking &&
        segment.place != Place::kSpare) {
      return fmt::format("segment {} is empty and nobody's", key);
    }
  }
  if (memory != memory_bytes_ || spilled_bytes != counted_.spilled_bytes ||
      leaving != leaving_bytes_) {
    return fmt::format("counted {} + {} bytes, {} leaving; they are {} + {}, {}", memory_bytes_,
                       counted_.spilled_bytes, leaving_bytes_, memory, spilled_bytes, leaving);
  }
  if (spare != spare_bytes_) return fmt::format("{} bytes are spare, not {}", spare, spare_bytes_);
  if (memory_bytes_ > config_.memory_max_bytes) return "more memory than there is";
  for (const auto& [id, object] : objects_) {
    if (object.segment != 0 && !segments_.contains(object.segment)) {
      return fmt::format("object {} lies in segment {}, which is gone", id, object.segment);
    }
    if (object.holders.empty() && object.borrowers.empty() && !unheld_.contains(id)) {
      return fmt::format("object {} is held by nobody", id);
    }
  }
  return {};
}

}  // namespace troupe::scheduler
