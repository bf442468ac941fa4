#pragma once
// TLS with what Troupe says first inside it: the target, and whether it takes the connection
// (README.md has the layout). Private to this folder and its tests.
//
// Both sides are asked to go_on() whenever what they wait for has happened.

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/net/credentials.h"
#include "runtime/net/tls_session.h"

namespace troupe::net {

// The part of a target that decides which process takes the connection: "actor/ID/comm/run" →
// "actor/ID".
std::string route_of(std::string_view target);
// A route as a TLS server name, which strangers can read: "actor/ID" → "actor.ID.troupe". Empty
// where a route has other characters than a–z, 0–9 and -: then the listener's own process takes it.
std::string server_name_of(std::string_view route);
// The inverse; empty for a name that is not of this form.
std::string route_of_server_name(std::string_view name);

// The connecting side.
class TlsClientHandshake {
 public:
  // The socket stays the caller's. `where` names the other side in messages.
  static Result<std::unique_ptr<TlsClientHandshake>> begin(const Token& token, std::string target,
                                                           std::string where, int socket);
  // kDone, kWaitRead, kWaitWrite; or the target's refusal, or what is wrong.
  Result<TlsState> go_on();
  // After kDone.
  std::unique_ptr<TlsSession> take_session() { return std::move(session_); }

 private:
  enum class Stage { kHandshake, kTarget, kAnswer, kMessage };
  TlsClientHandshake(std::string target, std::string where);
  Status failure() const;
  Result<TlsState> step();
  Result<TlsState> on_answer();
  // Fills the rest of buffer_.
  Result<TlsState> fill();
  void expect(Stage stage, std::size_t count);

  const std::string target_;
  const std::string where_;
  std::unique_ptr<TlsSession> session_;
  Stage stage_ = Stage::kHandshake;
  std::vector<std::byte> buffer_;  // what is written or read now
  std::size_t done_ = 0;           // of it
  Code refusal_ = Code::kOk;
};

// The listening side.
class TlsServerHandshake {
 public:
  enum class Step {
    kWaitRead,
    kWaitWrite,
    kAuthenticated,  // target() is what the peer wants; answer() it
    kRefused,        // why() says why; close
  };
  static Result<std::unique_ptr<TlsServerHandshake>> begin(const Token& token, int socket);
  Step go_on();
  const std::string& target() const { return target_; }
  const std::string& why() const { return why_; }
  // Tells an authenticated peer ok, or why its target is refused. False when it does not take it.
  bool answer(const Status& status);
  std::unique_ptr<TlsSession> take_session() { return std::move(session_); }

 private:
  enum class Stage { kHandshake, kHead, kTarget };
  explicit TlsServerHandshake(std::unique_ptr<TlsSession> session) : session_(std::move(session)) {}
  Step wait_or_refuse(TlsState state);
  Step on_head();
  Step on_target();

  std::unique_ptr<TlsSession> session_;
  Stage stage_ = Stage::kHandshake;
  std::vector<std::byte> buffer_;
  std::size_t done_ = 0;
  std::string target_;
  std::string why_;
};

}  // namespace troupe::net
