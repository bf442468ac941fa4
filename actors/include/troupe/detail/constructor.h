#pragma once
// The constructor that an actor class lists, and its arguments as they travel.

#include <cstdint>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>

#include "troupe/detail/method_table.h"

namespace troupe {

class ActorContext;

namespace detail {

template <typename T>
constexpr auto constructor_of() {
  if constexpr (requires { T::constructor; }) {
    return std::remove_cvref_t<decltype(T::constructor)>{};
  } else {
    return ConstructorSignature<>{};
  }
}

template <typename T, typename Signature, typename Indices>
struct ConstructorTraitsOf;
template <typename T, typename... P, std::size_t... I>
struct ConstructorTraitsOf<T, ConstructorSignature<P...>, std::index_sequence<I...>> {
  using Stored = std::tuple<std::decay_t<P>...>;
  static constexpr bool kGoodArguments =
      (ArgumentOfConstructor<T, static_cast<int>(I) + 1, P>::kGood && ...);
  static constexpr std::uint64_t hash() {
    if constexpr (kGoodArguments) return TupleHash<Stored>::kValue;
    return 0;  // (which was reported)
  }
  static constexpr std::uint64_t kHash = hash();
};
template <typename T, typename Signature = decltype(constructor_of<T>())>
struct ConstructorTraits;
template <typename T, typename... P>
struct ConstructorTraits<T, ConstructorSignature<P...>>
    : ConstructorTraitsOf<T, ConstructorSignature<P...>, std::index_sequence_for<P...>> {
  using Stored = std::tuple<std::decay_t<P>...>;
  // Checked where T is complete: by the host and by spawn().
  static constexpr bool takes_context() { return std::is_constructible_v<T, ActorContext&, P...>; }
  static constexpr bool check() {
    static_assert(takes_context() || std::is_constructible_v<T, P...>,
                  "no constructor of this actor class takes the arguments that `static constexpr "
                  "auto constructor = troupe::constructor<…>` lists (none listed: no arguments), "
                  "with or without an ActorContext& first");
    return true;
  }
  static std::unique_ptr<T> make(ActorContext& context, Stored&& arguments) {
    return std::apply(
        [&](auto&... a) {
          if constexpr (takes_context()) {
            return std::make_unique<T>(context, static_cast<P&&>(a)...);
          } else {
            return std::make_unique<T>(static_cast<P&&>(a)...);
          }
        },
        arguments);
  }
};

// The constructor's arguments as they travel: the signature's hash, then the arguments.
template <typename T, typename... A>
PackedArguments encode_constructor(A&&... arguments) {
  using Traits = ConstructorTraits<T>;
  static_assert(Traits::kGoodArguments && Traits::check());
  static_assert(std::is_constructible_v<typename Traits::Stored, A&&...> &&
                    sizeof...(A) == std::tuple_size_v<typename Traits::Stored>,
                "the arguments do not fit the actor class's `static constexpr auto constructor = "
                "troupe::constructor<…>` (none listed: no arguments)");
  static_assert(kKeepNumbers<typename Traits::Stored, A...>,
                "an argument is a wider number than the constructor's parameter, and could be cut "
                "off on its way: take the wider type there, or convert it where you have checked "
                "it (static_cast)");
  typename Traits::Stored stored(std::forward<A>(arguments)...);
  Encoder out;
  out.put(Traits::kHash);
  encode_arguments(out, stored);
  return PackedArguments::of(out);
}

}  // namespace detail
}  // namespace troupe
