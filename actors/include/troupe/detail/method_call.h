#pragma once
// A method that is called of several actors (actor_group.h, actor_pool.h): its number, its value,
// and its arguments as they travel. What does not fit does not compile.

#include <cstdint>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "troupe/detail/method_table.h"
#include "troupe/light_actors.h"

namespace troupe::detail {

// The homes of what was decoded hear of it, some time. Its actor keeps it for a while.
void hold_decoded_later(const DecodeContext& context);

// Of what no call has brought (a pipeline).
template <typename Value>
Result<Value> decode_result(std::span<const std::byte> result, const DecodeContext& context) {
  auto value = decode_value<Value>(result, context);
  if (context.intake) hold_decoded_later(context);
  return value;
}

template <auto Method, typename... A>
PackedArguments pack_arguments(A&&... arguments) {
  using Traits = MethodTraits<Method>;
  Encoder out;
  // What does not fit is refused by CallArguments alone, whose message is the one to read.
  if constexpr (CallArguments<Method, typename Traits::Parameters, A&&...>::kGood)
    encode_arguments(out, typename Traits::Stored(std::forward<A>(arguments)...));
  return PackedArguments::of(out);
}
// Of a tuple of the arguments, or of the only one.
template <auto Method, typename A>
PackedArguments pack_tuple(A&& packed) {
  if constexpr (kIsTuple<std::remove_cvref_t<A>>) {
    return std::apply(
        [](auto&&... a) { return pack_arguments<Method>(std::forward<decltype(a)>(a)...); },
        std::forward<A>(packed));
  } else {
    return pack_arguments<Method>(std::forward<A>(packed));
  }
}

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
  static PackedArguments encode(A&&... arguments) {
    return pack_arguments<Method>(std::forward<A>(arguments)...);
  }
  // Of a tuple of the arguments, or of the only one.
  template <typename A>
  static PackedArguments encode_packed(A&& packed) {
    return pack_tuple<Method>(std::forward<A>(packed));
  }
};

}  // namespace troupe::detail
