#pragma once
// Owners of OpenSSL's objects, without its headers. Private to this folder.

#include <memory>

struct bio_method_st;
struct evp_pkey_st;
struct ssl_ctx_st;
struct ssl_st;
struct x509_st;

namespace troupe::net {

struct OpenSslDelete {
  void operator()(bio_method_st* method) const;
  void operator()(evp_pkey_st* key) const;
  void operator()(ssl_ctx_st* context) const;
  void operator()(ssl_st* session) const;
  void operator()(x509_st* certificate) const;
};
template <typename T>
using OpenSslHandle = std::unique_ptr<T, OpenSslDelete>;

}  // namespace troupe::net
