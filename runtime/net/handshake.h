#pragma once
// The handshake as two state machines over bytes, without sockets (README.md has the layout).
//
// Private to this folder and its tests. Each side is asked for space(), has it filled, and says
// what to send and whether to go on. space() never reaches beyond what the handshake owns of the
// stream.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/random.h"
#include "runtime/base/status.h"
#include "runtime/net/transport.h"

namespace troupe::net {

inline constexpr std::array<std::byte, 8> kHandshakeMagic = {
    std::byte{0x89}, std::byte{'T'}, std::byte{'R'}, std::byte{'O'},
    std::byte{'U'},  std::byte{'P'}, std::byte{'E'}, std::byte{'\n'}};
// Grows when the handshake or the frames on top of it change; other versions are refused by name.
inline constexpr std::uint32_t kHandshakeVersion = 2;
// In the place of a listener's version: it takes encrypted connections alone.
inline constexpr std::uint32_t kEncryptedOnly = 0xffff'0001;

inline constexpr std::size_t kNonceBytes = 32;
inline constexpr std::size_t kMacBytes = 32;
inline constexpr std::size_t kPreambleBytes = 8 + 4;                      // magic, version
inline constexpr std::size_t kHelloBytes = kPreambleBytes + kNonceBytes;  // client
inline constexpr std::size_t kChallengeBytes = kHelloBytes + kMacBytes;   // server
inline constexpr std::size_t kProofBytes = kMacBytes + 2;                 // client, + target
inline constexpr std::size_t kAnswerBytes = 2 + 2;                        // server, + message
inline constexpr std::size_t kAnswerMessageBytesMax = 512;

using Nonce = std::array<std::byte, kNonceBytes>;

// The listening side.
class ServerHandshake {
 public:
  enum class Step {
    kGoOn,           // more is to be read
    kAuthenticated,  // target() is what the peer wants; answer() it
    kRefused,        // send `reply` and close
  };
  struct Outcome {
    Step step = Step::kGoOn;
    std::vector<std::byte> reply;  // to be sent, may be empty
    std::string why;               // of a refusal, for the log
  };

  // With `encrypted_only` every peer is told that, once it has said that it is one of ours.
  ServerHandshake(const Token& token, Random& random, bool encrypted_only = false);
  std::span<std::byte> space() { return std::span(buffer_).subspan(have_, want_ - have_); }
  Outcome filled(std::size_t count);
  const std::string& target() const { return target_; }
  // What an authenticated peer is told: ok, or why its target is refused.
  static std::vector<std::byte> answer(const Status& status);

 private:
  enum class Stage { kHello, kProof, kTarget };
  Outcome on_hello();
  Outcome on_target();
  Outcome refuse_token();
  void expect(Stage stage, std::size_t count);

  const Token& token_;
  const bool encrypted_only_;
  Stage stage_ = Stage::kHello;
  Nonce client_nonce_{};
  Nonce server_nonce_{};
  std::array<std::byte, kMacBytes> proof_{};
  std::array<std::byte, 256> buffer_{};  // the largest piece: a target
  std::size_t have_ = 0;
  std::size_t want_ = kHelloBytes;
  std::string target_;
};

// The connecting side.
class ClientHandshake {
 public:
  struct Outcome {
    bool done = false;
    std::vector<std::byte> reply;
  };
  // `where` names the other side in messages. The target has at most kHandshakeTargetBytesMax
  // bytes.
  ClientHandshake(const Token& token, std::string target, std::string where, Random& random);
  std::vector<std::byte> hello() const;
  std::span<std::byte> space() { return std::span(buffer_).subspan(have_, want_ - have_); }
  // Done: the target took the connection. A failure is its refusal, or what is wrong with it.
  Result<Outcome> filled(std::size_t count);
  // What the peer's end-of-file means now.
  Status closed() const;

 private:
  enum class Stage { kPreamble, kChallenge, kAnswer, kMessage };
  Status on_preamble();
  Result<Outcome> on_challenge();
  Result<Outcome> on_answer();
  void expect(Stage stage, std::size_t count);

  const Token& token_;
  const std::string target_;
  const std::string where_;
  Stage stage_ = Stage::kPreamble;
  Nonce client_nonce_{};
  std::array<std::byte, kAnswerMessageBytesMax> buffer_{};
  std::size_t have_ = 0;
  std::size_t want_ = kPreambleBytes;
  Code refusal_ = Code::kOk;
};

// The magic and a version: how every answer of a listener without TLS begins.
std::vector<std::byte> handshake_preamble(std::uint32_t version = kHandshakeVersion);

// HMAC-SHA256(token, label | client nonce | server nonce | target).
std::array<std::byte, kMacBytes> handshake_mac(const Token& token, std::string_view label,
                                               const Nonce& client_nonce, const Nonce& server_nonce,
                                               std::string_view target);
inline constexpr std::string_view kServerLabel = "troupe server";
inline constexpr std::string_view kClientLabel = "troupe client";

}  // namespace troupe::net
