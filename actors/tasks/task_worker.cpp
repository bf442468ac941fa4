#include "actors/tasks/task_worker.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <utility>

#include "actors/client.h"
#include "actors/stop_words.h"
#include "actors/tasks/task_pool.h"
#include "runtime/base/status.h"
#include "runtime/net/event_loop.h"
#include "troupe/detail/access.h"
#include "troupe/detail/running_call.h"
#include "troupe/detail/task_core.h"

namespace troupe::detail {
namespace {

// A task that runs longer keeps no others behind it.
constexpr Duration kLookEvery = std::chrono::milliseconds(5);
// So often it looks after the last task.
constexpr int kIdleLooksMax = 40;

constexpr std::uint64_t kConstructorHash = TypeHash::of("TaskWorker(string)");
constexpr std::array<MethodSignature, 2> kMethods{
    MethodSignature{"run", TypeHash::of("TaskWorker::run 1"), "bytes (function, arguments)"},
    MethodSignature{"stream", TypeHash::of("TaskWorker::stream 1"),
                    "stream of bytes (function, arguments)"}};
constexpr std::array<bool, 2> kIsConst{true, true};
constexpr std::array<MethodKind, 2> kKinds{MethodKind::kPlain, MethodKind::kStream};
constexpr std::array<std::uint16_t, 2> kGroups{0, 0};
constexpr ActorInterface kInterface{kTaskWorkerType, kMethods, false, false};
constexpr std::string_view kNotBegun = "a worker gave the task back: another one takes long there";

// Looks, while tasks come, whether one takes long.
class LongTasks : public std::enable_shared_from_this<LongTasks> {
 public:
  explicit LongTasks(net::EventLoop& loop) : loop_(loop) {}
  void watch(CallControl& control) { control_ = &control; }

  void begin() {
    running_.store(++begun_, std::memory_order_seq_cst);
    if (!looking_.exchange(true, std::memory_order_seq_cst)) {
      loop_.post([weak = weak_from_this()] {
        if (const auto self = weak.lock()) self->look_later();
      });
    }
  }
  void end() { running_.store(0, std::memory_order_release); }

 private:
  void look_later() {
    loop_.call_after(kLookEvery, [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->look();
    });
  }
  void look() {
    const std::uint64_t running = running_.load(std::memory_order_acquire);
    const bool goes_on = running != 0 && running == seen_;
    idle_looks_ = running == 0 ? idle_looks_ + 1 : 0;
    seen_ = running;
    if (goes_on && control_ != nullptr) control_->refuse_waiting(not_begun());
    if (idle_looks_ < kIdleLooksMax) return look_later();
    idle_looks_ = 0;
    looking_.store(false, std::memory_order_seq_cst);
    // (One may have begun just before.)
    if (running_.load(std::memory_order_seq_cst) != 0 && !looking_.exchange(true)) look_later();
  }

  net::EventLoop& loop_;
  CallControl* control_ = nullptr;
  std::uint64_t begun_ = 0;  // the actor's thread's
  std::atomic<std::uint64_t> running_{0};
  std::atomic<bool> looking_{false};
  // The loop's thread's.
  std::uint64_t seen_ = 0;
  int idle_looks_ = 0;
};

// While a stream waits for its reader others may have its worker's CPUs, as while a task waits in
// get(): the reader may wait for what has no room otherwise.
class StreamWaits : public std::enable_shared_from_this<StreamWaits> {
 public:
  explicit StreamWaits(ClientPtr client) : client_(std::move(client)) {}

  void set(bool waits) {
    const std::lock_guard lock(mutex_);
    ++changes_;
    waits_ = waits;
    if (!waits && std::exchange(lent_, false)) client_->lend_cpus(true);
    if (waits && !std::exchange(looking_, true)) look_later_locked();
  }

 private:
  void look_later_locked() {
    client_->loop().call_after(kLongWait, [weak = weak_from_this(), seen = changes_] {
      if (const auto self = weak.lock()) self->look(seen);
    });
  }
  void look(std::uint64_t seen) {
    const std::lock_guard lock(mutex_);
    looking_ = waits_ && seen != changes_;
    if (looking_) return look_later_locked();
    if (waits_ && !std::exchange(lent_, true)) client_->lend_cpus(false);
  }

  const ClientPtr client_;
  std::mutex mutex_;
  std::uint64_t changes_ = 0;
  bool waits_ = false;
  bool looking_ = false;
  bool lent_ = false;
};

// A failure that the function itself has told, as is_of_function() knows it.
Result<Bytes> of_function(Result<Bytes> result, std::string_view name) {
  if (result.ok()) return result;
  return result.status().with(kTaskContext, name);
}

class StreamOfTask final : public AsyncMethod {
 public:
  StreamOfTask(std::unique_ptr<AsyncMethod> stream, std::string_view name, ClientPtr client)
      : stream_(std::move(stream)),
        name_(name),
        waits_(std::make_shared<StreamWaits>(std::move(client))) {}
  ~StreamOfTask() override { waits_->set(false); }
  std::coroutine_handle<> coroutine() const override { return stream_->coroutine(); }
  bool done() const override { return stream_->done(); }
  Result<Bytes> result() override { return of_function(stream_->result(), name_); }
  std::optional<Result<Bytes>> take_item() override { return stream_->take_item(); }
  void waits(bool begins) override { waits_->set(begins); }

 private:
  const std::unique_ptr<AsyncMethod> stream_;
  const std::string_view name_;
  const std::shared_ptr<StreamWaits> waits_;
};

class TaskWorker final : public ActorInstance {
 public:
  TaskWorker(ActorContext& context, std::span<const TaskFunction> functions, ClientPtr client)
      : context_(context),
        functions_(functions),
        client_(std::move(client)),
        long_tasks_(std::make_shared<LongTasks>(client_->loop())) {}

  Result<Bytes> invoke(std::size_t, std::span<const std::byte> arguments,
                       const DecodeContext& decode) override {
    const TaskFunction* const function = TROUPE_TRY(find(arguments, /*streams=*/false));
    struct Running {
      explicit Running(LongTasks& of) : tasks(of) { tasks.begin(); }
      ~Running() { tasks.end(); }
      LongTasks& tasks;
    } const running(*long_tasks_);
    return of_function(function->invoke(context_, arguments.subspan(sizeof function->id), decode),
                       function->name);
  }
  Result<std::unique_ptr<AsyncMethod>> start(std::size_t, std::span<const std::byte> arguments,
                                             const DecodeContext& decode,
                                             std::shared_ptr<TaskHost> host) override {
    const TaskFunction* const function = TROUPE_TRY(find(arguments, /*streams=*/true));
    auto stream = TROUPE_TRY(
        function->start(context_, arguments.subspan(sizeof function->id), decode, std::move(host)));
    return std::unique_ptr<AsyncMethod>(
        std::make_unique<StreamOfTask>(std::move(stream), function->name, client_));
  }
  void begin(CallControl& control) override { long_tasks_->watch(control); }

  std::optional<SavedState> save() const override { return std::nullopt; }
  Status load(const SavedState&, const DecodeContext&) override {
    return Status(Code::kInternal, "a task worker saves nothing");
  }
  Status load_lost(const std::string&) override { return {}; }
  Status health() override { return {}; }

 private:
  Result<const TaskFunction*> find(std::span<const std::byte> arguments, bool streams) const {
    Decoder in(arguments);
    std::uint64_t id = 0;
    if (!in.get(id)) return in.status();
    for (const TaskFunction& function : functions_) {
      if (function.id == id && (function.start != nullptr) == streams) return &function;
    }
    return error(Code::kNotFound,
                 "the worker's program has no such task: list the function in "
                 "host_main(argc, argv, troupe::tasks<…>), with the same parameters and result");
  }

  ActorContext& context_;
  const std::span<const TaskFunction> functions_;
  const ClientPtr client_;
  const std::shared_ptr<LongTasks> long_tasks_;
};

}  // namespace

const ActorInterface& task_worker_interface() { return kInterface; }

Bytes task_worker_arguments(const WorkerRoom& room) {
  Encoder out;
  out.put(kConstructorHash);
  Codec<std::string>::encode(out, room.key);
  Codec<std::map<std::string, double>>::encode(out, room.resources);
  return out.take();
}

bool WorkerRoom::holds(const WorkerRoom& other) const {
  if (key == other.key) return true;
  return other.anywhere && std::ranges::all_of(other.resources, [this](const auto& wanted) {
           const auto own = resources.find(wanted.first);
           return wanted.second == 0 || (own != resources.end() && wanted.second <= own->second);
         });
}

bool is_of_function(const Status& status) { return status.context(kTaskContext).has_value(); }
Status not_begun() { return Status(Code::kAborted, std::string(kNotBegun)); }
bool is_not_begun(const Status& status) {
  return status.code() == Code::kAborted && status.message() == kNotBegun;
}

bool is_worker_leaving(const Status& status) {
  return status.code() == Code::kActorDied && (status.message().starts_with(kTakesNoNewCalls) ||
                                               status.message() == kStoppedBeforeThisCall);
}

ActorClass task_worker_class(CreateTaskWorker create) {
  ActorClass own;
  own.interface = kInterface;
  own.constructor_hash = kConstructorHash;
  own.method_is_const = kIsConst;
  own.method_kinds = kKinds;
  own.method_groups = kGroups;
  own.may_wait = true;
  own.create = create;
  return own;
}

Result<std::unique_ptr<ActorInstance>> make_task_worker(ActorContext& context,
                                                        std::span<const TaskFunction> functions,
                                                        std::span<const std::byte> arguments) {
  Decoder in(arguments);
  WorkerRoom room;
  if (!Codec<std::string>::decode(in, room.key) ||
      !Codec<std::map<std::string, double>>::decode(in, room.resources)) {
    return in.status();
  }
  const ClientPtr client = TROUPE_TRY(Access::usable(context));
  client->tasks().set_worker(std::move(room), functions, context);
  return std::unique_ptr<ActorInstance>(std::make_unique<TaskWorker>(context, functions, client));
}

}  // namespace troupe::detail
