#include "runtime/net/handshake.h"

#include <algorithm>
#include <cstring>

#include "runtime/base/check.h"
#include "runtime/base/hash.h"
#include "runtime/base/limits.h"

namespace troupe::net {
namespace {

using Bytes = std::vector<std::byte>;

static_assert(limits::kHandshakeTargetBytesMax <= 256);

void append(Bytes& out, std::span<const std::byte> data) {
  out.insert(out.end(), data.begin(), data.end());
}

void append_u16(Bytes& out, std::size_t value) {
  out.push_back(static_cast<std::byte>(value & 0xff));
  out.push_back(static_cast<std::byte>(value >> 8 & 0xff));
}

std::size_t read_u16(std::span<const std::byte> data) {
  return static_cast<std::size_t>(data[0]) | static_cast<std::size_t>(data[1]) << 8;
}

std::uint32_t read_u32(std::span<const std::byte> data) {
  std::uint32_t value = 0;
  for (int i = 3; i >= 0; --i) value = value << 8 | static_cast<std::uint32_t>(data[i]);
  return value;
}

// What was received so far could still become a preamble of ours.
bool magic_begins(std::span<const std::byte> data) {
  const std::size_t count = std::min(data.size(), kHandshakeMagic.size());
  return std::equal(data.begin(), data.begin() + static_cast<std::ptrdiff_t>(count),
                    kHandshakeMagic.begin());
}

Nonce read_nonce(std::span<const std::byte> data) {
  Nonce nonce;
  std::copy_n(data.begin(), kNonceBytes, nonce.begin());
  return nonce;
}

// Targets are identifiers and words: nothing that could disturb a log or a terminal.
bool printable(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c <= '~'; });
}

}  // namespace

Bytes handshake_preamble(std::uint32_t version) {
  Bytes out;
  append(out, kHandshakeMagic);
  for (int i = 0; i < 4; ++i) out.push_back(static_cast<std::byte>(version >> (8 * i) & 0xff));
  return out;
}

std::array<std::byte, kMacBytes> handshake_mac(const Token& token, std::string_view label,
                                               const Nonce& client_nonce, const Nonce& server_nonce,
                                               std::string_view target) {
  Bytes message;
  append(message, bytes_of(label));
  append(message, client_nonce);
  append(message, server_nonce);
  append(message, bytes_of(target));
  return hmac_sha256(token.secret(), message);
}

// --- the listening side --------------------------------------------------------------------------

ServerHandshake::ServerHandshake(const Token& token, Random& random, bool encrypted_only)
    : token_(token), encrypted_only_(encrypted_only) {
  random.fill(server_nonce_);
}

void ServerHandshake::expect(Stage stage, std::size_t count) {
  stage_ = stage;
  have_ = 0;
  want_ = count;
}

ServerHandshake::Outcome ServerHandshake::filled(std::size_t count) {
  have_ += count;
  TROUPE_CHECK(have_ <= want_);
  if (stage_ == Stage::kHello && !magic_begins(std::span(buffer_).first(have_))) {
    return {.step = Step::kRefused, .reply = {}, .why = "it does not speak this protocol"};
  }
  if (have_ < want_) return {};
  switch (stage_) {
    case Stage::kHello:
      return on_hello();
    case Stage::kProof: {
      std::copy_n(buffer_.begin(), kMacBytes, proof_.begin());
      const std::size_t length = read_u16(std::span(buffer_).subspan(kMacBytes));
      if (length > limits::kHandshakeTargetBytesMax) return refuse_token();
      expect(Stage::kTarget, length);
      return length == 0 ? on_target() : Outcome{};
    }
    case Stage::kTarget:
      return on_target();
  }
  return {};
}

ServerHandshake::Outcome ServerHandshake::on_hello() {
  const std::uint32_t version = read_u32(std::span(buffer_).subspan(kHandshakeMagic.size()));
  Outcome outcome;
  if (encrypted_only_) {
    outcome.step = Step::kRefused;
    outcome.reply = handshake_preamble(kEncryptedOnly);
    outcome.why = "it does not encrypt its connection";
    return outcome;
  }
  outcome.reply = handshake_preamble();
  if (version != kHandshakeVersion) {
    // Our preamble tells the peer the version, and it can name both.
    outcome.step = Step::kRefused;
    outcome.why = fmt::format("it speaks protocol version {}, this is version {}", version,
                              kHandshakeVersion);
    return outcome;
  }
  client_nonce_ = read_nonce(std::span(buffer_).subspan(kPreambleBytes));
  append(outcome.reply, server_nonce_);
  append(outcome.reply, handshake_mac(token_, kServerLabel, client_nonce_, server_nonce_, ""));
  expect(Stage::kProof, kProofBytes);
  return outcome;
}

ServerHandshake::Outcome ServerHandshake::on_target() {
  const std::string_view target(reinterpret_cast<const char*>(buffer_.data()), want_);
  const auto expected = handshake_mac(token_, kClientLabel, client_nonce_, server_nonce_, target);
  if (!equal_constant_time(proof_, expected)) return refuse_token();
  if (!printable(target)) {
    const Status status(Code::kInvalidArgument, "a target is made of printable characters");
    return {.step = Step::kRefused, .reply = answer(status), .why = status.message()};
  }
  target_ = target;
  return {.step = Step::kAuthenticated, .reply = {}, .why = {}};
}

ServerHandshake::Outcome ServerHandshake::refuse_token() {
  const Status status(Code::kUnauthenticated, "wrong token");
  return {.step = Step::kRefused, .reply = answer(status), .why = status.message()};
}

Bytes ServerHandshake::answer(const Status& status) {
  const std::string_view message =
      std::string_view(status.message()).substr(0, kAnswerMessageBytesMax);
  Bytes out;
  append_u16(out, static_cast<std::size_t>(status.code()));
  append_u16(out, message.size());
  append(out, bytes_of(message));
  return out;
}

// --- the connecting side -------------------------------------------------------------------------

ClientHandshake::ClientHandshake(const Token& token, std::string target, std::string where,
                                 Random& random)
    : token_(token), target_(std::move(target)), where_(std::move(where)) {
  TROUPE_CHECK(target_.size() <= limits::kHandshakeTargetBytesMax);
  random.fill(client_nonce_);
}

Bytes ClientHandshake::hello() const {
  Bytes out = handshake_preamble();
  append(out, client_nonce_);
  return out;
}

void ClientHandshake::expect(Stage stage, std::size_t count) {
  stage_ = stage;
  have_ = 0;
  want_ = count;
}

Result<ClientHandshake::Outcome> ClientHandshake::filled(std::size_t count) {
  have_ += count;
  TROUPE_CHECK(have_ <= want_);
  if (stage_ == Stage::kPreamble && !magic_begins(std::span(buffer_).first(have_))) {
    return error(Code::kProtocol,
                 "what listens at {} is not Troupe: give the address that `troupe head` printed",
                 where_);
  }
  if (have_ < want_) return Outcome{};
  switch (stage_) {
    case Stage::kPreamble:
      TROUPE_RETURN_IF_ERROR(on_preamble());
      expect(Stage::kChallenge, kNonceBytes + kMacBytes);
      return Outcome{};
    case Stage::kChallenge:
      return on_challenge();
    case Stage::kAnswer:
      return on_answer();
    case Stage::kMessage:
      return Status(refusal_, std::string(reinterpret_cast<const char*>(buffer_.data()), want_))
          .prefixed(where_);
  }
  return Outcome{};
}

Status ClientHandshake::on_preamble() {
  const std::uint32_t version = read_u32(std::span(buffer_).subspan(kHandshakeMagic.size()));
  if (version == kHandshakeVersion) return {};
  if (version == kEncryptedOnly) {
    return error(Code::kFailedPrecondition,
                 "{} takes encrypted connections alone, and this one is not: leave out --insecure "
                 "here, or start the head and every node with it. (Through a tunnel to a loopback "
                 "address nothing is encrypted: connect to the address that 'troupe head' printed)",
                 where_);
  }
  return error(Code::kProtocol,
               "{} speaks protocol version {} and this program version {}: run the same release of "
               "Troupe on every machine",
               where_, version, kHandshakeVersion);
}

Result<ClientHandshake::Outcome> ClientHandshake::on_challenge() {
  const Nonce server_nonce = read_nonce(buffer_);
  const auto expected = handshake_mac(token_, kServerLabel, client_nonce_, server_nonce, "");
  if (!equal_constant_time(std::span(buffer_).subspan(kNonceBytes, kMacBytes), expected)) {
    return error(Code::kUnauthenticated,
                 "{} has another token than this program: use the head's token file "
                 "(--token-file)",
                 where_);
  }
  Outcome outcome;
  append(outcome.reply, handshake_mac(token_, kClientLabel, client_nonce_, server_nonce, target_));
  append_u16(outcome.reply, target_.size());
  append(outcome.reply, bytes_of(target_));
  expect(Stage::kAnswer, kAnswerBytes);
  return outcome;
}

Result<ClientHandshake::Outcome> ClientHandshake::on_answer() {
  const std::size_t number = read_u16(buffer_);
  const std::size_t length = read_u16(std::span(buffer_).subspan(2));
  if (number == 0 && length == 0) return Outcome{.done = true, .reply = {}};
  if (number == 0 || length > kAnswerMessageBytesMax) {
    return error(Code::kProtocol, "{} gave an answer that is not of the protocol", where_);
  }
  refusal_ = code_from_number(static_cast<int>(number));
  if (length == 0) return Status(refusal_, where_ + " refused the connection");
  expect(Stage::kMessage, length);
  return Outcome{};
}

Status ClientHandshake::closed() const {
  return error(Code::kUnavailable,
               "{} closed the connection during the handshake: it ends, is overloaded, or is not "
               "Troupe",
               where_);
}

}  // namespace troupe::net
