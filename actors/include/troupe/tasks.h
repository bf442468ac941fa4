#pragma once
// Tasks: functions that run on some node which has room, in processes that are kept for them.
//
//   std::size_t count_words(const std::string& text);
//
//   int main(int argc, char** argv) {
//     if (auto code = troupe::host_main(argc, argv, troupe::tasks<&count_words>)) return *code;
//     auto cluster = troupe::Cluster::start_embedded().value();
//     troupe::Future<std::size_t> words = cluster.submit<&count_words>("to be or not to be");
//     auto large = cluster.tasks({.num_cpus = 4, .retries = 0}).submit<&count_words>(book);
//     auto counts = cluster.tasks().map<&count_words>(texts).all();   // a window of them under way
//   }
//
// - A function is listed in host_main of the program that submits it: worker processes are that
//   program. A first parameter of type troupe::ActorContext& gives it what actors have: it submits
//   tasks itself, puts objects, calls actors, and looks at call_stop_token().
// - Workers are leased: the head places a worker process once for many tasks with the same
//   TaskOptions; those tasks cost it no decision. Where many wait, more workers are asked for; a
//   worker that has nothing to do ends after half a second.
// - A task whose worker dies runs again, at another one, `retries` times: it must be able to run
//   twice. With retries = 0 it runs at most once, and ends with kActorDied. What a task returns or
//   throws is its result, and is not tried again.
// - cancel() of its future: a task that has not begun does not; one that runs sees its
//   call_stop_token(), and its worker is ended if it goes on for 5 s. Other tasks lose nothing.
// - A task that waits for tasks which it has submitted itself, and that ask for no more than it,
//   runs them in its own process where they have not begun: nested tasks end however few workers
//   there are. They use its thread's stack, some thousands deep; where that is nearly used up, the
//   next one ends with kResourceExhausted.
// - A function that returns a Stream<T> (stream.h) gives its values one by one, and submit() a
//   StreamReader<T> (stream_reader.h) at once:
//
//     troupe::Stream<Page> pages(std::string file) { … co_yield page; … }
//     auto reader = cluster.submit<&pages>("book.txt");
//     while (auto page = reader.next(1min).value()) …
//
//   It goes on while at most TaskOptions::stream_window items are on the way or not taken. It has
//   its worker's thread to itself, and may wait in get(). Where its worker dies it runs again from
//   its beginning, and the items that have come already are passed over: it must give the same ones
//   again. Whoever lets go of the reader ends it.
// - Of a task that no node could hold, were it idle, the future ends with kResourceExhausted
//   (TaskOptions::awaits_nodes). A program that lacks the function says so (kNotFound).
//
// Tasks end with who submitted them: the Cluster, or the actor's process. Thread-safe.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "troupe/actor.h"
#include "troupe/actor_pool.h"
#include "troupe/actors.h"
#include "troupe/detail/durations.h"
#include "troupe/detail/future_arguments.h"
#include "troupe/detail/task_core.h"
#include "troupe/future.h"
#include "troupe/stream.h"
#include "troupe/stream_reader.h"

namespace troupe {

// Where a task runs, and how often. Each field as ActorOptions has it, unless it is said here.
struct TaskOptions {
  double num_cpus = 1;
  double num_gpus = 0;
  double memory_bytes = 0;
  std::map<std::string, double> resources = {};
  std::optional<NodeId> node_affinity = {};
  bool node_affinity_soft = false;
  std::map<std::string, std::string> label_selector = {};
  std::map<std::string, std::string> label_preference = {};
  GroupId placement_group = {};
  int bundle_index = -1;
  bool awaits_nodes = false;
  int priority = 0;
  std::map<std::string, std::string> environment = {};
  // How often it may run again when its worker dies.
  std::uint32_t retries = 3;
  // From its submission to its end, with all that it waits for. It does not begin later.
  Duration timeout = std::chrono::hours(1);
  // Submitted inside an actor's method or a task: ends with that, as CallOptions::inherit.
  bool inherit = true;
  // Of functions that return a Stream: how many items may be on the way or not taken yet.
  std::uint32_t stream_window = 64;
};

template <auto... Functions>
struct TaskList {};
// The functions that a program's workers run: host_main(argc, argv, actors<A>, tasks<&f, &g>).
template <auto... Functions>
inline constexpr TaskList<Functions...> tasks{};

namespace detail {

// A function is to MethodTraits as a method without an object.
template <typename R, typename... P>
struct MemberTraits<R (*)(P...)> : MemberTraitsBase<void, R, true, P...> {
  static constexpr bool kTakesContext = false;
};
template <typename R, typename... P>
struct MemberTraits<R (*)(ActorContext&, P...)> : MemberTraitsBase<void, R, true, P...> {
  static constexpr bool kTakesContext = true;
};
template <typename R, typename... P>
struct MemberTraits<R (*)(P...) noexcept> : MemberTraits<R (*)(P...)> {};

template <auto Function>
struct TaskCallOf {
  using Traits = MethodTraits<Function>;
  static_assert(std::is_void_v<typename Traits::Class>,
                "a task is a function, &f: methods of actors are called by their handles");
  static_assert(Traits::kKind != MethodKind::kTask,
                "a task returns its result, references to objects, or a troupe::Stream: it has a "
                "thread to itself, and need not be a coroutine");
  using Value = typename Traits::Value;
  static constexpr bool kStreams = Traits::kKind == MethodKind::kStream;
  using Return = std::conditional_t<kStreams, StreamReader<Value>, Future<Value>>;
  static_assert(check_method<Function>());
  static constexpr std::string_view kName = kMethodName<Function>;
  static constexpr std::uint64_t kId =
      TypeHash::mix(TypeHash::of(kName), signature_hash<Function>());
};

// Calls the function with decoded arguments, each as the parameter wants it.
template <auto Function, typename... P>
decltype(auto) call_task(ActorContext& context, typename MethodTraits<Function>::Stored& stored,
                         std::tuple<P...>*) {
  return std::apply(
      [&](auto&... a) -> decltype(auto) {
        if constexpr (MethodTraits<Function>::kTakesContext) {
          return Function(context, static_cast<P&&>(a)...);
        } else {
          return Function(static_cast<P&&>(a)...);
        }
      },
      stored);
}

template <auto Function>
Result<Bytes> invoke_task(ActorContext& context, std::span<const std::byte> arguments,
                          const DecodeContext& decode) {
  using Traits = MethodTraits<Function>;
  typename Traits::Stored stored;
  TROUPE_RETURN_IF_ERROR(decode_arguments(arguments, decode, stored));
  return encode_returned<Traits>([&]() -> decltype(auto) {
    return call_task<Function>(context, stored, static_cast<typename Traits::Parameters*>(nullptr));
  });
}

// A task that gives a stream, under way.
template <auto Function>
class TaskStream final : public AsyncMethod {
  using Traits = MethodTraits<Function>;

 public:
  TaskStream(ActorContext& context, typename Traits::Stored stored, std::shared_ptr<TaskHost> host)
      : stored_(std::move(stored)),
        stream_(call_task<Function>(context, stored_,
                                    static_cast<typename Traits::Parameters*>(nullptr))) {
    if (stream_.coroutine()) stream_.coroutine().promise().host = std::move(host);
  }
  std::coroutine_handle<> coroutine() const override { return stream_.coroutine(); }
  bool done() const override { return stream_.done(); }
  Result<Bytes> result() override {
    stream_.take();
    return Bytes{};
  }
  std::optional<Result<Bytes>> take_item() override { return stream_.take_item(); }

 private:
  // The coroutine's references lead here: it goes first.
  typename Traits::Stored stored_;
  Stream<typename Traits::Value> stream_;
};

template <auto Function>
Result<std::unique_ptr<AsyncMethod>> start_task_stream(ActorContext& context,
                                                       std::span<const std::byte> arguments,
                                                       const DecodeContext& decode,
                                                       std::shared_ptr<TaskHost> host) {
  typename MethodTraits<Function>::Stored stored;
  TROUPE_RETURN_IF_ERROR(decode_arguments(arguments, decode, stored));
  return std::unique_ptr<AsyncMethod>(
      std::make_unique<TaskStream<Function>>(context, std::move(stored), std::move(host)));
}

template <auto Function>
constexpr TaskFunction task_function() {
  using Call = TaskCallOf<Function>;
  if constexpr (Call::kStreams) {
    return {Call::kName, Call::kId, nullptr, &start_task_stream<Function>};
  } else {
    return {Call::kName, Call::kId, &invoke_task<Function>, nullptr};
  }
}

template <auto... Functions>
struct TaskTable {
  static constexpr std::array<TaskFunction, sizeof...(Functions)> kFunctions{
      task_function<Functions>()...};
  static_assert(
      names_are_unique(std::array<std::string_view, sizeof...(Functions)>{
          TaskCallOf<Functions>::kName...}),
      "two functions of a program's tasks have one name: callers and logs could not tell them "
      "apart");
  static Result<std::unique_ptr<ActorInstance>> create(ActorContext& context,
                                                       std::span<const std::byte> arguments,
                                                       const DecodeContext&) {
    return make_task_worker(context, kFunctions, arguments);
  }
};

template <typename Value>
class TaskCallState final : public FutureState<NonVoid<Value>>, public TaskCall {
  using Base = FutureState<NonVoid<Value>>;

 public:
  using Base::Base;
  void ends_at(Deadline deadline) override { Base::set_ends_by(deadline); }
  bool over() const override { return Base::ready(); }
  void give_up_task(const char* why) override { Base::cancel(why); }
  void end(const Status& status, std::span<const std::byte> result, const CallLine* line,
           Continuations* later) override {
    if (!status.ok()) {
      Base::set(status, later);
    } else if constexpr (std::is_void_v<Value>) {
      Base::set(Unit{}, later);
    } else {
      const DecodeContext context = line != nullptr ? line->decode_context() : local_context();
      auto value = decode_value<Value>(result, context);
      if (context.intake && line != nullptr) {
        line->take_references(std::move(context.intake));
      } else if (context.intake) {
        hold_decoded_later(context);
      }
      Base::set(std::move(value), later);
    }
  }
  Status late() const override { return late_in_pool("no result before the deadline of get()"); }

 private:
  void cancelled() override { cancel_in_pool(); }
  void help(Deadline deadline) override { help_in_pool(deadline); }
};

template <typename T>
class TaskStreamState final : public StreamState<T>, public TaskCall {
  using Base = StreamState<T>;

 public:
  TaskStreamState(FutureOptions options, std::uint32_t window)
      : Base(std::move(options.executor), window) {}
  void ends_at(Deadline deadline) override { ends_by_ = deadline; }
  bool over() const override { return Base::has_ended(); }
  void give_up_task(const char* why) override { Base::cancel(why); }
  std::uint64_t items_allowed() const override { return Base::allowed(); }
  void item(std::uint64_t index, std::span<const std::byte> bytes, const CallLine& line) override {
    Base::item_arrived(index, bytes, line, /*repeats=*/true);
  }
  void end(const Status& status, std::span<const std::byte>, const CallLine*,
           Continuations* later) override {
    Base::source_ended(status, later);
  }

 private:
  void allow_items(std::uint64_t items) override { allow_items_in_pool(items); }
  void give_up() override { cancel_in_pool(); }
  std::optional<Status> late(const char* what) const override { return late_in_pool(what); }
  std::optional<Deadline> ends_by() const override { return ends_by_; }
  bool forked() const override { return forked_from_pool(); }

  std::optional<Deadline> ends_by_;
};

template <auto Function, typename State>
std::shared_ptr<State> start_as(std::shared_ptr<State> task, const std::shared_ptr<TaskPool>& pool,
                                const TaskOptions& options, PackedArguments arguments) {
  task->name = TaskCallOf<Function>::kName;
  task->function = TaskCallOf<Function>::kId;
  task->arguments = std::move(arguments);
  submit_task(pool, options, task);
  return task;
}
template <auto Function>
auto start_task(const ClientPtr& client, const std::shared_ptr<TaskPool>& pool,
                const TaskOptions& options, PackedArguments arguments) {
  using State = TaskCallState<TaskValue<Function>>;
  return start_as<Function>(std::make_shared<State>(task_future_options(client)), pool, options,
                            std::move(arguments));
}

}  // namespace detail

// How many tasks of a map are under way where its window is not said.
inline constexpr std::size_t kTaskWindow = 1'024;

// What submits tasks with the same options. Copied freely; of one that is empty every task ends
// with kFailedPrecondition.
class Tasks {
 public:
  // An argument may be a Future of the parameter's type (std::move(future)), as in a call: then the
  // task is submitted when its result is there, and is nobody's: not cancelled with a call inside
  // which it was made.
  template <auto Function, typename... A>
  TaskReturn<Function> submit(A&&... arguments) const {
    if constexpr (detail::TaskCallOf<Function>::kStreams) {
      return submit_stream<Function>(std::forward<A>(arguments)...);
    } else {
      return submit_for_result<Function>(std::forward<A>(arguments)...);
    }
  }
  // A task for each of the inputs, a tuple of its arguments or the only one: at most a window of
  // them under way, 1,024 by default. Inputs are read as results are taken; a range that is given
  // as an lvalue outlives the map.
  template <auto Function, typename Inputs>
  PoolMap<TaskValue<Function>> map(Inputs&& inputs, const MapOptions& options = {}) const {
    static_assert(!detail::TaskCallOf<Function>::kStreams, "the tasks of a map return one result");
    using R = TaskValue<Function>;
    auto submit =
        detail::call_of_each<R, Inputs>(std::forward<Inputs>(inputs), [self = *this](auto&& input) {
          return self.template start_packed<Function>(std::forward<decltype(input)>(input));
        });
    const std::size_t window = options.window > 0 ? options.window : kTaskWindow;
    return PoolMap<R>(std::make_shared<detail::MapState<R>>(
        std::move(submit), window, options.in_order,
        client_ ? detail::task_future_options(client_) : detail::FutureOptions{}));
  }

  // Reduce(…Reduce(Map(a), Map(b))…) over all inputs: maps in a window, and reductions of
  // neighbours as soon as both are there, in a tree whose shape is that of the number of inputs
  // alone. `Reduce` takes two values of what `Map` returns, the earlier input's first, and returns
  // one; large ones are best references to objects. Waits for the result; where a task fails it
  // cancels the others. kInvalidArgument: no inputs.
  template <auto Map, auto Reduce, typename Inputs>
  Result<TaskValue<Map>> map_reduce(Inputs&& inputs, std::size_t window = kTaskWindow) const {
    using R = TaskValue<Map>;
    static_assert(std::is_same_v<R, TaskValue<Reduce>>, "Reduce returns what Map does");
    std::vector<std::optional<Future<R>>> sums;  // [i]: of 2^i inputs
    std::deque<Future<R>> mapped;
    Result<R> result = reduce_all<Map, Reduce>(inputs, window, sums, mapped);
    if (!result.ok()) {
      for (auto& future : mapped) future.cancel();
      for (auto& sum : sums) {
        if (sum) sum->cancel();
      }
    }
    return result;
  }

 private:
  friend struct detail::Access;
  Tasks(Result<detail::ClientPtr> client, TaskOptions options);
  template <auto Function, typename... A>
  Future<TaskValue<Function>> submit_for_result(A&&... arguments) const {
    if (!pool_.ok()) return make_ready_future<TaskValue<Function>>(pool_.status());
    if constexpr ((detail::kIsFuture<std::remove_cvref_t<A>> || ...)) {
      return submit_later<Function>(std::index_sequence_for<A...>{}, std::forward<A>(arguments)...);
    } else {
      return submit_now<Function>(std::forward<A>(arguments)...);
    }
  }
  template <auto Function, typename... A>
  StreamReader<TaskValue<Function>> submit_stream(A&&... arguments) const {
    using Item = TaskValue<Function>;
    static_assert(!(detail::kIsFuture<std::remove_cvref_t<A>> || ...),
                  "a task that returns a Stream takes no futures: its reader is returned at once. "
                  "Wait for them before");
    if (!pool_.ok()) return StreamReader<Item>(pool_.status());
    if (Status sense = detail::check_stream_window(options_.stream_window); !sense.ok()) {
      return StreamReader<Item>(std::move(sense));
    }
    return StreamReader<Item>(detail::start_as<Function>(
        std::make_shared<detail::TaskStreamState<Item>>(detail::task_future_options(client_),
                                                        options_.stream_window),
        *pool_, options_, detail::pack_arguments<Function>(std::forward<A>(arguments)...)));
  }
  template <auto Function, typename... A>
  Future<TaskValue<Function>> submit_now(A&&... arguments) const {
    return Future<TaskValue<Function>>(detail::start_task<Function>(
        client_, *pool_, options_,
        detail::pack_arguments<Function>(std::forward<A>(arguments)...)));
  }
  template <auto Function, std::size_t... I, typename... A>
  auto submit_later(std::index_sequence<I...>, A&&... arguments) const {
    using Traits = detail::MethodTraits<Function>;
    // What does not fit is refused by CallArguments alone, whose message is the one to read.
    if constexpr (detail::CallArguments<Function, typename Traits::Parameters,
                                        typename detail::ArgumentOf<A&&>::Type...>::kGood) {
      return detail::call_when_ready<TaskValue<Function>>(
          when_all(detail::future_of_argument<std::tuple_element_t<I, typename Traits::Stored>>(
              std::forward<A>(arguments))...),
          detail::task_future_options(client_), options_.timeout, [self = *this](auto values) {
            return self.template submit_now<Function>(std::move(std::get<I>(values))...);
          });
    } else {
      return make_ready_future<TaskValue<Function>>(Status(Code::kInvalidArgument, ""));
    }
  }
  template <auto Map, auto Reduce, typename Inputs, typename R>
  Result<R> reduce_all(Inputs& inputs, std::size_t window,
                       std::vector<std::optional<Future<R>>>& sums,
                       std::deque<Future<R>>& mapped) const {
    const auto take = [&]() -> Status {
      std::optional<Future<R>> carried(std::move(mapped.front()));
      mapped.pop_front();
      for (std::size_t level = 0;; ++level) {
        if (level == sums.size()) sums.emplace_back();
        if (!sums[level]) {
          sums[level] = std::move(carried);
          return {};
        }
        std::optional<Future<R>> earlier;
        earlier.swap(sums[level]);
        carried = TROUPE_TRY(combine<Reduce>(*earlier, *carried));
      }
    };
    for (auto&& input : inputs) {
      if (mapped.size() >= std::max<std::size_t>(window, 1)) TROUPE_RETURN_IF_ERROR(take());
      mapped.push_back(Future<R>(start_packed<Map>(std::forward<decltype(input)>(input))));
    }
    while (!mapped.empty()) TROUPE_RETURN_IF_ERROR(take());
    std::optional<Future<R>> whole;
    for (auto& sum : sums) {  // the later inputs' are those of lower levels
      if (!sum) continue;
      if (whole) {
        whole = TROUPE_TRY(combine<Reduce>(*sum, *whole));
      } else {
        whole = std::move(sum);
      }
    }
    if (!whole) return Status(Code::kInvalidArgument, "map_reduce of no inputs");
    return whole->get();
  }
  template <auto Function, typename A>
  std::shared_ptr<detail::TaskCallState<TaskValue<Function>>> start_packed(A&& input) const {
    if (!pool_.ok()) {
      auto task =
          std::make_shared<detail::TaskCallState<TaskValue<Function>>>(detail::FutureOptions{});
      task->end(pool_.status(), {}, nullptr, nullptr);
      return task;
    }
    return detail::start_task<Function>(client_, *pool_, options_,
                                        detail::pack_tuple<Function>(std::forward<A>(input)));
  }
  // (Waits for both, and not for what it makes of them.)
  template <auto Reduce, typename R>
  Result<std::optional<Future<R>>> combine(Future<R>& earlier, Future<R>& later) const {
    Result<R> a = earlier.get();
    if (!a.ok()) {
      later.cancel();
      return a.status();
    }
    R b = TROUPE_TRY(later.get());
    return std::optional<Future<R>>(submit<Reduce>(std::move(*a), std::move(b)));
  }

  detail::ClientPtr client_;
  Result<std::shared_ptr<detail::TaskPool>> pool_;
  TaskOptions options_;
};

template <auto Function, typename... A>
TaskReturn<Function> Actors::submit(A&&... arguments) const {
  return tasks().template submit<Function>(std::forward<A>(arguments)...);
}

// As host_main() of actor.h, of a program whose workers run these functions, too.
template <typename... ActorTypes, auto... Functions>
std::optional<int> host_main(int argc, char** argv, ActorList<ActorTypes...> list,
                             TaskList<Functions...>) {
  if (!detail::is_host_command(argc, argv)) return std::nullopt;
  auto classes = detail::actor_classes(list);
  using Table = detail::TaskTable<Functions...>;
  classes.push_back(detail::task_worker_class(&Table::create));
  return detail::host_main(argc, argv, std::move(classes));
}
template <auto... Functions>
std::optional<int> host_main(int argc, char** argv, TaskList<Functions...> functions) {
  return host_main(argc, argv, actors<>, functions);
}

}  // namespace troupe
