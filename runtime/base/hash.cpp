#include "runtime/base/hash.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <xxhash.h>
#if defined(__x86_64__)
// The same functions by the widest instructions that the processor has.
#include <xxh_x86dispatch.h>
#endif

#include "runtime/base/check.h"

namespace troupe {

Sha256 sha256(std::span<const std::byte> data) {
  Sha256 out{};
  unsigned size = 0;
  TROUPE_CHECK(EVP_Digest(data.data(), data.size(), reinterpret_cast<unsigned char*>(out.data()),
                          &size, EVP_sha256(), nullptr) == 1 &&
               size == out.size());
  return out;
}

Sha256 hmac_sha256(std::span<const std::byte> key, std::span<const std::byte> data) {
  Sha256 out{};
  unsigned size = 0;
  TROUPE_CHECK(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                    reinterpret_cast<const unsigned char*>(data.data()), data.size(),
                    reinterpret_cast<unsigned char*>(out.data()), &size) != nullptr &&
               size == out.size());
  return out;
}

bool equal_constant_time(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string to_hex(std::span<const std::byte> data) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * data.size());
  for (const std::byte b : data) {
    text += kDigits[std::to_integer<unsigned>(b) >> 4];
    text += kDigits[std::to_integer<unsigned>(b) & 15];
  }
  return text;
}

std::uint64_t xxh3_64(std::span<const std::byte> data) {
  return XXH3_64bits(data.data(), data.size());
}

struct Xxh3Stream::State {
  XXH3_state_t* state = XXH3_createState();
};

Xxh3Stream::Xxh3Stream() : state_(std::make_unique<State>()) {
  TROUPE_CHECK(state_->state != nullptr && XXH3_64bits_reset(state_->state) == XXH_OK);
}
Xxh3Stream::~Xxh3Stream() { XXH3_freeState(state_->state); }
void Xxh3Stream::update(std::span<const std::byte> data) {
  TROUPE_CHECK(XXH3_64bits_update(state_->state, data.data(), data.size()) == XXH_OK);
}
std::uint64_t Xxh3Stream::digest() const { return XXH3_64bits_digest(state_->state); }

}  // namespace troupe
