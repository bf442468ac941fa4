#include "runtime/net/credentials.h"

#include <utility>

#include "runtime/base/hash.h"
#include "runtime/net/tls_context.h"

namespace troupe {
namespace net {

Security security_from_number(int number) {
  switch (number) {
    case static_cast<int>(Security::kTlsAlways):
      return Security::kTlsAlways;
    case static_cast<int>(Security::kInsecure):
      return Security::kInsecure;
    default:
      return Security::kTls;
  }
}

}  // namespace net

Token::Token() : Token(std::vector<std::byte>()) {}

Token::Token(std::size_t count, std::byte value) : Token(std::vector<std::byte>(count, value)) {}

Token::Token(std::vector<std::byte> secret, Security security)
    : secret_(std::move(secret)),
      security_(security),
      tls_(std::make_shared<net::TlsIdentity>(secret_)) {}

Token Token::with(Security security) const {
  Token copy = *this;
  copy.security_ = security;
  return copy;
}

Result<std::string> Token::authority_fingerprint() const { return tls_->fingerprint(); }

bool operator==(const Token& a, const Token& b) {
  return equal_constant_time(a.secret_, b.secret_) && a.security_ == b.security_;
}

}  // namespace troupe
