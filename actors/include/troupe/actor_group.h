#pragma once
// ActorGroup<T>: actors of one class, by their places on named axes, called together.
//
//   auto group = ActorGroup<Worker>::spawn(cluster, {{"dp", 2}, {"tp", 4}}, {.num_cpus =
//   1}).value(); auto all = group.cast<&Worker::step>(3).get();                    // a Result of
//   each, by rank auto losses = group.gather<&Worker::loss>().get();                // their
//   values, or who failed auto sum = group.reduce<&Worker::loss>(std::plus<double>()).get(); auto
//   first_row = group.slice("dp", 0).value();                    // ranks 0 to 3, axis "tp"
//   Result<ActorHandle<Worker>> one = group.at({1, 2});               // rank 6
//
// Ranks are row-major: along the last axis they grow by one. A slice is a group with ranks of its
// own, from 0, in the order of those it was taken from.
//
// A call of a group is one call of each member, with their order, deadlines, retries and errors as
// a handle has them (handle.h); what the errors say begins with the member's rank. Members that
// share a host process (light_actors.h) are called by one message and answer by one, which is what
// makes thousands fast: their results together are then one answer, of half of this process's
// memory at most. When a member dies for good, calls of it end with why; those of others go on.
//
// A group is a value, as a handle is: its copies are the same actors, it travels as an argument,
// and it does not keep them alive. Who ends when, their options say: ActorOptions::supervisor with
// RestartStrategy::kAllForOne restarts all of them when one fails (supervision.h). Thread-safe.

#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "troupe/actors.h"
#include "troupe/detail/access.h"
#include "troupe/detail/durations.h"
#include "troupe/detail/group.h"
#include "troupe/detail/method_call.h"
#include "troupe/future.h"
#include "troupe/group_communicator.h"
#include "troupe/handle.h"
#include "troupe/light_actors.h"

namespace troupe {

namespace detail {

// The future of a cast: `Finish` makes of all results what it is the future of.
template <typename Value, typename Out, typename Finish>
class CastState final : public FutureState<NonVoid<Out>>, public GroupCast {
  using Base = FutureState<NonVoid<Out>>;
  using Item = Result<NonVoid<Value>>;

 public:
  CastState(MemberTable::Ptr group, Finish finish)
      : Base(future_options(*group)),
        GroupCast(std::move(group)),
        items_(this->group().members().size()),
        finish_(std::move(finish)) {}
  Status late() const override { return GroupCast::late(); }

 private:
  void answer(std::size_t rank, const Status& status, std::span<const std::byte> result,
              const DecodeContext& context) override {
    if (!status.ok()) {
      items_[rank].emplace(status);
    } else if constexpr (std::is_void_v<Value>) {
      items_[rank].emplace(Unit{});
    } else {
      items_[rank].emplace(decode_value<Value>(result, context));
    }
  }
  void finish(Continuations* later) override {
    std::vector<Item> items;
    items.reserve(items_.size());
    for (auto& item : items_) items.push_back(std::move(*item));
    items_.clear();
    // (An operator of the user's may throw.)
    auto out = call_to_result<Out>([&] { return finish_(group(), std::move(items)); });
    if constexpr (std::is_void_v<Out>) {
      Base::set(from_status(std::move(out)), later);
    } else {
      Base::set(std::move(out), later);
    }
  }

  std::vector<std::optional<Item>> items_;  // each is written once
  Finish finish_;
};

template <typename Item>
Status group_failure(const MemberTable& group, const std::vector<Item>& items) {
  return group_failure(group, [&](std::size_t rank) { return items[rank].status(); });
}

}  // namespace detail

template <typename T>
class ActorGroup {
  template <auto Method>
  using Value = typename detail::MethodCall<T, Method>::Value;

 public:
  // No actors, as a group that was moved from: every call ends with kFailedPrecondition.
  ActorGroup() = default;

  // --- making one. kInvalidArgument for axes that make no sense (a name twice, a size of 0,
  // another number of actors). Without axes there is one, called "rank".

  static Result<ActorGroup> of(const std::vector<ActorHandle<T>>& members,
                               std::vector<GroupAxis> axes = {}) {
    return make(members, std::move(axes), false);
  }
  static Result<ActorGroup> of(const LightActors<T>& members, std::vector<GroupAxis> axes = {}) {
    std::vector<ActorHandle<T>> handles;
    for (const auto member : members) handles.push_back(member);
    return of(handles, std::move(axes));
  }
  // As many new actors as the axes say, all made of the same arguments: placed all or none, as a
  // gang (Actors::spawn_gang), each with its rank and, where the options have a name, that with "-"
  // and its rank behind it. With Isolation::kShared light ones (Actors::spawn_many). `actors`: a
  // Cluster, or an ActorContext.
  template <typename... A>
  static Result<ActorGroup> spawn(Actors& actors, std::vector<GroupAxis> axes,
                                  const ActorOptions& options, const A&... arguments) {
    return spawn_each(actors, std::move(axes), options,
                      [&](std::size_t) { return std::tuple<std::decay_t<A>...>(arguments...); });
  }
  // The same, each made of what `arguments_of(rank)` returns: a tuple, or the only argument.
  template <typename F>
  static Result<ActorGroup> spawn_each(Actors& actors, std::vector<GroupAxis> axes,
                                       const ActorOptions& options, F&& arguments_of) {
    const std::size_t size = TROUPE_TRY(detail::group_size(axes));
    if (options.isolation == Isolation::kShared) {
      return of(TROUPE_TRY(actors.spawn_each<T>(size, options, arguments_of)), std::move(axes));
    }
    std::vector<GangMember<T>> gang;
    for (std::size_t rank = 0; rank < size; ++rank) {
      ActorOptions own = options;
      own.rank = static_cast<int>(rank);
      if (!own.name.empty()) own.name += "-" + std::to_string(rank);
      auto made_of = arguments_of(rank);
      if constexpr (detail::kIsTuple<decltype(made_of)>) {
        std::apply([&](auto&... a) { gang.emplace_back(std::move(own), std::move(a)...); },
                   made_of);
      } else {
        gang.emplace_back(std::move(own), std::move(made_of));
      }
    }
    return of(TROUPE_TRY(actors.spawn_gang(std::move(gang))), std::move(axes));
  }

  // --- who is in it

  std::size_t size() const { return table_ ? table_->members().size() : 0; }
  bool empty() const { return size() == 0; }
  std::vector<GroupAxis> axes() const { return table_ ? table_->axes() : std::vector<GroupAxis>(); }
  // The member of that rank. Requires rank < size().
  ActorHandle<T> operator[](std::size_t rank) const {
    detail::check_group_rank(rank, size());
    const detail::GroupMember& member = table_->members()[rank];
    return detail::Access::make<ActorHandle<T>>(table_->client(), member.channel,
                                                member.light_number)
        .with(options_);
  }
  // The member at these places, one for each axis: kInvalidArgument where there is none.
  Result<ActorHandle<T>> at(std::initializer_list<std::size_t> places) const {
    return (*this)[TROUPE_TRY(rank_of(places))];
  }
  Result<std::size_t> rank_of(std::initializer_list<std::size_t> places) const {
    if (!table_) return no_members();
    return table_->rank_of({places.begin(), places.size()});
  }
  // The inverse. Requires rank < size().
  std::vector<std::size_t> coordinates(std::size_t rank) const {
    detail::check_group_rank(rank, size());
    return table_->coordinates(rank);
  }
  std::vector<ActorHandle<T>> handles() const {
    std::vector<ActorHandle<T>> all;
    for (std::size_t rank = 0; rank < size(); ++rank) all.push_back((*this)[rank]);
    return all;
  }
  // Those at one place of the axis, a group without it …
  Result<ActorGroup> slice(std::string_view axis, std::size_t place) const {
    return part(axis, place, place + 1, true);
  }
  // … or from one place to before another one, where it stays.
  Result<ActorGroup> slice(std::string_view axis, std::size_t first, std::size_t end) const {
    return part(axis, first, end, false);
  }

  // The same actors, called with these options.
  ActorGroup with(CallOptions options) const {
    ActorGroup copy = *this;
    copy.options_ = options;
    return copy;
  }

  // --- calling all of them. The arguments are the same for all; with …_each, what
  // `arguments_of(rank)` returns, a tuple or the only argument.

  // A Result of each (a Status of a method that returns nothing), by rank. It fails itself only
  // where it is cancelled.
  template <auto Method, typename... A>
  auto cast(A&&... arguments) const {
    return cast_with<Method>(same<Method>(std::forward<A>(arguments)...));
  }
  template <auto Method, typename F>
  auto cast_each(F&& arguments_of) const {
    return cast_with<Method>(each<Method>(arguments_of));
  }

  // Their values by rank; nothing where the method returns nothing. Where some fail, the failure of
  // the first of them.
  template <auto Method, typename... A>
  auto gather(A&&... arguments) const {
    return gather_with<Method>(same<Method>(std::forward<A>(arguments)...));
  }
  template <auto Method, typename F>
  auto gather_each(F&& arguments_of) const {
    return gather_with<Method>(each<Method>(arguments_of));
  }

  // op(op(op(r0, r1), r2), …) over their values in the order of the ranks, always the same, so that
  // sums of floating-point numbers repeat. It runs here, on a thread of Troupe's: without waiting.
  // Fails as gather() does.
  template <auto Method, typename Op, typename... A>
  auto reduce(Op op, A&&... arguments) const {
    using R = Value<Method>;
    static_assert(!std::is_void_v<R>, "reduce of a method that returns nothing");
    return start<Method, R>(
        same<Method>(std::forward<A>(arguments)...),
        [op = std::move(op)](const detail::MemberTable& group,
                             std::vector<Result<R>> items) mutable -> Result<R> {
          TROUPE_RETURN_IF_ERROR(detail::group_failure(group, items));
          R sum = std::move(*items.front());
          for (std::size_t i = 1; i < items.size(); ++i) {
            sum = op(std::move(sum), std::move(*items[i]));
          }
          return sum;
        });
  }

  // Tells each member its seat in a communicator of all of them (group_communicator.h), by a method
  // of the class that gives it to its GroupCommunicator. Ok once all have met. Where one fails the
  // others are told to give up, and the error has the rank. Again after a failure, for the next
  // generation. `timeout`: of the forming, and of each operation.
  template <auto Method>
  Future<void> communicator(std::chrono::milliseconds timeout = std::chrono::seconds(60)) const {
    CommunicatorSeat seat{.generation = table_ ? table_->next_generation() : 0,
                          .rank = 0,
                          .members = {},
                          .timeout_ms = timeout.count()};
    for (std::size_t rank = 0; rank < size(); ++rank) seat.members.push_back((*this)[rank].id());
    const auto seat_of = [&](std::size_t rank) {
      seat.rank = static_cast<std::uint32_t>(rank);
      return seat;
    };
    return gather_with<Method>(each<Method>(seat_of), /*fail_fast=*/true);
  }

 private:
  friend struct Codec<ActorGroup<T>>;
  static Status no_members() { return detail::empty_group_error(detail::kActorInterface<T>.type); }
  template <auto Method, typename... A>
  static detail::GroupArguments same(A&&... arguments) {
    return {detail::MethodCall<T, Method>::encode(std::forward<A>(arguments)...), nullptr};
  }
  // (Asked while the call is made, and not later.)
  template <auto Method, typename F>
  static detail::GroupArguments each(F& arguments_of) {
    return {{}, [&arguments_of](std::size_t rank) {
              return detail::MethodCall<T, Method>::encode_packed(arguments_of(rank));
            }};
  }
  template <auto Method, typename Out, typename Finish>
  Future<Out> start(const detail::GroupArguments& arguments, Finish finish,
                    bool fail_fast = false) const {
    if (!table_) return make_ready_future<Out>(no_members());
    auto state =
        std::make_shared<detail::CastState<Value<Method>, Out, Finish>>(table_, std::move(finish));
    state->start({.hosts = detail::kLightInterface<T>,
                  .method = detail::MethodCall<T, Method>::kNumber,
                  .options = options_,
                  .arguments = arguments,
                  .fail_fast = fail_fast},
                 *state);
    return Future<Out>(std::move(state));
  }
  template <auto Method>
  auto cast_with(const detail::GroupArguments& arguments) const {
    using R = Value<Method>;
    using Out = std::vector<ResultOf<R>>;
    return start<Method, Out>(
        arguments, [](const detail::MemberTable&, std::vector<Result<NonVoid<R>>> items) {
          if constexpr (std::is_void_v<R>) {
            Out out;
            for (auto& item : items) out.push_back(std::move(item).status());
            return Result<Out>(std::move(out));
          } else {
            return Result<Out>(std::move(items));
          }
        });
  }
  template <auto Method>
  auto gather_with(const detail::GroupArguments& arguments, bool fail_fast = false) const {
    using R = Value<Method>;
    if constexpr (std::is_void_v<R>) {
      return start<Method, void>(
          arguments,
          [](const detail::MemberTable& group, const std::vector<Result<Unit>>& items) {
            return detail::group_failure(group, items);
          },
          fail_fast);
    } else {
      using Out = std::vector<R>;
      return start<Method, Out>(
          arguments,
          [](const detail::MemberTable& group, std::vector<Result<R>> items) -> Result<Out> {
            TROUPE_RETURN_IF_ERROR(detail::group_failure(group, items));
            Out out;
            out.reserve(items.size());
            for (auto& item : items) out.push_back(std::move(*item));
            return out;
          },
          fail_fast);
    }
  }
  static Result<ActorGroup> make(const std::vector<ActorHandle<T>>& members,
                                 std::vector<GroupAxis> axes, bool is_others) {
    std::vector<detail::GroupMember> parts;
    for (const auto& m : members) parts.push_back({detail::Access::channel(m), m.light_number()});
    ActorGroup group;
    group.table_ = TROUPE_TRY(detail::MemberTable::make(
        members.empty() ? nullptr : detail::Access::client(members.front()),
        detail::kActorInterface<T>.type, std::move(parts), std::move(axes), is_others));
    return group;
  }
  Result<ActorGroup> part(std::string_view axis, std::size_t first, std::size_t end,
                          bool drop) const {
    if (!table_) return no_members();
    ActorGroup slice = *this;
    slice.table_ = TROUPE_TRY(table_->slice(axis, first, end, drop));
    return slice;
  }

  friend struct Codec<ActorGroup<T>>;
  detail::MemberTable::Ptr table_;
  CallOptions options_;
};

// A group travels as the handles of its members and its axes.
template <typename T>
struct Codec<ActorGroup<T>> {
  using Members = std::vector<ActorHandle<T>>;
  using Axes = std::vector<std::pair<std::string, std::uint64_t>>;
  static constexpr bool kSupported = true;
  static constexpr std::size_t kBytesMin = 8;
  static constexpr std::uint64_t kHash =
      TypeHash::mix(TypeHash::of("actor group"), TypeHash::of(detail::kTypeName<T>));
  static void encode(Encoder& out, const ActorGroup<T>& value) {
    Axes axes;
    for (const GroupAxis& axis : value.axes()) axes.emplace_back(axis.name, axis.size);
    Codec<Axes>::encode(out, axes);
    Codec<Members>::encode(out, value.handles());
  }
  static bool decode(Decoder& in, ActorGroup<T>& value) {
    Axes axes;
    Members members;
    if (!Codec<Axes>::decode(in, axes) || !Codec<Members>::decode(in, members)) return false;
    value = {};
    if (members.empty()) return true;
    std::vector<GroupAxis> named;
    for (auto& [name, size] : axes) named.push_back({std::move(name), size});
    auto group = ActorGroup<T>::make(members, std::move(named), true);
    if (!group.ok()) return in.fail(group.status().message());
    value = std::move(*group);
    return true;
  }
};

}  // namespace troupe
