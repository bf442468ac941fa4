#pragma once
// What the groups of one rank and generation share: the stream, the state, the watching thread and
// everything that is done to NCCL's objects. Internal to nccl_communicator.

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <thread>
#include <vector>

#include "train/cuda/communicator/communicator_state.h"
#include "train/cuda/communicator/host_stage.h"
#include "train/cuda/communicator/nccl_communicator.h"
#include "troupe/detail/mutex.h"

namespace troupe::train {

// A group's object of the library.
struct NcclGroup {
  std::string name;
  // Over its ranks. Of a subgroup its own.
  std::shared_ptr<collective::Communicator> host;
  // Null: aborted, or a group of one rank, which needs none. Under the world's lock.
  TroupeCudaGroup* handle = nullptr;
};

// How much longer than a group may take to form the ranks wait for each other over the host: who
// knows why it failed should have the time to say so.
inline constexpr Duration kAgreementGrace = std::chrono::seconds(10);

class NcclWorld {
 public:
  using Begin = std::function<int(TroupeCudaGroup** group)>;
  // Enqueues on the world's stream.
  using Enqueue = std::function<Status(TroupeCudaGroup* group)>;

  // Without groups yet. Errors: the library's.
  static Result<std::shared_ptr<NcclWorld>> make(const NcclOptions& options, int nccl_version);
  // Aborts what end() has not given back.
  ~NcclWorld();
  NcclWorld(const NcclWorld&) = delete;
  NcclWorld& operator=(const NcclWorld&) = delete;

  const NcclOptions& options() const { return options_; }
  const TroupeCudaTable& table() const { return options_.library->table(); }
  TroupeCudaStream* stream() const { return stream_; }
  const std::shared_ptr<DeviceGroupShared>& shared_group() const { return group_; }
  const std::string& transport() const { return transport_; }

  // Forms a group's object as `begin` starts it, and agrees with the other ranks that all have:
  // else none has. A deadline of form_timeout. Errors: what failed here, or on which rank.
  Status form(NcclGroup& group, const Begin& begin);
  // One rank has nothing to form.
  void formed_alone();
  void keep(std::shared_ptr<NcclGroup> group);
  // From now on failures are found while nobody asks.
  void watch();

  // --- operations, by one thread.
  Result<std::uint64_t> begin(CommunicatorState::Note note, Deadline deadline);
  // Something of operation `number` that involves the group, and waits until it is on the stream.
  Status enqueue(NcclGroup& group, std::uint64_t number, const Enqueue& enqueue);
  // Something on the stream alone.
  Status local(int code, std::string_view what);
  // The operation is enqueued in full. wait: until it is done on the device.
  Status finish(NcclGroup& group, std::uint64_t number, bool wait);
  // All before `number` is done on the device.
  Status wait_before(std::uint64_t number);
  Status wait_all(Deadline deadline);
  // What an operation over the host said: its failure ends everything.
  Status host_result(Status status);
  // A failure of something else of an operation: ends everything, and is what to return.
  Status fail(Status found, bool explain);
  std::uint64_t completed();
  bool aborted();

  void abort(Status reason);
  // Gives back what is left; everything was settled and the ranks have met.
  Status end();

  // Made when first asked for.
  Result<HostStage*> stage();
  // (scratch_bytes)
  std::byte* scratch() const { return static_cast<std::byte*>(scratch_); }
  std::int64_t scratch_bytes() const { return scratch_bytes_; }
  Status order(TroupeCudaStream* before, TroupeCudaStream* after);

 private:
  struct InFlight {
    std::uint64_t number = 0;
    TroupeCudaEvent* event = nullptr;
    std::shared_ptr<collective::Communicator> host;  // of its group
  };

  NcclWorld(const NcclOptions& options, int nccl_version);
  Status allocate();
  Status allocate_scratch();
  // Nothing while it goes on.
  std::optional<Status> join(NcclGroup& group, const Begin& begin);
  std::optional<Status> ask_until(NcclGroup& group, Deadline deadline);
  Status wait_for_launch(NcclGroup& group, std::uint64_t number);
  Status wait_for(std::uint64_t number);
  Status check(int code, std::string_view what) const { return cuda_status(table(), code, what); }

  TroupeCudaEvent* event_locked(Status* status) TROUPE_REQUIRES(mutex_);
  std::optional<Status> device_failure_locked() TROUPE_REQUIRES(mutex_);
  std::optional<Status> lost_locked(const collective::Communicator& host, TimePoint now)
      TROUPE_REQUIRES(mutex_);
  void abort_groups_locked() TROUPE_REQUIRES(mutex_);
  Status fail_locked(Status found, bool explain) TROUPE_REQUIRES(mutex_);
  std::optional<Status> look_locked(TimePoint now) TROUPE_REQUIRES(mutex_);
  void watch_loop();

  const NcclOptions options_;
  const std::string transport_;
  const std::shared_ptr<DeviceGroupShared> group_ = std::make_shared<DeviceGroupShared>();
  TroupeCudaStream* stream_ = nullptr;
  TroupeCudaEvent* order_event_ = nullptr;
  void* scratch_ = nullptr;
  std::int64_t scratch_bytes_ = 0;
  std::unique_ptr<HostStage> stage_;

  // Also over every call on NCCL's objects: none of them blocks for long.
  Mutex mutex_;
  CondVar changed_;
  CommunicatorState state_ TROUPE_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<NcclGroup>> groups_ TROUPE_GUARDED_BY(mutex_);
  std::deque<InFlight> in_flight_ TROUPE_GUARDED_BY(mutex_);
  std::vector<TroupeCudaEvent*> free_events_ TROUPE_GUARDED_BY(mutex_);
  // By group: since when one of its ranks is known to be lost.
  std::map<const collective::Communicator*, TimePoint> lost_since_ TROUPE_GUARDED_BY(mutex_);
  bool stopping_ TROUPE_GUARDED_BY(mutex_) = false;
  std::thread watcher_;
};

// All ranks of `host` hear how it goes on each. mine: nothing while it goes on. True once all have
// succeeded. Errors: this rank's, else the first's that failed, naming it; `host`'s.
Result<bool> all_done(collective::Communicator& host, const std::optional<Status>& mine,
                      Deadline deadline);

}  // namespace troupe::train
