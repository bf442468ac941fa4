// The four families of messages: what processes tell each other.

#include "runtime/base/check.h"
#include "runtime/wire/call_messages.h"
#include "runtime/wire/control_messages.h"
#include "runtime/wire/host_messages.h"
#include "runtime/wire/keeper_messages.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/runtime/wire/every_message.h"

namespace troupe::tests {
namespace {

// What was read can be written, and is read again as the same.
template <typename Message, auto kDecode>
void run_schema(std::span<const std::byte> input) {
  const Result<Message> read = kDecode(input);
  if (!read.ok()) {
    TROUPE_CHECK(read.status().code() == Code::kProtocol, "{}", read.status().to_string());
    return;
  }
  const wire::Bytes written = wire::encode(*read);
  const Result<Message> again = kDecode(written);
  TROUPE_CHECK(again.ok(), "{}", again.status().to_string());
  TROUPE_CHECK(wire::encode(*again) == written);
}

// Every message of the family, with every field filled and with none.
template <typename Message>
std::vector<FuzzBytes> schema_seeds() {
  const auto all = every_message<Message>();
  std::vector<FuzzBytes> seeds;
  for (const auto& messages : {all.filled, all.empty})
    for (const Message& message : messages) seeds.push_back(wire::encode(message));
  return seeds;
}

constexpr std::size_t kSchemaBytesMax = 4096;

Result<wire::CallMessage> decode_call_alone(std::span<const std::byte> frame) {
  return wire::decode_call(frame);
}

// A call's message has its large bytes in it, or beside it.
void run_calls(std::span<const std::byte> input) {
  run_schema<wire::CallMessage, &decode_call_alone>(input);
  const Result<wire::CallMessage> read = wire::decode_call(input);
  const wire::Bytes beside(16, std::byte{0x61});
  const Result<wire::CallMessage> with = wire::decode_call(input, beside);
  if (!read.ok() || !with.ok()) {
    TROUPE_CHECK(read.ok() || !with.ok());
    return;
  }
  // Only a message without bytes of its own takes those beside it.
  TROUPE_CHECK(wire::encode(*with) != wire::encode(*read));
}

}  // namespace

constinit const FuzzTarget kControlTarget{
    "control", "messages between head, nodes and clients", kSchemaBytesMax,
    &run_schema<wire::ControlMessage, &wire::decode_control>, &schema_seeds<wire::ControlMessage>};
constinit const FuzzTarget kHostTarget{
    "host", "messages between a node and an actor's process", kSchemaBytesMax,
    &run_schema<wire::HostMessage, &wire::decode_host>, &schema_seeds<wire::HostMessage>};
constinit const FuzzTarget kCallTarget{"call", "messages between caller and actor", kSchemaBytesMax,
                                       &run_calls, &schema_seeds<wire::CallMessage>};
constinit const FuzzTarget kKeeperTarget{
    "keeper", "messages between a node's daemon and its keeper", kSchemaBytesMax,
    &run_schema<wire::KeeperMessage, &wire::decode_keeper>, &schema_seeds<wire::KeeperMessage>};

}  // namespace troupe::tests
