#pragma once
// What callers and host processes of light actors (ActorOptions::isolation = kShared) agree upon.
//
// To the head a host of light actors is one actor like others, of type "T[]"; its spec says for how
// many it has room. It has T's methods and a few of its own, and the arguments of every call but
// kEach begin with the number of the light actor in its host, as a u32. So placement, restarts,
// channels, order, deadlines and retries of light actors are those of the host, and no other code
// knows of them.
//
// The constructor arguments of a host: the hash of T's own (method_table.h), a LightStart, the
// index of its first light actor among those that were spawned together (u64), and then, by
// LightStart: nothing; the arguments of every constructor; for each a count of bytes (u32) and its
// arguments.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "troupe/detail/method_table.h"
#include "troupe/ids.h"
#include "troupe/status.h"

namespace troupe {

namespace detail {

enum class LightStart : std::uint8_t {
  kLater = 0,    // each is made by a call of LightMethod::kCreate
  kAlike = 1,    // all at the start, with the same arguments
  kOneEach = 2,  // all at the start, each with its own
};

// Methods of hosts, after those of T.
enum class LightMethod : std::uint32_t {
  kCreate = 0,  // (number, bytes of detail::encode_constructor); without effect when it was made
  kEnd = 1,     // (number, reason): its destructor runs, and it is dead for good
  kWatch = 2,   // (number) → Status: answered when it has ended, with why
  kEach = 3,    // a method of many of them, one after the other (light_batch.h)
};
inline constexpr std::array<MethodSignature, 4> kLightMethods{
    MethodSignature{".create", 1}, MethodSignature{".end", 1}, MethodSignature{".watch", 1},
    MethodSignature{".each", 1}};

// What follows T's name in the type of its hosts.
inline constexpr std::string_view kLightSuffix = "[]";

template <typename T>
struct LightInterfaceTraits {
  static constexpr auto kTypeText = [] {
    std::array<char, kTypeName<T>.size() + kLightSuffix.size()> text{};
    std::size_t i = 0;
    for (const char c : kTypeName<T>) text[i++] = c;
    for (const char c : kLightSuffix) text[i++] = c;
    return text;
  }();
  static constexpr auto kSignatures = [] {
    constexpr auto& own = ActorClassTraits<T>::kSignatures;
    std::array<MethodSignature, own.size() + kLightMethods.size()> all{};
    std::size_t i = 0;
    for (const MethodSignature& method : own) all[i++] = method;
    for (const MethodSignature& method : kLightMethods) all[i++] = method;
    return all;
  }();
};
// The hosts of T's, as callers see them.
template <typename T>
inline constexpr ActorInterface kLightInterface{
    std::string_view(LightInterfaceTraits<T>::kTypeText.data(),
                     LightInterfaceTraits<T>::kTypeText.size()),
    LightInterfaceTraits<T>::kSignatures, true, HasSave<T>};

// The position of a host's own method in its interface.
inline std::uint32_t light_method(const ActorInterface& hosts, LightMethod method) {
  return static_cast<std::uint32_t>(hosts.methods.size() - kLightMethods.size()) +
         static_cast<std::uint32_t>(method);
}

// Ids of hosts end in 32 zero bits; that of a light actor has its number, from 1, in their place.
inline constexpr std::uint64_t kLightIdBits = 0xffff'ffff;
inline ActorId light_actor_id(ActorId host, std::uint32_t number) {
  return {host.high, host.low | (std::uint64_t{number} + 1)};
}

}  // namespace detail
}  // namespace troupe
