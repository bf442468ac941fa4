#pragma once
// Pipelines whatever their types: what the templates of pipeline.h ask of one.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "troupe/detail/call_sink.h"
#include "troupe/detail/future_core.h"
#include "troupe/detail/method_call.h"
#include "troupe/detail/verbs.h"
#include "troupe/status.h"

namespace troupe {

struct PipelineOptions;
struct PipelineStatus;

namespace detail {

// A stage as it was drawn: which method of which actors, after what.
struct StageDraft {
  std::string name;
  std::vector<std::uint32_t> inputs;  // channels: 0 is what is pushed, 1 + i what stage i gives
  ActorInterface interface;
  std::uint32_t method = 0;
  std::vector<ChannelPtr> actors;  // null: an empty handle
  bool light = false;
};
struct PipelineDraft {
  Result<ClientPtr> client;
  std::vector<StageDraft> stages;
  Status trouble;  // the first thing that cannot be
  // The channel of the new stage.
  std::uint32_t add(StageDraft stage);
};

// An item that was pushed. Ended once, in order.
class PipelineItem {
 public:
  virtual ~PipelineItem() = default;
  virtual void end(const Status& status, std::span<const std::byte> result,
                   Continuations* later) = 0;
};

// Thread-safe.
class PipelineCore {
 public:
  // Binds the stages; waits for that. `output`: the channel of the results.
  static Result<std::shared_ptr<PipelineCore>> create(const PipelineDraft& draft,
                                                      std::uint32_t output,
                                                      const PipelineOptions& options);
  virtual ~PipelineCore() = default;
  // Not ok: it is not in the pipeline.
  virtual Status push(PackedArguments value, std::shared_ptr<PipelineItem> item,
                      Deadline deadline) = 0;
  // Before a thread sleeps for a result: takes results, until `ended` or the deadline.
  virtual void help(Deadline deadline, const std::function<bool()>& ended) = 0;
  // What get() says at its deadline.
  virtual Status late() const = 0;
  virtual PipelineStatus status() const = 0;
  virtual Status close(Deadline deadline) = 0;
  // Ends what is under way with kCancelled, unbinds the stages. Waits for nothing but its thread.
  virtual void end() = 0;
  virtual const ClientPtr& client() const = 0;
  virtual FutureOptions future_options() const = 0;
};

Status empty_pipeline_error();

}  // namespace detail
}  // namespace troupe
