// An object store's answers where memory is short, message by message.

#include "scheduler/objects/object_store.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <optional>

#include "tests/support/text.h"

namespace troupe::scheduler {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using troupe::tests::contains;
using Kind = ObjectEffect::Kind;

class Store {
 public:
  Store() : store_({.node_name = "n", .memory_max_bytes = 100 << 20}) {
    for (const ProcessKey process : {1, 2, 3}) store_.process_joined(process, "p");
  }
  void say(ProcessKey process, wire::ObjectMessage message) {
    REQUIRE(store_.on_process(process, message, now).ok());
    take();
  }
  // A segment of so many MiB, in which the process has put one object.
  SegmentKey put(ProcessKey process, std::uint64_t mib) {
    const auto request = ask(process, mib);
    const auto granted = answer(request);
    REQUIRE(granted);
    say(process, wire::PutObject{
                     .object_id = {1, ++requests_}, .place = granted->place, .bytes = mib << 20});
    return granted->place.segment;
  }
  std::uint64_t ask(ProcessKey process, std::uint64_t mib) {
    say(process, wire::NewSegment{.request = ++requests_, .bytes = mib << 20});
    return requests_;
  }
  // The home knows that this store holds its objects.
  void borrowed_from(NodeId home) {
    const auto asked =
        std::find_if(effects_.rbegin(), effects_.rend(), [](const ObjectEffect& effect) {
          return get_if<wire::BorrowObjects>(&effect.message) != nullptr;
        });
    REQUIRE(asked != effects_.rend());
    const auto request = get_if<wire::BorrowObjects>(&asked->message)->request;
    store_.on_peer(home, {}, wire::ObjectsBorrowed{.request = request}, now);
    take();
  }
  // The home answers where the last object that was sought can be fetched.
  void source_is(NodeId home, std::uint64_t bytes) {
    const auto sought =
        std::find_if(effects_.rbegin(), effects_.rend(), [](const ObjectEffect& effect) {
          return get_if<wire::FindSource>(&effect.message) != nullptr;
        });
    REQUIRE(sought != effects_.rend());
    const auto request = get_if<wire::FindSource>(&sought->message)->request;
    store_.on_peer(home, {},
                   wire::ObjectSource{.request = request, .node_id = home, .bytes = bytes}, now);
    take();
  }
  void home_lost(NodeId home) {
    store_.home_gone(home, now);
    take();
  }
  // The last fetch of the object ends with this status.
  void fetched(ObjectId object, const Status& status) {
    const auto fetch = std::ranges::find_if(
        effects_.rbegin(), effects_.rend(),
        [&](const auto& effect) { return effect.kind == Kind::kFetch && effect.object == object; });
    REQUIRE(fetch != effects_.rend());
    fetched(object, fetch->segment, status);
  }
  void fetched(ObjectId object, SegmentKey segment, const Status& status) {
    store_.fetched(object, segment, status);
    take();
  }
  // Where its bytes are to come from, of the last fetch: an empty id is whoever has them.
  std::optional<NodeId> fetches(ObjectId object) const {
    std::optional<NodeId> from;
    for (const ObjectEffect& effect : effects_)
      if (effect.kind == Kind::kFetch && effect.object == object) from = effect.node;
    return from;
  }
  void joins_reader(ProcessKey reader, bool whole) {
    store_.reader_joined(reader, "reader", whole);
  }
  void later(Duration time) {
    now += time;
    store_.tick(now);
    take();
  }
  void written(SegmentKey segment) {
    CHECK(store_.spilled(segment, Status(), now));
    take();
  }
  // What is not merely "pending".
  std::optional<wire::ObjectAnswer> answer(std::uint64_t request) const {
    for (const ObjectEffect& effect : effects_)
      if (const auto* told = get_if<wire::ObjectAnswer>(&effect.message);
          told && told->request == request && !told->pending)
        return *told;
    return std::nullopt;
  }
  bool is_revoked(SegmentKey segment) const {
    return std::ranges::any_of(effects_, [&](const ObjectEffect& effect) {
      const auto* told = get_if<wire::RevokeSegments>(&effect.message);
      return told && std::ranges::find(told->segments, segment) != told->segments.end();
    });
  }
  void joins(ProcessKey process) { store_.process_joined(process, "p"); }
  void gone(ProcessKey process) {
    store_.process_gone(process);
    take();
  }
  void settle() {
    store_.begin_settling();
    store_.settle();
    take();
  }
  void drop_spare(SegmentKey segment) {
    store_.drop_spare(segment);
    take();
  }
  std::uint64_t memory_bytes() const { return store_.totals().memory_bytes; }
  std::uint64_t spare_bytes() const { return store_.totals().spare_bytes; }
  // The last segment that was made, and the spare one whose memory it has.
  std::pair<SegmentKey, SegmentKey> made() const {
    for (auto it = effects_.rbegin(); it != effects_.rend(); ++it)
      if (it->kind == Kind::kCreateSegment) return {it->segment, it->file};
    return {};
  }
  bool drops(SegmentKey segment) const {
    return std::ranges::any_of(effects_, [&](const ObjectEffect& effect) {
      return effect.kind == Kind::kDropSegment && effect.segment == segment;
    });
  }
  bool spills(SegmentKey segment) const {
    return std::ranges::any_of(effects_, [&](const ObjectEffect& effect) {
      return effect.kind == Kind::kSpill && effect.segment == segment;
    });
  }
  void check() const { CHECK(store_.inconsistency().empty()); }

  TimePoint now = TimePoint{} + seconds(1);

 private:
  void take() {
    for (ObjectEffect& effect : store_.take_effects()) effects_.push_back(std::move(effect));
  }
  ObjectStore store_;
  std::vector<ObjectEffect> effects_;
  std::uint64_t requests_ = 0;
};

TEST_CASE("whoever waits for memory waits while a slow disk writes") {
  Store store;
  const SegmentKey first = store.put(1, 80);
  const auto wanted = store.ask(2, 50);
  REQUIRE(store.is_revoked(first));
  store.say(1, wire::SegmentsRevoked{.unmapped = {first}});
  REQUIRE(store.spills(first));
  // 80 MiB, at a rate that disks have.
  store.later(seconds(5));
  CHECK_FALSE(store.answer(wanted));
  store.written(first);
  REQUIRE(store.answer(wanted));
  CHECK(store.answer(wanted)->status.ok());
  store.check();
}

TEST_CASE("a disk that is stuck ends the wait for memory in its name") {
  Store store;
  const SegmentKey first = store.put(1, 80);
  const auto wanted = store.ask(2, 50);
  store.say(1, wire::SegmentsRevoked{.unmapped = {first}});
  store.later(seconds(15));
  REQUIRE(store.answer(wanted));
  CHECK(contains(store.answer(wanted)->status.message(), "on its way to or from disk"));
  store.check();
}

TEST_CASE("a process that does not answer keeps its memory, and others are asked for theirs") {
  Store store;
  const SegmentKey silent = store.put(1, 50);
  const SegmentKey other = store.put(2, 50);
  const auto wanted = store.ask(3, 40);
  CHECK(store.is_revoked(silent));
  CHECK_FALSE(store.is_revoked(other));
  store.later(milliseconds(300));
  REQUIRE(store.is_revoked(other));
  store.say(2, wire::SegmentsRevoked{.unmapped = {other}});
  store.written(other);
  REQUIRE(store.answer(wanted));
  CHECK(store.answer(wanted)->status.ok());
  // Its late answer still counts.
  store.say(1, wire::SegmentsRevoked{.unmapped = {silent}});
  store.check();
}

TEST_CASE("an object of another node that no memory here could hold is refused at once") {
  Store store;
  const auto kept = store.put(1, 80);
  const NodeId home{7, 7};
  const ObjectId object{2, 5};
  store.say(
      2, wire::HoldObjects{.request = 0,
                           .objects = {{.object_id = object, .home = home, .bytes = 500 << 20}}});
  store.say(2, wire::GetObject{.request = 99, .object_id = object});
  store.borrowed_from(home);
  REQUIRE(store.answer(99));
  CHECK(contains(store.answer(99)->status.message(), "larger than the object store of node n"));
  CHECK_FALSE(store.is_revoked(kept));
  store.check();
}

// What process 2 of the store holds, of a home that is lost before its bytes were here.
// Copies of another node's objects, 30 MiB each, which process 2 holds, reads and lets go of.
struct Copies {
  static constexpr std::uint64_t kRequest = 1000;
  const NodeId home{7, 7};
  Store store;
  // The segment that it is fetched into, and the spare one whose memory that has.
  std::pair<SegmentKey, SegmentKey> fetch(std::uint64_t number, std::uint64_t mib = 30) {
    const ObjectId id{2, number};
    store.say(2,
              wire::HoldObjects{.request = 0,
                                .objects = {{.object_id = id, .home = home, .bytes = mib << 20}}});
    store.borrowed_from(home);
    store.say(2, wire::GetObject{.request = kRequest + number, .object_id = id});
    store.source_is(home, mib << 20);
    store.fetched(id, {});
    REQUIRE(store.answer(kRequest + number));
    store.check();
    return store.made();
  }
  void let_go(std::uint64_t number) {
    store.say(2, wire::ReleaseObjects{.objects = {{2, number}}, .unshared = false});
    store.settle();
    store.check();
  }
};

TEST_CASE("a copy's memory is the next one's of that size, when nobody maps it any more") {
  Copies copies;
  Store& store = copies.store;
  const SegmentKey first = copies.fetch(1).first;
  copies.let_go(1);
  CHECK_FALSE(store.drops(first));
  CHECK(store.is_revoked(first));
  CHECK(store.memory_bytes() == 30 << 20);
  CHECK(store.spare_bytes() == 30 << 20);
  const auto second = copies.fetch(2);  // process 2 maps the first one still
  CHECK(second.second == 0);
  store.say(2, wire::SegmentsRevoked{.unmapped = {first}});
  const auto third = copies.fetch(3);
  CHECK(third.first != first);
  CHECK(third.second == first);
  CHECK(copies.fetch(4, 10).second == 0);
  // A process that still has a view of an object that it released: that memory is not used again.
  copies.let_go(2);
  store.say(2, wire::SegmentsRevoked{.in_use = {second.first}});
  CHECK(store.drops(second.first));
  copies.let_go(3);
  store.say(2, wire::SegmentsRevoked{.unmapped = {third.first}});
  CHECK_FALSE(store.drops(third.first));
  store.drop_spare(third.first);
  CHECK(store.drops(third.first));
  store.drop_spare(third.first);
  store.check();
}

TEST_CASE("memory that a process may read which left without a word is nobody's again") {
  Copies copies;
  const SegmentKey first = copies.fetch(1).first;
  copies.store.gone(2);  // its connection; it has a view still
  copies.store.settle();
  CHECK(copies.store.drops(first));
  copies.store.joins(2);
  const SegmentKey second = copies.fetch(2).first;
  copies.let_go(2);
  CHECK_FALSE(copies.store.drops(second));
  copies.store.gone(2);
  CHECK(copies.store.drops(second));
  copies.store.joins(2);
  const SegmentKey third = copies.fetch(3).first;
  copies.let_go(3);
  copies.store.say(2, wire::SegmentsRevoked{.unmapped = {third}, .inherited = {third}});
  CHECK(copies.store.drops(third));
  copies.store.check();
}

TEST_CASE("spare memory goes before a disk is waited for, and is no more than half of all") {
  Copies copies;
  const SegmentKey home = copies.store.put(1, 40);
  const SegmentKey first = copies.fetch(1, 20).first;
  const SegmentKey second = copies.fetch(2, 40).first;
  copies.let_go(1);
  copies.let_go(2);
  CHECK_FALSE(copies.store.drops(first));
  CHECK(copies.store.drops(second));
  // Memory that is being written to disk counts as used until that is done.
  copies.store.ask(3, 65);
  REQUIRE(copies.store.is_revoked(home));
  CHECK(copies.store.drops(first));
  copies.store.check();
}

TEST_CASE("spare memory goes before anything else where memory is short") {
  Copies copies;
  const SegmentKey first = copies.fetch(1).first;
  copies.let_go(1);
  const SegmentKey other = copies.store.put(1, 60);
  CHECK_FALSE(copies.store.drops(first));
  const auto wanted = copies.store.ask(3, 20);
  CHECK(copies.store.answer(wanted));
  CHECK(copies.store.drops(first));
  CHECK_FALSE(copies.store.is_revoked(other));
  copies.store.check();
}

struct Orphan {
  const NodeId home{7, 7};
  const ObjectId object{2, 5};
  Store store;
  Orphan() {
    store.say(
        2, wire::HoldObjects{.request = 0,
                             .objects = {{.object_id = object, .home = home, .bytes = 1 << 20}}});
    store.borrowed_from(home);
  }
  void get(std::uint64_t request, ProcessKey process = 2) {
    store.say(process, wire::GetObject{.request = request, .object_id = object});
  }
};

TEST_CASE("an object whose home is lost comes from whoever has it, and is this store's then") {
  Orphan o;
  o.store.home_lost(o.home);
  CHECK_FALSE(o.store.fetches(o.object));  // nobody wants it
  o.get(98);
  REQUIRE(o.store.fetches(o.object));
  CHECK(o.store.fetches(o.object)->empty());
  o.store.fetched(o.object, {});
  REQUIRE(o.store.answer(98));
  CHECK(o.store.answer(98)->status.ok());
  o.get(99);
  CHECK(o.store.answer(99)->status.ok());
  o.store.check();
}

TEST_CASE("an object that nobody has is lost with its home, for those who wait and come later") {
  Orphan o;
  o.get(98);  // its home is asked for a source
  CHECK_FALSE(o.store.fetches(o.object));
  o.store.home_lost(o.home);
  REQUIRE(o.store.fetches(o.object));
  o.store.fetched(o.object, Status(Code::kObjectLost, "nobody has it"));
  REQUIRE(o.store.answer(98));
  CHECK(o.store.answer(98)->status.code() == Code::kObjectLost);
  CHECK(contains(o.store.answer(98)->status.message(), "no copy of it is found"));
  o.get(99);
  CHECK(o.store.answer(99)->status.code() == Code::kObjectLost);
  o.store.check();
}

TEST_CASE("where not all could be asked, an object is looked for again by the next who gets it") {
  Orphan o;
  o.get(98);
  o.store.home_lost(o.home);
  o.store.fetched(o.object, Status(Code::kUnavailable, "one did not answer"));
  CHECK(o.store.answer(98)->status.code() == Code::kUnavailable);
  o.get(99);
  o.store.fetched(o.object, 1, {});  // of the search before: its memory is gone
  CHECK_FALSE(o.store.answer(99));
  o.store.fetched(o.object, {});
  CHECK(o.store.answer(99)->status.ok());
  o.store.check();
}

TEST_CASE("two stores that look for an object do not wait for each other") {
  Orphan o;
  o.get(98);
  o.store.joins_reader(50, true);
  o.get(1, 50);  // before it has heard that the home is lost
  REQUIRE(o.store.answer(1));
  CHECK(o.store.answer(1)->status.code() == Code::kObjectLost);
  o.store.home_lost(o.home);
  o.store.joins_reader(51, false);
  o.get(2, 51);
  REQUIRE(o.store.answer(2));
  CHECK(o.store.answer(2)->status.code() == Code::kObjectLost);
  CHECK_FALSE(o.store.answer(98));
  o.store.check();
}

}  // namespace
}  // namespace troupe::scheduler
