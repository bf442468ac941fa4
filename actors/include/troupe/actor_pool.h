#pragma once
// ActorPool<T>: actors of one class that are alike; a call goes to the one that is free first.
//
//   auto pool = ActorPool<Scorer>::create(cluster, {.member = {.num_cpus = 1},
//                                                   .members_min = 1, .members_max = 8}).value();
//   Result<double> score = pool.call<&Scorer::score>("text").get();
//   auto scores = pool.map<&Scorer::score>(texts);          // at most a window of them under way
//   while (auto item = scores.next().get().value()) …        // item->index, item->result
//
// - A member that dies for good is replaced; its calls end as calls of a handle do (kActorDied,
//   kUnavailable: it may have run), unless they may run twice: with CallOptions::retry they go to
//   another member, also where their member is only restarted.
// - More members come when calls wait, and go when they have nothing to do (PoolOptions).
// - Where none can be placed, status() says why, and calls wait until their deadline, which says it
//   too (kDeadlineExceeded). After each failure the next one is tried later, 10 s at most.
//
// Members are the pool's: they end when its last copy goes and the calls that they have are done,
// or by stop(), and with who created them as other actors. Calls to one that is drained elsewhere
// (`troupe drain`, Actors::stop) end as calls of its handle do. Light actors make no pool: those of
// a host share one thread (kUnsupported). Thread-safe.

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "troupe/actors.h"
#include "troupe/detail/access.h"
#include "troupe/detail/durations.h"
#include "troupe/detail/method_call.h"
#include "troupe/detail/mutex.h"
#include "troupe/detail/pool.h"
#include "troupe/future.h"
#include "troupe/handle.h"
#include "troupe/info.h"

namespace troupe {

struct PoolOptions {
  // Of each member. Where it has a name, that of a member has "-1", "-2", … behind it.
  ActorOptions member = {};
  // The least of them from the start; more when calls wait.
  std::size_t members_min = 1;
  std::size_t members_max = 1;
  // Calls under way at a member at once. The others wait here.
  std::size_t calls_per_member = 1;
  // Calls that may wait. Beyond them call() ends with kOverloaded; or, with waits_for_room, it
  // returns when there is room or its time is over (except on a thread of Troupe's and in an
  // asynchronous method, which must not wait: kOverloaded there).
  std::size_t waiting_max = 1'000;
  bool waits_for_room = false;
  // A member is added for calls that have waited so long.
  std::chrono::milliseconds grow_after{20};
  // One of more than members_min that had nothing to do for so long ends, drained (Actors::stop).
  std::chrono::milliseconds shrink_after{10'000};
  // A call with CallOptions::retry comes to so many members at most: what kills each member that it
  // comes to does not kill all of them.
  int tries_max = 3;
};

struct PoolMember {
  ActorId actor_id;
  ActorState state = ActorState::kPending;
  std::size_t calls = 0;  // under way
  bool ending = false;    // it is drained, and takes no more
  std::string why;        // where it does not run: what it waits for
};
struct PoolStatus {
  std::vector<PoolMember> members;
  std::size_t calls_under_way = 0;
  std::size_t calls_waiting = 0;
  // Why the last member that was lost, or could not be placed, was (no resources:
  // kResourceExhausted); ok again once one that came after it has done a call.
  Status trouble;
};

struct MapOptions {
  // How many inputs may be under way, or done and not taken yet. 0: twice what the pool's members
  // have at once. They wait beside PoolOptions::waiting_max.
  std::size_t window = 0;
  bool in_order = true;  // of the inputs; else as they come
};

template <typename R>
struct MapItem {
  std::size_t index = 0;  // of the input
  ResultOf<R> result;
};

namespace detail {

template <typename Value>
class PoolCallState final : public FutureState<NonVoid<Value>>, public PoolCall {
  using Base = FutureState<NonVoid<Value>>;

 public:
  using Base::Base;
  FutureCore& future() override { return *this; }
  void end(const Status& status, std::span<const std::byte> result, const CallLine* line,
           Continuations* later) override {
    if (!status.ok()) {
      Base::set(status, later);
    } else if constexpr (std::is_void_v<Value>) {
      Base::set(Unit{}, later);
    } else {
      const DecodeContext context = line->decode_context();
      auto value = decode_value<Value>(result, context);
      if (context.intake) line->take_references(std::move(context.intake));
      Base::set(std::move(value), later);
    }
  }
  Status late() const override {
    const auto alive = pool.lock();
    return alive ? alive->late(*this) : Base::late();
  }

 private:
  void cancelled() override { cancel_in_pool(); }
  void help(Deadline deadline) override {
    if (const auto alive = pool.lock()) alive->help(*this, deadline);
  }
};

// What a map has under way. One thread at a time asks for the next item.
template <typename R>
class MapState : public std::enable_shared_from_this<MapState<R>> {
  using Call = FutureState<NonVoid<R>>;
  using Item = std::optional<MapItem<R>>;

 public:
  using Submit = std::function<std::shared_ptr<Call>()>;  // of the next input; null: there is none

  MapState(Submit submit, std::size_t window, bool in_order, FutureOptions options)
      : submit_(std::move(submit)),
        window_(window),
        in_order_(in_order),
        options_(std::move(options)) {}

  Future<Item> next() {
    fill();
    MutexLock lock(mutex_);
    if (waiting_) {
      return make_ready_future<Item>(
          Status(Code::kFailedPrecondition, "a map's next item is asked for already"));
    }
    if (taken_ == submitted_) return make_ready_future<Item>(Item());
    if (auto item = take_locked()) return make_ready_future<Item>(std::move(item));
    waiting_.emplace(std::make_shared<ItemState>(options_, this->weak_from_this()));
    return waiting_->future();
  }
  void cancel() {
    std::map<std::size_t, std::shared_ptr<Call>> open;
    {
      MutexLock lock(mutex_);
      open.swap(open_);
    }
    for (const auto& [index, call] : open) call->cancel("its map has gone");
  }

 private:
  class ItemState final : public FutureState<Item> {
   public:
    ItemState(FutureOptions options, std::weak_ptr<MapState> map)
        : FutureState<Item>(std::move(options)), map_(std::move(map)) {}

   private:
    void help(Deadline deadline) override {
      if (const auto map = map_.lock()) map->help_first(deadline);
    }
    const std::weak_ptr<MapState> map_;
  };

  // Who waits for an item waits for the first call that is open.
  void help_first(Deadline deadline) {
    std::shared_ptr<Call> first;
    {
      MutexLock lock(mutex_);
      if (open_.empty()) return;
      first = open_.begin()->second;
    }
    first->help_others(deadline);
  }
  // (Inputs are the caller's to read: on its own thread.)
  void fill() {
    while (!exhausted_) {
      {
        MutexLock lock(mutex_);
        if (submitted_ - taken_ >= window_) return;
      }
      const auto call = submit_();
      if (!call) {
        exhausted_ = true;
        return;
      }
      std::size_t index = 0;
      {
        MutexLock lock(mutex_);
        index = submitted_++;
        open_.emplace(index, call);
      }
      call->on_ready(
          [self = this->shared_from_this(), call, index] { self->arrived(index, *call); },
          /*direct=*/true);
    }
  }
  void arrived(std::size_t index, Call& call) {
    std::optional<Promise<Item>> waiting;
    Item item;
    {
      MutexLock lock(mutex_);
      open_.erase(index);
      done_.emplace(index, to_result<R>(call.take()));
      if (!waiting_) return;
      item = take_locked();
      if (!item) return;
      waiting.swap(waiting_);
    }
    waiting->set(std::move(item));
  }
  Item take_locked() TROUPE_REQUIRES(mutex_) {
    const auto next = done_.begin();
    if (next == done_.end() || (in_order_ && next->first != taken_)) return std::nullopt;
    MapItem<R> item{next->first, std::move(next->second)};
    done_.erase(next);
    ++taken_;
    return item;
  }

  const Submit submit_;
  const std::size_t window_;
  const bool in_order_;
  const FutureOptions options_;
  bool exhausted_ = false;
  Mutex mutex_;
  std::size_t submitted_ TROUPE_GUARDED_BY(mutex_) = 0;
  std::size_t taken_ TROUPE_GUARDED_BY(mutex_) = 0;
  std::map<std::size_t, std::shared_ptr<Call>> open_ TROUPE_GUARDED_BY(mutex_);
  std::map<std::size_t, ResultOf<R>> done_ TROUPE_GUARDED_BY(mutex_);
  std::optional<Promise<Item>> waiting_ TROUPE_GUARDED_BY(mutex_);
};

// Makes a call of the next of the inputs each time that it is asked. `start` makes it.
template <typename R, typename Inputs, typename Start>
typename MapState<R>::Submit call_of_each(Inputs&& inputs, Start start) {
  struct Reader {
    explicit Reader(Inputs&& from) : range(std::forward<Inputs>(from)), next(std::begin(range)) {}
    Inputs range;
    decltype(std::begin(std::declval<Inputs&>())) next;
  };
  auto reader = std::make_shared<Reader>(std::forward<Inputs>(inputs));
  return [start = std::move(start),
          reader = std::move(reader)]() -> std::shared_ptr<FutureState<NonVoid<R>>> {
    if (reader->next == std::end(reader->range)) return nullptr;
    auto&& input = *reader->next;
    auto started = start(std::forward<decltype(input)>(input));
    ++reader->next;
    return started;
  };
}

}  // namespace detail

// The results of a map as they are taken. Moved, not copied; one that goes cancels what is left.
template <typename R>
class [[nodiscard]] PoolMap {
  using State = detail::MapState<R>;

 public:
  // (Of Troupe's own.)
  explicit PoolMap(std::shared_ptr<State> state) : state_(std::move(state)) {}
  PoolMap(PoolMap&&) noexcept = default;
  PoolMap& operator=(PoolMap&& other) noexcept {
    std::swap(state_, other.state_);
    return *this;
  }
  ~PoolMap() {
    if (state_) state_->cancel();
  }

  // The next item; nothing after the last. Each ends by the deadline of its own call. One at a
  // time.
  Future<std::optional<MapItem<R>>> next() {
    if (!state_) {
      return make_ready_future<std::optional<MapItem<R>>>(Status(
          Code::kFailedPrecondition, "an empty PoolMap: it was moved from, or is that of no pool"));
    }
    return state_->next();
  }
  // Waits for all that is left: in the order in which next() gives them, or the first failure with
  // its index.
  Result<std::vector<NonVoid<R>>> all() {
    std::vector<NonVoid<R>> values;
    for (;;) {
      auto item = TROUPE_TRY(next().get());
      if (!item) return values;
      TROUPE_RETURN_IF_ERROR(detail::status_of(item->result).with("input", item->index));
      if constexpr (std::is_void_v<R>) {
        values.push_back(Unit{});
      } else {
        values.push_back(std::move(*item->result));
      }
    }
  }

 private:
  std::shared_ptr<State> state_;
};

template <typename T>
class ActorPool {
  template <auto Method>
  using Value = typename detail::MethodCall<T, Method>::Value;

 public:
  // No pool, as one that was moved from: every call ends with kFailedPrecondition.
  ActorPool() = default;

  // Of members that are made of these arguments. Returns at once; members start meanwhile.
  // `actors`: a Cluster, or an ActorContext. kInvalidArgument for options that make no sense.
  template <typename... A>
  static Result<ActorPool> create(const Actors& actors, const PoolOptions& options,
                                  A&&... arguments) {
    ActorPool pool;
    pool.pool_ = TROUPE_TRY(detail::Pool::create(
        TROUPE_TRY(detail::Access::usable(actors)), options, detail::kActorInterface<T>,
        detail::encode_constructor<T>(std::forward<A>(arguments)...)));
    return pool;
  }

  // The same pool, called with these options.
  ActorPool with(CallOptions options) const {
    ActorPool copy = *this;
    copy.options_ = options;
    return copy;
  }

  // Calls a method of one member, which CallOptions::timeout waits for too: a Future of its result.
  template <auto Method, typename... A>
  Future<Value<Method>> call(A&&... arguments) const {
    if (!pool_) return make_ready_future<Value<Method>>(no_pool());
    return Future<Value<Method>>(
        start<Method>(pool_, options_,
                      detail::MethodCall<T, Method>::encode(std::forward<A>(arguments)...), true));
  }

  // Calls the method with each of the inputs, a tuple of its arguments or the only one. They are
  // read as items are taken; a range that is given as an lvalue outlives the map.
  template <auto Method, typename Inputs>
  PoolMap<Value<Method>> map(Inputs&& inputs, const MapOptions& options = {}) const {
    using R = Value<Method>;
    if (!pool_) return PoolMap<R>(nullptr);
    auto submit = detail::call_of_each<R, Inputs>(
        std::forward<Inputs>(inputs), [pool = pool_, call = options_](auto&& input) {
          return start<Method>(
              pool, call,
              detail::MethodCall<T, Method>::encode_packed(std::forward<decltype(input)>(input)),
              false);
        });
    const std::size_t window = options.window > 0 ? options.window : 2 * pool_->capacity();
    return PoolMap<R>(std::make_shared<detail::MapState<R>>(
        std::move(submit), window, options.in_order, pool_->future_options()));
  }

  // Empty where it is none.
  PoolStatus status() const { return pool_ ? pool_->status() : PoolStatus(); }
  // Handles of the members that run now.
  std::vector<ActorHandle<T>> members() const {
    std::vector<ActorHandle<T>> handles;
    if (!pool_) return handles;
    for (auto& channel : pool_->channels()) {
      handles.push_back(
          detail::Access::make<ActorHandle<T>>(pool_->client(), std::move(channel)).with(options_));
    }
    return handles;
  }
  // Takes no more calls, ends its members when they have done what was asked (with `drain`, also
  // what waits), or when the time is over; waits for that. kDeadlineExceeded: some live still.
  Status stop(const StopOptions& options = {}) const {
    return pool_ ? pool_->stop(options) : no_pool();
  }

 private:
  static Status no_pool() { return detail::empty_pool_error(detail::kActorInterface<T>.type); }
  template <auto Method>
  static std::shared_ptr<detail::PoolCallState<Value<Method>>> start(
      const std::shared_ptr<detail::Pool>& pool, const CallOptions& options,
      detail::PackedArguments arguments, bool counts) {
    auto call = std::make_shared<detail::PoolCallState<Value<Method>>>(pool->future_options());
    call->method = detail::MethodCall<T, Method>::kNumber;
    call->arguments = std::move(arguments);
    call->options = options;
    call->counts = counts;
    call->pool = pool;
    pool->submit(call);
    return call;
  }

  std::shared_ptr<detail::Pool> pool_;
  CallOptions options_;
};

}  // namespace troupe
