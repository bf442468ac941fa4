#pragma once
// An actor's end of a pipeline: the items that it takes, as calls of the actor, and what becomes of
// their results. On the owner's node it shares the pipeline's memory; on another one it has memory
// of its own, into which the connection puts what it takes (remote_line.h).
//
// They run as every call does (call_runner.h): on the actor's thread or its threads, saved after,
// and, where the class is kExactlyOnce, known by their numbers to the next process
// (session/callee_session.h): an item that has run and whose output was not given is not run again.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "actors/call_server.h"
#include "actors/pipelines/pipeline_memory.h"
#include "actors/pipelines/stage_line.h"
#include "actors/pipelines/stage_progress.h"
#include "runtime/memory/segment.h"
#include "runtime/memory/wait_word.h"
#include "troupe/detail/mutex.h"

namespace troupe::detail {

class StageEnd final : public ItemSource, public std::enable_shared_from_this<StageEnd> {
 public:
  // `keeps`: answers are kept for the next process. kProtocol where the memory is not that of the
  // plan, or the plan none.
  static Result<std::shared_ptr<StageEnd>> create(StageBinding binding, UniqueFd memory, bool keeps,
                                                  const Clock& clock);

  // What the stage has made of item `number`; the last `reference_bytes` of it say to which objects
  // it refers. Where it cannot be sent it is given again to the next connection. Any thread.
  using GiveFar =
      std::function<void(std::uint64_t number, bool failed, std::span<const std::byte> bytes,
                         std::uint32_t reference_bytes)>;
  static Result<std::shared_ptr<StageEnd>> create_remote(StageBinding binding, GiveFar give_far,
                                                         bool keeps, const Clock& clock);

  const StageBinding& binding() const { return binding_; }
  std::uint64_t memory_bytes() const { return segment_.size(); }
  // Of one on another node: its owner has another connection, and wants what was made of the items
  // from `first` on. Loop thread.
  void go_on(GiveFar give_far, std::uint64_t first) TROUPE_EXCLUDES(giving_);
  // Of one on another node: an item that it takes has come, or what it makes of it is there
  // already. kProtocol. Loop thread.
  Status input(std::uint32_t channel, std::uint64_t number, bool failed,
               std::span<const std::byte> bytes);
  void given(std::uint64_t number) {
    if (!memory_.given(output_, number)) memory_.publish(output_, number, false, {});
  }
  // The HostPage of a taker of what this stage gives; wakes it.
  Status set_page(std::uint32_t stage, std::uint32_t actor, UniqueFd page) TROUPE_EXCLUDES(giving_);
  // No item is taken any more.
  void detach() { detached_.store(true, std::memory_order_release); }

  // ItemSource: the actor's thread takes, any thread gives.
  bool readable() override;
  std::optional<QueuedCall> next() override;
  void give(std::uint64_t sequence, const Result<wire::Bytes>& result) override
      TROUPE_EXCLUDES(giving_);
  void keep(std::uint64_t sequence, std::vector<std::shared_ptr<const void>> kept) override
      TROUPE_EXCLUDES(giving_);
  Duration spin_max() const override;
  // CalleeLink: an answer of an earlier process.
  Status send(wire::EncodedCall message, bool soon) override;
  bool unread() const override { return false; }
  void end() override {}

 private:
  struct Taker {
    std::uint32_t stage = 0;
    struct Page {
      memory::Segment segment;
      memory::Waker waker;
    };
    std::vector<Page> actors;
  };
  StageEnd(StageBinding binding, memory::Segment segment, GiveFar give_far, bool keeps,
           const Clock& clock);
  static Status check(const StageBinding& binding);
  void publish(std::uint64_t number, bool failed, std::span<const std::byte> bytes)
      TROUPE_EXCLUDES(giving_);
  void offer(std::uint64_t number, std::span<const std::byte> bytes,
             std::span<const std::byte> references) TROUPE_EXCLUDES(giving_);
  void give_far_locked(std::uint64_t number, std::span<const std::byte> references)
      TROUPE_REQUIRES(giving_);
  wire::Bytes references_of(std::uint64_t number) TROUPE_EXCLUDES(giving_);

  const StageBinding binding_;
  memory::Segment segment_;
  const PipelineMemory memory_;
  const bool keeps_;
  const Clock& clock_;
  const std::uint32_t output_;
  const bool gives_result_;  // of the pipeline
  std::atomic<bool> detached_{false};
  std::atomic<std::uint64_t> first_{0};  // go_on()
  StageStep look();
  StageProgress progress_;  // the actor's thread

  Mutex giving_;
  GiveFar give_far_ TROUPE_GUARDED_BY(giving_);  // null on the owner's node
  std::vector<Taker> takers_ TROUPE_GUARDED_BY(giving_);
  memory::Waker owner_waker_ TROUPE_GUARDED_BY(giving_);
  // By slot: what the output of an item refers to, as long as it may be read.
  struct Kept {
    std::uint64_t number = 0;
    std::vector<std::shared_ptr<const void>> objects;
  };
  std::vector<Kept> kept_ TROUPE_GUARDED_BY(giving_);
};

}  // namespace troupe::detail
