#pragma once
// The cluster's own certificate authority, and the certificates it issues.
//
// The authority's key is derived from the token: Ed25519 with the seed
//   HKDF-SHA256(salt "troupe", token, info "troupe certificate authority 1")      (RFC 5869)
// and its certificate has nothing random in it, so that every holder of the token has the same
// authority without a file, a request or a round trip, and nobody else can make one. It is needed
// only while a certificate is issued and not kept. Private to this folder and its tests.

#include <cstdint>
#include <span>
#include <string>

#include "runtime/base/status.h"
#include "runtime/net/openssl_handles.h"

namespace troupe::net {

struct Certified {
  OpenSslHandle<evp_pkey_st> key;
  OpenSslHandle<x509_st> certificate;
};

// Seconds since 1970, both included.
struct Validity {
  std::int64_t from_s = 0;
  std::int64_t until_s = 0;
};
// A process makes itself a new certificate long before the end of the old one, which serves from a
// day before it was made: what the clocks of two machines may differ by.
inline constexpr std::int64_t kCertificateBackdatedS = 24 * 3600;
inline constexpr std::int64_t kCertificateValidS = 7 * 24 * 3600;
inline constexpr std::int64_t kCertificateRenewedAfterS = 12 * 3600;
Validity validity_from(std::int64_t now_s);

// kInternal where OpenSSL refuses (an installation without Ed25519).
Result<Certified> cluster_authority(std::span<const std::byte> secret);
// A fresh key with a certificate for both ends of connections.
Result<Certified> issue_certificate(const Certified& authority, const Validity& validity);
// "sha256:" and the hexadecimal SHA-256 of the public key (its SubjectPublicKeyInfo).
Result<std::string> fingerprint_of(const Certified& certified);
// "2026-02-06T19:00:00Z to …"
std::string validity_text(const x509_st* certificate);

// What OpenSSL's error queue of this thread says last; empties it.
std::string openssl_error();

}  // namespace troupe::net
