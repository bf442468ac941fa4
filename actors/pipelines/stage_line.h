#pragma once
// What a pipeline's owner and the process of a stage's actor tell each other: messages with a
// descriptor each, over a local connection (target "actor/ID/.pipeline") that lives as long as the
// binding. Items do not go here (pipeline_memory.h).

#include <cstdint>
#include <vector>

#include "actors/pipelines/pipeline_plan.h"
#include "runtime/base/ids.h"
#include "runtime/base/status.h"
#include "runtime/wire/types.h"
#include "troupe/unique_fd.h"

namespace troupe::detail {

inline constexpr const char* kPipelinePurpose = ".pipeline";

// owner → stage, first: what the process is bound to.
struct StageBinding {
  PipelinePlan plan;
  std::uint32_t stage = 0;
  std::uint32_t actor = 0;
  std::uint64_t first = 0;  // StageProgress
  std::int64_t item_timeout_ms = 0;
  std::int64_t reconnect_timeout_ms = 0;
  ClientId caller;   // items are calls of this caller, numbered from 1
  wire::Bytes bind;  // wire::Bind with the stage's method alone
};

struct StageMessage {
  enum class Kind : std::uint32_t {
    kBind = 1,  // owner → stage: a StageBinding; the pipeline's memory
    kPage,      // owner → stage: the HostPage of an actor that takes what this one gives
    kBound,     // stage → owner: its own HostPage
    kRefused,   // stage → owner: a Status; its own HostPage
  };
  Kind kind = Kind::kBind;
  std::uint32_t stage = 0;  // kPage: whose
  std::uint32_t actor = 0;
  wire::Bytes bytes = {};
};

// The descriptor stays the caller's. A message is small: where it does not go at once the other
// side is not there.
Status send_stage_message(int socket, const StageMessage& message, int fd);
struct ArrivedStageMessage {
  StageMessage message;
  UniqueFd fd;
};
// Of a socket that is readable. kUnavailable: the other side has ended.
Result<ArrivedStageMessage> receive_stage_message(int socket);

}  // namespace troupe::detail
