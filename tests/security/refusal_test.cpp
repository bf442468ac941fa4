// Every message, at every door, without the token, with a wrong, a truncated and an old one:
// refused, and nothing has changed.

#include <doctest/doctest.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "runtime/net/handshake.h"
#include "runtime/process/packet_socket.h"
#include "tests/security/aimed_messages.h"
#include "tests/security/live_cluster.h"
#include "tests/security/stranger.h"
#include "troupe/serialize.h"

namespace troupe::tests {
namespace {

const net::Token kToken(32, std::byte{0x5a});
const net::Token kOldToken(32, std::byte{0x3c});

// A place to connect to, what is asked for there, and what is said before a message so that it
// would be looked at.
struct Door {
  std::string name;
  net::Address address;
  std::string target;
  std::vector<wire::Bytes> introduction;
};

struct Credential {
  enum class Proof { kNothing, kGreetingOnly, kByToken };
  std::string name;
  Proof proof = Proof::kByToken;
  net::Token token;
};

std::vector<Credential> bad_credentials() {
  std::vector<std::byte> secret = kToken.secret();
  secret.back() ^= std::byte{1};
  const net::Token wrong(secret);
  const auto first = [](std::size_t count) {
    const auto begin = kToken.secret().begin();
    return net::Token(std::vector(begin, begin + static_cast<std::ptrdiff_t>(count)));
  };
  return {{"no handshake", Credential::Proof::kNothing, {}},
          {"no proof", Credential::Proof::kGreetingOnly, {}},
          {"an empty token", Credential::Proof::kByToken, {}},
          {"a wrong token", Credential::Proof::kByToken, wrong},
          {"a token without its last byte", Credential::Proof::kByToken, first(31)},
          {"half a token", Credential::Proof::kByToken, first(16)},
          {"the old token", Credential::Proof::kByToken, kOldToken}};
}

struct Fixture {
  LiveCluster cluster{kToken};
  ActorHandle<Purse> purse = cluster.spawn("purse");

  Aim aim() const { return {purse.id(), cluster.node_id(), cluster.job_id(), cluster.client_id()}; }
  // `client` introduces itself at the head.
  std::vector<Door> doors(ClientId client) const {
    const std::string actor = "actor/" + purse.id().to_string();
    const wire::Bytes hello = wire::encode(
        wire::ControlMessage(wire::ClientHello{1, client, cluster.job_id(), "x", "tool"}));
    wire::Bind bind;
    bind.actor_id = purse.id();
    bind.type = std::string(detail::kActorInterface<Purse>.type);
    bind.caller = ClientId{7, 7};
    for (const auto& method : detail::kActorInterface<Purse>.methods) {
      bind.methods.push_back({std::string(method.name), method.hash});
    }
    const wire::Bytes bound = wire::encode(wire::CallMessage(bind));
    return {{"head", cluster.head(), "head", {hello}},
            {"node", cluster.node(), "node", {}},
            {"node's local socket", cluster.node_local(), "node", {}},
            {"actor", cluster.node(), actor, {bound}},
            {"actor, by the local socket", cluster.node_local(), actor, {bound}}};
  }
};

// What the other side said, all of it, to who came with `credential` and said `messages`.
wire::Bytes visit(const Door& door, const Credential& credential,
                  const std::vector<wire::Bytes>& messages) {
  const UniqueFd socket = dial(door.address);
  wire::Bytes heard;
  if (credential.proof != Credential::Proof::kNothing) {
    REQUIRE(say_bytes(socket, hello_bytes()));
    heard = hear(socket, net::kChallengeBytes);
  }
  if (credential.proof == Credential::Proof::kByToken) {
    (void)say_bytes(socket, proof_bytes(credential.token, heard, door.target));
  }
  std::vector<wire::Bytes> words = door.introduction;
  words.insert(words.end(), messages.begin(), messages.end());
  (void)say_bytes(socket, frames_of(words));
  ::shutdown(socket.get(), SHUT_WR);
  const wire::Bytes rest = hear_all(socket);
  heard.insert(heard.end(), rest.begin(), rest.end());
  return heard;
}

// The listener's challenge at most, and its fixed refusal behind it: nothing of what was asked.
void check_refused(const wire::Bytes& heard, const Credential& credential) {
  if (credential.proof == Credential::Proof::kNothing) {
    CHECK(heard.empty());
    return;
  }
  REQUIRE(heard.size() >= net::kChallengeBytes);
  const wire::Bytes after(heard.begin() + net::kChallengeBytes, heard.end());
  const auto refusal = net::ServerHandshake::answer(Status(Code::kUnauthenticated, "wrong token"));
  // Where too little came for a proof, or more than was read was under way when the socket closed,
  // the refusal may be missing; nothing else may come.
  CHECK((after == refusal || after.empty()));
  if (credential.proof == Credential::Proof::kByToken && !after.empty()) CHECK(after == refusal);
}

TEST_CASE_FIXTURE(Fixture, "no, wrong, truncated and old tokens: every message at every door") {
  const ClusterState before = cluster.state(purse);
  const std::int64_t pid = cluster.pid_of(purse.id());
  const auto messages = aimed_messages(aim());
  const std::size_t family_sizes =
      std::variant_size_v<wire::ControlMessage> + std::variant_size_v<wire::HostMessage> +
      std::variant_size_v<wire::CallMessage> + std::variant_size_v<wire::KeeperMessage>;
  REQUIRE(messages.size() == family_sizes);
  for (const Credential& credential : bad_credentials()) {
    for (const Door& door : doors(cluster.client_id())) {
      CAPTURE(credential.name);
      CAPTURE(door.name);
      for (const NamedMessage& message : messages) {
        CAPTURE(message.name);
        check_refused(visit(door, credential, {message.bytes}), credential);
      }
    }
  }
  CHECK(cluster.state(purse) == before);
  CHECK(cluster.pid_of(purse.id()) == pid);
}

// Who has the token, and waits for what he is told: the bytes of as many frames, behind the answer
// of the handshake that lets him in.
std::vector<wire::Bytes> welcome_visit(const Door& door, const wire::Bytes& message,
                                       int frame_count) {
  const UniqueFd socket = dial(door.address);
  REQUIRE(say_bytes(socket, hello_bytes()));
  const auto challenge = hear(socket, net::kChallengeBytes);
  REQUIRE(say_bytes(socket, proof_bytes(kToken, challenge, door.target)));
  auto words = door.introduction;
  words.push_back(message);
  REQUIRE(say_bytes(socket, frames_of(words)));
  CHECK(hear(socket, net::kAnswerBytes) == wire::Bytes(net::kAnswerBytes));
  std::vector<wire::Bytes> frames;
  for (int frame = 0; frame < frame_count; ++frame) {
    const auto header = hear(socket, 4);
    std::uint32_t length = 0;
    REQUIRE(header.size() == 4);
    std::memcpy(&length, header.data(), 4);
    frames.push_back(hear(socket, length));
    REQUIRE(frames.back().size() == length);
  }
  return frames;
}

// The same words with the right token: so the test above can fail.
TEST_CASE_FIXTURE(Fixture, "with the token the same words are taken") {
  const ClusterState before = cluster.state(purse);
  const auto doors_here = doors(ClientId{9, 9});

  // The head ends an actor.
  ActorHandle<Purse> victim = cluster.spawn("victim");
  const wire::KillActor kill{5, victim.id(), false, 0, "enough"};
  welcome_visit(doors_here[0], wire::encode(wire::ControlMessage(kill)), 2);
  // The call may still be heard by the process that is being ended.
  Status ended;
  for (const auto until = Deadline::after(kClusterPatience); ended.ok() && !until.passed();)
    ended = victim.call<&Purse::count>().get(kClusterPatience).status();
  CHECK_MESSAGE((ended.code() == Code::kActorDied || ended.code() == Code::kUnavailable),
                ended.to_string());
  CHECK_FALSE(cluster.state(purse) == before);

  // It takes a job.
  const Aim here = aim();
  auto job = Filler(&here).make<wire::SubmitJob>();
  job.driver.job_id = JobId{4, 4};  // whose end is not that of the purse
  job.driver.supervisor = {};
  job.driver.health = {};
  const auto answers = welcome_visit(doors_here[0], wire::encode(wire::ControlMessage(job)), 2);
  const auto taken = wire::decode_control(answers[1]);
  REQUIRE(taken.ok());
  CHECK(get<wire::Reply>(*taken).status.to_string() == "ok");

  // The node reads out what it keeps.
  const wire::ReadLogs logs{6, purse.id()};
  for (const std::size_t door : {1, 2}) {
    const auto said = welcome_visit(doors_here[door], wire::encode(wire::ControlMessage(logs)), 1);
    const auto answer = wire::decode_control(said[0]);
    REQUIRE(answer.ok());
    CHECK(holds_alternative<wire::LogText>(*answer));
  }

  // The actor runs a call; once, for the second caller's has the first one's name and number.
  const wire::Call call{1, 0, 10'000'000, encode_value(std::int64_t{5})};
  for (const std::size_t door : {3, 4}) {
    const auto said = welcome_visit(doors_here[door], wire::encode(wire::CallMessage(call)), 2);
    const auto answer = wire::decode_call(said[1]);
    REQUIRE(answer.ok());
    REQUIRE(std::holds_alternative<wire::CallReply>(*answer));
    CHECK(std::get<wire::CallReply>(*answer).status.ok());
  }
  CHECK(cluster.state(purse).coins == before.coins + 5);
}

TEST_CASE("a token that was changed is worth nothing any more") {
  {
    LiveCluster before(kOldToken);
    const Door door{"head", before.head(), "head", {}};
    const Credential old{"the old token", Credential::Proof::kByToken, kOldToken};
    CHECK(visit(door, old, {}).size() == net::kChallengeBytes + net::kAnswerBytes);
  }
  LiveCluster after(kToken);
  CHECK(net::connect_blocking(after.head(), "head", kOldToken, Deadline::after(kClusterPatience))
            .status()
            .code() == Code::kUnauthenticated);
  CHECK(net::connect_blocking(after.node(), "node", kOldToken, Deadline::after(kClusterPatience))
            .status()
            .code() == Code::kUnauthenticated);
}

// --- another user of the same machine ------------------------------------------------------------

constexpr uid_t kOtherUser = 65534;  // nobody

// Runs `work` in a thread that is another user to the kernel; false where that is not allowed. The
// library's own call would change the whole process.
template <typename Work>
bool as_other_user(Work work) {
  bool allowed = false;
  std::thread([&] {
    allowed = ::syscall(SYS_setresuid, -1, kOtherUser, -1) == 0;
    if (allowed) work();
  }).join();
  if (!allowed) MESSAGE("SKIPPED: only root can be another user");
  return allowed;
}

TEST_CASE_FIXTURE(Fixture, "another user is turned away at local sockets, even with the token") {
  const ClusterState before = cluster.state(purse);
  const auto messages = aimed_messages(aim());
  std::vector<std::string> problems;
  const bool allowed = as_other_user([&] {
    for (const NamedMessage& message : messages) {
      // The node's: closed before a word.
      for (const Door& door : doors(cluster.client_id())) {
        if (door.address.local_name.empty()) continue;
        const UniqueFd socket = dial(door.address);
        (void)say_bytes(socket, hello_bytes());
        if (!hear_all(socket).empty()) problems.push_back(door.name + ": " + message.name);
      }
      // The keeper's, which has no token and believes its user alone.
      auto socket = process::connect_packets(cluster.keeper_socket());
      if (!socket.ok()) {
        problems.push_back(socket.status().to_string());
        continue;
      }
      const auto deadline = Deadline::after(kClusterPatience);
      (void)process::send_packet(socket->get(), message.bytes, {}, deadline);
      const auto answer = process::receive_packet(socket->get(), deadline);
      if (answer.status().code() != Code::kUnavailable)
        problems.push_back("keeper: " + message.name);
    }
  });
  CHECK(problems == std::vector<std::string>{});
  CHECK(cluster.state(purse) == before);
  if (!allowed) return;
  // The token is no way in from there either.
  as_other_user([&] {
    const auto refused = net::connect_blocking(cluster.node_local(), "node", kToken,
                                               Deadline::after(kClusterPatience));
    if (refused.ok()) problems.push_back("connected");
  });
  CHECK(problems.empty());
}

TEST_CASE_FIXTURE(Fixture, "a keeper has one daemon: a second one is told so and not heard") {
  const ClusterState before = cluster.state(purse);
  for (const NamedMessage& message : aimed_messages(aim())) {
    CAPTURE(message.name);
    auto socket = process::connect_packets(cluster.keeper_socket());
    REQUIRE(socket.ok());
    const auto deadline = Deadline::after(kClusterPatience);
    (void)process::send_packet(socket->get(), message.bytes, {}, deadline);
    const auto answer = process::receive_packet(socket->get(), deadline);
    if (!answer.ok()) continue;  // it closed with our words unread
    const auto said = wire::decode_keeper(answer->bytes);
    REQUIRE(said.ok());
    const auto* welcome = get_if<wire::KeeperWelcome>(&*said);
    REQUIRE(welcome != nullptr);
    CHECK(welcome->status.code() == Code::kAlreadyExists);
  }
  CHECK(cluster.state(purse) == before);
}

}  // namespace
}  // namespace troupe::tests
