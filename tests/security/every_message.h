#pragma once
// Every message of every family, by reflection: one that is added is among them. Each is aimed at
// what is there, so that it would do harm if it were taken.

#include <boost/pfr.hpp>
#include <string>
#include <vector>

#include "runtime/wire/call_messages.h"
#include "runtime/wire/control_messages.h"
#include "runtime/wire/host_messages.h"
#include "runtime/wire/keeper_messages.h"
#include "tests/runtime/wire/filled.h"

namespace troupe::tests {

// Who and what the messages name.
struct Aim {
  ActorId actor;
  NodeId node;
  JobId job;
  ClientId client;
};

inline void aim_at(const Aim& aim, ActorId& id) { id = aim.actor; }
inline void aim_at(const Aim& aim, NodeId& id) { id = aim.node; }
inline void aim_at(const Aim& aim, JobId& id) { id = aim.job; }
inline void aim_at(const Aim& aim, ClientId& id) { id = aim.client; }
template <typename T>
void aim_at(const Aim& aim, T& value) {
  if constexpr (requires { value.protocol_version; }) {
    value.protocol_version = decltype(T{}.protocol_version)(T{}.protocol_version);
  }
  if constexpr (requires { value.generation; }) value.generation = 1;
  if constexpr (requires { value.grace_ms; }) value.grace_ms = 0;
  if constexpr (requires { value.resources; }) value.resources = {{"CPU", wire::kResourceUnit}};
  if constexpr (requires { value.total; }) value.total = {{"CPU", 8 * wire::kResourceUnit}};
  if constexpr (std::is_same_v<T, Status> || std::is_same_v<T, std::string>) {
  } else if constexpr (requires {
                         typename T::value_type;
                         value.begin();
                       }) {
    if constexpr (std::is_aggregate_v<typename T::value_type>) {
      for (auto& element : value) aim_at(aim, element);
    }
  } else if constexpr (std::is_aggregate_v<T>) {
    boost::pfr::for_each_field(value, [&](auto& field) { aim_at(aim, field); });
  }
  // A job that would be taken, and run.
  if constexpr (requires { value.driver.program; }) {
    value.driver.actor_id = ActorId{aim.actor.high, ~aim.actor.low};
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

struct NamedMessage {
  std::string name;
  wire::Bytes bytes;
};

template <typename Family, std::size_t... I>
void add_family(std::vector<NamedMessage>& out, const std::string& family, const Aim& aim,
                std::index_sequence<I...>) {
  Filler filler;
  const auto add = [&]<typename Message>(Message message) {
    aim_at(aim, message);
    out.push_back({family + " " + std::to_string(out.size()), wire::encode(Family(message))});
  };
  (add(filler.make<std::variant_alternative_t<I, Family>>()), ...);
}

inline std::vector<NamedMessage> every_message(const Aim& aim) {
  std::vector<NamedMessage> out;
  const auto add = [&]<typename Family>(const Family*, const char* name) {
    add_family<Family>(out, name, aim, std::make_index_sequence<std::variant_size_v<Family>>());
  };
  add(static_cast<const wire::ControlMessage*>(nullptr), "control");
  add(static_cast<const wire::HostMessage*>(nullptr), "host");
  add(static_cast<const wire::CallMessage*>(nullptr), "call");
  add(static_cast<const wire::KeeperMessage*>(nullptr), "keeper");
  return out;
}

}  // namespace troupe::tests
