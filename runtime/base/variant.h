#pragma once
// One of several types, for messages, events and commands of many kinds.
//
// Why not std::variant: it makes functions for each pair of its alternatives (its storage is a
// union in a union in a union …), and again in every file that touches one. With the fifty messages
// of the control plane these were a quarter of what the compiler did for the scheduler. Here an
// alternative costs three small functions, in the one file that instantiates the variant
// explicitly, and a variant's name is short: its alternatives stand in a type of their own.
//
//   struct Shapes : Alternatives<Circle, Square> {};
//   using Shape = Variant<Shapes>;
//   extern template class Variant<Shapes>;   // in namespace troupe; without `extern` in one .cpp
//
// get_if, get, holds_alternative and visit (of one variant) do what std's do, and are found without
// `std::`; std::variant_size and std::variant_alternative know it.
// Different from std: an alternative is made from exactly its type, never by a conversion; the
// moves of all alternatives do not throw, so that there always is a value; destroying, copying and
// moving is a call through a table. What is made and taken apart a million times a second and has
// few alternatives may be better off with std's.
//
// Thread rules: like any value, no sharing of one object without a lock.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <new>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>

namespace troupe {

template <typename... Ts>
struct Alternatives {};

namespace detail {

struct AlternativeOperations {
  void (*destroy)(void* value);
  void (*copy)(void* to, const void* from);
  void (*move)(void* to, void* from);
};

template <typename T>
void destroy_alternative(void* value) {
  static_cast<T*>(value)->~T();
}
template <typename T>
void copy_alternative(void* to, const void* from) {
  ::new (to) T(*static_cast<const T*>(from));
}
template <typename T>
void move_alternative(void* to, void* from) {
  ::new (to) T(std::move(*static_cast<T*>(from)));
}

// The pointers of the functions below only say which alternatives are meant.
template <typename... Ts>
consteval std::size_t alternatives_count(const Alternatives<Ts...>*) {
  return sizeof...(Ts);
}
template <typename... Ts>
consteval std::size_t alternatives_size(const Alternatives<Ts...>*) {
  return std::max({sizeof(Ts)...});
}
template <typename... Ts>
consteval std::size_t alternatives_alignment(const Alternatives<Ts...>*) {
  return std::max({alignof(Ts)...});
}
template <typename T, typename... Ts>
consteval std::size_t alternative_index(const Alternatives<Ts...>*) {
  constexpr bool kSame[] = {__is_same(T, Ts)...};
  std::size_t index = 0;
  while (index < sizeof...(Ts) && !kSame[index]) ++index;
  return index;
}
template <typename... Ts>
consteval auto alternatives_operations(const Alternatives<Ts...>*) {
  static_assert((std::is_nothrow_move_constructible_v<Ts> && ...),
                "an alternative whose move may throw could leave its variant without a value");
  return std::array<AlternativeOperations, sizeof...(Ts)>{AlternativeOperations{
      &destroy_alternative<Ts>, &copy_alternative<Ts>, &move_alternative<Ts>}...};
}
template <std::size_t I, typename... Ts>
std::tuple_element_t<I, std::tuple<Ts...>> alternative_at(const Alternatives<Ts...>*);

}  // namespace detail

template <typename List>
class Variant {
  static constexpr const List* kList = nullptr;

 public:
  static constexpr std::size_t kCount = detail::alternatives_count(kList);
  static_assert(kCount > 0 && kCount <= 256);

  // The type's place among the alternatives; kCount: it is none of them.
  template <typename T>
  static constexpr std::size_t kIndexOf = detail::alternative_index<T>(kList);

  template <std::size_t I>
  using Alternative = decltype(detail::alternative_at<I>(kList));

  // The first alternative's default.
  Variant() : Variant(Alternative<0>()) {}
  template <typename T>
  requires(kIndexOf<std::remove_cvref_t<T>> < kCount) Variant(T&& value)
      : index_(kIndexOf<std::remove_cvref_t<T>>) {
    ::new (storage()) std::remove_cvref_t<T>(std::forward<T>(value));
  }
  Variant(const Variant& other) : index_(other.index_) {
    kOperations[index_].copy(storage(), other.storage());
  }
  Variant(Variant&& other) noexcept : index_(other.index_) {
    kOperations[index_].move(storage(), other.storage());
  }
  Variant& operator=(const Variant& other) { return *this = Variant(other); }
  Variant& operator=(Variant&& other) noexcept {
    if (this == &other) return *this;
    kOperations[index_].destroy(storage());
    index_ = other.index_;
    kOperations[index_].move(storage(), other.storage());
    return *this;
  }
  ~Variant() { kOperations[index_].destroy(storage()); }

  // Which alternative it holds, from 0.
  std::size_t index() const { return index_; }

  // The alternative, whatever it is: for the functions below.
  void* storage() { return storage_; }
  const void* storage() const { return storage_; }

  // Of the same alternative and equal.
  friend bool operator==(const Variant& a, const Variant& b) {
    return a.index_ == b.index_ && visit(
                                       [&b]<typename T>(const T& value) {
                                         return value == *static_cast<const T*>(b.storage());
                                       },
                                       a);
  }

 private:
  static const std::array<detail::AlternativeOperations, kCount> kOperations;

  alignas(detail::alternatives_alignment(
      kList)) unsigned char storage_[detail::alternatives_size(kList)];
  std::uint8_t index_;
};

template <typename List>
constinit const std::array<detail::AlternativeOperations, Variant<List>::kCount>
    Variant<List>::kOperations = detail::alternatives_operations(static_cast<const List*>(nullptr));

template <typename T, typename List>
bool holds_alternative(const Variant<List>& variant) {
  static_assert(Variant<List>::template kIndexOf<T> < Variant<List>::kCount,
                "no alternative of it");
  return variant.index() == Variant<List>::template kIndexOf<T>;
}

// The alternative, or null where the variant holds another one.
template <typename T, typename List>
T* get_if(Variant<List>* variant) {
  return holds_alternative<T>(*variant) ? static_cast<T*>(variant->storage()) : nullptr;
}
template <typename T, typename List>
const T* get_if(const Variant<List>* variant) {
  return holds_alternative<T>(*variant) ? static_cast<const T*>(variant->storage()) : nullptr;
}

// The alternative; throws std::bad_variant_access where the variant holds another one.
template <typename T, typename List>
T& get(Variant<List>& variant) {
  if (!holds_alternative<T>(variant)) throw std::bad_variant_access();
  return *static_cast<T*>(variant.storage());
}
template <typename T, typename List>
const T& get(const Variant<List>& variant) {
  if (!holds_alternative<T>(variant)) throw std::bad_variant_access();
  return *static_cast<const T*>(variant.storage());
}
template <typename T, typename List>
T&& get(Variant<List>&& variant) {
  return std::move(get<T>(variant));
}

namespace detail {

template <typename R, typename Visitor, typename T>
R visit_alternative(Visitor& visitor, void* value) {
  return visitor(*static_cast<T*>(value));
}
template <typename R, typename Visitor, typename T>
R visit_const_alternative(Visitor& visitor, const void* value) {
  return visitor(*static_cast<const T*>(value));
}
template <typename R, typename Visitor, typename... Ts>
R visit_index(const Alternatives<Ts...>*, std::size_t index, Visitor& visitor, void* value) {
  static constexpr R (*kVisits[])(Visitor&, void*) = {&visit_alternative<R, Visitor, Ts>...};
  return kVisits[index](visitor, value);
}
template <typename R, typename Visitor, typename... Ts>
R visit_const_index(const Alternatives<Ts...>*, std::size_t index, Visitor& visitor,
                    const void* value) {
  static constexpr R (*kVisits[])(Visitor&,
                                  const void*) = {&visit_const_alternative<R, Visitor, Ts>...};
  return kVisits[index](visitor, value);
}

}  // namespace detail

// visitor(alternative), which gives the same type for all of them.
template <typename Visitor, typename List>
auto visit(Visitor&& visitor, Variant<List>& variant) {
  using First = typename Variant<List>::template Alternative<0>;
  using R = std::invoke_result_t<std::remove_reference_t<Visitor>&, First&>;
  return detail::visit_index<R>(static_cast<const List*>(nullptr), variant.index(), visitor,
                                variant.storage());
}
template <typename Visitor, typename List>
auto visit(Visitor&& visitor, const Variant<List>& variant) {
  using First = typename Variant<List>::template Alternative<0>;
  using R = std::invoke_result_t<std::remove_reference_t<Visitor>&, const First&>;
  return detail::visit_const_index<R>(static_cast<const List*>(nullptr), variant.index(), visitor,
                                      variant.storage());
}

}  // namespace troupe

template <typename List>
struct std::variant_size<troupe::Variant<List>>
    : std::integral_constant<std::size_t, troupe::Variant<List>::kCount> {};
template <std::size_t I, typename List>
struct std::variant_alternative<I, troupe::Variant<List>> {
  using type = typename troupe::Variant<List>::template Alternative<I>;
};
