#pragma once
// Which types travel as arguments, results and saved state, and how they are written.
//
// Numbers, bool, enums, std::string, std::chrono durations; vector, deque, list, array,
// (unordered_) map and set; optional, variant, pair, tuple, unique_ptr; Status; ids; actor handles
// (handle.h); and plain aggregates of these (public fields, no constructors, bases or C arrays), by
// Boost.PFR. Anything else: specialise troupe::Codec (codec.h).

#include <array>
#include <boost/pfr/core.hpp>
#include <boost/pfr/tuple_size.hpp>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

#include "troupe/codec.h"
#include "troupe/detail/durations.h"
#include "troupe/ids.h"
#include "troupe/status.h"

namespace troupe {

// T can be an argument, a result or saved state.
template <typename T>
concept Serializable = Codec<T>::kSupported;

namespace detail {

template <typename T>
inline constexpr bool kIsNumber = std::is_arithmetic_v<T> && !std::is_same_v<T, long double>;

// Element types whose arrays are copied whole.
template <typename T>
inline constexpr bool kIsBulk =
    (kIsNumber<T> && !std::is_same_v<T, bool>) || std::is_same_v<T, std::byte>;

// Numbers of one kind and width are one type to the peer, whatever C++ calls them.
template <typename T>
constexpr std::uint64_t number_hash() {
  if (std::is_same_v<T, bool>) return TypeHash::of("bool");
  const std::uint64_t kind = TypeHash::of(std::is_floating_point_v<T> ? "float"
                                          : std::is_signed_v<T>       ? "int"
                                                                      : "uint");
  return TypeHash::mix(kind, sizeof(T));
}

template <typename... T>
constexpr std::uint64_t hash_of(std::string_view kind) {
  std::uint64_t hash = TypeHash::of(kind);
  ((hash = TypeHash::mix(hash, Codec<T>::kHash)), ...);
  return hash;
}

// Vectors, strings, maps, sets: a count, then the elements.
template <typename Container, typename Element>
struct ContainerCodec {
  static constexpr bool kSupported = Codec<Element>::kSupported;
  static constexpr std::size_t kBytesMin = 4;
  static void encode(Encoder& out, const Container& value) {
    out.put_count(value.size());
    for (const auto& element : value) Codec<Element>::encode(out, element);
  }
  // `insert(container, element)` returns false for an element that must not be there.
  template <typename Insert>
  static bool decode_elements(Decoder& in, Container& value, Insert insert) {
    std::size_t count = 0;
    if (!in.get_count(count, Codec<Element>::kBytesMin)) return false;
    value.clear();
    for (std::size_t i = 0; i < count; ++i) {
      Element element{};
      if (!Codec<Element>::decode(in, element)) return false;
      if (!insert(value, std::move(element))) return in.fail("a key twice");
    }
    return true;
  }
};

template <typename Container>
struct SequenceCodec : ContainerCodec<Container, typename Container::value_type> {
  using Element = typename Container::value_type;
  static bool decode(Decoder& in, Container& value) {
    return SequenceCodec::decode_elements(in, value, [](Container& c, Element&& e) {
      c.push_back(std::move(e));
      return true;
    });
  }
};

template <typename Container, typename Element>
struct UniqueKeyCodec : ContainerCodec<Container, Element> {
  static bool decode(Decoder& in, Container& value) {
    return UniqueKeyCodec::decode_elements(
        in, value, [](Container& c, Element&& e) { return c.insert(std::move(e)).second; });
  }
};

// pair, tuple and aggregates: the fields one after the other.
template <typename... T>
struct FieldsCodec {
  static constexpr bool kSupported = (Codec<T>::kSupported && ...);
  static void encode(Encoder& out, const T&... fields) {
    if constexpr (sizeof...(T) == 0) out.put(std::uint8_t{0});
    (Codec<T>::encode(out, fields), ...);
  }
  static bool decode(Decoder& in, T&... fields) {
    if constexpr (sizeof...(T) == 0) {
      std::uint8_t none = 0;
      return in.get(none) && (none == 0 || in.fail("an empty value that is not empty"));
    }
    return (Codec<T>::decode(in, fields) && ...);
  }
  static constexpr std::size_t bytes_min() {
    return sizeof...(T) == 0 ? 1 : (std::size_t{0} + ... + Codec<T>::kBytesMin);
  }
};

template <typename T>
inline constexpr bool kIsId = false;
template <typename Tag>
inline constexpr bool kIsId<Id<Tag>> = true;

template <typename T>
concept PlainAggregate = std::is_class_v<T> && std::is_aggregate_v<T> && !std::is_empty_v<T> &&
                         !kIsId<T> && std::is_default_constructible_v<T>;

// The aggregate's fields as types: Fields<T>::Codec is FieldsCodec<field types…>.
template <typename T, typename Indices = std::make_index_sequence<boost::pfr::tuple_size_v<T>>>
struct Fields;
template <typename T, std::size_t... I>
struct Fields<T, std::index_sequence<I...>> {
  using Codec = FieldsCodec<boost::pfr::tuple_element_t<I, T>...>;
  static void encode(Encoder& out, const T& value) {
    Codec::encode(out, boost::pfr::get<I>(value)...);
  }
  static bool decode(Decoder& in, T& value) {
    return Codec::decode(in, boost::pfr::get<I>(value)...);
  }
  static constexpr std::uint64_t hash() {
    return hash_of<boost::pfr::tuple_element_t<I, T>...>("aggregate");
  }
};

// --- which field of a type cannot travel, for the compiler's error

template <typename T>
struct Holder {
  T value;
};
template <typename T>
extern const Holder<T> kNowhere;  // never defined: the name of its fields is all that is asked for
// Where the I-th field of T would be: as a template's argument the compiler spells it by its name.
template <typename T, std::size_t I>
consteval auto field_address() {
  return &boost::pfr::detail::sequence_tuple::get<I>(
      boost::pfr::detail::tie_as_tuple(const_cast<T&>(kNowhere<T>.value)));
}

template <auto Field, typename Type>
struct FieldThatCannotTravel;

inline constexpr int kOffenderDepthMax = 8;  // types may contain themselves
// ::Type: T itself, or FieldThatCannotTravel for what is inside of it.
template <typename T, int Depth = 0>
struct Offender;

template <typename T>
inline constexpr bool kIsField = false;
template <auto Field, typename Type>
inline constexpr bool kIsField<FieldThatCannotTravel<Field, Type>> = true;

template <typename T, int Depth, std::size_t I>
consteval auto offender_of_field() {
  if constexpr (I >= boost::pfr::tuple_size_v<T>) {
    return std::type_identity<T>();  // such as one with C arrays or bases
  } else if constexpr (Codec<boost::pfr::tuple_element_t<I, T>>::kSupported) {
    return offender_of_field<T, Depth, I + 1>();
  } else {
    using Inside = typename Offender<boost::pfr::tuple_element_t<I, T>, Depth + 1>::Type;
    if constexpr (kIsField<Inside>) {
      return std::type_identity<Inside>();
    } else {
      return std::type_identity<FieldThatCannotTravel<field_address<T, I>(), Inside>>();
    }
  }
}
template <typename T, int Depth>
consteval auto offender() {
  if constexpr (Depth >= kOffenderDepthMax) {
    return std::type_identity<T>();
  } else if constexpr (PlainAggregate<T>) {
    return offender_of_field<T, Depth, 0>();
  } else if constexpr (requires {  // a container, an optional
                         typename T::value_type;
                         requires !std::is_same_v<typename T::value_type, T>;
                         requires !Codec<typename T::value_type>::kSupported;
                       }) {
    return std::type_identity<typename Offender<typename T::value_type, Depth + 1>::Type>();
  } else {
    return std::type_identity<T>();
  }
}
template <typename T, int Depth>
struct Offender {
  using Type = typename decltype(offender<T, Depth>())::type;
};

}  // namespace detail

template <typename T>
requires(detail::kIsNumber<T>) struct Codec<T> {
  static constexpr bool kSupported = true;
  static constexpr std::size_t kBytesMin = sizeof(T);
  static constexpr std::uint64_t kHash = detail::number_hash<T>();
  static void encode(Encoder& out, T value) { out.put(value); }
  static bool decode(Decoder& in, T& value) { return in.get(value); }
};

template <typename T>
requires(std::is_enum_v<T>) struct Codec<T> {
  using Number = std::underlying_type_t<T>;
  static constexpr bool kSupported = true;
  static constexpr std::size_t kBytesMin = sizeof(Number);
  static constexpr std::uint64_t kHash = TypeHash::mix(TypeHash::of("enum"), Codec<Number>::kHash);
  static void encode(Encoder& out, T value) { out.put(static_cast<Number>(value)); }
  static bool decode(Decoder& in, T& value) {
    Number number{};
    if (!in.get(number)) return false;
    value = static_cast<T>(number);
    return true;
  }
};

template <typename Rep, typename Period>
struct Codec<std::chrono::duration<Rep, Period>> {
  using Value = std::chrono::duration<Rep, Period>;
  static constexpr bool kSupported = Codec<Rep>::kSupported;
  static constexpr std::size_t kBytesMin = sizeof(Rep);
  static constexpr std::uint64_t kHash =
      TypeHash::mix(TypeHash::mix(TypeHash::of("duration"), Period::num), Period::den);
  static void encode(Encoder& out, Value value) { out.put(value.count()); }
  static bool decode(Decoder& in, Value& value) {
    Rep count{};
    if (!in.get(count)) return false;
    value = Value(count);
    return true;
  }
};

template <>
struct Codec<std::string> {
  static constexpr bool kSupported = true;
  static constexpr std::size_t kBytesMin = 4;
  static constexpr std::uint64_t kHash = TypeHash::of("string");
  static void encode(Encoder& out, const std::string& value) {
    out.put_count(value.size());
    out.append(value.data(), value.size());
  }
  static bool decode(Decoder& in, std::string& value) {
    std::size_t count = 0;
    if (!in.get_count(count, 1)) return false;
    value.resize(count);
    return in.get_raw(value.data(), count);
  }
};

template <typename T, typename A>
requires(!detail::kIsBulk<T>) struct Codec<std::vector<T, A>>
    : detail::SequenceCodec<std::vector<T, A>> {
  static constexpr std::uint64_t kHash = detail::hash_of<T>("sequence");
};
template <typename T, typename A>
requires(detail::kIsBulk<T>) struct Codec<std::vector<T, A>> {
  static constexpr bool kSupported = true;
  static constexpr std::size_t kBytesMin = 4;
  static constexpr std::uint64_t kHash = detail::hash_of<T>("sequence");
  static void encode(Encoder& out, const std::vector<T, A>& value) {
    out.put_count(value.size());
    out.append(value.data(), value.size() * sizeof(T));
  }
  static bool decode(Decoder& in, std::vector<T, A>& value) {
    std::size_t count = 0;
    if (!in.get_count(count, sizeof(T))) return false;
    value.resize(count);
    return in.get_raw(value.data(), count * sizeof(T));
  }
};
template <typename T>
struct Codec<std::deque<T>> : detail::SequenceCodec<std::deque<T>> {
  static constexpr std::uint64_t kHash = detail::hash_of<T>("sequence");
};
template <typename T>
struct Codec<std::list<T>> : detail::SequenceCodec<std::list<T>> {
  static constexpr std::uint64_t kHash = detail::hash_of<T>("sequence");
};

template <typename T, std::size_t N>
requires(N > 0) struct Codec<std::array<T, N>> {
  static constexpr bool kSupported = Codec<T>::kSupported;
  static constexpr std::size_t kBytesMin = N * Codec<T>::kBytesMin;
  static constexpr std::uint64_t kHash = TypeHash::mix(detail::hash_of<T>("array"), N);
  static void encode(Encoder& out, const std::array<T, N>& value) {
    for (const T& element : value) Codec<T>::encode(out, element);
  }
  static bool decode(Decoder& in, std::array<T, N>& value) {
    for (T& element : value) {
      if (!Codec<T>::decode(in, element)) return false;
    }
    return true;
  }
};

template <typename K, typename V, typename C>
struct Codec<std::map<K, V, C>> : detail::UniqueKeyCodec<std::map<K, V, C>, std::pair<K, V>> {
  static constexpr std::uint64_t kHash = detail::hash_of<K, V>("map");
};
template <typename K, typename V, typename H, typename E>
struct Codec<std::unordered_map<K, V, H, E>>
    : detail::UniqueKeyCodec<std::unordered_map<K, V, H, E>, std::pair<K, V>> {
  static constexpr std::uint64_t kHash = detail::hash_of<K, V>("map");
};
template <typename K, typename C>
struct Codec<std::set<K, C>> : detail::UniqueKeyCodec<std::set<K, C>, K> {
  static constexpr std::uint64_t kHash = detail::hash_of<K>("set");
};
template <typename K, typename H, typename E>
struct Codec<std::unordered_set<K, H, E>> : detail::UniqueKeyCodec<std::unordered_set<K, H, E>, K> {
  static constexpr std::uint64_t kHash = detail::hash_of<K>("set");
};

template <typename A, typename B>
struct Codec<std::pair<A, B>> {
  using Base = detail::FieldsCodec<std::remove_const_t<A>, B>;
  static constexpr bool kSupported = Base::kSupported;
  static constexpr std::size_t kBytesMin = Base::bytes_min();
  static constexpr std::uint64_t kHash = detail::hash_of<A, B>("tuple");
  // Also std::pair<const K, V>, the element of a map.
  template <typename Pair>
  static void encode(Encoder& out, const Pair& value) {
    Base::encode(out, value.first, value.second);
  }
  static bool decode(Decoder& in, std::pair<A, B>& value) {
    return Base::decode(in, value.first, value.second);
  }
};

template <typename... T>
struct Codec<std::tuple<T...>> {
  using Base = detail::FieldsCodec<T...>;
  static constexpr bool kSupported = Base::kSupported;
  static constexpr std::size_t kBytesMin = Base::bytes_min();
  static constexpr std::uint64_t kHash = detail::hash_of<T...>("tuple");
  static void encode(Encoder& out, const std::tuple<T...>& value) {
    std::apply([&](const T&... fields) { Base::encode(out, fields...); }, value);
  }
  static bool decode(Decoder& in, std::tuple<T...>& value) {
    return std::apply([&](T&... fields) { return Base::decode(in, fields...); }, value);
  }
};

template <typename T>
struct Codec<std::optional<T>> {
  static constexpr bool kSupported = Codec<T>::kSupported;
  static constexpr std::size_t kBytesMin = 1;
  static constexpr std::uint64_t kHash = detail::hash_of<T>("optional");
  static void encode(Encoder& out, const std::optional<T>& value) {
    out.put(value.has_value());
    if (value) Codec<T>::encode(out, *value);
  }
  static bool decode(Decoder& in, std::optional<T>& value) {
    bool present = false;
    value.reset();
    if (!in.get(present)) return false;
    return !present || Codec<T>::decode(in, value.emplace());
  }
};

template <typename T>
struct Codec<std::unique_ptr<T>> {
  static constexpr bool kSupported = Codec<T>::kSupported;
  static constexpr std::size_t kBytesMin = 1;
  static constexpr std::uint64_t kHash = detail::hash_of<T>("optional");
  static void encode(Encoder& out, const std::unique_ptr<T>& value) {
    out.put(value != nullptr);
    if (value) Codec<T>::encode(out, *value);
  }
  static bool decode(Decoder& in, std::unique_ptr<T>& value) {
    bool present = false;
    value.reset();
    if (!in.get(present)) return false;
    if (!present) return true;
    value = std::make_unique<T>();
    if (!in.enter()) return false;
    const bool good = Codec<T>::decode(in, *value);
    in.leave();
    return good;
  }
};

template <typename... T>
struct Codec<std::variant<T...>> {
  static constexpr bool kSupported = (Codec<T>::kSupported && ...);
  static constexpr std::size_t kBytesMin = 2;
  static constexpr std::uint64_t kHash = detail::hash_of<T...>("variant");
  static_assert(sizeof...(T) <= 255);
  static void encode(Encoder& out, const std::variant<T...>& value) {
    out.put(static_cast<std::uint8_t>(value.index()));
    std::visit([&]<typename V>(const V& v) { Codec<V>::encode(out, v); }, value);
  }
  static bool decode(Decoder& in, std::variant<T...>& value) {
    std::uint8_t index = 0;
    if (!in.get(index)) return false;
    if (index >= sizeof...(T)) return in.fail("a variant with an alternative that does not exist");
    return decode_alternative(in, value, index, std::index_sequence_for<T...>{});
  }

 private:
  template <std::size_t... I>
  static bool decode_alternative(Decoder& in, std::variant<T...>& value, std::size_t index,
                                 std::index_sequence<I...>) {
    return ((I == index && Codec<T>::decode(in, value.template emplace<I>())) || ...);
  }
};

template <>
struct Codec<std::monostate> {
  static constexpr bool kSupported = true;
  static constexpr std::size_t kBytesMin = 1;
  static constexpr std::uint64_t kHash = TypeHash::of("empty");
  static void encode(Encoder& out, std::monostate) { detail::FieldsCodec<>::encode(out); }
  static bool decode(Decoder& in, std::monostate&) { return detail::FieldsCodec<>::decode(in); }
};

template <typename Tag>
struct Codec<Id<Tag>> {
  static constexpr bool kSupported = true;
  static constexpr std::size_t kBytesMin = 16;
  static constexpr std::uint64_t kHash = TypeHash::of(Tag::kName);
  static void encode(Encoder& out, const Id<Tag>& value) {
    out.put(value.high);
    out.put(value.low);
  }
  static bool decode(Decoder& in, Id<Tag>& value) {
    return in.get(value.high) && in.get(value.low);
  }
};

template <>
struct Codec<Status> {
  using Context = std::vector<std::pair<std::string, std::string>>;
  static constexpr bool kSupported = true;
  static constexpr std::size_t kBytesMin = 12;
  static constexpr std::uint64_t kHash = TypeHash::of("Status");
  static void encode(Encoder& out, const Status& value) {
    out.put(static_cast<std::int32_t>(value.code()));
    Codec<std::string>::encode(out, value.message());
    Codec<Context>::encode(out, value.context());
  }
  static bool decode(Decoder& in, Status& value) {
    std::int32_t code = 0;
    std::string message;
    Context context;
    if (!in.get(code) || !Codec<std::string>::decode(in, message) ||
        !Codec<Context>::decode(in, context)) {
      return false;
    }
    value = code == 0 ? Status() : Status(code_from_number(code), std::move(message));
    for (const auto& [key, text] : context) value.with(key, text);
    return true;
  }
};

template <detail::PlainAggregate T>
struct Codec<T> {
  static constexpr bool kSupported = detail::Fields<T>::Codec::kSupported;
  static constexpr std::size_t kBytesMin = detail::Fields<T>::Codec::bytes_min();
  static constexpr std::uint64_t kHash = detail::Fields<T>::hash();
  static void encode(Encoder& out, const T& value) { detail::Fields<T>::encode(out, value); }
  static bool decode(Decoder& in, T& value) { return detail::Fields<T>::decode(in, value); }
};
template <typename T>
requires(std::is_class_v<T>&& std::is_aggregate_v<T>&& std::is_empty_v<T>) struct Codec<T> {
  static constexpr bool kSupported = true;
  static constexpr std::size_t kBytesMin = 1;
  static constexpr std::uint64_t kHash = TypeHash::of("empty");
  static void encode(Encoder& out, const T&) { detail::FieldsCodec<>::encode(out); }
  static bool decode(Decoder& in, T&) { return detail::FieldsCodec<>::decode(in); }
};

// One value as bytes.
template <Serializable T>
std::vector<std::byte> encode_value(const T& value) {
  Encoder out;
  Codec<T>::encode(out, value);
  return out.take();
}

namespace detail {
// The error for the exception that is being handled; `bytes`: the size of the encoded value.
Status decode_threw(std::size_t bytes);
}  // namespace detail

// Exactly one value; kProtocol for bytes that end early, go on, or break a limit, or where a codec
// throws; kResourceExhausted where there is no memory for the value. Throws nothing.
template <Serializable T>
Result<T> decode_value(std::span<const std::byte> bytes, const DecodeContext& context = {}) try {
  Decoder in(bytes, context);
  T value{};
  const bool decoded = Codec<T>::decode(in, value);
  if (decoded && in.remaining() == 0) return value;
  // (A codec may refuse a value without a word.)
  if (in.status().ok()) {
    in.fail(decoded ? "bytes after the last value" : "the type's Codec does not take it");
  }
  return in.status();
} catch (...) {
  return detail::decode_threw(bytes.size());
}

}  // namespace troupe
