#pragma once
// What a pipeline's owner and the process of a stage's actor on another node tell each other:
// frames over an authenticated connection (target "actor/ID/.pipeline"). Items go here, too, as no
// memory is shared: the owner passes a stage what it takes and is given what it makes; each side
// keeps them as pipeline_memory.h says. The binding outlives a connection that breaks: over the
// next one each side sends what the other may have missed, and leaves out what it has.

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "runtime/base/status.h"
#include "runtime/net/connection.h"
#include "troupe/byte_stream.h"
#include "troupe/clock.h"

namespace troupe::detail {

// The most that PipelineOptions::reconnect_timeout may be: a stage keeps the memory of its items.
inline constexpr std::chrono::milliseconds kReconnectMax = std::chrono::minutes(10);

struct RemoteStageFrame {
  enum class Kind : std::uint32_t {
    kBind = 1,  // owner → stage: a StageBinding (stage_line.h)
    kBound,     // stage → owner
    kRefused,   // stage → owner: a Status
    kInput,     // owner → stage: an item of `channel`
    kGiven,     // owner → stage: what the stage makes of the item, an earlier process has made
    kOutput,    // stage → owner: an item that the stage has made
    kOver,      // owner → stage: the pipeline is over, and the binding with it
  };
  Kind kind = Kind::kBind;
  std::uint32_t channel = 0;
  std::uint64_t number = 0;   // of the item; of kBound a number that no other binding has
  std::uint64_t process = 0;  // of kBound: a number that no other process has
  bool failed = false;        // its bytes are a Status
  // Of kOutput: so many of its bytes, the last ones, say to which objects the item refers.
  std::uint32_t reference_bytes = 0;
};

// kOverloaded is not among the errors: what may be under way is bounded by the pipeline.
Status send_stage_frame(net::Connection& connection, const RemoteStageFrame& frame,
                        std::span<const std::byte> bytes = {});
// kProtocol.
Result<RemoteStageFrame> decode_stage_frame(std::span<const std::byte> frame);
// A connection for such frames. Not started.
std::shared_ptr<net::Connection> make_remote_line(net::EventLoop& loop, ByteStream stream,
                                                  std::string peer);

}  // namespace troupe::detail
