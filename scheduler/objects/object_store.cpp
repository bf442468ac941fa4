#include "scheduler/objects/object_store.h"

#include <algorithm>

#include "runtime/base/canary.h"
#include "runtime/base/check.h"

namespace troupe::scheduler {
namespace {

using Kind = ObjectEffect::Kind;

// So many sources of an object are tried before it counts as lost.
constexpr std::size_t kSourcesTriedMax = 8;
// Ids in a message between stores.
constexpr std::size_t kIdsInMessageMax = 2000;

Status unknown_object(ObjectId id) {
  return error(Code::kObjectLost,
               "object {} is not known any more: nobody held it when this reference to it arrived",
               id.brief());
}

}  // namespace

ObjectEffect& ObjectStore::effect(Kind kind) {
  ObjectEffect& made = effects_.emplace_back();
  made.kind = kind;
  return made;
}

void ObjectStore::tell_process(ProcessKey process, wire::ObjectMessage message,
                               SegmentKey segment) {
  ObjectEffect& told = effect(Kind::kTellProcess);
  told.process = process;
  told.segment = segment;
  told.message = std::move(message);
}

void ObjectStore::tell_home(const Object& object, wire::ObjectMessage message) {
  ObjectEffect& told = effect(Kind::kTellPeer);
  told.node = object.home;
  told.endpoint = object.home_endpoint;
  told.message = std::move(message);
}

void ObjectStore::reply(NodeId node, wire::ObjectMessage message) {
  ObjectEffect& told = effect(Kind::kTellPeer);
  told.node = node;
  told.reply = true;
  told.message = std::move(message);
}

// --- processes -----------------------------------------------------------------------------------

void ObjectStore::process_joined(ProcessKey process, std::string name) {
  processes_[process].name = std::move(name);
}

void ObjectStore::reader_joined(ProcessKey reader, std::string name, bool whole) {
  Process& joined = processes_[reader];
  joined.name = std::move(name);
  joined.reader = true;
  joined.whole = whole;
}

void ObjectStore::process_gone(ProcessKey key) {
  const auto found = processes_.find(key);
  if (found == processes_.end()) return;
  const Process process = std::move(found->second);
  processes_.erase(found);
  std::erase_if(wants_, [&](const Want& want) {
    return want.kind == Want::Kind::kSegment && want.waiter.process == key;
  });
  std::erase_if(holdings_, [&](const Holding& holding) { return holding.waiter.process == key; });
  for (const SegmentKey segment : process.written) {
    const auto written = segments_.find(segment);
    if (written != segments_.end()) written->second.writer = 0, written->second.fresh = false;
  }
  for (const ObjectId& id : process.held) {
    const auto object = objects_.find(id);
    if (object == objects_.end() || TROUPE_CANARY("keeps-what-the-dead-held")) continue;
    object->second.holders.erase(key);
    std::erase_if(object->second.getting,
                  [&](const Waiter& waiter) { return waiter.process == key; });
    unheld(id, object->second);
  }
  for (const SegmentKey mapped : process.mapped) {
    const auto found = segments_.find(mapped);
    if (found == segments_.end()) continue;
    Segment& segment = found->second;
    segment.mapped.erase(key);
    segment.abandoned = segment.abandoned || !process.reader;
    if (segment.place == Place::kSpare) {
      drop_segment(mapped);
      continue;
    }
    if (segment.place == Place::kRevoking && segment.unanswered.erase(key) > 0 &&
        segment.unanswered.empty()) {
      revocation_answered(mapped, {});
    }
  }
  for (const SegmentKey written : process.written) drop_if_empty(written);
}

Status ObjectStore::on_process(ProcessKey process, const wire::ObjectMessage& message,
                               TimePoint now) {
  TROUPE_CHECK(processes_.contains(process), "process {} has not joined", process);
  if (const auto* m = get_if<wire::NewSegment>(&message)) return on(process, *m, now);
  if (const auto* m = get_if<wire::PutObject>(&message)) return on(process, *m);
  if (const auto* m = get_if<wire::HoldObjects>(&message)) return on(process, *m);
  if (const auto* m = get_if<wire::ReleaseObjects>(&message)) return on(process, *m);
  if (const auto* m = get_if<wire::GetObject>(&message)) return on(process, *m, now);
  if (const auto* m = get_if<wire::ForgetObjectRequest>(&message)) return on(process, *m);
  if (const auto* m = get_if<wire::SegmentsRevoked>(&message)) return on(process, *m, now);
  return error(Code::kProtocol, "message {} is none that a process sends to an object store",
               message.index());
}

void ObjectStore::answer(const Waiter& waiter, wire::ObjectAnswer answer, SegmentKey segment) {
  answer.request = waiter.request;
  answer.has_descriptor = segment != 0;
  tell_process(waiter.process, wire::ObjectMessage(std::move(answer)), segment);
  effects_.back().reply = !waiter.told;
}

void ObjectStore::tell_pending(Waiter& waiter) {
  wire::ObjectAnswer later;
  later.pending = true;
  answer(waiter, std::move(later));
  waiter.told = true;
}

void ObjectStore::fail(const Waiter& waiter, Status why) {
  wire::ObjectAnswer failed;
  failed.status = std::move(why);
  answer(waiter, std::move(failed));
}

Status ObjectStore::too_large(std::uint64_t bytes) const {
  return error(Code::kResourceExhausted,
               "an object of {} bytes is larger than the object store of node {} ({} bytes). Start "
               "the node with a larger --object-store-memory, or put the data in pieces",
               bytes, config_.node_name, config_.memory_max_bytes);
}

// --- putting and holding -------------------------------------------------------------------------

Status ObjectStore::on(ProcessKey process, const wire::NewSegment& message, TimePoint now) {
  const Waiter waiter{.process = process, .request = message.request};
  if (message.bytes == 0) return Status(Code::kProtocol, "a segment of no bytes");
  if (message.bytes > config_.memory_max_bytes) {
    fail(waiter, too_large(message.bytes));
    return {};
  }
  want({.kind = Want::Kind::kSegment, .bytes = message.bytes, .waiter = waiter}, now);
  return {};
}

Status ObjectStore::on(ProcessKey process, const wire::PutObject& message) {
  const auto segment = segments_.find(message.place.segment);
  if (segment == segments_.end() || segment->second.writer != process ||
      !segment->second.mapped.contains(process)) {
    return error(Code::kProtocol, "object {} is put into segment {}, which is not the process's",
                 message.object_id, message.place.segment);
  }
  if (message.bytes > segment->second.bytes ||
      message.place.offset > segment->second.bytes - message.bytes) {
    return error(Code::kProtocol, "object {} lies outside of its segment", message.object_id);
  }
  const auto [added, is_new] = objects_.try_emplace(message.object_id);
  Object& object = added->second;
  if (!is_new && object.standing != Standing::kExpected) {
    return error(Code::kProtocol, "object {} is put twice", message.object_id);
  }
  object.standing = Standing::kHome;
  expected_.erase(message.object_id);
  expected_at_begin_.erase(message.object_id);
  object.home = config_.node_id;
  object.home_endpoint = config_.endpoint;
  object.bytes = message.bytes;
  object.type_hash = message.type_hash;
  object.segment = message.place.segment;
  object.offset = message.place.offset;
  segment->second.objects.insert(message.object_id);
  segment->second.fresh = false;
  segment->second.used = ++uses_;
  hold(process, message.object_id, object);
  answer_getting(message.object_id, object);
  return {};
}

void ObjectStore::hold(ProcessKey process, ObjectId id, Object& object) {
  object.holders.insert(process);
  processes_[process].held.insert(id);
  unheld_.erase(id);
  unheld_at_begin_.erase(id);
}

Status ObjectStore::on(ProcessKey process, const wire::HoldObjects& message) {
  Holding holding{.waiter = {.process = process, .request = message.request}, .missing = {}};
  // By home, what it is to be asked.
  std::map<NodeId, std::pair<wire::Endpoint, std::vector<ObjectId>>> asks;
  for (const wire::ObjectRecord& record : message.objects) {
    auto found = objects_.find(record.object_id);
    if (found == objects_.end()) {
      found = objects_.try_emplace(record.object_id).first;
      Object& object = found->second;
      object.home = record.home;
      object.home_endpoint = record.home_endpoint;
      object.bytes = record.bytes;
      object.type_hash = record.type_hash;
      if (record.home == config_.node_id) {
        object.standing = Standing::kExpected;
        expected_.insert(record.object_id);
      } else {
        object.standing = Standing::kAsking;
        auto& [endpoint, ids] = asks[record.home];
        endpoint = record.home_endpoint;
        ids.push_back(record.object_id);
      }
    }
    found->second.shared = true;
    hold(process, record.object_id, found->second);
    if (found->second.standing == Standing::kAsking) holding.missing.insert(record.object_id);
  }
  for (auto& [home, ask] : asks) borrow(home, ask.first, std::move(ask.second));
  if (message.request == 0) return {};
  if (holding.missing.empty()) {
    answer(holding.waiter, {});
  } else {
    tell_pending(holding.waiter);
    holdings_.push_back(std::move(holding));
  }
  return {};
}

void ObjectStore::borrow(NodeId home, const wire::Endpoint& endpoint, std::vector<ObjectId> ids) {
  for (std::size_t begin = 0; begin < ids.size(); begin += kIdsInMessageMax) {
    const std::size_t end = std::min(begin + kIdsInMessageMax, ids.size());
    const std::uint64_t request = next_request_++;
    wire::BorrowObjects message{.request = request, .objects = {}};
    for (std::size_t i = begin; i < end; ++i) {
      objects_[ids[i]].asking = request;
      message.objects.push_back(ids[i]);
    }
    asked_[request] = {home, message.objects};
    ObjectEffect& told = effect(Kind::kTellPeer);
    told.node = home;
    told.endpoint = endpoint;
    told.message = wire::ObjectMessage(std::move(message));
  }
}

// The object's home knows that this node holds it, or it is lost.
void ObjectStore::held_now(ObjectId id) {
  std::erase_if(holdings_, [&](Holding& holding) {
    if (holding.missing.erase(id) == 0 || !holding.missing.empty()) return false;
    answer(holding.waiter, {});
    return true;
  });
}

Status ObjectStore::on(ProcessKey process, const wire::ReleaseObjects& message) {
  for (const ObjectId& id : message.objects) {
    const auto found = objects_.find(id);
    if (found == objects_.end()) continue;
    Object& object = found->second;
    const auto segment = segments_.find(object.segment);
    const bool alone = message.unshared && !object.shared && object.borrowers.empty() &&
                       object.holders.size() == 1 && object.holders.contains(process) &&
                       segment != segments_.end() && segment->second.writer == process;
    if (!alone) {
      release(process, id);
      continue;
    }
    processes_[process].held.erase(id);
    segment->second.objects.erase(id);  // the process has its memory back already
    objects_.erase(found);
  }
  return {};
}

void ObjectStore::release(ProcessKey process, ObjectId id) {
  const auto found = objects_.find(id);
  if (found == objects_.end()) return;
  Object& object = found->second;
  object.holders.erase(process);
  processes_[process].held.erase(id);
  std::erase_if(object.getting, [&](const Waiter& waiter) { return waiter.process == process; });
  unheld(id, object);
}

void ObjectStore::unheld(ObjectId id, const Object& object) {
  if (object.holders.empty() && object.borrowers.empty()) unheld_.insert(id);
}

void ObjectStore::settle() {
  for (const ObjectId& id : std::exchange(expected_at_begin_, {})) {
    const auto found = objects_.find(id);
    if (expected_.erase(id) > 0 && found != objects_.end()) {
      lose(id, found->second, unknown_object(id));
    }
  }
  for (const ObjectId& id : std::exchange(unheld_at_begin_, {})) {
    if (unheld_.erase(id) > 0) free_object(id);
  }
}

void ObjectStore::free_object(ObjectId id) {
  const auto found = objects_.find(id);
  if (found == objects_.end()) return;
  Object& object = found->second;
  if (!object.holders.empty() || !object.borrowers.empty()) return;
  if (object.standing == Standing::kAsking || object.standing == Standing::kBorrowed) {
    tell_home(object, wire::ObjectMessage(wire::ReturnObjects{.objects = {id}}));
  }
  drop_bytes(id, object);
  std::erase_if(wants_, [&](const Want& want) {
    return want.kind == Want::Kind::kFetch && want.object == id;
  });
  expected_.erase(id);
  expected_at_begin_.erase(id);
  objects_.erase(found);
}

void ObjectStore::drop_bytes(ObjectId id, Object& object) {
  const SegmentKey key = std::exchange(object.segment, 0);
  object.fetch = Object::Fetch::kNone;
  if (key == 0) return;
  const auto segment = segments_.find(key);
  TROUPE_CHECK(segment != segments_.end(), "object {} lies in segment {}, which is gone", id, key);
  segment->second.objects.erase(id);
  const ProcessKey writer = segment->second.writer;
  if (writer != 0 && segment->second.mapped.contains(writer)) {
    tell_process(writer, wire::ObjectMessage(wire::ObjectsFreed{
                             .places = {{.segment = key, .offset = object.offset}}}));
  }
  drop_if_empty(key);
}

void ObjectStore::drop_if_empty(SegmentKey key) {
  const auto found = segments_.find(key);
  if (found == segments_.end()) return;
  Segment& segment = found->second;
  if (!segment.objects.empty() || segment.fresh || segment.place == Place::kSpare) return;
  if (segment.writer != 0 && segment.mapped.contains(segment.writer)) return;  // it is used again
  if (!keep_spare(key, segment)) drop_segment(key);
}

void ObjectStore::drop_segment(SegmentKey key) {
  const auto found = segments_.find(key);
  Segment& segment = found->second;
  for (const ProcessKey process : segment.mapped) {
    processes_[process].mapped.erase(key);
    if (process == segment.writer || processes_[process].reader) continue;
    tell_process(process, wire::ObjectMessage(wire::RevokeSegments{.segments = {key}}));
  }
  if (segment.place == Place::kRevoking || segment.place == Place::kSpilling) {
    leaving_bytes_ -= segment.bytes;
  }
  if (segment.place == Place::kSpare) {
    const auto [first, last] = spares_.equal_range(segment.bytes);
    spares_.erase(
        std::find_if(first, last, [&](const auto& spare) { return spare.second == key; }));
    spare_bytes_ -= segment.bytes;
  }
  if (segment.place == Place::kSpilled) {
    counted_.spilled_bytes -= segment.disk_bytes;
  } else {
    memory_bytes_ -= segment.bytes;
  }
  if (segment.writer != 0) processes_[segment.writer].written.erase(key);
  segments_.erase(found);
  effect(Kind::kDropSegment).segment = key;
}

void ObjectStore::lose(ObjectId id, Object& object, Status why) {
  object.standing = Standing::kLost;
  object.lost = std::move(why);
  drop_bytes(id, object);
  answer_getting(id, object);
  held_now(id);
}

// --- getting -------------------------------------------------------------------------------------

Status ObjectStore::on(ProcessKey process, const wire::GetObject& message, TimePoint now) {
  get({.process = process,
       .request = message.request,
       .others_max = std::min(message.others_max, wire::kOthersToldMax)},
      message.object_id, now);
  return {};
}

Status ObjectStore::on(ProcessKey process, const wire::ForgetObjectRequest& message) {
  const auto is_it = [&](const Waiter& waiter) {
    return waiter.process == process && waiter.request == message.request;
  };
  if (const auto object = objects_.find(message.object_id); object != objects_.end()) {
    std::erase_if(object->second.getting, is_it);
    return {};
  }
  std::erase_if(wants_, [&](const Want& want) {
    return want.kind == Want::Kind::kSegment && is_it(want.waiter);
  });
  std::erase_if(holdings_, [&](const Holding& holding) { return is_it(holding.waiter); });
  return {};
}

void ObjectStore::get(const Waiter& waiter, ObjectId id, TimePoint now) {
  const auto found = objects_.find(id);
  if (found == objects_.end()) return fail(waiter, unknown_object(id));
  Object& object = found->second;
  const bool reader = processes_[waiter.process].reader;
  const bool is_sought = object.standing == Standing::kOrphan;
  if (object.standing == Standing::kLost || (reader && is_sought)) return fail(waiter, object.lost);
  // Two stores that look for it would wait for each other.
  if (processes_[waiter.process].whole && !has_all(object)) return fail(waiter, unknown_object(id));
  // Its node holds it, too, but may be taken for lost while it reads.
  if (reader) {
    hold(waiter.process, id, object);
    object.shared = true;
  } else if (!object.holders.contains(waiter.process)) {
    return fail(waiter, unknown_object(id));
  }
  const auto segment = segments_.find(object.segment);
  if (segment != segments_.end()) {
    Segment& in = segment->second;
    in.used = ++uses_;
    if (in.place == Place::kRevoking) {  // it is in use after all
      in.place = Place::kMemory;
      in.unanswered.clear();
      leaving_bytes_ -= in.bytes;
    }
    if (in.place == Place::kMemory || (reader && object.fetch == Object::Fetch::kRuns)) {
      return locate(waiter, id, object);
    }
  }
  object.getting.push_back(waiter);
  tell_pending(object.getting.back());
  if (segment != segments_.end()) {
    // Whoever waited for the object before this one has asked for it already.
    if (segment->second.place == Place::kSpilled && object.getting.size() == 1) {
      want({.kind = Want::Kind::kRestore, .bytes = come_back_with(id).bytes, .object = id}, now);
    }
  } else if ((object.standing == Standing::kBorrowed || is_sought) &&
             object.fetch == Object::Fetch::kNone) {
    fetch(id, object, now);
  }
}

void ObjectStore::fetch(ObjectId id, Object& object, TimePoint now) {
  if (object.bytes > config_.memory_max_bytes) {
    const Status why = too_large(object.bytes);
    for (const Waiter& waiter : std::exchange(object.getting, {})) fail(waiter, why);
    return;
  }
  object.fetch = Object::Fetch::kWantsMemory;
  want(
      {.kind = Want::Kind::kFetch, .bytes = std::max<std::uint64_t>(object.bytes, 1), .object = id},
      now);
}

void ObjectStore::locate(const Waiter& waiter, ObjectId id, const Object& object) {
  Segment& segment = segments_.at(object.segment);
  Process& process = processes_[waiter.process];
  wire::ObjectAnswer located;
  located.place = {.segment = object.segment, .offset = object.offset};
  located.bytes = object.bytes;
  located.segment_bytes = segment.bytes;
  segment.mapped.insert(waiter.process);
  process.mapped.insert(object.segment);
  for (auto other = process.held.upper_bound(id);
       other != process.held.end() && located.others.size() < waiter.others_max; ++other) {
    const auto found = objects_.find(*other);
    if (found == objects_.end() || found->second.segment != object.segment) break;
    located.others.push_back(*other);
    located.other_offsets.push_back(found->second.offset);
  }
  // Also to a process that has been given it before: this answer may overtake that one, which came
  // on the other socket.
  answer(waiter, std::move(located), object.segment);
}

void ObjectStore::answer_getting(ObjectId id, Object& object) {
  for (const Waiter& waiter : std::exchange(object.getting, {})) {
    if (object.standing == Standing::kLost) {
      fail(waiter, object.lost);
    } else {
      locate(waiter, id, object);
    }
  }
}

void ObjectStore::find_source(ObjectId id, Object& object) {
  object.fetch = Object::Fetch::kWantsSource;
  const std::uint64_t request = next_request_++;
  asked_[request] = {object.home, {id}};
  tell_home(object, wire::ObjectMessage(wire::FindSource{
                        .request = request, .object_id = id, .failed = object.failed_sources}));
}

void ObjectStore::source_found(ObjectId id, const wire::ObjectSource& source) {
  const auto found = objects_.find(id);
  if (found == objects_.end() || found->second.fetch != Object::Fetch::kWantsSource) return;
  Object& object = found->second;
  if (!source.status.ok()) return lose(id, object, source.status);
  object.failed_sources.push_back(source.node_id);  // taken back when it has given everything
  fetch_from(source, id, object);
}

void ObjectStore::fetch_from(const wire::ObjectSource& source, ObjectId id, Object& object) {
  object.fetch = Object::Fetch::kRuns;
  ObjectEffect& fetch = effect(Kind::kFetch);
  fetch.object = id;
  fetch.segment = object.segment;
  fetch.bytes = object.bytes;
  fetch.node = source.node_id;
  fetch.endpoint = source.endpoint;
  for (const Waiter& waiter : object.getting) {
    if (processes_[waiter.process].reader) locate(waiter, id, object);
  }
  std::erase_if(object.getting,
                [&](const Waiter& waiter) { return processes_[waiter.process].reader; });
}

void ObjectStore::fetched(ObjectId id, SegmentKey segment, Status status) {
  const auto found = objects_.find(id);
  if (found == objects_.end() || found->second.fetch != Object::Fetch::kRuns) return;
  Object& object = found->second;
  if (object.segment != segment) return;  // it has been let go of and got again since
  if (!status.ok()) {
    const bool was_sought = object.standing == Standing::kOrphan;
    const bool may_come = status.code() == Code::kResourceExhausted ||
                          (was_sought && status.code() != Code::kObjectLost);
    // Its home is lost, and the source that it had named has failed, too.
    if (object.standing == Standing::kHome) object.standing = Standing::kOrphan;
    if (!may_come) {
      if (was_sought) return lose(id, object, object.lost);
      if (object.standing == Standing::kOrphan) return fetch_from({}, id, object);
      if (object.failed_sources.size() < kSourcesTriedMax) return find_source(id, object);
    }
    // It may go better next time.
    drop_bytes(id, object);
    object.failed_sources.clear();
    for (const Waiter& waiter : std::exchange(object.getting, {})) fail(waiter, status);
    return;
  }
  object.fetch = Object::Fetch::kNone;
  object.failed_sources.clear();
  segments_.at(object.segment).place = Place::kMemory;
  counted_.fetched_bytes_total += object.bytes;
  if (object.standing == Standing::kBorrowed) {
    tell_home(object, wire::ObjectMessage(wire::CopyChanged{.object_id = id, .is_here = true}));
  } else if (object.standing == Standing::kOrphan) {
    object.standing = Standing::kHome;
  } else if (object.standing == Standing::kAsking) {
    TROUPE_CHECK(false, "object {} was fetched before its home was asked", id);
  }
  answer_getting(id, object);
}

// --- other nodes ---------------------------------------------------------------------------------

void ObjectStore::on_peer(NodeId node, const wire::Endpoint& endpoint,
                          const wire::ObjectMessage& message, TimePoint now) {
  if (get_if<wire::StoreHello>(&message) != nullptr) {
    for (auto& [id, object] : objects_) {
      const auto borrower = object.borrowers.find(node);
      if (borrower != object.borrowers.end()) borrower->second.stale = true;
    }
  } else if (get_if<wire::BorrowsComplete>(&message) != nullptr) {
    for (auto& [id, object] : objects_) {
      const auto borrower = object.borrowers.find(node);
      if (borrower == object.borrowers.end() || !borrower->second.stale) continue;
      object.borrowers.erase(borrower);
      unheld(id, object);
    }
  } else if (const auto* borrow = get_if<wire::BorrowObjects>(&message)) {
    wire::ObjectsBorrowed reply{.request = borrow->request, .unknown = {}};
    for (const ObjectId& id : borrow->objects) {
      const auto found = objects_.find(id);
      const bool known = found != objects_.end() && found->second.standing == Standing::kHome;
      if (!known) {
        reply.unknown.push_back(id);
        continue;
      }
      found->second.shared = true;
      if (TROUPE_CANARY("forgets-borrowers")) continue;
      Object::Borrower& borrower = found->second.borrowers[node];
      borrower.endpoint = endpoint;
      borrower.stale = false;
      unheld_.erase(id);
      unheld_at_begin_.erase(id);
    }
    this->reply(node, wire::ObjectMessage(std::move(reply)));
  } else if (const auto* borrowed = get_if<wire::ObjectsBorrowed>(&message)) {
    const auto asked = asked_.find(borrowed->request);
    if (asked == asked_.end() || asked->second.node != node) return;
    const std::vector<ObjectId> ids = std::move(asked->second.objects);
    asked_.erase(asked);
    const std::set<ObjectId> unknown(borrowed->unknown.begin(), borrowed->unknown.end());
    for (const ObjectId& id : ids) {
      const auto found = objects_.find(id);
      if (found == objects_.end() || found->second.asking != borrowed->request) continue;
      Object& object = found->second;
      object.asking = 0;
      if (unknown.contains(id)) {
        home_lost(id, object, unknown_object(id));
        continue;
      }
      const bool is_new = object.standing == Standing::kAsking;
      object.standing = Standing::kBorrowed;
      held_now(id);
      if (is_new && !object.getting.empty()) {
        fetch(id, object, now);
      }
    }
  } else if (const auto* returned = get_if<wire::ReturnObjects>(&message)) {
    for (const ObjectId& id : returned->objects) {
      const auto found = objects_.find(id);
      if (found == objects_.end()) continue;
      found->second.borrowers.erase(node);
      unheld(id, found->second);
    }
  } else if (const auto* find = get_if<wire::FindSource>(&message)) {
    wire::ObjectSource reply;
    reply.request = find->request;
    const auto found = objects_.find(find->object_id);
    if (found == objects_.end() || !found->second.borrowers.contains(node)) {
      reply.status = unknown_object(find->object_id);
    } else {
      Object& object = found->second;
      Object::Borrower& asker = object.borrowers[node];
      asker.copy = Object::Borrower::Copy::kFetching;
      asker.source = {};
      const NodeId source = choose_source(object, node, find->failed);
      asker.source = source;
      reply.node_id = source;
      reply.endpoint =
          source == config_.node_id ? config_.endpoint : object.borrowers[source].endpoint;
      reply.bytes = object.bytes;
    }
    this->reply(node, wire::ObjectMessage(std::move(reply)));
  } else if (const auto* source = get_if<wire::ObjectSource>(&message)) {
    const auto asked = asked_.find(source->request);
    if (asked == asked_.end() || asked->second.node != node) return;
    const ObjectId id = asked->second.objects.front();
    asked_.erase(asked);
    source_found(id, *source);
  } else if (const auto* changed = get_if<wire::CopyChanged>(&message)) {
    const auto found = objects_.find(changed->object_id);
    if (found == objects_.end()) return;
    const auto borrower = found->second.borrowers.find(node);
    if (borrower == found->second.borrowers.end()) return;
    borrower->second.copy =
        changed->is_here ? Object::Borrower::Copy::kHere : Object::Borrower::Copy::kNone;
    borrower->second.source = {};
  }
}

// Whoever gives it to the fewest others, of those that have it or are getting it from somewhere
// else than the asker: so one transfer after the other hangs itself behind the one before, and all
// go on at the same time, each over the links of two nodes.
NodeId ObjectStore::choose_source(const Object& object, NodeId asker,
                                  const std::vector<NodeId>& failed) const {
  std::map<NodeId, int> given;
  for (const auto& [node, borrower] : object.borrowers) {
    if (borrower.copy == Object::Borrower::Copy::kFetching) ++given[borrower.source];
  }
  const auto depends_on_asker = [&](NodeId node) {
    for (std::size_t steps = 0; steps <= object.borrowers.size(); ++steps) {
      if (node == asker) return true;
      const auto borrower = object.borrowers.find(node);
      if (borrower == object.borrowers.end()) return false;
      if (borrower->second.copy != Object::Borrower::Copy::kFetching) return false;
      node = borrower->second.source;
    }
    return true;
  };
  // The home last among equals, and even where it has failed before: there is nobody else.
  NodeId best = config_.node_id;
  int fewest = given[config_.node_id];
  for (const auto& [node, borrower] : object.borrowers) {
    if (borrower.copy == Object::Borrower::Copy::kNone || node == asker) continue;
    if (std::ranges::find(failed, node) != failed.end() || depends_on_asker(node)) continue;
    if (given[node] >= fewest && best != config_.node_id) continue;
    if (given[node] > fewest) continue;
    best = node;
    fewest = given[node];
  }
  return best;
}

void ObjectStore::connected(NodeId node) {
  std::erase_if(asked_, [&](const auto& asked) { return asked.second.node == node; });
  std::vector<ObjectId> held;
  wire::Endpoint endpoint;
  for (const auto& [id, object] : objects_) {
    if (object.home != node || object.home == config_.node_id) continue;
    if (object.standing != Standing::kAsking && object.standing != Standing::kBorrowed) continue;
    held.push_back(id);
    endpoint = object.home_endpoint;
  }
  borrow(node, endpoint, held);
  ObjectEffect& complete = effect(Kind::kTellPeer);
  complete.node = node;
  complete.endpoint = endpoint;
  complete.message = wire::ObjectMessage(wire::BorrowsComplete{});
  for (const ObjectId& id : held) {
    Object& object = objects_.at(id);
    if (object.fetch == Object::Fetch::kWantsSource) {
      find_source(id, object);
    } else if (object.segment != 0 && object.fetch == Object::Fetch::kNone) {
      tell_home(object, wire::ObjectMessage(wire::CopyChanged{.object_id = id, .is_here = true}));
    }
  }
}

void ObjectStore::borrower_gone(NodeId node) {
  for (auto& [id, object] : objects_) {
    if (object.borrowers.erase(node) > 0) unheld(id, object);
  }
}

std::set<NodeId> ObjectStore::asked_homes() const {
  std::set<NodeId> homes;
  for (const auto& [request, asked] : asked_) homes.insert(asked.node);
  return homes;
}

void ObjectStore::home_gone(NodeId node, TimePoint now) {
  const Status why = error(Code::kObjectLost,
                           "the node {} on which the object was put is lost, and no copy of it is "
                           "found on another node",
                           node.brief());
  std::erase_if(asked_, [&](const auto& asked) { return asked.second.node == node; });
  std::vector<ObjectId> of_it;
  for (const auto& [id, object] : objects_) {
    if (object.home != node || node == config_.node_id) continue;
    if (object.standing == Standing::kAsking || object.standing == Standing::kBorrowed)
      of_it.push_back(id);
  }
  for (const ObjectId& id : of_it) {
    Object& object = objects_.at(id);
    object.lost = why;
    object.asking = 0;
    object.standing = has_or_gets(object) ? Standing::kHome : Standing::kOrphan;
  }
  // The first fetch may serve what another one of them waits for.
  for (const ObjectId& id : of_it) {
    Object& object = objects_.at(id);
    if (object.standing == Standing::kOrphan) orphaned(id, object, now);
  }
}

void ObjectStore::orphaned(ObjectId id, Object& object, TimePoint now) {
  std::erase_if(object.getting, [&](const Waiter& waiter) {
    const bool reader = processes_[waiter.process].reader;
    if (reader) fail(waiter, object.lost);
    return reader;
  });
  if (object.fetch == Object::Fetch::kWantsSource) {
    fetch_from({}, id, object);
  } else if (object.fetch == Object::Fetch::kNone && !object.getting.empty()) {
    fetch(id, object, now);
  }
  held_now(id);
}

void ObjectStore::home_lost(ObjectId id, Object& object, const Status& why) {
  if (object.standing == Standing::kBorrowed && has_or_gets(object)) {
    object.standing = Standing::kHome;
    object.lost = why;
    return;
  }
  lose(id, object, why);
}

}  // namespace troupe::scheduler
