#include "runtime/net/certificates.h"

#include <openssl/asn1.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/rand.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <array>
#include <cstring>
#include <ctime>
#include <string_view>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/hash.h"

namespace troupe::net {

void OpenSslDelete::operator()(bio_method_st* method) const { ::BIO_meth_free(method); }
void OpenSslDelete::operator()(evp_pkey_st* key) const { ::EVP_PKEY_free(key); }
void OpenSslDelete::operator()(ssl_ctx_st* context) const { ::SSL_CTX_free(context); }
void OpenSslDelete::operator()(ssl_st* session) const { ::SSL_free(session); }
void OpenSslDelete::operator()(x509_st* certificate) const { ::X509_free(certificate); }

namespace {

constexpr std::string_view kHkdfSalt = "troupe";
constexpr std::string_view kAuthorityInfo = "troupe certificate authority 1";
// 2020-01-01, and RFC 5280's date for certificates without an end: the authority's own has nothing
// in it that depends on when it was made.
constexpr Validity kAuthorityValidity{1'577'836'800, 253'402'300'799};
constexpr std::size_t kNameDigits = 16;  // of the fingerprint, in the authority's name

Status openssl_failed(std::string_view what) {
  return error(Code::kInternal, "cannot make a certificate: {}: {}", what, openssl_error());
}

// HKDF with one block of output.
Sha256 derive(std::span<const std::byte> secret, std::string_view info) {
  const Sha256 extracted = hmac_sha256(bytes_of(kHkdfSalt), secret);
  const auto text = bytes_of(info);
  std::vector<std::byte> expand(text.begin(), text.end());
  expand.push_back(std::byte{1});
  return hmac_sha256(extracted, expand);
}

Result<std::string> public_key_hash(evp_pkey_st* key) {
  std::uint8_t* encoded = nullptr;
  const int size = ::i2d_PUBKEY(key, &encoded);
  if (size <= 0) return openssl_failed("encoding its public key");
  const Sha256 hash = sha256(std::as_bytes(std::span(encoded, static_cast<std::size_t>(size))));
  ::OPENSSL_free(encoded);
  return to_hex(hash);
}

bool set_name(X509_NAME* name, const std::string& common_name) {
  return ::X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_UTF8,
                                      reinterpret_cast<const unsigned char*>(common_name.c_str()),
                                      -1, -1, 0) == 1;
}

bool set_times(X509* certificate, const Validity& validity) {
  return ::ASN1_TIME_set(::X509_getm_notBefore(certificate),
                         static_cast<std::time_t>(validity.from_s)) != nullptr &&
         ::ASN1_TIME_set(::X509_getm_notAfter(certificate),
                         static_cast<std::time_t>(validity.until_s)) != nullptr;
}

bool add_extension(X509* certificate, X509* issuer, int nid, const char* value) {
  X509V3_CTX context;
  ::X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* extension = ::X509V3_EXT_conf_nid(nullptr, &context, nid, value);
  if (extension == nullptr) return false;
  const bool added = ::X509_add_ext(certificate, extension, -1) == 1;
  ::X509_EXTENSION_free(extension);
  return added;
}

OpenSslHandle<x509_st> begin_certificate(evp_pkey_st* key, std::uint64_t serial,
                                         const std::string& name, const Validity& validity) {
  OpenSslHandle<x509_st> certificate(::X509_new());
  const bool made =
      certificate != nullptr && ::X509_set_version(certificate.get(), 2) == 1 &&
      ::ASN1_INTEGER_set_uint64(::X509_get_serialNumber(certificate.get()), serial) == 1 &&
      set_name(::X509_get_subject_name(certificate.get()), name) &&
      set_times(certificate.get(), validity) && ::X509_set_pubkey(certificate.get(), key) == 1;
  if (!made) certificate.reset();
  return certificate;
}

// Ed25519 signs without a digest of its own.
bool sign(X509* certificate, const X509* issuer, evp_pkey_st* issuer_key) {
  return ::X509_set_issuer_name(certificate, ::X509_get_subject_name(issuer)) == 1 &&
         ::X509_sign(certificate, issuer_key, nullptr) > 0;
}

std::string time_text(const ASN1_TIME* time) {
  std::tm parts{};
  if (::ASN1_TIME_to_tm(time, &parts) != 1) return "?";
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

}  // namespace

std::string openssl_error() {
  const unsigned long last = ::ERR_peek_last_error();
  ::ERR_clear_error();
  if (last == 0) return "no reason given";
  const char* reason = ::ERR_reason_error_string(last);
  return reason != nullptr ? reason : fmt::format("OpenSSL's error {:#x}", last);
}

Validity validity_from(std::int64_t now_s) {
  return {now_s - kCertificateBackdatedS, now_s + kCertificateValidS};
}

Result<Certified> cluster_authority(std::span<const std::byte> secret) {
  ::ERR_clear_error();
  Sha256 seed = derive(secret, kAuthorityInfo);
  Certified authority;
  authority.key.reset(::EVP_PKEY_new_raw_private_key(
      EVP_PKEY_ED25519, nullptr, reinterpret_cast<const unsigned char*>(seed.data()), seed.size()));
  ::OPENSSL_cleanse(seed.data(), seed.size());
  if (!authority.key) return openssl_failed("deriving the authority's key");
  const std::string hash = TROUPE_TRY(public_key_hash(authority.key.get()));
  authority.certificate = begin_certificate(
      authority.key.get(), 1, "Troupe cluster " + hash.substr(0, kNameDigits), kAuthorityValidity);
  X509* certificate = authority.certificate.get();
  const bool complete =
      certificate != nullptr &&
      add_extension(certificate, certificate, NID_basic_constraints,
                    "critical,CA:TRUE,pathlen:0") &&
      add_extension(certificate, certificate, NID_key_usage, "critical,keyCertSign") &&
      add_extension(certificate, certificate, NID_subject_key_identifier, "hash") &&
      sign(certificate, certificate, authority.key.get());
  if (!complete) return openssl_failed("the authority's own");
  return authority;
}

Result<Certified> issue_certificate(const Certified& authority, const Validity& validity) {
  ::ERR_clear_error();
  Certified issued;
  issued.key.reset(::EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519"));
  std::uint64_t serial = 0;
  if (!issued.key || ::RAND_bytes(reinterpret_cast<unsigned char*>(&serial), sizeof(serial)) != 1) {
    return openssl_failed("a key");
  }
  issued.certificate =
      begin_certificate(issued.key.get(), serial >> 1 | 1, "Troupe process", validity);
  X509* certificate = issued.certificate.get();
  X509* issuer = authority.certificate.get();
  const bool complete =
      certificate != nullptr &&
      add_extension(certificate, issuer, NID_basic_constraints, "critical,CA:FALSE") &&
      add_extension(certificate, issuer, NID_key_usage, "critical,digitalSignature") &&
      add_extension(certificate, issuer, NID_ext_key_usage, "serverAuth,clientAuth") &&
      add_extension(certificate, issuer, NID_subject_key_identifier, "hash") &&
      add_extension(certificate, issuer, NID_authority_key_identifier, "keyid") &&
      sign(certificate, issuer, authority.key.get());
  if (!complete) return openssl_failed("that of this process");
  return issued;
}

Result<std::string> fingerprint_of(const Certified& certified) {
  return "sha256:" + TROUPE_TRY(public_key_hash(certified.key.get()));
}

std::string validity_text(const x509_st* certificate) {
  return fmt::format("{} to {}", time_text(::X509_get0_notBefore(certificate)),
                     time_text(::X509_get0_notAfter(certificate)));
}

}  // namespace troupe::net
