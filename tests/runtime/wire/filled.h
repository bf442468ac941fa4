#pragma once
// Fills every field of a message with a value of its own, by reflection (Boost.PFR): a field that
// the codec forgets is found without anybody listing it here.

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

// Whom and what messages are about that would do harm if they were taken.
struct Aim {
  ActorId actor;
  NodeId node;
  JobId job;
  ClientId client;
};

class Filler {
 public:
  // With `aim`, which outlives it, ids are those, and the rest is what a receiver would take.
  explicit Filler(const Aim* aim = nullptr) : aim_(aim) {}
  template <typename T>
  T make() {
    T value{};
    fill(value);
    return value;
  }

 private:
  int next() { return ++counter_; }

  void fill(ActorId& id) { fill_id(id, aim_ != nullptr ? &aim_->actor : nullptr); }
  void fill(NodeId& id) { fill_id(id, aim_ != nullptr ? &aim_->node : nullptr); }
  void fill(JobId& id) { fill_id(id, aim_ != nullptr ? &aim_->job : nullptr); }
  void fill(ClientId& id) { fill_id(id, aim_ != nullptr ? &aim_->client : nullptr); }
  template <typename I>
  void fill_id(I& id, const I* aim) {
    fill(id.high);
    fill(id.low);
    if (aim != nullptr) id = *aim;
  }
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
    fill_fields(value, std::make_index_sequence<boost::pfr::tuple_size_v<T>>());
    if (aim_ != nullptr) aim_at(value);
  }
  template <typename T, std::size_t... I>
  void fill_fields(T& value, std::index_sequence<I...>) {
    (fill(boost::pfr::get<I>(value)), ...);
  }
  template <typename T>
  static void aim_at(T& value) {
    if constexpr (requires { value.protocol_version; }) {
      value.protocol_version = T{}.protocol_version;
    }
    if constexpr (requires { value.generation; }) value.generation = 1;
    if constexpr (requires { value.grace_ms; }) value.grace_ms = 0;
    if constexpr (requires { value.resources; }) value.resources = {{"CPU", wire::kResourceUnit}};
    if constexpr (requires { value.total; }) value.total = {{"CPU", 8 * wire::kResourceUnit}};
    // A job that would be taken, and run.
    if constexpr (requires { value.driver.program; }) {
      value.driver.actor_id.low = ~value.driver.actor_id.low;
      value.driver.program = {{"/bin/sh", "-c", "exit 0"}, "/"};
      value.driver.environment.clear();
      value.driver.package = {};
      value.driver.restart = {};
      value.driver.placement_group = {};
      value.driver.bundle_index = -1;
      value.driver.node_affinity.reset();
      value.driver.label_selector.clear();
      value.driver.label_preference.clear();
    }
  }

  const Aim* aim_;
  int counter_ = 0;
};

}  // namespace troupe::tests
