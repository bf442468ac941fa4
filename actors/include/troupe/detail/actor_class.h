#pragma once
// An actor class behind one interface, so that the host (host.cpp) is not a template: how to make
// an instance, run a method on bytes, save and load its state.

#include <concepts>
#include <coroutine>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "troupe/concurrency.h"
#include "troupe/detail/constructor.h"
#include "troupe/detail/method_table.h"
#include "troupe/save_policy.h"
#include "troupe/status.h"
#include "troupe/stream.h"
#include "troupe/task.h"

namespace troupe {

template <typename... ActorTypes>
struct ActorList {};
// The actor classes that a program can host: host_main(argc, argv, troupe::actors<A, B>).
template <typename... ActorTypes>
inline constexpr ActorList<ActorTypes...> actors{};

namespace detail {

// What save() returned, as bytes.
struct SavedState {
  std::uint32_t version = 0;  // the class's kStateVersion
  std::uint64_t type_hash = 0;
  Bytes bytes;
  // Of an actor that runs calls exactly once: what it has answered (call_server.h). What several
  // saves said, one behind the other, is what they say together.
  Bytes answered = {};
  // `answered` is what came since the save before, and not all of it.
  bool answered_since = false;
};

// A call of an asynchronous method: a coroutine and its arguments. Actor's thread.
class AsyncMethod {
 public:
  virtual ~AsyncMethod() = default;
  // What is to be resumed to begin it, and after each co_yield.
  virtual std::coroutine_handle<> coroutine() const = 0;
  virtual bool done() const = 0;
  // Once, after done(). Lets through what the method threw.
  virtual Result<Bytes> result() = 0;
  // What a stream has yielded since.
  virtual std::optional<Result<Bytes>> take_item() = 0;
  // A stream waits until its caller takes more; it goes on, or ends.
  virtual void waits(bool begins) { (void)begins; }
};

// What an actor's process does about its calls besides running them.
class CallControl {
 public:
  // Ends the calls that have come and have not begun, with this. Loop's thread.
  virtual void refuse_waiting(const Status& why) = 0;

 protected:
  ~CallControl() = default;
};

// A living actor of some class. One thread at a time, but for methods of groups with threads of
// their own (concurrency.h). Methods of the user's class may throw; these let it through.
class ActorInstance {
 public:
  virtual ~ActorInstance() = default;
  // Decodes the arguments, runs the method, encodes its result.
  virtual Result<Bytes> invoke(std::size_t method, std::span<const std::byte> arguments,
                               const DecodeContext& context) = 0;
  // Of an asynchronous method: decodes the arguments and makes its coroutine, which is not begun.
  // `arguments` outlive it.
  virtual Result<std::unique_ptr<AsyncMethod>> start(std::size_t method,
                                                     std::span<const std::byte> arguments,
                                                     const DecodeContext& context,
                                                     std::shared_ptr<TaskHost> host) = 0;
  // Nothing where the class has no save().
  virtual std::optional<SavedState> save() const = 0;
  virtual Status load(const SavedState& state, const DecodeContext& context) = 0;
  // Instead of load(), where what was saved is lost; `why` in words. Ok where the class has no
  // load_lost().
  virtual Status load_lost(const std::string& why) = 0;
  // What the class's `Status health()` or `bool healthy()` says; ok where it has neither.
  virtual Status health() = 0;
  // Before its first call. `control` outlives it.
  virtual void begin(CallControl& control) { (void)control; }
};

struct ActorClass {
  ActorInterface interface;
  std::uint64_t constructor_hash = 0;
  bool saves = false;
  bool has_load_lost = false;
  SavePolicy save_policy;
  bool exactly_once = false;
  // Whether method i leaves the state as it is (it is const): then nothing is saved after it.
  std::span<const bool> method_is_const;
  std::span<const MethodKind> method_kinds;
  // concurrency.h: the group of each method, 0 being the actor's own; the limits of groups 1, 2, ….
  std::span<const std::uint16_t> method_groups;
  std::span<const GroupLimits> groups;
  int max_concurrency = 1;
  std::size_t max_pending_calls = 0;  // 0: the mailbox's own
  bool takes_context = true;          // the constructor wants an ActorContext
  bool may_wait = false;  // in get(), also in an asynchronous method: no other one has its thread
  Result<std::unique_ptr<ActorInstance>> (*create)(ActorContext& context,
                                                   std::span<const std::byte> arguments,
                                                   const DecodeContext& decode) = nullptr;
};

// Saved state that this program's class does not take.
Status other_state_error(std::string_view type, std::uint32_t saved, std::uint32_t own);
Status no_load_error(std::string_view type);
Status unhealthy_error(std::string_view type);

// --- methods

// What the result refers to is kept until the caller has it: of the method that runs on this
// thread.
void lend(std::vector<std::shared_ptr<const void>> kept);

template <typename V>
Result<Bytes> encode_result(V&& value) {
  Encoder out;
  Codec<std::remove_cvref_t<V>>::encode(out, value);
  if (!out.kept().empty()) lend(std::move(out.kept()));
  return out.take();
}

// What a method, or a function, returns, as it travels: nothing, a Status, a Result or a value.
template <typename Traits, typename F>
Result<Bytes> encode_returned(F&& call) {
  using Returned = std::remove_cvref_t<typename Traits::Returned>;
  if constexpr (std::is_void_v<Returned>) {
    call();
    return Bytes{};
  } else if constexpr (std::is_same_v<Returned, Status>) {
    TROUPE_RETURN_IF_ERROR(call());
    return Bytes{};
  } else if constexpr (!std::is_same_v<Returned, typename Traits::Value>) {
    auto result = call();  // Result<V>
    if (!result.ok()) return result.status();
    return encode_result(*result);
  } else {
    return encode_result(call());
  }
}

template <typename T, auto Method>
Result<Bytes> invoke_method(T& actor, std::span<const std::byte> arguments,
                            const DecodeContext& context) {
  using Traits = MethodTraits<Method>;
  typename Traits::Stored stored;
  TROUPE_RETURN_IF_ERROR(decode_arguments(arguments, context, stored));
  // Each argument as the parameter wants it: moved for T and T&&, the lvalue for const T&.
  const auto call = [&]<typename... P>(std::tuple<P...>*) -> decltype(auto) {
    return std::apply(
        [&](auto&... a) -> decltype(auto) { return (actor.*Method)(static_cast<P&&>(a)...); },
        stored);
  };
  return encode_returned<Traits>(
      [&]() -> decltype(auto) { return call(static_cast<typename Traits::Parameters*>(nullptr)); });
}

template <typename T, auto Method>
class AsyncMethodOf final : public AsyncMethod {
  using Traits = MethodTraits<Method>;
  using Coroutine = std::remove_cvref_t<typename Traits::Returned>;  // Task<…> or Stream<…>

 public:
  AsyncMethodOf(T& actor, typename Traits::Stored stored, std::shared_ptr<TaskHost> host)
      : stored_(std::move(stored)),
        coroutine_(call(actor, stored_, static_cast<typename Traits::Parameters*>(nullptr))) {
    // (A method may return a coroutine that it has moved from.)
    if (coroutine_.coroutine()) coroutine_.coroutine().promise().host = std::move(host);
  }
  std::coroutine_handle<> coroutine() const override { return coroutine_.coroutine(); }
  bool done() const override { return coroutine_.done(); }
  Result<Bytes> result() override {
    if constexpr (Traits::kKind == MethodKind::kStream) {
      coroutine_.take();
      return Bytes{};
    } else {
      auto result = coroutine_.take();
      if constexpr (std::is_void_v<typename Traits::Value>) {
        TROUPE_RETURN_IF_ERROR(result);
        return Bytes{};
      } else {
        if (!result.ok()) return result.status();
        return encode_result(*result);
      }
    }
  }
  std::optional<Result<Bytes>> take_item() override {
    if constexpr (Traits::kKind == MethodKind::kStream) {
      return coroutine_.take_item();
    } else {
      return std::nullopt;
    }
  }

 private:
  template <typename... P>
  static Coroutine call(T& actor, typename Traits::Stored& stored, std::tuple<P...>*) {
    return std::apply([&](auto&... a) { return (actor.*Method)(static_cast<P&&>(a)...); }, stored);
  }
  // The coroutine's references lead here: it goes first.
  typename Traits::Stored stored_;
  Coroutine coroutine_;
};

template <typename T, auto Method>
Result<std::unique_ptr<AsyncMethod>> start_method(T& actor, std::span<const std::byte> arguments,
                                                  const DecodeContext& context,
                                                  std::shared_ptr<TaskHost> host) {
  typename MethodTraits<Method>::Stored stored;
  TROUPE_RETURN_IF_ERROR(decode_arguments(arguments, context, stored));
  return std::unique_ptr<AsyncMethod>(
      std::make_unique<AsyncMethodOf<T, Method>>(actor, std::move(stored), std::move(host)));
}

template <typename T, typename List>
struct MethodInvokers;
template <typename T, auto... Methods>
struct MethodInvokers<T, MethodList<Methods...>> {
  using Invoke = Result<Bytes> (*)(T&, std::span<const std::byte>, const DecodeContext&);
  using Start = Result<std::unique_ptr<AsyncMethod>> (*)(T&, std::span<const std::byte>,
                                                         const DecodeContext&,
                                                         std::shared_ptr<TaskHost>);
  static constexpr bool is_plain(MethodKind kind) { return kind == MethodKind::kPlain; }
  template <auto Method>
  static constexpr Invoke invoke_of() {
    if constexpr (is_plain(MethodTraits<Method>::kKind)) return &invoke_method<T, Method>;
    return nullptr;
  }
  template <auto Method>
  static constexpr Start start_of() {
    if constexpr (!is_plain(MethodTraits<Method>::kKind)) return &start_method<T, Method>;
    return nullptr;
  }
  // One of the two for each method.
  static constexpr std::array<Invoke, sizeof...(Methods)> kInvoke{invoke_of<Methods>()...};
  static constexpr std::array<Start, sizeof...(Methods)> kStart{start_of<Methods>()...};
  static constexpr std::array<MethodKind, sizeof...(Methods)> kKinds{
      MethodTraits<Methods>::kKind...};
  static constexpr std::array<bool, sizeof...(Methods)> kIsConst{
      MethodTraits<Methods>::kIsConst...};
};
template <typename T>
using InvokersOf = MethodInvokers<T, std::remove_cvref_t<decltype(T::methods)>>;

// --- saved state

// What the actor does where the state that it had saved is lost with its node: `load_lost()` or
// `load_lost(const std::string& why)`, void or Status, after its constructor.
template <typename T>
concept HasLoadLostWhy = requires(T& actor, const std::string& why) {
  actor.load_lost(why);
};
template <typename T>
concept HasLoadLost = HasLoadLostWhy<T> || requires(T& actor) {
  actor.load_lost();
};
template <typename T>
using StateOf = std::remove_cvref_t<decltype(std::declval<const T&>().save())>;

template <typename T>
constexpr std::uint32_t state_version() {
  if constexpr (requires { T::kStateVersion; }) return T::kStateVersion;
  return 0;
}
template <typename T>
constexpr SavePolicy save_policy() {
  if constexpr (requires { T::kSavePolicy; }) return T::kSavePolicy;
  return SavePolicy::every_call();
}

template <typename T>
constexpr bool one_at_a_time() {
  for (const MethodKind kind : InvokersOf<T>::kKinds) {
    if (kind != MethodKind::kPlain) return false;
  }
  return GroupTableOf<T>::kGroups.empty() && max_concurrency_of<T>() == 1;
}
template <typename T>
constexpr bool exactly_once() {
  if constexpr (requires { T::kExactlyOnce; }) {
    if constexpr (T::kExactlyOnce) {
      static_assert(HasSave<T> && save_policy<T>().every_calls == 1,
                    "kExactlyOnce needs save() and load(), and the save policy every_call: what "
                    "was answered is saved with what the call changed");
      static_assert(one_at_a_time<T>(),
                    "kExactlyOnce needs calls that run one at a time: no asynchronous methods, no "
                    "concurrency groups, kMaxConcurrency 1. A save in the middle of another call "
                    "would keep half of what it does");
    }
    return T::kExactlyOnce;
  } else {
    return false;
  }
}

template <typename T>
constexpr std::size_t max_pending_calls_of() {
  if constexpr (requires { T::kMaxPendingCalls; }) {
    static_assert(T::kMaxPendingCalls >= 1 && T::kMaxPendingCalls <= kPendingCallsMax,
                  "kMaxPendingCalls is from 1 to 10,000");
    return T::kMaxPendingCalls;
  } else {
    return 0;
  }
}

template <typename F>
Status call_to_status(F&& f) {
  if constexpr (std::is_void_v<std::invoke_result_t<F>>) {
    f();
    return {};
  } else {
    return f();
  }
}

template <typename T>
concept HasHealth = requires(T& actor) {
  { actor.health() } -> std::same_as<Status>;
};
template <typename T>
concept HasHealthy = requires(T& actor) {
  { actor.healthy() } -> std::same_as<bool>;
};

template <typename T>
class TypedActor final : public ActorInstance {
 public:
  explicit TypedActor(std::unique_ptr<T> actor) : actor_(std::move(actor)) {}

  Result<Bytes> invoke(std::size_t method, std::span<const std::byte> arguments,
                       const DecodeContext& context) override {
    return InvokersOf<T>::kInvoke[method](*actor_, arguments, context);
  }
  Result<std::unique_ptr<AsyncMethod>> start(std::size_t method,
                                             std::span<const std::byte> arguments,
                                             const DecodeContext& context,
                                             std::shared_ptr<TaskHost> host) override {
    return InvokersOf<T>::kStart[method](*actor_, arguments, context, std::move(host));
  }

  std::optional<SavedState> save() const override {
    if constexpr (HasSave<T>) {
      using State = StateOf<T>;
      static_assert(check_serialisable<State, TypedActor>());
      static_assert(
          requires(T & actor, State state) { actor.load(std::move(state)); },
          "an actor with save() needs `void load(STATE)` (or `Status load(STATE)`) for "
          "what save() returns");
      return SavedState{state_version<T>(), Codec<State>::kHash,
                        encode_value<State>(std::as_const(*actor_).save())};
    } else {
      return std::nullopt;
    }
  }

  Status load(const SavedState& state, const DecodeContext& context) override {
    if constexpr (HasSave<T>) {
      using State = StateOf<T>;
      if (state.version == state_version<T>() && state.type_hash == Codec<State>::kHash) {
        State value = TROUPE_TRY(decode_value<State>(state.bytes, context));
        return call_to_status([&] { return actor_->load(std::move(value)); });
      }
      if constexpr (requires(T & a, std::span<const std::byte> b) { a.load_version(0u, b); }) {
        return actor_->load_version(state.version, std::span<const std::byte>(state.bytes));
      } else {
        return other_state_error(kTypeName<T>, state.version, state_version<T>());
      }
    } else {
      (void)state, (void)context;
      return no_load_error(kTypeName<T>);
    }
  }

  Status load_lost(const std::string& why) override {
    if constexpr (HasLoadLostWhy<T>) {
      return call_to_status([&] { return actor_->load_lost(why); });
    } else if constexpr (HasLoadLost<T>) {
      return call_to_status([&] { return actor_->load_lost(); });
    } else {
      (void)why;
      return {};
    }
  }

  Status health() override {
    if constexpr (HasHealth<T>) {
      return actor_->health();
    } else if constexpr (HasHealthy<T>) {
      if (actor_->healthy()) return {};
      return unhealthy_error(kTypeName<T>);
    } else {
      return {};
    }
  }

 private:
  std::unique_ptr<T> actor_;
};

template <typename T>
Result<std::unique_ptr<ActorInstance>> create_actor(ActorContext& context,
                                                    std::span<const std::byte> arguments,
                                                    const DecodeContext& decode) {
  using Traits = ConstructorTraits<T>;
  static_assert(Traits::kGoodArguments && Traits::check());
  typename Traits::Stored stored;
  TROUPE_RETURN_IF_ERROR(decode_arguments(arguments, decode, stored).prefixed("constructor"));
  return std::unique_ptr<ActorInstance>(
      std::make_unique<TypedActor<T>>(Traits::make(context, std::move(stored))));
}

template <typename T>
constexpr ActorClass actor_class() {
  static_assert(
      HasSave<T> || !requires(T & actor) { actor.save(); },
      "save() is const: it is called between calls and changes nothing");
  static_assert(
      HasSave<T> || !requires { &T::load; },
      "an actor with load() needs a public `STATE save() const`: nothing is saved without");
  static_assert(HasSave<T> || !HasLoadLost<T>,
                "load_lost() is for actors with save() and load(): nothing of others is lost");
  return {.interface = kActorInterface<T>,
          .constructor_hash = ConstructorTraits<T>::kHash,
          .saves = HasSave<T>,
          .has_load_lost = HasLoadLost<T>,
          .save_policy = save_policy<T>(),
          .exactly_once = exactly_once<T>(),
          .method_is_const = InvokersOf<T>::kIsConst,
          .method_kinds = InvokersOf<T>::kKinds,
          .method_groups = GroupTableOf<T>::kGroupOf,
          .groups = GroupTableOf<T>::kGroups,
          .max_concurrency = max_concurrency_of<T>(),
          .max_pending_calls = max_pending_calls_of<T>(),
          .takes_context = ConstructorTraits<T>::takes_context(),
          .create = &create_actor<T>};
}

template <typename... T>
std::vector<ActorClass> actor_classes(ActorList<T...>) {
  static_assert(
      names_are_unique(std::array<std::string_view, sizeof...(T)>{ActorClassTraits<T>::kType...}),
      "two actor classes of a program have one name, or act as one class (ActsAs): processes and "
      "logs could not tell them apart");
  return {actor_class<T>()...};
}

}  // namespace detail
}  // namespace troupe
