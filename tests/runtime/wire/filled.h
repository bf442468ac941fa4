#pragma once
// Fills every field of a message with a value of its own and compares field by field, by reflection
// (Boost.PFR): a field that the codec forgets is found without anybody listing it here.

#include <boost/pfr.hpp>
#include <concepts>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/wire/gpu.h"
#include "runtime/wire/object_messages.h"
#include "runtime/wire/types.h"

namespace troupe::tests {

class Filler {
 public:
  template <typename T>
  T make() {
    T value{};
    fill(value);
    return value;
  }

 private:
  int next() { return ++counter_; }

  void fill(bool& value) { value = !value; }  // so that it is not the default
  void fill(std::string& value) { value = "text " + std::to_string(next()); }
  void fill(std::byte& value) { value = static_cast<std::byte>(next()); }
  void fill(Status& value) {
    value = Status(Code::kDataLoss, "message " + std::to_string(next()))
                .with("rank", next())
                .with("actor", next());
  }
  void fill(wire::ActorState& value) { value = wire::ActorState::kRestarting; }
  void fill(wire::NodeState& value) { value = wire::NodeState::kDraining; }
  void fill(wire::LineEnd& value) { value = wire::LineEnd::kReturn; }
  void fill(wire::PlacementStrategy& value) { value = wire::PlacementStrategy::kStrictSpread; }
  void fill(wire::PlacementGroupState& value) { value = wire::PlacementGroupState::kRescheduling; }
  void fill(wire::GpuPath& value) { value = wire::GpuPath::kHostBridge; }
  void fill(wire::GpuState& value) { value = wire::GpuState::kStuck; }
  void fill(wire::StoreMoveKind& value) { value = wire::StoreMoveKind::kSpilled; }
  void fill(wire::JobState& value) { value = wire::JobState::kFailed; }
  void fill(wire::RestartStrategy& value) { value = wire::RestartStrategy::kRestForOne; }
  void fill(wire::OnHeadLoss& value) { value = wire::OnHeadLoss::kFence; }
  void fill(wire::SupervisorState& value) { value = wire::SupervisorState::kEnded; }
  template <std::integral T>
  void fill(T& value) {
    // Near the top of the type, so that a narrower field on the way would show.
    value = static_cast<T>(std::numeric_limits<T>::max() - next());
  }
  template <typename T>
  void fill(std::vector<T>& values) {
    values.resize(3);
    for (T& value : values) fill(value);
  }
  template <typename T>
  void fill(std::optional<T>& value) {
    value = make<T>();
  }
  template <typename A, typename B>
  void fill(std::pair<A, B>& value) {
    fill(value.first);
    fill(value.second);
  }
  template <typename V, typename C>
  void fill(std::map<std::string, V, C>& values) {
    for (int i = 0; i < 3; ++i) values["key " + std::to_string(next())] = make<V>();
  }
  template <typename T>
  requires std::is_aggregate_v<T>
  void fill(T& value) {
    boost::pfr::for_each_field(value, [&](auto& field) { fill(field); });
  }

  int counter_ = 0;
};

template <typename T>
bool same(const T& a, const T& b);

template <typename T, std::size_t... I>
bool same_fields(const T& a, const T& b, std::index_sequence<I...>) {
  return (same(boost::pfr::get<I>(a), boost::pfr::get<I>(b)) && ...);
}

template <typename T>
bool same(const T& a, const T& b) {
  if constexpr (requires { requires std::is_aggregate_v<T>; }) {
    return same_fields(a, b, std::make_index_sequence<boost::pfr::tuple_size_v<T>>());
  } else if constexpr (requires(const T& v) {
                         v.begin();
                         v.size();
                         requires std::is_aggregate_v<typename T::value_type>;
                       }) {
    if (a.size() != b.size()) return false;
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (!same(a[i], b[i])) return false;
    }
    return true;
  } else {
    return a == b;
  }
}

}  // namespace troupe::tests
