#include "runtime/net/tls_handshake.h"

#include <algorithm>

#include "runtime/base/check.h"
#include "runtime/base/hash.h"
#include "runtime/base/limits.h"
#include "runtime/net/client_hello.h"
#include "runtime/net/handshake.h"

namespace troupe::net {
namespace {

constexpr std::string_view kNameEnd = ".troupe";
constexpr std::size_t kLabelBytesMax = 63;       // of a DNS name
constexpr std::size_t kTargetHeadBytes = 4 + 2;  // version, length
constexpr std::byte kTlsAlertByte{0x15};

bool is_label(std::string_view text) {
  return !text.empty() && text.size() <= kLabelBytesMax &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
         });
}

// One or two labels.
bool are_labels(std::string_view text, char between) {
  const auto cut = text.find(between);
  if (cut == std::string_view::npos) return is_label(text);
  return is_label(text.substr(0, cut)) && is_label(text.substr(cut + 1));
}

std::vector<std::byte> target_message(const std::string& target) {
  std::vector<std::byte> out;
  for (int i = 0; i < 4; ++i) {
    out.push_back(static_cast<std::byte>(kHandshakeVersion >> (8 * i) & 0xff));
  }
  out.push_back(static_cast<std::byte>(target.size() & 0xff));
  out.push_back(static_cast<std::byte>(target.size() >> 8 & 0xff));
  const auto text = bytes_of(target);
  out.insert(out.end(), text.begin(), text.end());
  return out;
}

std::size_t number_at(std::span<const std::byte> data, std::size_t at, std::size_t width) {
  std::size_t value = 0;
  for (std::size_t i = width; i-- > 0;) value = value << 8 | static_cast<std::size_t>(data[at + i]);
  return value;
}

}  // namespace

std::string route_of(std::string_view target) {
  const auto first = target.find('/');
  if (first == std::string_view::npos) return std::string(target);
  return std::string(target.substr(0, target.find('/', first + 1)));
}

std::string server_name_of(std::string_view route) {
  if (!are_labels(route, '/')) return {};
  std::string name(route);
  std::replace(name.begin(), name.end(), '/', '.');
  name += kNameEnd;
  return name;
}

std::string route_of_server_name(std::string_view name) {
  if (!name.ends_with(kNameEnd)) return {};
  name.remove_suffix(kNameEnd.size());
  if (!are_labels(name, '.')) return {};
  std::string route(name);
  std::replace(route.begin(), route.end(), '.', '/');
  return route;
}

// --- the connecting side -------------------------------------------------------------------------

TlsClientHandshake::TlsClientHandshake(std::string target, std::string where)
    : target_(std::move(target)), where_(std::move(where)) {}

Result<std::unique_ptr<TlsClientHandshake>> TlsClientHandshake::begin(const Token& token,
                                                                      std::string target,
                                                                      std::string where,
                                                                      int socket) {
  std::unique_ptr<TlsClientHandshake> handshake(
      new TlsClientHandshake(std::move(target), std::move(where)));
  handshake->session_ = TROUPE_TRY(TlsSession::client(
      TROUPE_TRY(token.tls().context()), socket, server_name_of(route_of(handshake->target_))));
  return handshake;
}

void TlsClientHandshake::expect(Stage stage, std::size_t count) {
  stage_ = stage;
  buffer_.assign(count, std::byte{0});
  done_ = 0;
}

Result<TlsState> TlsClientHandshake::go_on() {
  while (true) {
    const TlsState state = TROUPE_TRY(step());
    if (state != TlsState::kDone || stage_ == Stage::kMessage) return state;
    switch (stage_) {
      case Stage::kHandshake:
        stage_ = Stage::kTarget;
        buffer_ = target_message(target_);
        done_ = 0;
        break;
      case Stage::kTarget:
        expect(Stage::kAnswer, kAnswerBytes);
        break;
      case Stage::kAnswer:
        if (TROUPE_TRY(on_answer()) == TlsState::kDone) return TlsState::kDone;
        break;
      case Stage::kMessage:
        break;
    }
  }
}

Result<TlsState> TlsClientHandshake::step() {
  switch (stage_) {
    case Stage::kHandshake: {
      const TlsState state = session_->handshake();
      if (state == TlsState::kBroken) return failure();
      return state;
    }
    case Stage::kTarget:
      while (done_ < buffer_.size()) {
        const TlsIo io = session_->write(std::span(buffer_).subspan(done_));
        if (io.state == TlsState::kWaitRead || io.state == TlsState::kWaitWrite) return io.state;
        if (io.state != TlsState::kDone) return failure();
        done_ += io.count;
      }
      return TlsState::kDone;
    case Stage::kAnswer:
      return fill();
    case Stage::kMessage: {
      const TlsState state = TROUPE_TRY(fill());
      if (state != TlsState::kDone) return state;
      return Status(refusal_,
                    std::string(reinterpret_cast<const char*>(buffer_.data()), buffer_.size()))
          .prefixed(where_);
    }
  }
  return TlsState::kBroken;
}

Status TlsClientHandshake::failure() const {
  const auto first = session_->first_byte();
  if (first == kHandshakeMagic[0]) {
    return error(Code::kFailedPrecondition,
                 "{} does not encrypt its connections and this program does: {} was started with "
                 "--insecure. Start it without, or give --insecure here, too, if the network "
                 "between is yours alone",
                 where_, where_);
  }
  if (first && first != kTlsFirstByte && first != kTlsAlertByte) {
    return error(Code::kProtocol,
                 "what listens at {} is not Troupe: give the address that `troupe head` printed",
                 where_);
  }
  return session_->failure(where_);
}

Result<TlsState> TlsClientHandshake::fill() {
  while (done_ < buffer_.size()) {
    const TlsIo io = session_->read(std::span(buffer_).subspan(done_));
    if (io.state == TlsState::kWaitRead || io.state == TlsState::kWaitWrite) return io.state;
    if (io.state == TlsState::kClosed) {
      return error(Code::kUnavailable, "{} closed the connection during the handshake", where_);
    }
    if (io.state != TlsState::kDone) return failure();
    done_ += io.count;
  }
  return TlsState::kDone;
}

Result<TlsState> TlsClientHandshake::on_answer() {
  const std::size_t number = number_at(buffer_, 0, 2);
  const std::size_t length = number_at(buffer_, 2, 2);
  if (number == 0 && length == 0) return TlsState::kDone;
  if (number == 0 || length > kAnswerMessageBytesMax) {
    return error(Code::kProtocol, "{} gave an answer that is not of the protocol", where_);
  }
  refusal_ = code_from_number(static_cast<int>(number));
  if (length == 0) return Status(refusal_, where_ + " refused the connection");
  expect(Stage::kMessage, length);
  return TlsState::kWaitRead;
}

// --- the listening side --------------------------------------------------------------------------

Result<std::unique_ptr<TlsServerHandshake>> TlsServerHandshake::begin(const Token& token,
                                                                      int socket) {
  return std::unique_ptr<TlsServerHandshake>(new TlsServerHandshake(
      TROUPE_TRY(TlsSession::server(TROUPE_TRY(token.tls().context()), socket))));
}

TlsServerHandshake::Step TlsServerHandshake::wait_or_refuse(TlsState state) {
  if (state == TlsState::kWaitRead) return Step::kWaitRead;
  if (state == TlsState::kWaitWrite) return Step::kWaitWrite;
  why_ = state == TlsState::kClosed ? "it closed the connection"
                                    : session_->failure("the peer").message();
  return Step::kRefused;
}

TlsServerHandshake::Step TlsServerHandshake::go_on() {
  if (stage_ == Stage::kHandshake) {
    const TlsState state = session_->handshake();
    if (state != TlsState::kDone) return wait_or_refuse(state);
    stage_ = Stage::kHead;
    buffer_.assign(kTargetHeadBytes, std::byte{0});
  }
  while (true) {
    while (done_ < buffer_.size()) {
      const TlsIo io = session_->read(std::span(buffer_).subspan(done_));
      if (io.state != TlsState::kDone) return wait_or_refuse(io.state);
      done_ += io.count;
    }
    if (stage_ == Stage::kTarget) return on_target();
    if (on_head() == Step::kRefused) return Step::kRefused;
  }
}

TlsServerHandshake::Step TlsServerHandshake::on_head() {
  const std::size_t version = number_at(buffer_, 0, 4);
  const std::size_t length = number_at(buffer_, 4, 2);
  Status status;
  if (version != kHandshakeVersion) {
    status = error(Code::kProtocol,
                   "speaks protocol version {} and the program that connects version {}: run the "
                   "same release of Troupe on every machine",
                   kHandshakeVersion, version);
  } else if (length == 0 || length > limits::kHandshakeTargetBytesMax) {
    status = Status(Code::kInvalidArgument, "the target's length is out of range");
  }
  if (!status.ok()) {
    why_ = status.message();
    (void)answer(status);
    return Step::kRefused;
  }
  stage_ = Stage::kTarget;
  buffer_.assign(length, std::byte{0});
  done_ = 0;
  return Step::kWaitRead;
}

TlsServerHandshake::Step TlsServerHandshake::on_target() {
  target_.assign(reinterpret_cast<const char*>(buffer_.data()), buffer_.size());
  const bool printable =
      std::all_of(target_.begin(), target_.end(), [](char c) { return c > ' ' && c <= '~'; });
  if (printable) return Step::kAuthenticated;
  const Status status(Code::kInvalidArgument, "a target is made of printable characters");
  why_ = status.message();
  (void)answer(status);
  return Step::kRefused;
}

bool TlsServerHandshake::answer(const Status& status) {
  const auto bytes = ServerHandshake::answer(status);
  for (std::size_t sent = 0; sent < bytes.size();) {
    // At most 516 bytes into an empty socket buffer: who does not take them is dropped.
    const TlsIo io = session_->write(std::span(bytes).subspan(sent));
    if (io.state != TlsState::kDone) return false;
    sent += io.count;
  }
  if (!status.ok()) session_->end_writing();
  return true;
}

}  // namespace troupe::net
