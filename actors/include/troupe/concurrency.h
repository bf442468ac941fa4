#pragma once
// How many calls of an actor may be in progress at once: what its class declares.
//
//   static constexpr int kMaxConcurrency = 4;          // of its methods together; without it: 1
//   static constexpr auto groups = troupe::concurrency_groups<
//       troupe::ConcurrencyGroup<"io", 8, &T::read, &T::write>,     // with limits of their own
//       troupe::ConcurrencyGroup<"health", 1, &T::ping>>;
//   static constexpr std::size_t kMaxPendingCalls = 100;            // more that wait: kOverloaded
//
// ActorOptions::max_concurrency and max_pending_calls overrule the first and the last.
//
// Methods that are in no group are in the actor's own, whose limit is kMaxConcurrency. A group of
// ordinary methods alone with a limit above one runs them in threads of its own: they take their
// locks themselves, and may wait in get(). Every other group runs on the actor's one thread: an
// asynchronous method (task.h, stream.h) counts as in progress while it is suspended at a co_await
// or co_yield, and others begin there only where the limit is above one. Groups do not wait for
// each other. Within a group, calls of one caller begin in the order in which they were made.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "troupe/detail/method_table.h"

namespace troupe {

template <std::size_t N>
struct GroupName {
  // NOLINTNEXTLINE: implicit, so that a literal can be a template argument.
  constexpr GroupName(const char (&literal)[N]) {
    for (std::size_t i = 0; i < N; ++i) text[i] = literal[i];
  }
  char text[N] = {};
};

template <GroupName Name, int Limit, auto... Methods>
struct ConcurrencyGroup {
  static_assert(Limit >= 1, "a concurrency group's limit is at least 1");
  static_assert(sizeof...(Methods) > 0, "a concurrency group without methods");
  static_assert(sizeof(Name.text) > 1, "a concurrency group without a name");
};
template <typename... Groups>
struct GroupList {};
template <typename... Groups>
inline constexpr GroupList<Groups...> concurrency_groups{};

namespace detail {

// How many threads or suspended calls a group may have: each thread costs a stack.
inline constexpr int kConcurrencyMax = 1024;
// How many calls may wait at an actor.
inline constexpr std::size_t kPendingCallsMax = 10'000;

struct GroupLimits {
  std::string_view name;  // empty: the actor's own
  int limit = 1;
};

template <typename Group>
struct GroupTraits;
template <GroupName Name, int Limit, auto... Methods>
struct GroupTraits<ConcurrencyGroup<Name, Limit, Methods...>> {
  static constexpr auto kName = Name;  // what the view below refers to
  static constexpr GroupLimits kLimits{std::string_view(kName.text), Limit};
  static_assert(Limit <= kConcurrencyMax, "a concurrency group's limit is above 1024");
  template <auto Method>
  static constexpr int count() {
    return (0 + ... + (same_method<Method, Methods>() ? 1 : 0));
  }
  template <typename List>
  static constexpr bool all_in() {
    return ((method_index<Methods>(List{}) < List::kCount) && ...);
  }
};

template <typename T>
constexpr auto groups_of() {
  if constexpr (requires { T::groups; }) {
    return std::remove_cvref_t<decltype(T::groups)>{};
  } else {
    return GroupList<>{};
  }
}
template <typename T>
constexpr int max_concurrency_of() {
  if constexpr (requires { T::kMaxConcurrency; }) {
    static_assert(T::kMaxConcurrency >= 1 && T::kMaxConcurrency <= kConcurrencyMax,
                  "kMaxConcurrency is from 1 to 1024");
    return T::kMaxConcurrency;
  } else {
    return 1;
  }
}

template <typename Methods, typename Groups>
struct GroupTable;
template <auto... Methods, typename... Groups>
struct GroupTable<MethodList<Methods...>, GroupList<Groups...>> {
  static_assert((GroupTraits<Groups>::template all_in<MethodList<Methods...>>() && ...),
                "a concurrency group has a method that is not in the actor class's `methods`");
  template <auto Method>
  static constexpr std::uint16_t group_of() {
    static_assert((0 + ... + GroupTraits<Groups>::template count<Method>()) <= 1,
                  "a method is in two concurrency groups, or twice in one");
    constexpr std::array<bool, sizeof...(Groups)> kHolds{
        (GroupTraits<Groups>::template count<Method>() > 0)...};
    for (std::size_t i = 0; i < kHolds.size(); ++i) {
      if (kHolds[i]) return static_cast<std::uint16_t>(i + 1);
    }
    return 0;
  }
  // Of each method: 0 is the actor's own group.
  static constexpr std::array<std::uint16_t, sizeof...(Methods)> kGroupOf{group_of<Methods>()...};
  static constexpr std::array<GroupLimits, sizeof...(Groups)> kGroups{
      GroupTraits<Groups>::kLimits...};
  static_assert(names_are_unique(std::array<std::string_view, sizeof...(Groups)>{
                    GroupTraits<Groups>::kLimits.name...}),
                "two concurrency groups of an actor have one name");
};
template <typename T>
using GroupTableOf =
    GroupTable<std::remove_cvref_t<decltype(T::methods)>, decltype(groups_of<T>())>;

}  // namespace detail
}  // namespace troupe
