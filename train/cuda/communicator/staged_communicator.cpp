#include "train/cuda/communicator/staged_communicator.h"

#include "runtime/base/check.h"
#include "train/cuda/communicator/host_stage.h"
#include "train/cuda/device/waiting.h"

namespace troupe::train {
namespace {

using collective::Operation;

// Of a communicator and its subgroups.
struct StagedWorld {
  explicit StagedWorld(const StagedOptions& options) : options(options) {}
  ~StagedWorld() {
    const TroupeCudaTable& table = options.library->table();
    stage.reset();
    if (stream && !drained(table, stream)) return;
    for (TroupeCudaEvent* event : {done, followed})
      if (event) (void)table.event_destroy(event);
    if (stream) (void)table.stream_destroy(stream);
  }

  const StagedOptions options;
  std::shared_ptr<DeviceGroupShared> group = std::make_shared<DeviceGroupShared>();
  TroupeCudaStream* stream = nullptr;
  TroupeCudaEvent* done = nullptr;      // of `stream`
  TroupeCudaEvent* followed = nullptr;  // of others'
  std::unique_ptr<HostStage> stage;
  bool ended = false;
};

class StagedCommunicator final : public DeviceGroup {
 public:
  // own_host: of a subgroup; null: the options'.
  StagedCommunicator(std::shared_ptr<StagedWorld> world,
                     std::unique_ptr<collective::Communicator> own_host, std::string name)
      : DeviceGroup(world->group, std::move(name), own_host == nullptr),
        world_(std::move(world)),
        own_host_(std::move(own_host)),
        host_(own_host_ ? *own_host_ : *world_->options.host) {}

  Duration default_timeout() const override { return host_.default_timeout(); }
  void abort(Status reason) override { host_.abort(std::move(reason)); }
  collective::Communicator& host() override { return host_; }
  TroupeCudaStream* stream() override { return world_->stream; }
  Status follow(TroupeCudaStream* stream) override {
    TROUPE_RETURN_IF_ERROR(check(table().event_record(world_->followed, stream), kOrdering));
    return check(table().stream_wait(world_->stream, world_->followed), kOrdering);
  }
  Status lead(TroupeCudaStream* stream) override {
    TROUPE_RETURN_IF_ERROR(check(table().event_record(world_->done, world_->stream), kOrdering));
    return check(table().stream_wait(stream, world_->done), kOrdering);
  }
  Status settle(Deadline deadline) override {
    TROUPE_RETURN_IF_ERROR(check(table().event_record(world_->done, world_->stream), kOrdering));
    return wait_for_event(table(), world_->done, deadline, "what collectives brought");
  }
  Status end(Deadline deadline) override {
    if (!outermost())
      return error(Code::kInvalidArgument, "group '{}' ends with its outermost one", name());
    TROUPE_RETURN_IF_ERROR(barrier(deadline));
    world_->ended = true;
    return {};
  }
  std::string transport() const override { return "over the host"; }

  Result<std::unique_ptr<DeviceCommunicator>> device_subgroup(std::span<const int> ranks,
                                                              std::string_view name) override {
    auto host = TROUPE_TRY(host_.subgroup(ranks, name));
    return std::unique_ptr<DeviceCommunicator>(
        std::make_unique<StagedCommunicator>(world_, std::move(host), std::string(name)));
  }

 protected:
  const collective::Communicator& host_communicator() const override { return host_; }
  Outcome carry_out(const DeviceCall& call) override {
    if (world_->ended) return {error(Code::kFailedPrecondition, "the communicator was ended")};
    const auto before = host_.counters();
    Outcome outcome{attempt(call)};
    const auto after = host_.counters();
    for (std::size_t i = 0; i < after.size(); ++i) {
      outcome.wire_bytes_sent += after[i].wire_bytes_sent - before[i].wire_bytes_sent;
      outcome.wire_bytes_received += after[i].wire_bytes_received - before[i].wire_bytes_received;
    }
    // The ranks no longer agree where they are. (The first reason stays: often it is the host's
    // own.)
    if (!outcome.status.ok()) host_.abort(outcome.status);
    return outcome;
  }

 private:
  static constexpr const char* kOrdering = "ordering streams";

  Status attempt(const DeviceCall& call) {
    if (call.operation == Operation::kBarrier) {
      TROUPE_RETURN_IF_ERROR(settle(call.deadline));
      return host_.barrier(call.deadline);
    }
    // The host's operations see their own piece alone: of several, those of different operations
    // might look alike.
    const auto bytes = static_cast<std::int64_t>(call.count * call.element_bytes());
    if (bytes > world_->options.chunk_bytes / world_size())
      TROUPE_RETURN_IF_ERROR(compare_calls(host_, call, name()));
    TROUPE_RETURN_IF_ERROR(world_->stage->carry_out(host_, call));
    return asynchronous() ? Status() : settle(call.deadline);
  }
  const TroupeCudaTable& table() const { return world_->options.library->table(); }
  Status check(int code, std::string_view what) const { return cuda_status(table(), code, what); }

  const std::shared_ptr<StagedWorld> world_;
  const std::unique_ptr<collective::Communicator> own_host_;
  collective::Communicator& host_;
};

}  // namespace

Result<std::unique_ptr<DeviceCommunicator>> make_staged_communicator(const StagedOptions& options) {
  TROUPE_CHECK(options.library && options.context && options.host);
  const TroupeCudaTable& table = options.library->table();
  auto world = std::make_shared<StagedWorld>(options);
  world->group->rank = options.host->rank();
  const auto check = [&](int code, std::string_view what) {
    return cuda_status(table, code, what);
  };
  TROUPE_RETURN_IF_ERROR(
      check(table.stream_create(options.context, 1, &world->stream), "creating a stream"));
  for (TroupeCudaEvent** event : {&world->done, &world->followed})
    TROUPE_RETURN_IF_ERROR(
        check(table.event_create(options.context, 0, event), "creating an event"));
  world->stage = TROUPE_TRY(
      HostStage::make(options.library, options.context, world->stream, options.chunk_bytes));
  return std::unique_ptr<DeviceCommunicator>(
      std::make_unique<StagedCommunicator>(std::move(world), nullptr, options.name));
}

}  // namespace troupe::train
