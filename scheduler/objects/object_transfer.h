#pragma once
// An object's bytes from one node's store to another's, on a connection of their own (target
// kObjectBytesTarget): the asker sends a frame with a ReadObject, the other side a header and the
// bytes from the offset on, as far as they are there, and the rest as it comes.

#include <functional>
#include <memory>
#include <mutex>
#include <set>

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

// Blocking; on a thread of its own. Fills `memory` from `*have` on, which grows with what has
// arrived. Ends early when the memory is abandoned.
Status fetch_object(const net::Address& from, const net::Token& token, ObjectId object,
                    std::uint64_t bytes, ObjectMemory& memory, std::uint64_t* have,
                    OpenStreams& streams);

// What a reader is given: where the object lies.
struct ReadableObject {
  std::shared_ptr<ObjectMemory> memory;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};
// Blocking; on a thread of its own. Answers one reader: `find` waits until the object can be read.
Status serve_object(ByteStream stream, const std::function<Result<ReadableObject>(ObjectId)>& find,
                    OpenStreams& streams);

}  // namespace troupe::scheduler
