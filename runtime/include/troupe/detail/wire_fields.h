#pragma once
// How a struct says what of it travels. This file is the manual of the encoding for whoever adds a
// field or a message; nobody needs to look into the codec for that.
//
//   struct Endpoint {
//     std::string host;
//     std::uint16_t port = 0;
//     std::string local_name;
//     TROUPE_WIRE(Endpoint, host, port, local_name);
//   };
//
// The list is all that the codec knows of the struct: both directions, the layout and the names in
// errors are made from it. The place of a field in the list is its number on the wire, from 0, as
// in a Cap'n Proto schema; its place in the struct is free. Hence the one rule: **a new field goes
// to the end of the list, and what is in the list stays, at its place and of its type.** Then peers
// and journals of other builds are read: who does not know a field leaves it out, and a field that
// is missing in what is read has its default on the wire (below), whatever the struct's own is.
//
// What a field may be, and what it is in Cap'n Proto:
//
//   bool, (u)int8_t … (u)int64_t     Bool, (U)Int8 … (U)Int64
//   enum over uint8_t                UInt8; refused where it is larger than last_value(Enum)
//   std::string                      Text; any bytes, zero bytes as well
//   Bytes                            Data
//   Id<Tag>                          struct { high :UInt64; low :UInt64; }
//   a struct with a TROUPE_WIRE      a struct
//   Status                           a struct; null where it is ok
//   std::optional of a struct        a struct; null where there is nothing
//   std::vector of these             List; at most limits::kWireListCountMax elements
//   std::pair<A, B>                  struct { first :A; second :B; }
//   std::map<std::string, V>         List of such pairs; refused where a key is there twice
//
// A family of messages is a variant of such structs. It is encoded as a struct that has nothing but
// a union of all of them, whose number is the message's place among the alternatives: **a new
// message goes to the end, too.**
//
// tests/golden/wire.capnp is all of this as a Cap'n Proto schema, for programs in other languages
// and for `capnp decode`. tests/runtime/wire keeps it up to date (schema_test.cpp), finds a field
// that is in no list (round_trip_test.cpp) and a change of what was there before (golden_test.cpp).

#include <cstdint>

namespace troupe::wire {

// The members of one struct, as pointers to them, in the order of their numbers.
template <auto... Members>
struct Fields {};

// Inside of the struct, after its fields. At most 64 of them.
#define TROUPE_WIRE(Type, ...) \
  using Wire =                 \
      ::troupe::wire::Fields<__VA_OPT__(TROUPE_WIRE_64(TROUPE_WIRE_MEMBER(Type, __VA_ARGS__)))>

// What a number reads as where the bytes do not have it, or have zero bits there. The value that
// the struct's member begins with plays no part in this.
template <auto Member>
inline constexpr std::int64_t kWireDefault = 0;

// Whether a struct that is equal to a new one is written as a null pointer. Others are written
// whatever is in them.
template <typename T>
inline constexpr bool kNullWhenDefault = false;

// A macro is not expanded inside of its own expansion: each of the 64 passes over the text makes
// one more member, and leaves the call that the next pass expands.
#define TROUPE_WIRE_MEMBER(Type, first, ...) \
  &Type::first __VA_OPT__(, TROUPE_WIRE_LATER TROUPE_WIRE_PARENTHESES(Type, __VA_ARGS__))
#define TROUPE_WIRE_LATER() TROUPE_WIRE_MEMBER
#define TROUPE_WIRE_PARENTHESES ()
#define TROUPE_WIRE_64(...) \
  TROUPE_WIRE_16(TROUPE_WIRE_16(TROUPE_WIRE_16(TROUPE_WIRE_16(__VA_ARGS__))))
#define TROUPE_WIRE_16(...) TROUPE_WIRE_4(TROUPE_WIRE_4(TROUPE_WIRE_4(TROUPE_WIRE_4(__VA_ARGS__))))
#define TROUPE_WIRE_4(...) TROUPE_WIRE_1(TROUPE_WIRE_1(TROUPE_WIRE_1(TROUPE_WIRE_1(__VA_ARGS__))))
#define TROUPE_WIRE_1(...) __VA_ARGS__

}  // namespace troupe::wire
