#pragma once
// Objects whatever their types: bytes in shared memory, and who holds them. What is behind it (the
// node's object store) is no part of the headers that users include.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "troupe/clock.h"
#include "troupe/codec.h"
#include "troupe/detail/call_line.h"
#include "troupe/ids.h"
#include "troupe/status.h"

namespace troupe {

// How long putting waits for room, and getting for an object's bytes, where nothing else is said.
inline constexpr Duration kObjectTimeout = std::chrono::seconds(60);

// What is in a node's object store.
struct ObjectStoreInfo {
  std::uint64_t objects = 0;
  std::uint64_t memory_bytes = 0;  // granted, also what processes keep for their next objects
  std::uint64_t memory_max_bytes = 0;
  std::uint64_t spilled_bytes = 0;  // on disk now
  // Since the store is there.
  std::uint64_t spilled_bytes_total = 0;
  std::uint64_t restored_bytes_total = 0;
  std::uint64_t fetched_bytes_total = 0;  // from other nodes
  // Whose store it is: the node on which this process runs, also a driver's that has connected.
  NodeId node_id;
};

}  // namespace troupe

namespace troupe::detail {

class HeldObject;  // this process holds an object as long as one of these lives
using HeldObjectPtr = std::shared_ptr<HeldObject>;

// Arrays in objects begin at multiples of so many bytes: what vector instructions like.
inline constexpr std::size_t kObjectAlignment = 64;

ObjectId object_id_of(const HeldObject& object);
std::uint64_t object_bytes_of(const HeldObject& object);

// Room for an object's bytes in shared memory of this node, which the caller fills. What is not
// sealed is given back.
class ObjectRoom {
 public:
  virtual ~ObjectRoom() = default;
  virtual std::span<std::byte> bytes() = 0;
  // Nobody changes the bytes from now on.
  virtual HeldObjectPtr seal(std::uint64_t type_hash) = 0;
};
// kResourceExhausted: there is none within the time, and what is in the way; kFailedPrecondition:
// this machine is no node of the cluster.
Result<std::unique_ptr<ObjectRoom>> make_object_room(const std::shared_ptr<ActorClient>& client,
                                                     std::size_t bytes, Duration timeout);

// An object's bytes, read in place. They stay while `memory` lives.
struct ObjectBytes {
  std::shared_ptr<const void> memory;
  std::span<const std::byte> bytes;
};
// kObjectLost, kDeadlineExceeded, kResourceExhausted, kDataLoss. Not on a thread of Troupe's.
Result<ObjectBytes> read_object(const HeldObjectPtr& object, Duration timeout);
// Waits until `count` of them can be read here without waiting, or the time is over; which.
Result<std::vector<std::size_t>> wait_for_objects(std::span<const HeldObjectPtr> objects,
                                                  std::size_t count, Duration timeout);

Result<ObjectStoreInfo> object_store_info(const std::shared_ptr<ActorClient>& client,
                                          Duration timeout);

void encode_object(Encoder& out, const HeldObjectPtr& object);
// `type_hash`: of what is expected.
bool decode_object(Decoder& in, std::uint64_t type_hash, HeldObjectPtr& object);
// The references that a call's arguments hold: `read` resolves them within the call's time.
bool decode_and_read_object(Decoder& in, std::uint64_t type_hash, HeldObjectPtr& object,
                            ObjectBytes& bytes);
Status empty_object_error(const char* what);

}  // namespace troupe::detail
