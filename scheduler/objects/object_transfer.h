#pragma once
// Objects' bytes from one node's store to another's, on connections of their own (target
// kObjectBytesTarget): the asker sends a frame with a ReadObject, the other side a header and the
// bytes from the offset on, as far as they are there, and the rest as it comes. Then the asker may
// ask for another object.

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/ids.h"
#include "runtime/base/status.h"
#include "runtime/net/transport.h"
#include "scheduler/objects/object_memory.h"
#include "troupe/byte_stream.h"

namespace troupe::scheduler {

// A transfer on which nothing has come for so long has failed.
inline constexpr Duration kTransferPatience = std::chrono::seconds(20);

// The streams of transfers that are under way, which shut_all() ends. Thread-safe.
class OpenStreams {
 public:
  class Entry {
   public:
    Entry(OpenStreams& streams, int fd) : streams_(streams), fd_(fd) { streams_.add(fd); }
    ~Entry() { streams_.remove(fd_); }
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

   private:
    OpenStreams& streams_;
    const int fd_;
  };
  // Those that come later end at once, too.
  void shut_all();

 private:
  void add(int fd);
  void remove(int fd);

  std::mutex mutex_;
  std::set<int> fds_;
  bool shut_ = false;
};

// Connections that a transfer has left, for the next one from the same node: a connection's
// handshake takes longer than a small object. Thread-safe.
class IdleStreams {
 public:
  explicit IdleStreams(const Clock& clock) : clock_(clock) {}
  // Invalid: there is none.
  ByteStream take(const std::string& address);
  void give_back(const std::string& address, ByteStream stream);

 private:
  struct Idle {
    ByteStream stream;
    TimePoint since;
  };
  const Clock& clock_;
  std::mutex mutex_;
  std::map<std::string, std::vector<Idle>> idle_;
};

// Blocking; on a thread of its own. Fills `memory` from `*have` on, whatever offset `what` has, and
// lets it grow with what has arrived. Ends early when the memory is abandoned.
Status fetch_object(const net::Address& from, const net::Token& token, wire::ReadObject what,
                    std::uint64_t bytes, ObjectMemory& memory, std::uint64_t* have,
                    OpenStreams& streams, IdleStreams& idle);

// What a reader is given: where the object lies.
struct ReadableObject {
  std::shared_ptr<ObjectMemory> memory;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::shared_ptr<void> reading;  // until it has been sent
};
// Blocking; on a thread of its own. Answers one reader, as long as it asks: `find` waits until the
// object can be read.
Status serve_objects(ByteStream stream,
                     const std::function<Result<ReadableObject>(const wire::ReadObject&)>& find,
                     OpenStreams& streams);

}  // namespace troupe::scheduler
