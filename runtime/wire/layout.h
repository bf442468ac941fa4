#pragma once
// Where the fields of a described struct (fields.h) lie in a Cap'n Proto struct: what the schema
// compiler makes of a schema with these fields, at compile time. Private to this folder.
//
// A Cap'n Proto struct is a section of data words, then one of pointers. Fields are placed in the
// order of their numbers, so that those of an earlier version never move: a pointer at the end, a
// number of N bits into the smallest hole that is left for it, or into a new word whose rest is
// then holes.

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <type_traits>
#include <utility>

#include "runtime/base/ids.h"
#include "troupe/detail/wire_fields.h"

namespace troupe::wire::codec {

// The description of a struct: its own, or that of the two types here which are not of this folder.
template <typename T>
struct Description {};
template <typename T>
requires requires { typename T::Wire; }
struct Description<T> {
  using Wire = typename T::Wire;
};
template <typename Tag>
struct Description<Id<Tag>> {
  using Wire = Fields<&Id<Tag>::high, &Id<Tag>::low>;
};
template <typename A, typename B>
struct Description<std::pair<A, B>> {
  using Wire = Fields<&std::pair<A, B>::first, &std::pair<A, B>::second>;
};

template <typename T>
concept Described = requires {
  typename Description<T>::Wire;
};

template <typename T>
concept OneByteEnum = std::is_enum_v<T> && sizeof(T) == 1;
// What lies in the data section; everything else is a pointer.
template <typename T>
concept Number = std::is_integral_v<T> || OneByteEnum<T>;
template <Number T>
using NumberOnWire = std::conditional_t<std::is_enum_v<T>, std::uint8_t, T>;
template <Number T>
inline constexpr std::uint32_t kBits = std::is_same_v<T, bool> ? 1 : 8 * sizeof(T);

class LayoutMaker {
 public:
  // In units of the number's own size.
  constexpr std::uint32_t place_number(std::uint32_t bits) {
    const std::uint32_t size = bits_log2(bits);
    std::uint32_t hole = size;
    while (hole < kWord && holes_[hole] == 0) ++hole;
    std::uint32_t offset = hole < kWord ? std::exchange(holes_[hole], 0) : data_words_++;
    // The first half of it, and again, down to the number's size: the other halves become holes.
    for (; hole > size; --hole) {
      offset *= 2;
      holes_[hole - 1] = offset + 1;
    }
    return offset;
  }
  constexpr std::uint32_t place_pointer() { return pointers_++; }

  constexpr std::uint16_t data_words() const { return static_cast<std::uint16_t>(data_words_); }
  constexpr std::uint16_t pointers() const { return static_cast<std::uint16_t>(pointers_); }

 private:
  static constexpr std::uint32_t kWord = 6;  // log2 of its bits

  static constexpr std::uint32_t bits_log2(std::uint32_t bits) {
    std::uint32_t log = 0;
    while (bits > 1u << log) ++log;
    return log;
  }

  // Where the hole of 2^i bits is, in units of its size; 0: there is none. There is at most one of
  // a size, since a word is only begun where none is left that would do.
  std::array<std::uint32_t, kWord> holes_{};
  std::uint32_t data_words_ = 0;
  std::uint32_t pointers_ = 0;
};

template <typename Struct, typename Field>
Field field_type(Field Struct::*);
template <auto Member>
using FieldType = decltype(field_type(Member));

template <typename Wire>
struct Layout;
template <auto... Members>
struct Layout<Fields<Members...>> {
  // Of each field: a number's offset in units of its size, or the index of a pointer.
  std::array<std::uint32_t, sizeof...(Members)> places{};
  std::uint16_t data_words = 0;
  std::uint16_t pointers = 0;

  consteval Layout() {
    LayoutMaker maker;
    [[maybe_unused]] std::size_t i = 0;
    ((places[i++] = place<FieldType<Members>>(maker)), ...);
    data_words = maker.data_words();
    pointers = maker.pointers();
  }

 private:
  template <typename T>
  static consteval std::uint32_t place(LayoutMaker& maker) {
    if constexpr (Number<T>) {
      return maker.place_number(kBits<T>);
    } else {
      return maker.place_pointer();
    }
  }
};

template <typename T>
inline constexpr Layout<typename Description<T>::Wire> kLayout;

template <typename T>
consteval auto field_indices() {
  return std::make_index_sequence<kLayout<T>.places.size()>();
}

// For errors: the compiler's own words for a field. name_of makes "ActorInfo::state" of them.
using FieldName = const char* (*)();
template <auto Member>
const char* field_name() {
  return __PRETTY_FUNCTION__;  // "… [with auto Member = &troupe::wire::ActorInfo::state; …]"
}
inline std::string_view name_of(FieldName field) {
  std::string_view name = field();
  name = name.substr(0, name.find_first_of(";]", name.find("Member = ")));
  return name.substr(name.rfind("::", name.rfind("::") - 1) + 2);
}

}  // namespace troupe::wire::codec
