#include "runtime/net/tls_session.h"

#include <errno.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "runtime/base/check.h"
#include "runtime/base/clock.h"
#include "runtime/base/limits.h"

namespace troupe::net {
namespace {

// What is taken from the socket at once once a stream flows: four full records.
constexpr std::size_t kReadAheadBytes = 66u << 10;

TlsSession* session_of(BIO* bio) { return static_cast<TlsSession*>(::BIO_get_data(bio)); }

// The alert that the peer ended the handshake with, or -1.
int alert_of(unsigned long error) {
  const int reason = ERR_GET_REASON(error);
  if (ERR_GET_LIB(error) != ERR_LIB_SSL || reason < SSL_AD_REASON_OFFSET) return -1;
  return reason - SSL_AD_REASON_OFFSET;
}

std::string now_text() {
  const std::string text = format_unix_time_us(SystemClock().unix_time_us());
  return text.substr(0, text.find('.')) + "Z";
}

constexpr std::string_view kSetClocks = "set the clocks of both machines (NTP)";

}  // namespace

TlsSession::TlsSession(std::shared_ptr<const TlsContext> context, int socket)
    : context_(std::move(context)), socket_(socket) {}

TlsSession::~TlsSession() = default;

Result<std::unique_ptr<TlsSession>> TlsSession::make(std::shared_ptr<const TlsContext> context,
                                                     int socket) {
  ::ERR_clear_error();
  std::unique_ptr<TlsSession> session(new TlsSession(std::move(context), socket));
  session->ssl_.reset(::SSL_new(session->context_->get()));
  BIO* bio = ::BIO_new(session->context_->socket_method());
  if (!session->ssl_ || bio == nullptr) {
    ::BIO_free(bio);
    return error(Code::kOutOfMemory, "cannot begin TLS: {}", openssl_error());
  }
  ::BIO_set_data(bio, session.get());
  ::BIO_set_init(bio, 1);
  ::SSL_set_bio(session->ssl_.get(), bio, bio);
  SSL_set_app_data(session->ssl_.get(), session.get());
  return session;
}

Result<std::unique_ptr<TlsSession>> TlsSession::client(std::shared_ptr<const TlsContext> context,
                                                       int socket, const std::string& server_name) {
  auto session = TROUPE_TRY(make(std::move(context), socket));
  ::SSL_set_connect_state(session->ssl_.get());
  if (!server_name.empty() &&
      SSL_set_tlsext_host_name(session->ssl_.get(), server_name.c_str()) != 1) {
    return error(Code::kInvalidArgument, "'{}' is no server name", server_name);
  }
  return session;
}

Result<std::unique_ptr<TlsSession>> TlsSession::server(std::shared_ptr<const TlsContext> context,
                                                       int socket) {
  auto session = TROUPE_TRY(make(std::move(context), socket));
  ::SSL_set_accept_state(session->ssl_.get());
  return session;
}

// --- what OpenSSL does with the socket

OpenSslHandle<bio_method_st> TlsSession::make_socket_method() {
  OpenSslHandle<bio_method_st> method(
      ::BIO_meth_new(::BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "troupe socket"));
  if (method != nullptr) {
    ::BIO_meth_set_write(method.get(), &TlsSession::socket_write);
    ::BIO_meth_set_read(method.get(), &TlsSession::socket_read);
    ::BIO_meth_set_ctrl(method.get(), &TlsSession::socket_control);
  }
  return method;
}

int TlsSession::socket_write(bio_st* bio, const char* data, int size) {
  BIO_clear_retry_flags(bio);
  // Records leave together, in flush().
  std::vector<std::byte>& encrypted = session_of(bio)->encrypted_;
  const auto bytes = std::as_bytes(std::span(data, static_cast<std::size_t>(size)));
  encrypted.insert(encrypted.end(), bytes.begin(), bytes.end());
  return size;
}

TlsState TlsSession::flush() {
  while (unsent()) {
    // OpenSSL's own way would raise SIGPIPE in programs that are not ours.
    const ssize_t count = ::send(socket_, encrypted_.data() + sent_, encrypted_.size() - sent_,
                                 MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count >= 0) {
      sent_ += static_cast<std::size_t>(count);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return TlsState::kWaitWrite;
    } else if (errno != EINTR) {
      socket_errno_ = errno;
      return TlsState::kBroken;
    }
  }
  encrypted_.clear();
  sent_ = 0;
  return TlsState::kDone;
}

int TlsSession::socket_read(bio_st* bio, char* space, int size) {
  BIO_clear_retry_flags(bio);
  TlsSession& session = *session_of(bio);
  auto wanted = static_cast<std::size_t>(size);
  if (session.socket_is_empty_) {
    BIO_set_retry_read(bio);
    return -1;
  }
  if (!session.established_) {
    const std::size_t left = limits::kHandshakeBytesMax - session.received_bytes_;
    wanted = std::min(wanted, left);
    if (wanted == 0) {
      session.too_much_ = true;
      return -1;
    }
  }
  while (true) {
    const ssize_t count = ::recv(session.socket_, space, wanted, MSG_DONTWAIT);
    if (count > 0) {
      if (!session.first_byte_) session.first_byte_ = static_cast<std::byte>(*space);
      if (!session.established_) session.received_bytes_ += static_cast<std::size_t>(count);
      session.socket_is_empty_ = session.reads_ahead_ && static_cast<std::size_t>(count) < wanted;
      return static_cast<int>(count);
    }
    if (count == 0) {
      session.end_of_file_ = true;
      return 0;
    }
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      BIO_set_retry_read(bio);
    } else {
      session.socket_errno_ = errno;
    }
    return -1;
  }
}

long TlsSession::socket_control(bio_st* bio, int command, long, void*) {
  switch (command) {
    case BIO_CTRL_FLUSH:
      return 1;
    case BIO_CTRL_EOF:
      return session_of(bio)->end_of_file_ ? 1 : 0;
    default:
      return 0;
  }
}

// --- the session

int TlsSession::on_certificate(int ok, x509_store_ctx_st* chain) {
  if (ok == 1) return ok;
  const auto* ssl = static_cast<const SSL*>(
      ::X509_STORE_CTX_get_ex_data(chain, ::SSL_get_ex_data_X509_STORE_CTX_idx()));
  auto* session = static_cast<TlsSession*>(SSL_get_app_data(ssl));
  session->certificate_error_ = ::X509_STORE_CTX_get_error(chain);
  if (const X509* certificate = ::X509_STORE_CTX_get_current_cert(chain)) {
    session->certificate_validity_ = validity_text(certificate);
  }
  return ok;
}

TlsState TlsSession::outcome(int result) {
  switch (::SSL_get_error(ssl_.get(), result)) {
    case SSL_ERROR_NONE:
      return TlsState::kDone;
    case SSL_ERROR_WANT_READ:
      return TlsState::kWaitRead;
    case SSL_ERROR_WANT_WRITE:
      return TlsState::kWaitWrite;
    case SSL_ERROR_ZERO_RETURN:
      return TlsState::kClosed;
    default:
      error_ = ::ERR_peek_error();
      ::ERR_clear_error();
      return TlsState::kBroken;
  }
}

TlsState TlsSession::handshake() {
  ::ERR_clear_error();
  const TlsState state = outcome(::SSL_do_handshake(ssl_.get()));
  const TlsState sent = flush();  // an alert, too
  if (state == TlsState::kBroken) return state;
  if (sent != TlsState::kDone) return sent;
  if (state == TlsState::kDone) established_ = true;
  // Nobody ends a handshake in order.
  return state == TlsState::kClosed ? TlsState::kBroken : state;
}

TlsIo TlsSession::read(std::span<std::byte> space) {
  ::ERR_clear_error();
  std::size_t count = 0;
  const int result = ::SSL_read_ex(ssl_.get(), space.data(), space.size(), &count);
  if (result == 1) return {TlsState::kDone, count};
  const TlsState state = outcome(result);
  if (state == TlsState::kBroken) (void)flush();  // the alert that says why
  return {state, 0};
}

TlsIo TlsSession::write(std::span<const std::byte> data) {
  const TlsIo io = encrypt(data);
  return flush() == TlsState::kBroken ? TlsIo{TlsState::kBroken} : io;
}

bool TlsSession::has_read_ahead() const { return ::SSL_has_pending(ssl_.get()) == 1; }

TlsIo TlsSession::encrypt(std::span<const std::byte> data) {
  TROUPE_CHECK(!data.empty());
  ::ERR_clear_error();
  if (records_written_ >= records_per_key_ &&
      ::SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED) == 1) {
    records_written_ = 0;
  }
  std::size_t count = 0;
  const int result = ::SSL_write_ex(ssl_.get(), data.data(), data.size(), &count);
  if (result != 1) return {outcome(result), 0};
  records_written_ += 1 + count / SSL3_RT_MAX_PLAIN_LENGTH;
  return {TlsState::kDone, count};
}

void TlsSession::end_writing() {
  ::ERR_clear_error();
  (void)::SSL_shutdown(ssl_.get());
  ::ERR_clear_error();
  (void)flush();
}

void TlsSession::read_ahead() {
  reads_ahead_ = true;
  ::SSL_set_read_ahead(ssl_.get(), 1);
  ::SSL_set_default_read_buffer_len(ssl_.get(), kReadAheadBytes);
}

Status TlsSession::failure(const std::string& where) const {
  const std::string_view other_token =
      "has another token than this program: use the head's token file (--token-file)";
  switch (certificate_error_) {
    case X509_V_OK:
      break;
    case X509_V_ERR_CERT_HAS_EXPIRED:
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return error(Code::kUnauthenticated,
                   "the certificate of {} is valid from {}, and it is {} here: {}", where,
                   certificate_validity_, now_text(), kSetClocks);
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
      return error(Code::kUnauthenticated, "{} {}", where, other_token);
    default:
      return error(Code::kUnauthenticated, "the certificate of {} is refused: {}", where,
                   ::X509_verify_cert_error_string(certificate_error_));
  }
  switch (alert_of(error_)) {
    case -1:
      break;
    case SSL_AD_UNKNOWN_CA:
    case SSL_AD_DECRYPT_ERROR:
      return error(Code::kUnauthenticated, "{} {}", where, other_token);
    case SSL_AD_CERTIFICATE_EXPIRED:
    case SSL_AD_BAD_CERTIFICATE:
      return error(Code::kUnauthenticated,
                   "{} says that the time of this program's certificate is over or has not come, "
                   "and it is {} here: {}",
                   where, now_text(), kSetClocks);
    case SSL_AD_CERTIFICATE_REQUIRED:
      return error(Code::kUnauthenticated, "{} wants a certificate, and none was sent", where);
    default:
      return error(Code::kProtocol, "{} ended the TLS handshake: {}", where,
                   ::SSL_alert_desc_string_long(alert_of(error_)));
  }
  if (too_much_) {
    return error(Code::kProtocol, "{} sent more than {} bytes before it was known", where,
                 limits::kHandshakeBytesMax);
  }
  if (socket_errno_ != 0) {
    return error(Code::kUnavailable, "the connection to {} broke: {}", where,
                 std::strerror(socket_errno_));
  }
  const int reason = ERR_GET_REASON(error_);
  if (ERR_GET_LIB(error_) == ERR_LIB_SSL && (reason == SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE)) {
    return error(Code::kUnauthenticated, "{} sent no certificate", where);
  }
  if (end_of_file_) {
    return error(Code::kUnavailable,
                 "{} closed the connection during the handshake: it ends, is overloaded, or is not "
                 "Troupe",
                 where);
  }
  const char* text = ::ERR_reason_error_string(error_);
  return error(Code::kProtocol, "{} does not speak TLS 1.3 as this program does: {}", where,
               text != nullptr ? text : "no reason given");
}

}  // namespace troupe::net
