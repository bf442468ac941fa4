#pragma once
// What an actor class offers to callers: its methods and the arguments of its constructor.
//
//   class Counter {
//    public:
//     explicit Counter(int start);
//     int add(int n);
//     static constexpr auto constructor = troupe::constructor<int>;  // none: default-constructible
//     static constexpr auto methods = troupe::methods<&Counter::add>;
//   };
//
// Numbers of methods on the wire are positions in the list; a structural hash of each signature is
// compared when a caller binds. What cannot work does not compile,
// and says why.

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

#include "troupe/bytes_view.h"
#include "troupe/detail/interface.h"
#include "troupe/detail/type_name.h"
#include "troupe/serialize.h"

namespace troupe {

template <typename T>
class Task;  // task.h
template <typename T>
class Stream;  // stream.h

template <auto... Methods>
struct MethodList {
  static constexpr std::size_t kCount = sizeof...(Methods);
};
// The methods that callers may call.
template <auto... Methods>
inline constexpr MethodList<Methods...> methods{};

template <typename... Arguments>
struct ConstructorSignature {};
// The types of the constructor's arguments, after an ActorContext& where it takes one first.
template <typename... Arguments>
inline constexpr ConstructorSignature<Arguments...> constructor{};

namespace detail {

// --- messages for types that cannot travel; the line above an error names method, place and type
// ---

template <typename T>
inline constexpr bool kRefersToCallersMemory = false;
template <typename C, typename Tr>
inline constexpr bool kRefersToCallersMemory<std::basic_string_view<C, Tr>> = true;
template <typename T, std::size_t N>
inline constexpr bool kRefersToCallersMemory<std::span<T, N>> = true;

template <typename Type>
inline constexpr bool kIsPointer = std::is_pointer_v<Type> || std::is_member_pointer_v<Type>;
template <typename Type>
inline constexpr bool kIsNoPointer = !kIsPointer<Type>;
template <typename Type>
inline constexpr bool kKeepsItsOwn = !kRefersToCallersMemory<Type>;
template <typename Type>
inline constexpr bool kWasExplained = kIsPointer<Type> || kRefersToCallersMemory<Type>;

// Says what is wrong with Type, which cannot travel. `Of`: where it stands. `Field`: where it is
// the type of a field, that, which the compiler spells "…Request::file". (One line of conditions
// each, and no calls in between: what the compiler says is to fit on a screen.)
template <typename Type, typename Of, auto... Field>
struct WhyNot {
  static_assert(kIsNoPointer<Type>,
                "cannot be serialised: a pointer means nothing in another process. Pass the value, "
                "a std::unique_ptr to it, or an ActorHandle.");
  static_assert(kKeepsItsOwn<Type>,
                "cannot be serialised: it refers to memory of the caller. Use std::string or "
                "std::vector.");
  static_assert(
      kWasExplained<Type>,
      "cannot be serialised: it is neither a supported standard type nor a plain aggregate "
      "of serialisable public fields (no constructors, bases or C arrays). Make it one, or "
      "specialise troupe::Codec for it (troupe/codec.h).");
};
template <typename Offender, typename Of>
struct WhyNotOf {
  using Why = WhyNot<Offender, Of>;
};
template <auto Field, typename Type, typename Of>
struct WhyNotOf<FieldThatCannotTravel<Field, Type>, Of> {
  using Why = WhyNot<Type, Of, Field>;
};

template <typename Type, typename Of>
constexpr bool check_serialisable() {
  if constexpr (!Serializable<Type>) {
    (void)sizeof(typename WhyNotOf<typename Offender<Type>::Type, Of>::Why);
    return false;
  } else {
    static_assert(std::is_default_constructible_v<Type>,
                  "cannot be serialised: decoding needs a default constructor.");
    return true;
  }
}

// "required from 'struct ArgumentOfMethod<&Counter::add, 2, Widget>'": argument 2 of Counter::add.
template <auto Method, int ArgumentNumber, typename Type>
struct ArgumentOfMethod {
  static_assert(!std::is_lvalue_reference_v<Type> || std::is_const_v<std::remove_reference_t<Type>>,
                "a parameter that is a non-const reference: what the method writes there would be "
                "lost. Take the value or a const reference, and return what changes.");
};
template <auto Method, typename Type>
struct ResultOfMethod {
  static_assert(!std::is_same_v<Type, BytesView>,
                "a result that is a BytesView: the caller has no memory that it could refer to. "
                "Return std::vector<std::byte>.");
};
template <typename Actor, int ArgumentNumber, typename Type>
struct ArgumentOfConstructor {
  static constexpr bool kGood = check_serialisable<std::decay_t<Type>, ArgumentOfConstructor>();
};

// --- taking a method apart

// What a caller gets of a method's result: Status becomes void, Result<T> becomes T (their failures
// arrive as the call's own).
template <typename R>
struct ResultTraits {
  using Value = R;
};
template <>
struct ResultTraits<Status> {
  using Value = void;
};
template <typename T>
struct ResultTraits<Result<T>> {
  using Value = T;
};

template <typename T>
struct ResultTraits<Task<T>> : ResultTraits<T> {};
template <typename T>
struct ResultTraits<Stream<T>> {
  using Value = T;  // of an item
};

enum class MethodKind : std::uint8_t { kPlain, kTask, kStream };
template <typename R>
inline constexpr MethodKind kKindOf = MethodKind::kPlain;
template <typename T>
inline constexpr MethodKind kKindOf<Task<T>> = MethodKind::kTask;
template <typename T>
inline constexpr MethodKind kKindOf<Stream<T>> = MethodKind::kStream;

template <typename Member>
struct MemberTraits {
  static_assert(!std::is_same_v<Member, Member>,
                "troupe::methods takes pointers to member functions: &Class::method.");
};
template <typename C, typename R, bool IsConst, typename... P>
struct MemberTraitsBase {
  using Class = C;
  using Returned = R;
  using Value = typename ResultTraits<std::remove_cvref_t<R>>::Value;
  using Parameters = std::tuple<P...>;
  using Stored = std::tuple<std::decay_t<P>...>;
  static constexpr bool kIsConst = IsConst;
  static constexpr MethodKind kKind = kKindOf<std::remove_cvref_t<R>>;
};
template <typename C, typename R, typename... P>
struct MemberTraits<R (C::*)(P...)> : MemberTraitsBase<C, R, false, P...> {};
template <typename C, typename R, typename... P>
struct MemberTraits<R (C::*)(P...) const> : MemberTraitsBase<C, R, true, P...> {};
template <typename C, typename R, typename... P>
struct MemberTraits<R (C::*)(P...) noexcept> : MemberTraitsBase<C, R, false, P...> {};
template <typename C, typename R, typename... P>
struct MemberTraits<R (C::*)(P...) const noexcept> : MemberTraitsBase<C, R, true, P...> {};

template <auto Method>
using MethodTraits = MemberTraits<decltype(Method)>;

template <auto Method, typename Parameters, typename Indices>
struct CheckArguments;
template <auto Method, typename... P, std::size_t... I>
struct CheckArguments<Method, std::tuple<P...>, std::index_sequence<I...>> {
  static constexpr bool kGood =
      ((sizeof(ArgumentOfMethod<Method, static_cast<int>(I) + 1, P>) > 0 &&
        check_serialisable<std::decay_t<P>,
                           ArgumentOfMethod<Method, static_cast<int>(I) + 1, P>>()) &&
       ...);
};

// Refuses, with a message, a method whose arguments or result cannot travel.
template <auto Method>
constexpr bool check_method() {
  using Traits = MethodTraits<Method>;
  using Parameters = typename Traits::Parameters;
  bool good = CheckArguments<Method, Parameters,
                             std::make_index_sequence<std::tuple_size_v<Parameters>>>::kGood;
  if constexpr (!std::is_void_v<typename Traits::Value>) {
    using Result = ResultOfMethod<Method, typename Traits::Value>;
    good = good && sizeof(Result) > 0 && check_serialisable<typename Traits::Value, Result>();
  }
  return good;
}

template <typename T>
constexpr std::uint64_t value_hash() {
  if constexpr (std::is_void_v<T>) {
    return TypeHash::of("void");
  } else {
    return Codec<T>::kHash;
  }
}

template <typename Tuple>
struct TupleHash;
template <typename... T>
struct TupleHash<std::tuple<T...>> {
  static constexpr std::uint64_t kValue = hash_of<T...>("arguments");
};

// The structural hash of a method's arguments and result. An asynchronous method has that of an
// ordinary one: callers cannot tell. A stream is another thing.
template <auto Method>
constexpr std::uint64_t signature_hash() {
  if constexpr (!check_method<Method>()) {
    return 0;  // (which was reported)
  } else {
    using Traits = MethodTraits<Method>;
    std::uint64_t result = value_hash<typename Traits::Value>();
    if (Traits::kKind == MethodKind::kStream) {
      result = TypeHash::mix(TypeHash::of("stream"), result);
    }
    return TypeHash::mix(TupleHash<typename Traits::Stored>::kValue, result);
  }
}

// --- the list

// As template arguments methods can be compared also where they are virtual; `A == B` is
// unspecified for those, and to Clang no constant.
template <auto A>
struct MethodTag {};
template <auto A, auto B>
constexpr bool same_method() {
  return std::is_same_v<MethodTag<A>, MethodTag<B>>;
}

// The position of `Method` in the list, or the list's size.
template <auto Method, auto... Methods>
constexpr std::size_t method_index(MethodList<Methods...>) {
  std::size_t index = 0;
  (void)((same_method<Method, Methods>() || (++index, false)) || ...);
  return index;
}

template <std::size_t N>
constexpr bool names_are_unique(const std::array<std::string_view, N>& names) {
  for (std::size_t i = 0; i < N; ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (names[i] == names[j]) return false;
    }
  }
  return true;
}

template <auto... Methods>
constexpr std::array<MethodSignature, sizeof...(Methods)> signatures(MethodList<Methods...>) {
  static_assert(
      names_are_unique(std::array<std::string_view, sizeof...(Methods)>{kMethodName<Methods>...}),
      "two methods of an actor have one name: callers and logs could not tell them apart");
  return {MethodSignature{kMethodName<Methods>, signature_hash<Methods>(),
                          full_type_name<decltype(Methods)>()}...};
}

template <typename T>
concept HasMethods = requires {
  T::methods;
};

template <typename T>
constexpr bool check_actor_class() {
  static_assert(HasMethods<T>,
                "this is no actor class: it lacks a public `static constexpr auto methods = "
                "troupe::methods<&T::a, &T::b>;` (name an overloaded method by a "
                "static_cast to its type)");
  return HasMethods<T>;
}

// The name under which heads, nodes and callers know the class: its own; or that of the class that
// it says it stands for (`using ActsAs = Base;`), so that whoever creates, finds and calls a Base
// may have it instead. Its `methods` begin with Base's; a program hosts one of the two.
template <typename T>
constexpr std::string_view class_name() {
  if constexpr (requires { typename T::ActsAs; }) {
    static_assert(std::is_base_of_v<typename T::ActsAs, T>,
                  "an actor class acts as one that it is derived from");
    return kTypeName<typename T::ActsAs>;
  } else {
    return kTypeName<T>;
  }
}

template <typename T>
struct ActorClassTraits;

// A call has the number of its method: callers through the base have theirs from its list.
template <typename T, std::size_t N>
constexpr bool begins_as_its_base(const std::array<MethodSignature, N>& own) {
  if constexpr (requires { requires !std::is_same_v<typename T::ActsAs, T>; }) {
    const auto& base = ActorClassTraits<typename T::ActsAs>::kSignatures;
    if (base.size() > N) return false;
    for (std::size_t i = 0; i < base.size(); ++i) {
      if (base[i].name != own[i].name || base[i].hash != own[i].hash) return false;
    }
  }
  return true;
}

// The class as callers and hosts see it.
template <typename T>
struct ActorClassTraits {
  static_assert(check_actor_class<T>());
  static constexpr std::string_view kType = class_name<T>();
  static constexpr auto kSignatures = signatures(std::remove_cvref_t<decltype(T::methods)>{});
  static_assert(
      begins_as_its_base<T>(kSignatures),
      "the `methods` of an actor class that acts as another one begin with that one's, in "
      "their order");
};

// What both sides of a connection compare: the type's name and its signatures.
template <typename T>
concept HasSave = requires(const T& actor) {
  actor.save();
};

template <typename T>
inline constexpr ActorInterface kActorInterface{
    ActorClassTraits<T>::kType, ActorClassTraits<T>::kSignatures, false, HasSave<T>};

// --- encoding arguments

// Arguments as they travel, and the objects that they refer to.
struct PackedArguments {
  Bytes bytes;
  std::vector<std::shared_ptr<const void>> kept;
  // What was encoded.
  static PackedArguments of(Encoder& out) {
    PackedArguments packed{out.take(), {}};
    packed.kept = std::move(out.kept());
    return packed;
  }
  void append_to(Encoder& out) const {
    out.append(bytes.data(), bytes.size());
    keep_in(out);
  }
  // Whoever has what is encoded keeps the objects.
  void keep_in(Encoder& out) const {
    for (const auto& one : kept) out.keep(one);
  }
};

// Most calls have arguments of less: one allocation is enough.
inline constexpr std::size_t kArgumentBytesUsual = 48;

// Arguments as they travel: the fields of a tuple, converted to the method's own parameter types.
template <typename... T>
void encode_arguments(Encoder& out, const std::tuple<T...>& arguments) {
  if constexpr (sizeof...(T) > 0) out.reserve(kArgumentBytesUsual);
  std::apply([&](const T&... value) { (Codec<T>::encode(out, value), ...); }, arguments);
}
template <typename... T>
Bytes encode_arguments(const std::tuple<T...>& arguments) {
  Encoder out;
  encode_arguments(out, arguments);
  return out.take();
}
// The homes of the references that were decoded know of this process when it returns.
Status hold_decoded(const DecodeContext& context);
template <typename... T>
Status decode_arguments(std::span<const std::byte> bytes, const DecodeContext& context,
                        std::tuple<T...>& arguments) {
  Decoder in(bytes, context);
  std::apply([&](T&... value) { (void)(Codec<T>::decode(in, value) && ...); }, arguments);
  if (in.ok() && in.remaining() > 0) in.fail("bytes after the last argument");
  if (context.intake != nullptr && in.ok()) return hold_decoded(context);
  return in.status();
}

// Whether all methods of the class can be called; what cannot is reported once.
template <typename T>
constexpr bool check_methods() {
  return []<auto... Methods>(MethodList<Methods...>) { return (check_method<Methods>() && ...); }
  (std::remove_cvref_t<decltype(T::methods)>{});
}

// Whether every number that an A may be is one that a P holds, or at least near it; signs are the
// caller's: a literal is an int.
template <typename P, typename A>
constexpr bool keeps_number() {
  using From = std::remove_cvref_t<A>;
  if constexpr (std::is_integral_v<P> && !std::is_same_v<P, bool>) {
    if constexpr (std::is_integral_v<From>) return sizeof(From) <= sizeof(P);
    if constexpr (std::is_floating_point_v<From>) return false;
  }
  return true;
}
template <typename Parameters, typename... A>
inline constexpr bool kKeepNumbers = true;
template <typename... P, typename... A>
requires(sizeof...(P) == sizeof...(A)) inline constexpr bool kKeepNumbers<std::tuple<P...>, A...> =
    (keeps_number<P, A>() && ...);

// Explicit conversions count, as of a string_view to a string, or of a number to seconds; but no
// number or null pointer becomes a container (of that size, of the text there), and no pointer a
// bool.
template <typename P>
concept IsContainer = requires(const P& value) {
  typename P::value_type;
  value.size();
};
template <typename P, typename A>
constexpr bool argument_converts() {
  using From = std::decay_t<A>;
  if constexpr (!std::is_constructible_v<P, A>) {
    return false;
  } else if constexpr (IsContainer<P>) {
    return !std::is_null_pointer_v<From> &&
           (std::is_convertible_v<A, P> || !std::is_convertible_v<A, std::size_t>);
  } else {
    return !(std::is_same_v<P, bool> && std::is_pointer_v<From>);
  }
}

// Refuses, with a message, a call whose arguments do not fit the method.
template <auto Method, typename Parameters, typename... A>
struct CallArguments;
template <auto Method, typename... P, typename... A>
struct CallArguments<Method, std::tuple<P...>, A...> {
  static_assert(sizeof...(P) == sizeof...(A),
                "wrong number of arguments for this actor method (named in the line above)");
  static constexpr bool each_converts() {
    if constexpr (sizeof...(P) == sizeof...(A)) {
      return (argument_converts<std::decay_t<P>, A>() && ...);
    }
    return true;  // the count was reported
  }
  static_assert(each_converts(),
                "an argument does not convert to the actor method's parameter (method, parameters "
                "and given types are in the line above)");
  static_assert(kKeepNumbers<std::tuple<std::decay_t<P>...>, A...>,
                "an argument is a wider number than the actor method's parameter, and could be cut "
                "off on its way: take the wider type there, or convert it where you have checked "
                "it (static_cast)");
  static constexpr bool kGood = sizeof...(P) == sizeof...(A) && each_converts();
};

}  // namespace detail

// U says that it acts as T.
template <typename U, typename T>
concept ActsAs = requires {
  requires std::is_same_v<typename U::ActsAs, T>;
  requires !std::is_same_v<U, T>;
};

}  // namespace troupe
