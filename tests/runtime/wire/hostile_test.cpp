// Bytes from a peer that is broken or means harm: kProtocol, never a crash, never much memory.

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>

#include "runtime/base/hash.h"
#include "runtime/base/limits.h"
#include "runtime/base/random.h"
#include "runtime/wire/call_messages.h"
#include "runtime/wire/control_messages.h"
#include "runtime/wire/host_messages.h"
#include "runtime/wire/keeper_messages.h"
#include "tests/runtime/wire/filled.h"

namespace troupe::wire {
namespace {

void put_word(Bytes& bytes, std::size_t word, std::uint64_t value) {
  if (bytes.size() < (word + 1) * 8) bytes.resize((word + 1) * 8);
  std::memcpy(bytes.data() + word * 8, &value, 8);
}

// Cap'n Proto's encoding: a struct pointer (offset in words, data words, pointers) and a list one.
std::uint64_t struct_pointer(std::int32_t offset, std::uint16_t data, std::uint16_t pointers) {
  return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(offset) << 2)) |
         (static_cast<std::uint64_t>(data) << 32) | (static_cast<std::uint64_t>(pointers) << 48);
}
std::uint64_t list_pointer(std::int32_t offset, unsigned size_code, std::uint32_t count) {
  return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(offset) << 2)) | 1u |
         (static_cast<std::uint64_t>(size_code) << 32) | (static_cast<std::uint64_t>(count) << 35);
}

Bytes filled_frame() { return encode(ControlMessage(tests::Filler().make<CreateActors>())); }

TEST_CASE("every truncation is refused") {
  const Bytes frame = filled_frame();
  for (std::size_t size = 0; size < frame.size(); ++size) {
    const auto decoded = decode_control(std::span(frame).first(size));
    REQUIRE_FALSE(decoded.ok());
    REQUIRE(decoded.status().code() == Code::kProtocol);
  }
}

TEST_CASE("bytes after the message are refused") {
  for (const std::size_t extra : {1, 7, 8, 64}) {
    Bytes frame = filled_frame();
    frame.resize(frame.size() + extra);
    CHECK(decode_control(frame).status().code() == Code::kProtocol);
  }
}

TEST_CASE("flipped bits and random bytes never crash") {
  SeededRandom random(1);
  const Bytes frames[] = {filled_frame(), encode(ControlMessage(tests::Filler().make<ActorList>())),
                          encode(ControlMessage(tests::Filler().make<RegisterNode>()))};
  int refused = 0;
  for (int round = 0; round < 20'000; ++round) {
    Bytes frame = frames[round % 3];
    for (std::uint64_t flips = 1 + random.below(8); flips > 0; --flips) {
      frame[random.below(frame.size())] ^= static_cast<std::byte>(1u << random.below(8));
    }
    const auto decoded = decode_control(frame);
    if (!decoded.ok()) {
      ++refused;
      REQUIRE(decoded.status().code() == Code::kProtocol);
    }
  }
  CHECK(refused > 1000);

  for (int round = 0; round < 20'000; ++round) {
    Bytes frame(8 * random.below(64));
    random.fill(frame);
    // A plausible segment table, so that the rest is looked at.
    if (frame.size() >= 8) put_word(frame, 0, (frame.size() / 8 - 1) << 32);
    (void)decode_control(frame);
    (void)decode_host(frame);
    (void)decode_call(frame);
  }
}

TEST_CASE("an unknown message, an unknown state and an empty message are refused") {
  Bytes frame;
  put_word(frame, 0, 3ull << 32);
  put_word(frame, 1, struct_pointer(0, 1, 1));
  put_word(frame, 2, 999);
  put_word(frame, 3, 0);
  const Status unknown = decode_control(frame).status();
  CHECK(unknown.code() == Code::kProtocol);
  CHECK(unknown.message().find("999") != std::string::npos);

  put_word(frame, 2, 0);  // a known number, but no message behind it
  CHECK(decode_control(frame).status().code() == Code::kProtocol);
  CHECK(decode_host(frame).status().code() == Code::kProtocol);
  CHECK(decode_call(frame).status().code() == Code::kProtocol);

  ActorUpdate update;
  update.actor.state = static_cast<ActorState>(77);
  const Status state = decode_control(encode(ControlMessage(update))).status();
  CHECK(state.code() == Code::kProtocol);
  CHECK(state.message().ends_with("'ActorInfo::state' is 77, which this version does not know"));
}

TEST_CASE("what an earlier version did not write has its default on the wire") {
  Bytes frame;
  put_word(frame, 0, 3ull << 32);
  put_word(frame, 1, struct_pointer(0, 1, 1));
  put_word(frame, 2, HostMessage::kIndexOf<HostReady>);
  put_word(frame, 3, struct_pointer(-1, 0, 0));  // a struct without any field
  const auto ready = decode_host(frame);
  REQUIRE(ready.ok());
  CHECK(get<HostReady>(*ready).protocol_version == 0);  // not what the struct begins with

  put_word(frame, 2, ControlMessage::kIndexOf<ActorExited>);
  const auto exited = decode_control(frame);
  REQUIRE(exited.ok());
  CHECK(get<ActorExited>(*exited).calls_dropped == -1);
  CHECK(get<ActorExited>(*exited).cause.ok());

  put_word(frame, 2, ControlMessage::kIndexOf<Heartbeat>);
  const auto heartbeat = decode_control(frame);
  REQUIRE(heartbeat.ok());
  CHECK_FALSE(get<Heartbeat>(*heartbeat).usage.has_value());
}

TEST_CASE("a list of a billion empty elements is refused at once") {
  // CallMessage { bind } → Bind with a list of structs of no size.
  Bytes frame;
  put_word(frame, 0, 8ull << 32);
  put_word(frame, 1, struct_pointer(0, 1, 1));
  put_word(frame, 2, 0);                        // bind
  put_word(frame, 3, struct_pointer(0, 0, 4));  // Bind: actorId, type, caller, methods
  put_word(frame, 4, 0);
  put_word(frame, 5, 0);
  put_word(frame, 6, 0);
  put_word(frame, 7, list_pointer(0, 7, 0));                // inline composite, no words
  put_word(frame, 8, struct_pointer((1 << 29) - 1, 0, 0));  // tag: 2^29 - 1 elements
  CHECK(decode_call(frame).status().code() == Code::kProtocol);
}

TEST_CASE("a list of more elements than are allowed is refused by its name") {
  KeeperSpawn message;
  message.descriptors.resize(limits::kWireListCountMax + 1);
  const Status status = decode_keeper(encode(KeeperMessage(message))).status();
  CHECK(status.code() == Code::kProtocol);
  CHECK(status.message().find("the list 'KeeperSpawn::descriptors' has ") != std::string::npos);
}

TEST_CASE("a message that points at itself is cut off") {
  // A Status list whose elements all point at one long text: read once each, it would be gigabytes.
  constexpr std::size_t kElements = 4000;
  constexpr std::size_t kTextWords = 4000;
  Bytes frame;
  put_word(frame, 1, struct_pointer(0, 1, 1));
  put_word(frame, 2, 0);                        // bind
  put_word(frame, 3, struct_pointer(0, 0, 4));  // Bind
  put_word(frame, 4, 0);
  put_word(frame, 5, 0);
  put_word(frame, 6, 0);
  put_word(frame, 7, list_pointer(0, 7, kElements * 2));
  put_word(frame, 8, struct_pointer(kElements, 1, 1));  // MethodSignature: hash, name
  const std::size_t text_word = 9 + kElements * 2;
  for (std::size_t i = 0; i < kElements; ++i) {
    const std::size_t pointer_word = 9 + i * 2 + 1;
    put_word(frame, pointer_word - 1, i);
    put_word(
        frame, pointer_word,
        list_pointer(static_cast<std::int32_t>(text_word - pointer_word - 1), 2, kTextWords * 8));
  }
  put_word(frame, text_word + kTextWords - 1, 0);  // ends in a zero byte
  put_word(frame, 0, (frame.size() / 8 - 1) << 32);
  const Status status = decode_call(frame).status();
  CHECK(status.code() == Code::kProtocol);
}

TEST_CASE("a key twice in a map is refused") {
  RegisterNode message;
  message.node.total = {{"CPU", 1}, {"GPU", 2}};
  Bytes frame = encode(ControlMessage(message));
  const std::string_view needle("GPU");
  const auto at =
      std::search(frame.begin(), frame.end(), bytes_of(needle).begin(), bytes_of(needle).end());
  REQUIRE(at != frame.end());
  *at = std::byte{'C'};
  *(at + 1) = std::byte{'P'};
  const Status status = decode_control(frame).status();
  CHECK(status.code() == Code::kProtocol);
  CHECK(status.message().ends_with("a key is twice in 'NodeInfo::total'"));
}

TEST_CASE("more segments than a message of ours has are refused") {
  Bytes frame(4096);
  put_word(frame, 0, 0xffffffffull);
  CHECK(decode_control(frame).status().code() == Code::kProtocol);
  put_word(frame, 0, 100);
  CHECK(decode_control(frame).status().code() == Code::kProtocol);
}

TEST_CASE("a status of a newer version becomes an internal error, its words kept") {
  const Bytes frame = encode(
      ControlMessage(Reply{.request_id = 1, .status = Status(static_cast<Code>(4711), "new")}));
  const auto decoded = decode_control(frame);
  REQUIRE(decoded.ok());
  CHECK(get<Reply>(*decoded).status == Status(Code::kInternal, "new"));
}

}  // namespace
}  // namespace troupe::wire
