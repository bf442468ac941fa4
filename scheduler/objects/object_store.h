#pragma once
// What a node's object store knows and decides: which objects there are, in which shared memory
// they lie, who holds them, and what leaves memory when it is short. A pure state machine: events
// in, effects out; object_service.h carries them out, the simulator runs the same code.
//
// Who holds an object. A process holds it once, however many references it has. The store of the
// node where an object was put is its *home*: it counts the node's own processes, and the other
// nodes (*borrowers*) of which a process holds it; a borrower's store counts its own processes. An
// object is freed when nobody holds it. Whoever passes a reference on keeps the object until the
// receiver's store has it from the receiver, and its home, so that there is no moment without a
// holder. What this relies on: messages of one process arrive in order, and between
// begin_settling() and settle() everything is read that processes had sent before, as before a
// BorrowObjects of another node: a receiver's HoldObjects may lie unread while the sender's
// ReleaseObjects, which was sent after it, is read first; or be read before the sender's PutObject,
// which was sent before it.
//
// Memory. Objects lie in segments: one for a large object, many small ones in one. A segment is
// written by one process and read by all; it is granted, moved to disk and dropped as a whole. From
// disk an object comes back alone, into a segment of its own; those that are too small for one come
// together. When `memory_max_bytes` are in use and more is wanted, the store asks those
// who map the least recently used segments to unmap them (RevokeSegments); whoever has a view of an
// object says no. Then an empty segment is dropped, a copy of another node's object too, and
// anything else is written to disk. Requests for memory are served in order; while a process waits
// for one it keeps only what it has views of, and a request for which nothing has moved for
// `stuck_after` fails with what is in the way.

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/ids.h"
#include "runtime/base/status.h"
#include "runtime/wire/object_messages.h"

namespace troupe::scheduler {

// A process's connection to the store, or a connection of another node that reads bytes.
using ProcessKey = std::uint64_t;
using SegmentKey = std::uint64_t;

struct ObjectStoreConfig {
  NodeId node_id;
  wire::Endpoint endpoint;
  std::string node_name;
  std::uint64_t memory_max_bytes = 0;
  Duration stuck_after = std::chrono::seconds(2);
  // An object of so many bytes comes back from disk into a segment of its own.
  std::uint64_t alone_bytes = 32u << 10;
  // Memory of so many bytes that a copy was in is kept for the next one of that size.
  std::uint64_t spare_bytes = 1u << 20;
};

// What is to be done, in this order.
struct ObjectEffect {
  enum class Kind {
    kTellProcess,    // `message` to `process`; with the descriptor of `segment` where it is not 0
    kTellPeer,       // `message` to the store of `node`, at `endpoint`
    kCreateSegment,  // shared memory of `bytes`, as `segment`, that `process` writes; 0: the store.
                     // `file`, where it is not 0, is spare memory of that size, which goes with it
    kDropSegment,    // its descriptor, and what of it is on disk
    kSpareSegment,   // nobody uses its memory; drop_spare() follows where that stays so
    kSpill,          // write `pieces` of it to disk; spilled() follows
    kForgetMemory,   // it is on disk; its memory goes
    kRestore,        // read `pieces` of `file` from disk into new memory of `bytes`, as `segment`;
                     // restored() follows
    kFetch,          // `object` from the store of `node`, or where that is empty from any that has
                     // it; fetched() follows
  };
  Kind kind = Kind::kTellProcess;
  ProcessKey process = 0;
  // kTellProcess: on the socket for requests; otherwise on that for notices. kTellPeer: on the
  // connection that the node has made to this one; otherwise on this store's to the node.
  bool reply = false;
  SegmentKey segment = 0;
  SegmentKey file = 0;  // a segment that is on disk, or spare
  std::uint64_t bytes = 0;
  // An object's bytes: where they were in the segment that went to disk, and where they are to be.
  struct Piece {
    std::uint64_t from = 0;
    std::uint64_t to = 0;
    std::uint64_t bytes = 0;
  };
  std::vector<Piece> pieces = {};
  NodeId node;
  wire::Endpoint endpoint;
  ObjectId object;
  wire::ObjectMessage message = {};
};

// Not thread-safe.
class ObjectStore {
 public:
  explicit ObjectStore(ObjectStoreConfig config) : config_(std::move(config)) {}

  // --- processes of this node
  void process_joined(ProcessKey process, std::string name);
  void process_gone(ProcessKey process);
  // Any message of a process but ObjectHello. kProtocol: it makes no sense, and the process is to
  // be disconnected.
  Status on_process(ProcessKey process, const wire::ObjectMessage& message, TimePoint now);
  // A reader of another node, that need not wait for the whole object (on_process(GetObject)
  // follows); it ends with process_gone(). `whole`: it is refused what this store has not.
  void reader_joined(ProcessKey reader, std::string name, bool whole = false);

  // --- other nodes
  void on_peer(NodeId node, const wire::Endpoint& endpoint, const wire::ObjectMessage& message,
               TimePoint now);
  // There is a new connection to the node, which is to hear again what was not answered and what
  // of its objects is held here.
  void connected(NodeId node);
  // It cannot be reached any more, or has not come back: it is lost, as a home or as a borrower.
  void home_gone(NodeId node, TimePoint now);
  void borrower_gone(NodeId node);

  // --- what became of effects
  // It could not be made. Its kTellProcess, if there is one, is to carry `why` instead of it.
  void segment_failed(SegmentKey segment, const Status& why);
  // False: nobody needs what was written, or read.
  bool spilled(SegmentKey segment, Status status, TimePoint now);
  bool restored(SegmentKey segment, Status status);
  // If it still is.
  void drop_spare(SegmentKey segment);
  // Into the segment. Of an orphan: kObjectLost where nobody has it; anything else, and it may be
  // tried again.
  void fetched(ObjectId object, SegmentKey segment, Status status);

  // Frees what nobody held when it began, nor since. In between everything is read that had been
  // sent at its beginning; what is read besides counts only to keep objects: of what one process
  // says meanwhile, another one's earlier words may not have been read.
  bool wants_settling() const { return !unheld_.empty() || !expected_.empty(); }
  void begin_settling() {
    unheld_at_begin_ = unheld_;
    expected_at_begin_ = expected_;
  }
  void settle();
  // The homes that have not answered a message yet.
  std::set<NodeId> asked_homes() const;
  // Now and then: ends requests that are stuck. True while there are any that wait.
  bool tick(TimePoint now);

  std::vector<ObjectEffect> take_effects() { return std::exchange(effects_, {}); }

  // --- for those who look
  using Totals = wire::StoreTotals;
  Totals totals() const;
  bool has(ObjectId object) const { return objects_.contains(object); }
  // What does not fit together, for tests; empty: nothing.
  std::string inconsistency() const;

 private:
  struct Waiter {
    ProcessKey process;
    std::uint64_t request;
    std::uint32_t others_max = 0;
    bool told = false;  // that it is pending
  };
  // kExpected: it was put here, says who holds it, and that has not been read yet. kOrphan: its
  // home is lost, and its bytes are not here; another borrower may have a copy.
  enum class Standing { kHome, kExpected, kAsking, kBorrowed, kOrphan, kLost };
  struct Object {
    Standing standing = Standing::kHome;
    NodeId home;
    wire::Endpoint home_endpoint;
    std::uint64_t bytes = 0;
    std::uint64_t type_hash = 0;
    SegmentKey segment = 0;  // 0: its bytes are not here
    std::uint64_t offset = 0;
    bool shared = false;  // others than the process that put it have had it
    std::set<ProcessKey> holders;
    std::vector<Waiter> getting;  // of holders
    Status lost;                  // of kLost, kOrphan; of kHome: why its home is lost
    std::uint64_t asking = 0;     // the number of the BorrowObjects whose answer counts; 0: none
    // A borrower's.
    enum class Fetch { kNone, kWantsMemory, kWantsSource, kRuns } fetch = Fetch::kNone;
    std::vector<NodeId> failed_sources;
    // A home's: the nodes that hold it, and how far they are with their copies.
    struct Borrower {
      wire::Endpoint endpoint;
      enum class Copy { kNone, kFetching, kHere } copy = Copy::kNone;
      NodeId source;       // of kFetching
      bool stale = false;  // not said again since the node has connected
    };
    std::map<NodeId, Borrower> borrowers;
  };
  // kSpare: a copy was in it, and the next one of its size may be, as memory that was used before
  // is written in half the time; when all that mapped it have said that they do no more.
  enum class Place { kMemory, kRevoking, kSpilling, kSpilled, kRestoring, kSpare };
  struct Segment {
    ProcessKey writer = 0;  // 0: this store's own, or its process is gone
    bool fresh = true;      // nothing has been put into it yet
    bool for_copy = false;  // this store made it, for an object of another node
    // A process that mapped it has left without a word, and may read there still.
    bool abandoned = false;
    std::uint64_t bytes = 0;
    std::uint64_t disk_bytes = 0;  // of kSpilling, kSpilled
    std::set<ObjectId> objects;
    Place place = Place::kMemory;
    std::set<ProcessKey> mapped;
    std::set<ProcessKey> unanswered;  // of kRevoking
    bool refused = false;             // one of them has a view
    std::uint64_t used = 0;           // when, in the order of uses
    TimePoint busy_until{};           // not asked again before
    TimePoint answer_by{};            // of kRevoking: after this nobody is waited for
    TimePoint written_by{};           // of kSpilling: after this the disk is taken for stuck
  };
  // A request for memory.
  struct Want {
    enum class Kind { kSegment, kRestore, kFetch } kind;
    std::uint64_t bytes;
    Waiter waiter = {};    // of kSegment
    ObjectId object = {};  // of kRestore, kFetch
    TimePoint since{};     // nothing has moved
  };
  // A process's, or a reader's.
  struct Process {
    std::string name;
    bool reader = false;
    bool whole = false;  // wants no bytes that this store waits for
    std::set<ObjectId> held;
    std::set<SegmentKey> written;
    std::set<SegmentKey> mapped;
  };
  // A message to a home that has not been answered yet.
  struct Asked {
    NodeId node;
    std::vector<ObjectId> objects;
  };
  // A HoldObjects that is answered when the homes have answered.
  struct Holding {
    Waiter waiter;
    std::set<ObjectId> missing;
  };

  Status on(ProcessKey process, const wire::NewSegment& message, TimePoint now);
  Status on(ProcessKey process, const wire::PutObject& message);
  Status on(ProcessKey process, const wire::HoldObjects& message);
  Status on(ProcessKey process, const wire::ReleaseObjects& message);
  Status on(ProcessKey process, const wire::GetObject& message, TimePoint now);
  Status on(ProcessKey process, const wire::ForgetObjectRequest& message);
  Status on(ProcessKey process, const wire::SegmentsRevoked& message, TimePoint now);

  void hold(ProcessKey process, ObjectId id, Object& object);
  void release(ProcessKey process, ObjectId id);
  void unheld(ObjectId id, const Object& object);
  void free_object(ObjectId id);
  // Its bytes leave this node.
  void drop_bytes(ObjectId id, Object& object);
  // Drops the segment if nothing lies in it and nothing will.
  void drop_if_empty(SegmentKey key);
  void drop_segment(SegmentKey key);
  bool keep_spare(SegmentKey key, Segment& segment);
  // 0: there is none that the want may have.
  SegmentKey spare_for(const Want& want) const;
  void lose(ObjectId id, Object& object, Status why);
  void held_now(ObjectId id);

  // Answers, or makes one wait who gets.
  void get(const Waiter& waiter, ObjectId id, TimePoint now);
  // For those who wait for it.
  void fetch(ObjectId id, Object& object, TimePoint now);
  Status too_large(std::uint64_t bytes) const;
  void locate(const Waiter& waiter, ObjectId id, const Object& object);
  void answer_getting(ObjectId id, Object& object);
  void answer(const Waiter& waiter, wire::ObjectAnswer answer, SegmentKey segment = 0);
  void fail(const Waiter& waiter, Status why);
  // The answer comes later.
  void tell_pending(Waiter& waiter);
  void find_source(ObjectId id, Object& object);
  void source_found(ObjectId id, const wire::ObjectSource& source);
  NodeId choose_source(const Object& object, NodeId asker, const std::vector<NodeId>& failed) const;

  // Memory.
  void want(Want want, TimePoint now);
  void serve_wants(TimePoint now);
  void serve(const Want& want, SegmentKey spare);
  void serve_restore(const Want& want);
  struct Comrades {
    std::vector<ObjectId> objects;
    std::uint64_t bytes = 0;  // that they take in a segment
  };
  Comrades come_back_with(ObjectId id) const;
  bool still_wanted(const Want& want) const;
  void make_room(std::uint64_t bytes, TimePoint now);
  void revoke(SegmentKey key, Segment& segment, TimePoint now);
  // Processes that have not answered in time keep what they map.
  void give_up_revocations(TimePoint now);
  void revocation_answered(SegmentKey key, TimePoint now);
  void moved(TimePoint now);
  bool is_copy(const Segment& segment) const;
  std::string what_is_in_the_way() const;
  void fail_want(const Want& want, Status why);

  ObjectEffect& effect(ObjectEffect::Kind kind);
  void tell_process(ProcessKey process, wire::ObjectMessage message, SegmentKey segment = 0);
  void tell_home(const Object& object, wire::ObjectMessage message);
  void reply(NodeId node, wire::ObjectMessage message);
  void borrow(NodeId home, const wire::Endpoint& endpoint, std::vector<ObjectId> ids);
  // The home knows nothing of it, or is gone itself.
  void home_lost(ObjectId id, Object& object, const Status& why);
  static bool has_all(const Object& object) {
    return object.segment != 0 && object.fetch == Object::Fetch::kNone;
  }
  // The copy here may be all that is left, or it is coming from another node.
  static bool has_or_gets(const Object& object) {
    return has_all(object) || object.fetch == Object::Fetch::kRuns;
  }
  // A copy on another node is looked for when somebody gets the object.
  void orphaned(ObjectId id, Object& object, TimePoint now);
  // Into the memory that there is for it.
  void fetch_from(const wire::ObjectSource& source, ObjectId id, Object& object);

  const ObjectStoreConfig config_;
  std::map<ObjectId, Object> objects_;
  std::map<SegmentKey, Segment> segments_;
  std::map<ProcessKey, Process> processes_;
  std::map<std::uint64_t, Asked> asked_;  // by the number of the message
  std::vector<Holding> holdings_;
  std::deque<Want> wants_;
  std::deque<std::pair<TimePoint, SegmentKey>> revoked_;  // until when an answer is waited for
  std::set<ObjectId> unheld_;
  std::set<ObjectId> expected_;
  // Of those what settle() is about.
  std::set<ObjectId> unheld_at_begin_;
  std::set<ObjectId> expected_at_begin_;
  std::vector<ObjectEffect> effects_;
  std::uint64_t next_segment_ = 1;
  std::uint64_t next_request_ = 1;
  std::uint64_t uses_ = 0;
  std::multimap<std::uint64_t, SegmentKey> spares_;  // by their bytes
  std::uint64_t spare_bytes_ = 0;
  std::uint64_t memory_bytes_ = 0;   // spare ones, too
  std::uint64_t leaving_bytes_ = 0;  // of segments that are being revoked or written to disk
  Totals counted_;                   // what only grows, and spilled_bytes
  Status last_spill_error_;
};

}  // namespace troupe::scheduler
