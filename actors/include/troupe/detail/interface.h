#pragma once
// What the two ends of a conversation compare: an actor's class and the signatures of its methods.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace troupe::detail {

struct MethodSignature {
  std::string_view name;
  std::uint64_t hash = 0;      // structural hash of the argument and result types
  std::string_view type = {};  // for people: "int (Counter::*)(int)"
};

// Of one class, as a program knows it. The texts live as long as the program.
struct ActorInterface {
  std::string_view type;
  std::span<const MethodSignature> methods;
  bool light = false;  // of a host of light actors (light_actor.h)
  bool saves = false;  // whether the class has save() and load()
};

// Where the two programs of a call differ in a method, the error says what it is in each of them:
// the actor adds the one, the caller the other.
inline constexpr std::string_view kInActorsProgram = "in the actor's program";
inline constexpr std::string_view kInCallersProgram = "in the caller's program";

// A method as errors name it. The text lives as long as the program.
struct MethodLabel {
  std::string_view type;
  std::string_view method;
  bool empty() const { return method.empty(); }
  std::string to_string() const;  // "Counter::add"
};

}  // namespace troupe::detail
