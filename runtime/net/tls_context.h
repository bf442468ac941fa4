#pragma once
// How this process does TLS: version 1.3 alone, certificates of the cluster's authority on both
// sides, nothing resumed and nothing sent early, so that a recorded handshake is worth nothing.
// Private to this folder and its tests.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/net/certificates.h"
#include "runtime/net/openssl_handles.h"
#include "troupe/detail/mutex.h"

namespace troupe::net {

struct TlsContextOptions {
  std::optional<Validity> validity;  // default: validity_from(now)
  bool with_certificate = true;      // without: what every listener refuses
};

// Immutable; sessions of any thread use it.
class TlsContext {
 public:
  static Result<std::shared_ptr<const TlsContext>> make(std::span<const std::byte> secret,
                                                        std::int64_t now_s,
                                                        const TlsContextOptions& options = {});
  ssl_ctx_st* get() const { return context_.get(); }
  bio_method_st* socket_method() const { return socket_method_.get(); }
  const std::string& fingerprint() const { return fingerprint_; }

 private:
  OpenSslHandle<ssl_ctx_st> context_;
  OpenSslHandle<bio_method_st> socket_method_;
  std::string fingerprint_;
};

// The contexts of one token: made at the first use, and again when its certificate ages or the
// clock was set back. Thread-safe.
class TlsIdentity {
 public:
  explicit TlsIdentity(std::vector<std::byte> secret) : secret_(std::move(secret)) {}
  Result<std::shared_ptr<const TlsContext>> context();
  // Of the cluster's authority.
  Result<std::string> fingerprint() const;
  // For tests: what context() gives from now on.
  void use(std::shared_ptr<const TlsContext> context);

 private:
  const std::vector<std::byte> secret_;
  Mutex mutex_;
  std::shared_ptr<const TlsContext> context_ TROUPE_GUARDED_BY(mutex_);
  std::optional<std::int64_t> made_at_s_ TROUPE_GUARDED_BY(mutex_);  // none: it stays
};

}  // namespace troupe::net
