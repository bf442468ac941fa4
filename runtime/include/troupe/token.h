#pragma once
// The secret of a cluster, and how its connections are protected.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "troupe/status.h"

namespace troupe {

namespace net {
class TlsIdentity;
}

// Whether connections are encrypted. Every process of a cluster must have the same: peers of
// another kind are refused by name. The numbers are part of the wire format.
enum class Security : std::uint8_t {
  // Mutual TLS 1.3, but not to and from loopback addresses (127.0.0.0/8, ::1), where whoever can
  // listen is root on this machine. The default.
  kTls = 0,
  // There, too: for tests and measurements.
  kTlsAlways = 1,
  // Nowhere: authenticated at its beginning, then readable and changeable by whoever is on the way
  // (--insecure).
  kInsecure = 2,
};
// The cluster's shared secret, and with it everything that proves membership: the certificate
// authority's key is derived from it ; certificates are made at their first use.
// Whoever has it may run code on every node. A value: copies share the certificates. Thread-safe
// but for assignment.
class Token {
 public:
  Token();  // empty: no token
  explicit Token(std::size_t count, std::byte value = std::byte{0});
  explicit Token(std::vector<std::byte> secret, Security security = Security::kTls);

  bool empty() const { return secret_.empty(); }
  std::size_t size() const { return secret_.size(); }
  const std::vector<std::byte>& secret() const { return secret_; }
  Security security() const { return security_; }
  // The same secret with other protection.
  Token with(Security security) const;
  // "sha256:…": of the public key of the cluster's certificate authority. No secret. The same for
  // equal tokens, everywhere.
  Result<std::string> authority_fingerprint() const;

  net::TlsIdentity& tls() const { return *tls_; }

  // Takes the same time wherever the secrets differ.
  friend bool operator==(const Token& a, const Token& b);

 private:
  std::vector<std::byte> secret_;
  Security security_ = Security::kTls;
  std::shared_ptr<net::TlsIdentity> tls_;
};

}  // namespace troupe
