#pragma once
// A process's side of the object stores (scheduler/objects): the conversation with that of its own
// node, the shared memory that it maps, and what it holds.
//
// It connects when it is first needed. Where that connection ends, since the node's daemon has
// ended, what is mapped can be read still, everything else of before is lost; what is put later
// goes to the daemon that is there then.

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "actors/actor_channel.h"
#include "runtime/base/process_stamp.h"
#include "runtime/base/random.h"
#include "runtime/base/status.h"
#include "runtime/memory/region_allocator.h"
#include "runtime/wire/object_messages.h"
#include "troupe/detail/object_core.h"
#include "troupe/unique_fd.h"

namespace troupe::detail {

class ObjectClient;

class HeldObject {
 public:
  HeldObject(std::weak_ptr<ObjectClient> client, wire::ObjectRecord r)
      : client_(std::move(client)), record(std::move(r)) {}
  ~HeldObject();
  HeldObject(const HeldObject&) = delete;
  HeldObject& operator=(const HeldObject&) = delete;
  std::shared_ptr<ObjectClient> client() const { return client_.lock(); }

 private:
  const std::weak_ptr<ObjectClient> client_;

 public:
  const wire::ObjectRecord record;
  // The client's lock.
  wire::ObjectPlace place;       // segment 0: not known
  std::uint64_t connection = 0;  // of the store that counts it; of another it is lost
  bool own = false;              // this process put it
  bool shared = false;           // and others may have it
};

// References that are being decoded: their stores hear of them together.
struct ObjectIntake {
  std::vector<HeldObjectPtr> objects;
  std::uint64_t lent_with = 0;  // the number of the call whose result they came in, if in one
};

struct ObjectClientOptions {
  std::shared_ptr<const ChannelEnvironment> environment;
  ClientId client_id;
  JobId job_id;
  std::string name;
  std::shared_ptr<Random> random;
  // The cluster's nodes, for a process that does not know on which it runs.
  std::function<Result<std::vector<NodeId>>(Deadline)> nodes;
};

// Thread-safe.
class ObjectClient : public std::enable_shared_from_this<ObjectClient> {
 public:
  explicit ObjectClient(ObjectClientOptions options);
  ~ObjectClient();

  Result<std::unique_ptr<ObjectRoom>> make_room(std::size_t bytes, Deadline deadline);
  Result<ObjectBytes> read(HeldObject& object, Deadline deadline);
  Result<std::vector<std::size_t>> wait(std::span<const HeldObjectPtr> objects, std::size_t count,
                                        Deadline deadline);

  Result<wire::StoreTotals> totals(Deadline deadline);
  // Of the store that it is, or was last, connected to; empty before.
  NodeId node_id() const;

  // A reference that has arrived. Its store does not know of it before hold_all().
  HeldObjectPtr arrived(const wire::ObjectRecord& record, ObjectIntake& intake);
  // Returns when the objects' homes know that they are held here: their sender may let go of them.
  Status hold_all(const ObjectIntake& intake, Deadline deadline);
  // The same on a thread that must not wait; `done` may come on another one.
  void hold_all_later(ObjectIntake intake, std::function<void()> done);
  // It is passed on.
  void share(HeldObject& object);
  // kInvalidArgument where one of what arguments keep, all of them HeldObjects, is of another
  // cluster than this process's.
  Status check_own(std::span<const std::shared_ptr<const void>> kept) const;

  // Nothing is asked any more. Not on the loop's thread.
  void close();

 private:
  friend class HeldObject;
  class Room;
  // Shared memory that this process maps.
  struct Mapping {
    ~Mapping();
    std::byte* data = nullptr;
    std::uint64_t bytes = 0;
    ProcessStamp stamp = {};
  };
  // Of those, the memory that it writes.
  struct Own {
    std::shared_ptr<Mapping> mapping;
    memory::RegionAllocator free;
    std::map<std::uint64_t, std::uint64_t> used;  // offset → bytes
    bool large = false;                           // for one object
    int rooms = 0;                                // being filled
  };
  struct Waiting {  // for the second answer
    bool done = false;
    wire::ObjectAnswer answer;
    UniqueFd descriptor;
  };
  struct Answered {
    wire::ObjectAnswer answer;
    UniqueFd descriptor;
  };

  Status connect(Deadline deadline);
  Status connect_to(const NodeId& node, Deadline deadline);
  void disconnected_locked();
  // After what was let go before.
  bool send_locked(const wire::ObjectMessage& message);
  bool send_now_locked(const wire::ObjectMessage& message);
  bool send_released_locked();
  void send_released_soon_locked();
  // Sends a request and waits for its final answer. The lock is held at the beginning and at the
  // end, not meanwhile.
  Result<Answered> ask(std::unique_lock<std::mutex>& lock, std::uint64_t request,
                       const wire::ObjectMessage& message, Deadline deadline, ObjectId object = {});
  void on_notices(std::uint64_t connection);
  void on_notice_locked(const wire::ObjectMessage& message, std::vector<UniqueFd>& descriptors);
  void revoke_locked(const wire::RevokeSegments& message);
  // Memory that was granted, and is not mapped.
  void give_back_locked(std::uint64_t segment);
  void let_go(HeldObject& object);
  Status hold_new(std::unique_lock<std::mutex>& lock, std::span<const HeldObject* const> objects,
                  Deadline deadline);
  std::optional<ObjectBytes> mapped_locked(const HeldObject& object) const;
  Status map_locked(const wire::ObjectAnswer& answer, UniqueFd descriptor);
  // How many of the objects behind this one may be told along with it.
  std::uint32_t unknown_behind_locked(const HeldObject& object) const;
  // Takes over the places that an answer names, of this object and of others. The answer's segment
  // is mapped.
  void know_places_locked(const wire::ObjectAnswer& answer, HeldObject& object);
  Result<Answered> locate(std::unique_lock<std::mutex>& lock, const HeldObject& object,
                          Deadline deadline);
  Result<ObjectBytes> read_locked(std::unique_lock<std::mutex>& lock, HeldObject& object,
                                  Deadline deadline);
  Result<std::unique_ptr<ObjectRoom>> take_room_locked(std::uint64_t bytes);
  void run_later(std::function<void()> work);

  const ObjectClientOptions options_;
  std::mutex connecting_;  // before mutex_
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool closed_ = false;
  std::uint64_t connection_ = 0;  // its number; 0: there was none yet
  bool connected_ = false;
  UniqueFd requests_;
  UniqueFd notices_;
  wire::ObjectWelcome store_;
  std::uint64_t next_request_ = 1;
  std::uint64_t next_object_ = 1;
  const std::uint64_t object_prefix_;
  std::map<std::uint64_t, Waiting> waiting_;
  // A request for an object's place that is under way, and the segments that were unmapped
  // meanwhile: an answer that names one of them was on its way then, and counts no more.
  struct Get {
    std::set<std::uint64_t> unmapped;
  };
  std::set<Get*> gets_;
  std::map<ObjectId, std::pair<HeldObject*, std::weak_ptr<HeldObject>>> held_;
  // What was let go and the store has not been told: it hears of many at once, before anything else
  // that is said, or a moment later. Of `unshared_` the memory is used again already.
  std::vector<ObjectId> released_, unshared_;
  bool sending_released_soon_ = false;
  std::map<std::uint64_t, std::shared_ptr<Mapping>> segments_;
  std::map<std::uint64_t, Own> own_;
  // Work that waits, of threads that must not.
  std::thread later_;
  std::vector<std::function<void()>> later_work_;
};

}  // namespace troupe::detail
