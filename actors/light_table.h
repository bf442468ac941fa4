#pragma once
// The light actors of a host process: one thread runs all of them, each call on the one that it
// names. To the host (host.cpp) the table is its actor instance.
//
// One that throws, or ends, ends alone: its calls end with kActorDied. What must outlive a crash of
// the process is in a LightLog. All of it belongs to the host's thread, except where it says so.

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "actors/context_state.h"
#include "actors/light_executor.h"
#include "actors/light_log.h"
#include "actors/mailbox.h"
#include "troupe/detail/actor_class.h"
#include "troupe/detail/light_actor.h"

namespace troupe::detail {

// The class of the hosts of an actor class: what callers bind to.
class LightClass {
 public:
  explicit LightClass(const ActorClass& of);
  // kUnsupported, by name, for a class whose calls one shared thread cannot run.
  static Status check(const ActorClass& of);
  LightClass(const LightClass&) = delete;
  LightClass& operator=(const LightClass&) = delete;
  const ActorClass& of() const { return of_; }
  const ActorClass& hosts() const { return hosts_; }

 private:
  const ActorClass& of_;
  const std::string type_;
  std::vector<MethodSignature> methods_;
  std::vector<MethodKind> kinds_;
  std::vector<std::uint16_t> groups_;
  ActorClass hosts_;
};

class LightTable final : public ActorInstance {
 public:
  struct Parts {
    const LightClass& light_class;
    const wire::ActorSpec& spec;  // the host's; outlives the table, as what follows does
    std::uint64_t generation = 0;
    NodeId node_id;
    std::shared_ptr<ActorClient> client;
    std::shared_ptr<LightHostExecutor> executor;
    HostServices& host;
    ActorContext& host_context;
    LightLog::Keep keep_log;
    std::function<void(QueuedCall)> run;  // a call that the table held back
    std::string label;                    // of the host
    std::string state_lost;               // why there is no log any more; empty: none was lost
  };
  // Makes all that are made at the start, with what is known of them from an earlier process
  // (`log`, invalid where there is nothing). `arguments`: the host's own, after the hash.
  static Result<std::unique_ptr<LightTable>> create(Parts parts,
                                                    std::span<const std::byte> arguments,
                                                    UniqueFd log);
  ~LightTable() override;

  Result<wire::Bytes> invoke(std::size_t method, std::span<const std::byte> arguments,
                             const DecodeContext& context) override;
  // (Classes with asynchronous methods are refused: LightClass::check.)
  Result<std::unique_ptr<AsyncMethod>> start(std::size_t, std::span<const std::byte>,
                                             const DecodeContext&,
                                             std::shared_ptr<TaskHost>) override {
    return error(Code::kInternal, "light actors have no asynchronous methods");
  }
  // (The table saves each of its actors itself, in invoke().)
  std::optional<SavedState> save() const override { return std::nullopt; }
  Status load(const SavedState& state, const DecodeContext& context) override;
  Status load_lost(const std::string&) override { return {}; }  // make_again() says it to each

  // Takes a call that is to be answered later: who wants to know of an end, and what came before
  // its light actor was made.
  bool hold(QueuedCall& call);
  // Calls that wait for the end of a light actor. Any thread.
  std::size_t watches() const { return watch_count_.load(std::memory_order_relaxed); }
  // (That the host's thread comes to answer is enough.)
  Status health() override { return {}; }

 private:
  enum class State : std::uint8_t { kUnmade, kAlive, kDead };
  class Services;
  // What only some have.
  struct Extras {
    Status death;
    std::shared_ptr<LightExecutor> executor;
    std::unique_ptr<Services> services;
    std::unique_ptr<ActorContext> context;
  };
  struct Light {
    std::unique_ptr<Extras> extras;  // outlives the instance, which may refer to its context
    std::unique_ptr<ActorInstance> instance;
    std::uint32_t calls_since_save = 0;
    State state = State::kUnmade;
    bool leaving = false;
  };
  class Running;

  explicit LightTable(Parts parts);
  Status make_all(std::span<const std::byte> arguments);
  Status make_again(std::uint32_t number, std::span<const std::byte> arguments);
  // Its constructor; a failure of it ends the light actor, and only a log that cannot be written is
  // an error.
  Status make(std::uint32_t number, std::span<const std::byte> arguments);
  Result<wire::Bytes> call(std::uint32_t number, std::size_t method,
                           std::span<const std::byte> arguments, const DecodeContext& context);
  Result<wire::Bytes> call_each(std::span<const std::byte> arguments, const DecodeContext& context);
  // Of those that a call is for, one for which it has to wait.
  std::optional<std::uint32_t> first_that_holds(std::span<const std::byte> batch) const;
  Result<wire::Bytes> own_method(LightMethod method, std::span<const std::byte> arguments,
                                 const DecodeContext& context);
  Status create_one(std::uint32_t number, std::span<const std::byte> constructor_arguments);
  Status end(std::uint32_t number, Status why);
  void bury(std::uint32_t number, Status why);
  void run_held(std::uint32_t number);
  void leave_if_empty();
  Status save_after(std::uint32_t number, std::size_t method);
  Status save(std::uint32_t number);
  Status not_alive(std::uint32_t number) const;
  void forget_late_watchers();
  Extras& extras(std::uint32_t number);
  const std::shared_ptr<LightExecutor>& executor_of(std::uint32_t number);
  ActorContext& context_of(std::uint32_t number);
  DecodeContext decode_context() const {
    return {.client = parts_.client, .takes_references = true};
  }

  const Parts parts_;
  const ActorClass& class_;
  wire::ActorSpec own_spec_;  // what each is told: the host's, without the constructor arguments
  std::vector<Light> lights_;
  LightLog log_;
  std::uint64_t first_index_ = 0;
  LightStart start_ = LightStart::kLater;
  // A process before this one has died, and what it had made one by one is not known.
  bool forgetful_ = false;
  std::size_t dead_count_ = 0;
  std::unordered_map<std::uint32_t, std::deque<QueuedCall>> held_;
  std::size_t held_count_ = 0;
  std::unordered_multimap<std::uint32_t, QueuedCall> watchers_;
  std::atomic<std::size_t> watch_count_{0};  // of watchers_
};

}  // namespace troupe::detail
