#pragma once
// A method that is called of several actors (actor_group.h, actor_pool.h): its number, its value,
// and its arguments as they travel. What does not fit does not compile.

#include <cstdint>
#include <tuple>
#include <type_traits>
#include <utility>

#include "troupe/detail/method_table.h"
#include "troupe/light_actors.h"

namespace troupe::detail {

template <typename T, auto Method>
struct MethodCall {
  using Traits = MethodTraits<Method>;
  using Value = typename Traits::Value;
  using List = std::remove_cvref_t<decltype(T::methods)>;
  static constexpr std::size_t kIndex = method_index<Method>(List{});
  static_assert(kIndex < List::kCount,
                "this method is not in the actor class's `methods`: add it there");
  static_assert(Traits::kKind != MethodKind::kStream,
                "a method that returns a Stream is called of one actor, by its handle");
  static_assert(check_method<Method>());
  static constexpr auto kNumber = static_cast<std::uint32_t>(kIndex);

  template <typename... A>
  static Bytes encode(A&&... arguments) {
    static_assert(CallArguments<Method, typename Traits::Parameters, A&&...>::kGood);
    return encode_arguments(typename Traits::Stored(std::forward<A>(arguments)...));
  }
  // Of a tuple of the arguments, or of the only one.
  template <typename A>
  static Bytes encode_packed(A&& packed) {
    if constexpr (kIsTuple<std::remove_cvref_t<A>>) {
      return std::apply([](auto&&... a) { return encode(std::forward<decltype(a)>(a)...); },
                        std::forward<A>(packed));
    } else {
      return encode(std::forward<A>(packed));
    }
  }
};

}  // namespace troupe::detail
