#pragma once
// What is said about objects: between a process and the store of its node, on two sockets with
// packets (scheduler/objects/object_service.h), and between the stores of two nodes.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/base/variant.h"
#include "runtime/wire/types.h"

namespace troupe::wire {

inline constexpr std::uint32_t kObjectProtocolVersion = 1;
// In one answer: a packet takes them with room to spare.
inline constexpr std::uint32_t kOthersToldMax = 512;
// Targets of connections to a node (net/transport.h): of processes, of other stores, of those that
// read an object's bytes.
inline constexpr const char* kObjectsTarget = "node/objects";
inline constexpr const char* kObjectPeersTarget = "node/object-peers";
inline constexpr const char* kObjectBytesTarget = "node/object-bytes";

// An object as it is told to others: what a process needs to hold it and to ask for its bytes.
struct ObjectRecord {
  ObjectId object_id;
  // The node whose store counts who holds it, and where that store is reached.
  NodeId home;
  Endpoint home_endpoint;
  std::uint64_t bytes = 0;
  std::uint64_t type_hash = 0;
  TROUPE_WIRE(ObjectRecord, object_id, home, home_endpoint, bytes, type_hash);
};
// Where an object's bytes lie in shared memory of this node.
struct ObjectPlace {
  std::uint64_t segment = 0;
  std::uint64_t offset = 0;
  TROUPE_WIRE(ObjectPlace, segment, offset);
};

// --- process → store -----------------------------------------------------------------------------

// First, over the connection with the target "objects", with two descriptors: the store's ends of
// the socket for requests and of that for notices.
struct ObjectHello {
  std::uint32_t protocol_version = kObjectProtocolVersion;
  ClientId client;
  JobId job_id;
  std::string name;  // of the actor or driver, for messages
  std::int64_t pid = 0;
  TROUPE_WIRE(ObjectHello, protocol_version, client, job_id, name, pid);
};
// store → process: its first answer.
struct ObjectWelcome {
  Status status;
  NodeId node_id;
  Endpoint endpoint;  // where others reach this node's store
  std::uint64_t memory_max_bytes = 0;
  TROUPE_WIRE(ObjectWelcome, status, node_id, endpoint, memory_max_bytes);
};
// Answered by ObjectAnswer with the segment's descriptor: memory that only this process writes.
struct NewSegment {
  std::uint64_t request = 0;
  std::uint64_t bytes = 0;
  TROUPE_WIRE(NewSegment, request, bytes);
};
// An object that lies in a segment of this process, which holds it.
struct PutObject {
  ObjectId object_id;
  ObjectPlace place;
  std::uint64_t bytes = 0;
  std::uint64_t type_hash = 0;
  TROUPE_WIRE(PutObject, object_id, place, bytes, type_hash);
};
// This process holds these from now on. With a request it is answered by ObjectAnswer, as soon as
// their homes know it: needed before whoever sent them may let go of them.
struct HoldObjects {
  std::uint64_t request = 0;
  std::vector<ObjectRecord> objects;
  TROUPE_WIRE(HoldObjects, request, objects);
};
struct ReleaseObjects {
  std::vector<ObjectId> objects;
  // Nobody but this process, which put them, has ever had them: their memory is used again already.
  bool unshared = false;
  TROUPE_WIRE(ReleaseObjects, objects, unshared);
};
// Answered by ObjectAnswer with the place and the segment's descriptor. The process maps the
// segment from then on, until it answers a RevokeSegments.
struct GetObject {
  std::uint64_t request = 0;
  ObjectId object_id;
  // Of the objects with higher numbers that this process holds, so many are told along with it
  // where they lie in the same segment: what a task has returned one by one is read one by one.
  std::uint32_t others_max = 0;
  TROUPE_WIRE(GetObject, request, object_id, others_max);
};
struct ForgetObjectRequest {
  std::uint64_t request = 0;
  ObjectId object_id;  // of a GetObject; empty: of another request
  TROUPE_WIRE(ForgetObjectRequest, request, object_id);
};
// Answers RevokeSegments, each segment in one of the two lists.
struct SegmentsRevoked {
  std::vector<std::uint64_t> unmapped;
  std::vector<std::uint64_t> in_use;
  std::vector<std::uint64_t> inherited;  // of those that are unmapped: forked children map them
  TROUPE_WIRE(SegmentsRevoked, unmapped, in_use, inherited);
};

// --- store → process -----------------------------------------------------------------------------

// On the socket for requests, at once; where it is `pending`, the same again on the socket for
// notices when it is decided.
struct ObjectAnswer {
  std::uint64_t request = 0;
  bool pending = false;
  Status status;
  ObjectPlace place;
  std::uint64_t bytes = 0;
  std::uint64_t segment_bytes = 0;
  bool has_descriptor = false;
  // What else lies in that segment, and where (GetObject::others_max).
  std::vector<ObjectId> others;
  std::vector<std::uint64_t> other_offsets;
  TROUPE_WIRE(ObjectAnswer, request, pending, status, place, bytes, segment_bytes, has_descriptor,
              others, other_offsets);
};
// Notices. What nobody holds any more, in segments of this process: their memory may be used again.
struct ObjectsFreed {
  std::vector<ObjectPlace> places;
  TROUPE_WIRE(ObjectsFreed, places);
};
// The store wants their memory: this process is to unmap those of which it has no view.
struct RevokeSegments {
  std::vector<std::uint64_t> segments;
  TROUPE_WIRE(RevokeSegments, segments);
};

// process → store: what is in it. Answered at once by StoreTotals.
struct ReadStoreTotals {
  bool moves = false;  // … with what it has moved
  TROUPE_WIRE(ReadStoreTotals, moves);
};
// Bytes of objects that have come from another node, or gone to disk, or come back.
enum class StoreMoveKind : std::uint8_t { kFetched, kSpilled, kRestored };
constexpr StoreMoveKind last_value(StoreMoveKind) { return StoreMoveKind::kRestored; }
struct StoreMove {
  StoreMoveKind kind = StoreMoveKind::kFetched;
  std::uint64_t bytes = 0;
  std::int64_t begin_unix_us = 0;
  std::int64_t end_unix_us = 0;
  NodeId from;         // of kFetched
  ObjectId object_id;  // … as well
  bool failed = false;
  TROUPE_WIRE(StoreMove, kind, bytes, begin_unix_us, end_unix_us, from, object_id, failed);
};
struct StoreTotals {
  std::uint64_t objects = 0;
  std::uint64_t memory_bytes = 0;
  std::uint64_t memory_max_bytes = 0;
  std::uint64_t spilled_bytes = 0;
  std::uint64_t spilled_bytes_total = 0;
  std::uint64_t restored_bytes_total = 0;
  std::uint64_t fetched_bytes_total = 0;
  std::uint64_t waiting = 0;
  std::vector<StoreMove> moves;   // the last ones, in the order of their ends, where it was asked
  std::uint64_t spare_bytes = 0;  // of memory_bytes, in which nothing is
  TROUPE_WIRE(StoreTotals, objects, memory_bytes, memory_max_bytes, spilled_bytes,
              spilled_bytes_total, restored_bytes_total, fetched_bytes_total, waiting, moves,
              spare_bytes);
};

// --- between the stores of two nodes -------------------------------------------------------------

// A borrower opens the connection to a home and begins with this; on each new one it says again
// what it holds (BorrowObjects), and then that this was all.
struct StoreHello {
  std::uint32_t protocol_version = kObjectProtocolVersion;
  NodeId node_id;
  Endpoint endpoint;
  TROUPE_WIRE(StoreHello, protocol_version, node_id, endpoint);
};
// borrower → home: processes of this node hold these. Answered by ObjectsBorrowed.
struct BorrowObjects {
  std::uint64_t request = 0;
  std::vector<ObjectId> objects;
  TROUPE_WIRE(BorrowObjects, request, objects);
};
// What this node was known to hold and has not said again, it has returned.
struct BorrowsComplete {
  TROUPE_WIRE(BorrowsComplete);
};
struct ObjectsBorrowed {
  std::uint64_t request = 0;
  std::vector<ObjectId> unknown;  // that were freed before
  TROUPE_WIRE(ObjectsBorrowed, request, unknown);
};
// borrower → home: no process of this node holds these, and they are not here any more.
struct ReturnObjects {
  std::vector<ObjectId> objects;
  TROUPE_WIRE(ReturnObjects, objects);
};
// borrower → home: from whom to fetch it. Answered by ObjectSource.
struct FindSource {
  std::uint64_t request = 0;
  ObjectId object_id;
  std::vector<NodeId> failed;  // that could not give it
  TROUPE_WIRE(FindSource, request, object_id, failed);
};
struct ObjectSource {
  std::uint64_t request = 0;
  Status status;
  NodeId node_id;
  Endpoint endpoint;
  std::uint64_t bytes = 0;
  TROUPE_WIRE(ObjectSource, request, status, node_id, endpoint, bytes);
};
// borrower → home: it has been fetched, or not; or its bytes have left this node again.
struct CopyChanged {
  ObjectId object_id;
  bool is_here = false;
  TROUPE_WIRE(CopyChanged, object_id, is_here);
};
// On a connection of its own (target "objects/bytes"): the object's bytes from `offset` on.
struct ReadObject {
  ObjectId object_id;
  std::uint64_t offset = 0;
  bool whole = false;  // only from a store that has all of it and waits for nobody
  TROUPE_WIRE(ReadObject, object_id, offset, whole);
};

// In the order of their numbers on the wire: a new one goes to the end.
struct ObjectMessages
    : Alternatives<ObjectHello, NewSegment, PutObject, HoldObjects, ReleaseObjects, GetObject,
                   ForgetObjectRequest, SegmentsRevoked, ObjectAnswer, ObjectsFreed, RevokeSegments,
                   StoreHello, BorrowObjects, ObjectsBorrowed, ReturnObjects, FindSource,
                   ObjectSource, CopyChanged, ReadObject, BorrowsComplete, ObjectWelcome,
                   ReadStoreTotals, StoreTotals> {};
using ObjectMessage = Variant<ObjectMessages>;

Bytes encode(const ObjectMessage& message);
Result<ObjectMessage> decode_object(std::span<const std::byte> packet);

}  // namespace troupe::wire

namespace troupe {
extern template class Variant<wire::ObjectMessages>;
}  // namespace troupe
