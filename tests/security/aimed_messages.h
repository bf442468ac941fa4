#pragma once
// Every message of every family that a door might take, aimed at what is there, so that it would do
// harm if it were taken.

#include <string>
#include <utility>
#include <vector>

#include "tests/runtime/wire/every_message.h"

namespace troupe::tests {

struct NamedMessage {
  std::string name;
  wire::Bytes bytes;
};

template <typename Family>
void add_family(std::vector<NamedMessage>& out, const Aim& aim) {
  auto all = every_message<Family>(&aim);
  for (std::size_t i = 0; i < all.filled.size(); ++i)
    out.push_back({std::move(all.names[i]), wire::encode(all.filled[i])});
}

inline std::vector<NamedMessage> aimed_messages(const Aim& aim) {
  std::vector<NamedMessage> out;
  add_family<wire::ControlMessage>(out, aim);
  add_family<wire::HostMessage>(out, aim);
  add_family<wire::CallMessage>(out, aim);
  add_family<wire::KeeperMessage>(out, aim);
  return out;
}

}  // namespace troupe::tests
