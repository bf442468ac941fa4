#include <doctest/doctest.h>

#include "tests/runtime/wire/every_message.h"

namespace troupe::wire {
namespace {

template <typename Family, typename Decode>
void check_family(Decode decode) {
  const auto all = tests::every_message<Family>();
  // Filled, and empty: defaults of the struct and of the schema need not be the same.
  for (const auto& messages : {all.filled, all.empty}) {
    for (std::size_t i = 0; i < messages.size(); ++i) {
      INFO(all.names[i]);
      const Result<Family> decoded = decode(encode(messages[i]));
      REQUIRE_MESSAGE(decoded.ok(), decoded.status().to_string());
      CHECK(tests::same_message(messages[i], *decoded));
    }
  }
}

TEST_CASE("every field of every message comes back") {
  check_family<ControlMessage>([](const Bytes& b) { return decode_control(b); });
  check_family<HostMessage>([](const Bytes& b) { return decode_host(b); });
  check_family<KeeperMessage>([](const Bytes& b) { return decode_keeper(b); });
  check_family<ObjectMessage>([](const Bytes& b) { return decode_object(b); });
  check_family<CallMessage>([](const Bytes& b) { return decode_call(b); });
}

TEST_CASE("the comparison of this test sees a difference in every nested field") {
  tests::Filler filler;
  const auto original = filler.make<CreateActors>();
  auto changed = original;
  const auto seen = [&] {
    return !tests::same_message(ControlMessage(original), ControlMessage(changed));
  };
  CHECK_FALSE(seen());
  changed.specs[1].restart.window_ms += 1;
  CHECK(seen());
}

TEST_CASE("strings keep zero bytes and bytes that are not UTF-8") {
  ActorExited message;
  message.log_tail = std::string("a\0b\xff\xfe", 5);
  const auto decoded = decode_control(encode(ControlMessage(message)));
  REQUIRE(decoded.ok());
  CHECK(get<ActorExited>(*decoded).log_tail == message.log_tail);
}

TEST_CASE("a large argument travels in one segment, and from an address that is not aligned") {
  Call call;
  call.sequence = 7;
  call.arguments.resize(3'000'001, std::byte{42});
  const Bytes frame = encode(CallMessage(call));
  CHECK(frame[0] == std::byte{0});  // segment count minus one
  CHECK(frame.size() < call.arguments.size() + 1024);

  Bytes shifted(frame.size() + 4);
  std::copy(frame.begin(), frame.end(), shifted.begin() + 4);
  const auto decoded = decode_call(std::span(shifted).subspan(4));
  REQUIRE(decoded.ok());
  CHECK(std::get<Call>(*decoded).arguments == call.arguments);
}

TEST_CASE("a small call is small") {
  Call call;
  call.arguments.resize(8);
  CHECK(encode(CallMessage(call)).size() <= 96);
  CHECK(encode(CallMessage(CallReply{.sequence = 1, .status = {}, .result = Bytes(8)})).size() <=
        96);
}

TEST_CASE("an exit status in words") {
  CHECK(ExitStatus{.exit_code = 3}.to_string() == "exit code 3");
  CHECK(ExitStatus{.signal = 9}.to_string() == "killed by signal 9 (SIGKILL)");
  CHECK(ExitStatus{.signal = 63}.to_string() == "killed by signal 63");
  CHECK(actor_state_name(ActorState::kRestarting) == "restarting");
  CHECK(node_state_name(NodeState::kDraining) == "draining");
  CHECK(node_state_name(NodeState::kSuspected) == "suspected");
}

}  // namespace
}  // namespace troupe::wire
