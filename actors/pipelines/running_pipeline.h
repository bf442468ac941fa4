#pragma once
// A pipeline as its owner has it: who is bound, which items are under way, who takes the results.
//
// Binding goes on the loop's thread, by what the head says of the actors and by the end of their
// connections. A stage's actor on another node is bound by a connection: a thread of the
// pipeline's, the relay, takes part in its place, sends it what it takes and puts what it makes
// where a local one would have. Results are taken by the thread that waits for one in get() or
// push(), else by a thread of the pipeline's own; one at a time, whichever has reading_.

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "actors/client.h"
#include "actors/host_ring.h"
#include "actors/objects/object_client.h"
#include "actors/pipelines/pipeline_memory.h"
#include "actors/pipelines/remote_line.h"
#include "actors/pipelines/stage_line.h"
#include "actors/pipelines/stage_progress.h"
#include "actors/work_reporter.h"
#include "runtime/base/clock.h"
#include "runtime/base/process_stamp.h"
#include "runtime/memory/adaptive_spin.h"
#include "runtime/memory/segment.h"
#include "runtime/memory/wait_word.h"
#include "troupe/detail/mutex.h"
#include "troupe/detail/pipeline_core.h"
#include "troupe/pipeline.h"

namespace troupe::detail {

class RunningPipeline final : public PipelineCore,
                              public ActorClient::Closing,
                              public WorkSource,
                              public std::enable_shared_from_this<RunningPipeline> {
 public:
  RunningPipeline(ClientPtr client, PipelinePlan plan, PipelineOptions options,
                  const std::vector<StageDraft>& stages, memory::Segment segment);
  // Watches the actors, and waits until all are bound.
  Status start();

  Status push(PackedArguments value, std::shared_ptr<PipelineItem> item,
              Deadline deadline) override;
  void help(Deadline deadline, const std::function<bool()>& ended) override;
  Status late() const override;
  PipelineStatus status() const override;
  Status close(Deadline deadline) override;
  void end() override;
  const ClientPtr& client() const override { return client_; }
  FutureOptions future_options() const override { return client_->future_options(ActorId{}); }
  void closed(const Status& why) override;
  bool tell(wire::Work& work) const override;

 private:
  // An actor's place in a stage.
  struct Seat {
    std::uint32_t stage = 0;
    std::uint32_t actor = 0;
    ActorInterface interface;
    std::uint32_t method = 0;
    ActorId id;
    ClientId caller;
    Directory::WatchId watch = 0;
    wire::ActorInfo info = {};
    std::uint64_t attempt = 0;  // to bind it: what concerns an earlier one is late
    bool connecting = false;
    UniqueFd socket = {};
    std::shared_ptr<net::Connection> line = {};  // in its place, to another node
    bool remote = false;
    // Of one on another node: what kBound said of the last binding; 0: none.
    std::uint64_t binding = 0, process = 0;
    std::uint64_t sent = 0;     // to its process, by this connection or another: the items before
    bool ahead = false;         // bound to a process of which the head has not told
    std::uint64_t absence = 0;  // the last one that is waited for: give_up_later_locked()
    std::uint64_t next = 0;     // of one on another node: the item that is to be sent to it next
    bool bound = false;
    std::uint64_t bound_generation = 0;  // the last process that was bound
    std::uint64_t respawns = 0;
    std::uint64_t suspect = 0;    // the item that its last process died with
    std::uint32_t died_with = 0;  // how many of them, one after the other; 0: none
    memory::Segment page = {};
    memory::Waker waker = {};
    Status trouble = {};  // of the last attempt
  };
  struct UnderWay {
    std::shared_ptr<PipelineItem> item;
    PackedArguments value;                    // what it refers to, until it was delivered
    std::vector<HeldObjectPtr> outputs = {};  // and what the stages' outputs of it do
  };

  // Binding: loop thread.
  void on_actor(std::size_t index, const Result<wire::ActorInfo>& info) TROUPE_EXCLUDES(mutex_);
  void connect_locked(std::size_t index) TROUPE_REQUIRES(mutex_);
  void on_connected(std::size_t index, std::uint64_t attempt, Result<RawConnection> connection)
      TROUPE_EXCLUDES(mutex_);
  Status offer_locked(Seat& seat, RawConnection connection) TROUPE_REQUIRES(mutex_);
  Status offer_remote_locked(std::size_t index, RawConnection connection) TROUPE_REQUIRES(mutex_);
  StageBinding binding_locked(const Seat& seat) const TROUPE_REQUIRES(mutex_);
  void on_frame(std::size_t index, std::uint64_t attempt, std::span<const std::byte> encoded,
                std::span<const std::byte> bytes) TROUPE_EXCLUDES(mutex_);
  void on_message(std::size_t index, std::uint64_t attempt) TROUPE_EXCLUDES(mutex_);
  Status bound_locked(Seat& seat, UniqueFd page) TROUPE_REQUIRES(mutex_);
  void introduce_locked(Seat& seat) TROUPE_REQUIRES(mutex_);
  void unbind_locked(Seat& seat) TROUPE_REQUIRES(mutex_);
  // The pipeline ends where the seat's connection stays broken.
  void give_up_later_locked(Seat& seat) TROUPE_REQUIRES(mutex_);
  void process_died_locked(Seat& seat) TROUPE_REQUIRES(mutex_);
  std::uint64_t first_of_locked(const Seat& seat) const TROUPE_REQUIRES(mutex_);
  void retry_later_locked(std::size_t index) TROUPE_REQUIRES(mutex_);
  std::string unbound_locked() const TROUPE_REQUIRES(mutex_);
  Status away_too_long_locked(const Seat& seat) const TROUPE_REQUIRES(mutex_);

  // Actors on other nodes.
  void relay();  // the relay's thread
  struct Sending {
    std::shared_ptr<net::Connection> line;
    RemoteStageFrame frame;
    bool again = false;  // it was sent by an earlier connection: it may be done with already
  };
  std::vector<Sending> to_send_locked() TROUPE_REQUIRES(mutex_);
  Status output_locked(const Seat& seat, const RemoteStageFrame& frame,
                       std::span<const std::byte> bytes) TROUPE_REQUIRES(mutex_);
  void wake_takers_locked(std::uint32_t channel, std::uint64_t number) TROUPE_REQUIRES(mutex_);

  // Outputs that refer to objects: this process holds them before others see them, so that they
  // outlive the stage's process.
  using Output = std::pair<std::uint32_t, std::uint64_t>;  // channel, number
  bool has_offer() const {
    return memory_.page().offers.load(std::memory_order_seq_cst) !=
           offers_seen_.load(std::memory_order_relaxed);
  }
  void take_offers() TROUPE_EXCLUDES(mutex_);
  void on_held(Output output, std::uint64_t offer, std::vector<HeldObjectPtr> objects)
      TROUPE_EXCLUDES(mutex_);
  Seat& maker_locked(Output output) TROUPE_REQUIRES(mutex_);

  // Results: whoever has reading_.
  bool begin_reading() { return !reading_.exchange(true, std::memory_order_seq_cst); }
  void end_reading() { reading_.store(false, std::memory_order_seq_cst); }
  bool has_result() const;
  void take_results(Continuations* later) TROUPE_EXCLUDES(mutex_);
  template <typename Ended>
  void wait_for_result(Deadline deadline, Ended ended);
  void read_for_nobody();  // the pipeline's thread
  void hand_over(Continuations later) TROUPE_EXCLUDES(mutex_);
  void nudge() TROUPE_EXCLUDES(nudge_mutex_);
  template <typename Ended>
  void read_until(Deadline deadline, Ended ended);

  // No more items; those under way end with `why`.
  void fail(Status why) TROUPE_EXCLUDES(mutex_);
  bool over() const { return over_.load(std::memory_order_acquire); }
  Status of_stage(Status why, std::uint32_t stage) const;

  const ClientPtr client_;
  const PipelinePlan plan_;
  const PipelineOptions options_;
  const ProcessStamp process_;
  const std::uint64_t number_;
  memory::Segment segment_;
  const PipelineMemory memory_;
  std::thread thread_;
  // Begun with the first actor on another node. Whoever gives one of these something wakes the
  // relay by the page, as it would wake the actor.
  std::thread relay_ TROUPE_GUARDED_BY(mutex_);
  std::shared_ptr<HostPageSegment> relay_page_ TROUPE_GUARDED_BY(mutex_);

  mutable Mutex mutex_;
  CondVar changed_;  // bound, room, over
  std::vector<Seat> seats_ TROUPE_GUARDED_BY(mutex_);
  // By channel, for each stage that takes it: that one's seats.
  std::vector<std::vector<std::vector<std::size_t>>> takers_;
  SourceProgress source_ TROUPE_GUARDED_BY(mutex_);
  std::vector<UnderWay> under_way_ TROUPE_GUARDED_BY(mutex_);  // by slot
  // Whose objects are about to be held, by a number of their own.
  std::map<Output, std::uint64_t> offers_ TROUPE_GUARDED_BY(mutex_);
  std::uint64_t next_offer_ TROUPE_GUARDED_BY(mutex_) = 1;
  std::atomic<std::uint64_t> offers_seen_{0};  // whoever has reading_
  Status over_why_ TROUPE_GUARDED_BY(mutex_);
  bool closing_ TROUPE_GUARDED_BY(mutex_) = false;
  bool client_gone_ TROUPE_GUARDED_BY(mutex_) = false;
  bool ended_ TROUPE_GUARDED_BY(mutex_) = false;
  std::size_t waiting_ TROUPE_GUARDED_BY(mutex_) = 0;  // for room, or the end
  Continuations continuations_ TROUPE_GUARDED_BY(mutex_);
  std::atomic<bool> over_{false};
  std::atomic<std::uint64_t> first_{0};  // source_.first(), for whoever has reading_

  std::atomic<bool> reading_{false};
  std::atomic<std::uint64_t> helped_{0};  // how often a thread took results for itself
  memory::Sleeper sleeper_;
  memory::AdaptiveSpin adaptive_;
  Mutex nudge_mutex_;
  memory::Waker nudger_ TROUPE_GUARDED_BY(nudge_mutex_);
};

}  // namespace troupe::detail
