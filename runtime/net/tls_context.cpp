#include "runtime/net/tls_context.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include "runtime/base/clock.h"
#include "runtime/net/tls_session.h"

namespace troupe::net {
namespace {

// All three are beyond reach; the first is the fastest on processors with AES instructions.
constexpr const char* kCipherSuites =
    "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256:TLS_AES_256_GCM_SHA384";
constexpr const char* kGroups = "X25519:P-256";
constexpr const char* kSignatures = "ed25519";
// Of a peer's certificates, while it is unknown: ours have about 500.
constexpr long kCertificateBytesMax = 8 << 10;

Status context_failed(std::string_view what) {
  return error(Code::kInternal, "cannot set up TLS: {}: {}", what, openssl_error());
}

Status configure(SSL_CTX* context) {
  ::SSL_CTX_set_security_level(context, 2);
  if (::SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) != 1 ||
      ::SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) != 1 ||
      ::SSL_CTX_set_ciphersuites(context, kCipherSuites) != 1 ||
      ::SSL_CTX_set1_groups_list(context, kGroups) != 1 ||
      ::SSL_CTX_set1_sigalgs_list(context, kSignatures) != 1 ||
      ::SSL_CTX_set1_client_sigalgs_list(context, kSignatures) != 1) {
    return context_failed("version 1.3 and its algorithms");
  }
  // Every connection proves both sides anew: no tickets, no sessions, no early data.
  ::SSL_CTX_set_options(context,
                        SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION);
  ::SSL_CTX_set_num_tickets(context, 0);
  ::SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  ::SSL_CTX_set_max_early_data(context, 0);
  ::SSL_CTX_set_max_cert_list(context, kCertificateBytesMax);
  // Buffers are there while they are used: a head has a connection to every node.
  ::SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                  SSL_MODE_RELEASE_BUFFERS);
  ::SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT,
                       &TlsSession::on_certificate);
  ::SSL_CTX_set_verify_depth(context, 1);
  return {};
}

}  // namespace

Result<std::shared_ptr<const TlsContext>> TlsContext::make(std::span<const std::byte> secret,
                                                           std::int64_t now_s,
                                                           const TlsContextOptions& options) {
  const Certified authority = TROUPE_TRY(cluster_authority(secret));
  auto made = std::make_shared<TlsContext>();
  made->fingerprint_ = TROUPE_TRY(fingerprint_of(authority));
  ::ERR_clear_error();
  made->context_.reset(::SSL_CTX_new(::TLS_method()));
  SSL_CTX* context = made->context_.get();
  if (context == nullptr) return context_failed("a context");
  TROUPE_RETURN_IF_ERROR(configure(context));
  // The only authority that is believed; the machine's own list is not looked at.
  if (::X509_STORE_add_cert(::SSL_CTX_get_cert_store(context), authority.certificate.get()) != 1) {
    return context_failed("the cluster's authority");
  }
  if (options.with_certificate) {
    const Certified own =
        TROUPE_TRY(issue_certificate(authority, options.validity.value_or(validity_from(now_s))));
    if (::SSL_CTX_use_certificate(context, own.certificate.get()) != 1 ||
        ::SSL_CTX_use_PrivateKey(context, own.key.get()) != 1) {
      return context_failed("this process's certificate");
    }
  }
  made->socket_method_ = TlsSession::make_socket_method();
  if (!made->socket_method_) return context_failed("its way to sockets");
  return std::shared_ptr<const TlsContext>(std::move(made));
}

Result<std::shared_ptr<const TlsContext>> TlsIdentity::context() {
  if (secret_.size() < 1) {
    return Status(Code::kInvalidArgument, "there is no token to make certificates from");
  }
  MutexLock lock(mutex_);
  const std::int64_t now_s = SystemClock().unix_time_us() / 1'000'000;
  const bool fresh =
      context_ != nullptr &&
      (!made_at_s_ || (now_s >= *made_at_s_ && now_s - *made_at_s_ < kCertificateRenewedAfterS));
  if (!fresh) {
    context_ = TROUPE_TRY(TlsContext::make(secret_, now_s));
    made_at_s_ = now_s;
  }
  return context_;
}

Result<std::string> TlsIdentity::fingerprint() const {
  return fingerprint_of(TROUPE_TRY(cluster_authority(secret_)));
}

void TlsIdentity::use(std::shared_ptr<const TlsContext> context) {
  MutexLock lock(mutex_);
  context_ = std::move(context);
  made_at_s_.reset();
}

}  // namespace troupe::net
