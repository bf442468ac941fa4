#include "actors/light_table.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "actors/guarded.h"
#include "actors/session/light_batch.h"
#include "runtime/base/clock.h"
#include "runtime/base/limits.h"
#include "troupe/detail/running_call.h"

namespace troupe::detail {
namespace {

// The error of a call to a light actor that has ended.
Status light_death(const Status& why) {
  return error(Code::kActorDied, "the light actor is dead: {}", why.message());
}

// Those of them that nobody waits for any more are looked for when there are so many.
constexpr std::size_t kWatchersMany = 1024;

std::optional<std::uint32_t> number_in(std::span<const std::byte> arguments) {
  std::uint32_t number = 0;
  if (arguments.size() < sizeof number) return std::nullopt;
  std::memcpy(&number, arguments.data(), sizeof number);
  return number;
}

}  // namespace

LightClass::LightClass(const ActorClass& of)
    : of_(of),
      type_(std::string(of.interface.type) + std::string(kLightSuffix)),
      methods_(of.interface.methods.begin(), of.interface.methods.end()) {
  methods_.insert(methods_.end(), kLightMethods.begin(), kLightMethods.end());
  hosts_.interface = {type_, methods_, true};
  hosts_.constructor_hash = of.constructor_hash;
  kinds_.assign(methods_.size(), MethodKind::kPlain);
  groups_.assign(methods_.size(), 0);
  hosts_.method_kinds = kinds_;
  hosts_.method_groups = groups_;
}

Status LightClass::check(const ActorClass& of) {
  const auto refused = [&](std::string_view what) {
    return error(Code::kUnsupported,
                 "{} {}, and light actors share one thread. Give it a process of its own "
                 "(Isolation::kProcess)",
                 of.interface.type, what);
  };
  for (std::size_t i = 0; i < of.method_kinds.size(); ++i) {
    if (of.method_kinds[i] == MethodKind::kPlain) continue;
    return refused(fmt::format("has the asynchronous method {}", of.interface.methods[i].name));
  }
  if (!of.groups.empty() || of.max_concurrency > 1) return refused("runs several calls at once");
  if (of.max_pending_calls > 0) return refused("has a limit of its own for calls that wait");
  if (of.exactly_once) return refused("declares kExactlyOnce");
  return {};
}

// What a light actor may ask of its process.
class LightTable::Services final : public HostServices {
 public:
  Services(LightTable& table, std::uint32_t number) : table_(table), number_(number) {}

  Status save_now() override {
    // In the constructor there is no instance yet, as in a process of its own.
    if (!table_.lights_[number_].instance) {
      return error(Code::kFailedPrecondition, "save_now() in the actor's constructor");
    }
    if (!table_.class_.saves) {
      return error(Code::kFailedPrecondition, "{} has no save() and load()",
                   table_.class_.interface.type);
    }
    return table_.save(number_);
  }
  void accept_connections(const std::string& purpose, OnConnection) override {
    throw StatusError(error(Code::kUnsupported,
                            "accept_connections(\"{}\") in a light actor: raw connections lead to "
                            "processes. Give this actor a process of its own "
                            "(Isolation::kProcess)",
                            purpose));
  }
  std::stop_token stop_token() const override { return table_.parts_.host.stop_token(); }
  void request_exit() override {
    if (table_.parts_.executor->in_thread() && table_.lights_[number_].state != State::kDead) {
      table_.lights_[number_].leaving = true;  // looked at after the method
    }
    table_.parts_.executor->post([&table = table_, number = number_] {
      (void)table.end(number, Status(Code::kActorDied, "it has ended by itself"));
    });
  }
  Status keep_segment(const std::string& name, int fd) override {
    return table_.parts_.host.keep_segment(name, fd);
  }
  Result<UniqueFd> attach_segment(const std::string& name, Deadline deadline) override {
    return table_.parts_.host.attach_segment(name, deadline);
  }

 private:
  LightTable& table_;
  const std::uint32_t number_;
};

// While it lives, code of one light actor runs.
class LightTable::Running {
 public:
  Running(LightTable& table, std::uint32_t number)
      : executor_(*table.parts_.executor),
        before_(executor_.set_running([&table, number]() -> std::shared_ptr<Executor> {
          return table.executor_of(number);
        })) {}
  ~Running() { executor_.set_running(std::move(before_)); }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  LightHostExecutor& executor_;
  LightHostExecutor::Running before_;
};

LightTable::LightTable(Parts parts)
    : parts_(std::move(parts)),
      class_(parts_.light_class.of()),
      own_spec_(parts_.spec),
      lights_(parts_.spec.light_count),
      log_(parts_.keep_log) {
  own_spec_.constructor_arguments = {};
}

LightTable::~LightTable() {
  for (Light& light : lights_) {
    (void)guarded([&]() -> Status {
      light.instance.reset();
      return {};
    });
    if (light.extras && light.extras->executor) light.extras->executor->end();
  }
}

LightTable::Extras& LightTable::extras(std::uint32_t number) {
  auto& extras = lights_[number].extras;
  if (!extras) extras = std::make_unique<Extras>();
  return *extras;
}

const std::shared_ptr<LightExecutor>& LightTable::executor_of(std::uint32_t number) {
  auto& executor = extras(number).executor;
  if (!executor) {
    executor = std::make_shared<LightExecutor>(
        parts_.executor, [this, number](Status why) { (void)end(number, std::move(why)); });
  }
  return executor;
}

ActorContext& LightTable::context_of(std::uint32_t number) {
  if (!class_.takes_context) return parts_.host_context;
  const auto& executor = executor_of(number);
  Extras& own = extras(number);
  own.services = std::make_unique<Services>(*this, number);
  own.context = Access::make_unique<ActorContext>(ContextState{
      .spec = own_spec_,
      .generation = parts_.generation,
      .node_id = parts_.node_id,
      .node_labels = parts_.host_context.node_labels(),
      .client = parts_.client,
      .executor = executor,
      .host = *own.services,
      .log = Logger::to_stderr(fmt::format("{}[{}]", parts_.label, first_index_ + number)),
      .light_number = number,
      .light_index = first_index_ + number});
  return *own.context;
}

// --- making them

Result<std::unique_ptr<LightTable>> LightTable::create(Parts parts,
                                                       std::span<const std::byte> arguments,
                                                       UniqueFd log) {
  std::unique_ptr<LightTable> table(new LightTable(std::move(parts)));
  if (log.valid()) {
    TROUPE_RETURN_IF_ERROR(table->log_.open(std::move(log)));
  } else {
    table->forgetful_ = table->parts_.generation > 1;
  }
  TROUPE_RETURN_IF_ERROR(table->make_all(arguments));
  return table;
}

Status LightTable::make_all(std::span<const std::byte> arguments) {
  const DecodeContext none;
  Decoder in(arguments, none);
  std::uint8_t start = 0;
  if (!in.get(start) || !in.get(first_index_)) return in.status();
  start_ = static_cast<LightStart>(start);
  const auto rest = arguments.subspan(arguments.size() - in.remaining());
  for (std::uint32_t number = 0; number < lights_.size(); ++number) {
    std::span<const std::byte> own = rest;
    if (start_ == LightStart::kOneEach) {
      std::uint32_t bytes = 0;
      if (!in.get(bytes) || !in.get_view(own, bytes)) return in.status();
    } else if (start_ == LightStart::kLater) {
      const LightLog::Entry known = log_.find(number);
      if (!known.end && !known.arguments) continue;
      own = known.arguments.value_or(std::span<const std::byte>());
    } else if (start_ != LightStart::kAlike) {
      return error(Code::kProtocol, "light actors are to be made in way {}, which is none", start);
    }
    TROUPE_RETURN_IF_ERROR(make_again(number, own));
  }
  leave_if_empty();
  return {};
}

Status LightTable::make_again(std::uint32_t number, std::span<const std::byte> arguments) {
  const LightLog::Entry known = log_.find(number);
  if (known.end) {
    bury(number, *known.end);
    return {};
  }
  TROUPE_RETURN_IF_ERROR(make(number, arguments));
  Light& light = lights_[number];
  if (light.state != State::kAlive) return {};
  const Running running(*this, number);
  Status loaded;
  if (known.state) {
    loaded = guarded([&] {
               return light.instance->load(*known.state, decode_context());
             }).prefixed("load()");
  } else if (!parts_.state_lost.empty()) {
    loaded = guarded([&] {
               return light.instance->load_lost(parts_.state_lost);
             }).prefixed("load_lost()");
  }
  return loaded.ok() ? Status() : end(number, loaded);
}

Status LightTable::make(std::uint32_t number, std::span<const std::byte> arguments) {
  Light& light = lights_[number];
  Result<std::unique_ptr<ActorInstance>> made = [&] {
    const Running running(*this, number);
    return guarded([&] { return class_.create(context_of(number), arguments, decode_context()); });
  }();
  if (!made.ok()) return end(number, made.status().prefixed("its constructor"));
  light.instance = std::move(*made);
  light.state = State::kAlive;
  return {};
}

Status LightTable::create_one(std::uint32_t number,
                              std::span<const std::byte> constructor_arguments) {
  if (lights_[number].state != State::kUnmade) return {};  // asked again
  const DecodeContext none;
  Decoder in(constructor_arguments, none);
  std::uint64_t hash = 0;
  if (!in.get(hash)) return in.status();
  const auto own = constructor_arguments.subspan(sizeof hash);
  if (hash != class_.constructor_hash) {
    TROUPE_RETURN_IF_ERROR(
        end(number, error(Code::kFailedPrecondition,
                          "the constructor of {} takes other arguments here than in the program "
                          "that spawned the actor. Build both from the same sources",
                          class_.interface.type)));
  } else {
    TROUPE_RETURN_IF_ERROR(make(number, own));
    if (lights_[number].state == State::kAlive) {
      if (Status logged = log_.created(number, own); !logged.ok()) {
        return end(number, logged.prefixed("it could not be recorded"));
      }
    }
  }
  if (held_.contains(number)) {
    parts_.executor->post([this, number] { run_held(number); });
  }
  return {};
}

// --- calls

bool LightTable::hold(QueuedCall& call) {
  const std::size_t own_methods = class_.interface.methods.size();
  const bool plain = call.method < own_methods;
  const auto is = [&](LightMethod method) {
    return !plain && call.method - own_methods == static_cast<std::size_t>(method);
  };
  const auto number = is(LightMethod::kEach) ? first_that_holds(call.argument_bytes())
                                             : number_in(call.argument_bytes());
  if (!number || *number >= lights_.size()) return false;
  const State state = lights_[*number].state;
  if (plain && state != State::kUnmade && held_.empty()) return false;  // as good as always
  if (state == State::kUnmade && forgetful_) return false;
  if (is(LightMethod::kCreate)) return false;
  if (is(LightMethod::kWatch)) {
    if (state == State::kDead || call.deadline.passed(SystemClock().now())) return false;
    if (watchers_.size() >= kWatchersMany) forget_late_watchers();
    watchers_.emplace(*number, std::move(call));
    watch_count_ = watchers_.size();
    return true;
  }
  // Not before those that are held already.
  if (state != State::kUnmade && !held_.contains(*number)) return false;
  if (held_count_ >= limits::kLightMailboxCallsMax) return false;
  ++held_count_;
  held_[*number].push_back(std::move(call));
  return true;
}

// (Once that one is made the call comes here again, and may wait for another one.)
std::optional<std::uint32_t> LightTable::first_that_holds(std::span<const std::byte> bytes) const {
  if (start_ != LightStart::kLater) return std::nullopt;  // all were made at the start
  Decoder in(bytes);
  LightBatch batch;
  if (!batch.read(in, lights_.size())) return std::nullopt;
  for (const LightRun& run : batch.runs) {
    for (std::uint32_t number = run.first; number < run.first + run.count; ++number) {
      if (lights_[number].state == State::kUnmade || held_.contains(number)) return number;
    }
  }
  return std::nullopt;
}

void LightTable::run_held(std::uint32_t number) {
  const auto found = held_.find(number);
  if (found == held_.end()) return;
  auto calls = std::move(found->second);
  held_.erase(found);
  held_count_ -= calls.size();
  for (QueuedCall& call : calls) parts_.run(std::move(call));
}

void LightTable::forget_late_watchers() {
  const TimePoint now = SystemClock().now();
  std::vector<QueuedCall> late;
  for (auto it = watchers_.begin(); it != watchers_.end();) {
    if (it->second.deadline.passed(now)) {
      late.push_back(std::move(it->second));
      it = watchers_.erase(it);
    } else {
      ++it;
    }
  }
  watch_count_ = watchers_.size();
  for (QueuedCall& call : late) parts_.run(std::move(call));  // says that it is late
}

Status LightTable::not_alive(std::uint32_t number) const {
  const Light& light = lights_[number];
  if (light.state == State::kDead) return light_death(light.extras->death);
  if (forgetful_) {
    return light_death(Status(
        Code::kActorDied,
        "its process was lost with its node, and with it what it was made of. Light actors of "
        "spawn_many are made again on another node"));
  }
  return error(Code::kOverloaded,
               "{} calls wait for light actors that are not made yet. Wait for answers before "
               "calling on",
               held_count_);
}

Result<wire::Bytes> LightTable::invoke(std::size_t method, std::span<const std::byte> arguments,
                                       const DecodeContext& context) {
  const std::size_t own_methods = class_.interface.methods.size();
  if (method >= own_methods) {
    return own_method(static_cast<LightMethod>(method - own_methods), arguments, context);
  }
  const auto number = number_in(arguments);
  if (!number || *number >= lights_.size()) {
    return error(Code::kProtocol, "a call of a light actor that its host has no room for");
  }
  return call(*number, method, arguments.subspan(sizeof *number), context);
}

Result<wire::Bytes> LightTable::call(std::uint32_t number, std::size_t method,
                                     std::span<const std::byte> arguments,
                                     const DecodeContext& context) {
  Light& light = lights_[number];
  if (light.state != State::kAlive) return not_alive(number);
  Result<wire::Bytes> result = [&] {
    const Running running(*this, number);
    return guarded([&] { return light.instance->invoke(method, arguments, context); });
  }();
  // Also after a failure: the method may have changed the state before it failed.
  if (const Status saved = save_after(number, method); !saved.ok()) {
    result = saved.prefixed("the call ran, but the actor's state could not be saved");
  }
  if (light.leaving) (void)end(number, Status(Code::kActorDied, "it has ended by itself"));
  return result;
}

// Each answers for itself. Those that it does not come to before the deadline, or before the caller
// cancels, do not begin, as calls of their own would not.
Result<wire::Bytes> LightTable::call_each(std::span<const std::byte> arguments,
                                          const DecodeContext& context) {
  Decoder in(arguments);
  LightBatch batch;
  if (!batch.read(in, lights_.size())) return in.status();
  const auto& methods = class_.interface.methods;
  if (batch.method >= methods.size()) {
    return error(Code::kProtocol, "{} has no method {}", class_.interface.type, batch.method);
  }
  RunningCall* const running = RunningCall::current();
  const auto may_begin = [running, clock = SystemClock(),
                          stop = running != nullptr ? running->stop_token() : std::stop_token()] {
    if (stop.stop_requested()) return Status(Code::kCancelled, "the caller cancelled it");
    if (running == nullptr || !running->deadline().passed(clock.now())) return Status();
    return Status(Code::kDeadlineExceeded, "others of its host had their turn until then");
  };
  std::span<const std::byte> own = arguments.subspan(arguments.size() - in.remaining());
  Encoder out;
  for (const LightRun& run : batch.runs) {
    for (std::uint32_t number = run.first; number < run.first + run.count; ++number) {
      if (batch.one_each && !get_light_arguments(in, own)) return in.status();
      const Status may = may_begin();
      Result<wire::Bytes> result = may.ok() ? call(number, batch.method, own, context) : may;
      if (!result.ok()) {
        result = std::move(result)
                     .with("actor", parts_.label)
                     .with("method", MethodLabel{class_.interface.type, methods[batch.method].name})
                     .with("node", parts_.node_id.brief());
      }
      put_light_answer(out, result);
    }
  }
  return out.take();
}

Result<wire::Bytes> LightTable::own_method(LightMethod method, std::span<const std::byte> arguments,
                                           const DecodeContext& context) {
  if (method == LightMethod::kEach) return call_each(arguments, context);
  const DecodeContext none;
  Decoder in(arguments, none);
  std::uint32_t number = 0;
  if (!in.get(number)) return in.status();
  if (number >= lights_.size()) {
    return error(Code::kProtocol, "a call of a light actor that its host has no room for");
  }
  switch (method) {
    case LightMethod::kCreate: {
      wire::Bytes constructor_arguments;
      if (!Codec<wire::Bytes>::decode(in, constructor_arguments)) return in.status();
      TROUPE_RETURN_IF_ERROR(create_one(number, constructor_arguments));
      return wire::Bytes{};
    }
    case LightMethod::kEnd: {
      std::string reason;
      if (!Codec<std::string>::decode(in, reason)) return in.status();
      if (lights_[number].state == State::kUnmade) return not_alive(number);
      TROUPE_RETURN_IF_ERROR(end(number, Status(Code::kActorDied, std::move(reason))));
      return wire::Bytes{};
    }
    case LightMethod::kWatch: {  // held, while it lives
      if (lights_[number].state != State::kDead) return not_alive(number);
      return encode_value(lights_[number].extras->death.message());
    }
    case LightMethod::kEach:
      break;  // above
  }
  return error(Code::kProtocol, "hosts of light actors have no such method");
}

// --- saving

Status LightTable::save_after(std::uint32_t number, std::size_t method) {
  if (!class_.saves || class_.method_is_const[method]) return {};
  const std::uint32_t every = class_.save_policy.every_calls;
  if (every == 0 || ++lights_[number].calls_since_save < every) return {};
  return save(number);
}

Status LightTable::save(std::uint32_t number) {
  Light& light = lights_[number];
  std::optional<SavedState> state;
  {
    const Running running(*this, number);
    TROUPE_RETURN_IF_ERROR(guarded([&]() -> Status {
                             state = std::as_const(*light.instance).save();
                             return {};
                           }).prefixed("save()"));
  }
  light.calls_since_save = 0;
  return log_.saved(number, *state);
}

Status LightTable::load(const SavedState&, const DecodeContext&) {
  return error(Code::kInternal, "hosts of light actors have no saved state of their own");
}

// --- ends

Status LightTable::end(std::uint32_t number, Status why) {
  if (lights_[number].state == State::kDead) return {};
  // First of all, so that no next process brings it back.
  TROUPE_RETURN_IF_ERROR(log_.ended(number, why).prefixed("the end of a light actor"));
  bury(number, std::move(why));
  leave_if_empty();
  return {};
}

void LightTable::bury(std::uint32_t number, Status why) {
  Light& light = lights_[number];
  light.state = State::kDead;
  ++dead_count_;
  {
    const Running running(*this, number);
    (void)guarded([&]() -> Status {
      light.instance.reset();
      return {};
    });
  }
  Extras& own = extras(number);
  if (own.executor) own.executor->end();
  own.context.reset();
  own.services.reset();
  own.executor.reset();
  own.death = std::move(why);
  const auto [begin, end] = watchers_.equal_range(number);
  if (begin == end) return;
  auto calls = std::make_shared<std::vector<QueuedCall>>();
  for (auto it = begin; it != end; ++it) calls->push_back(std::move(it->second));
  watchers_.erase(begin, end);
  watch_count_ = watchers_.size();
  parts_.executor->post([this, calls] {
    for (QueuedCall& call : *calls) parts_.run(std::move(call));
  });
}

// A host of which nobody lives, and nobody can come, holds resources for nothing. Where all have
// failed to start it stays, to say why.
void LightTable::leave_if_empty() {
  if (dead_count_ < lights_.size()) return;
  const bool failed = std::all_of(lights_.begin(), lights_.end(), [](const Light& light) {
    return light.extras->death.code() != Code::kActorDied;
  });
  if (failed) return;
  parts_.executor->post([&host = parts_.host] { host.request_exit(); });
}

}  // namespace troupe::detail
