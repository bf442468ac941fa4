#include "train/hub/content_hash.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>

#include "runtime/base/check.h"
#include "runtime/base/hash.h"

namespace troupe::train::hub {

struct ContentHash::State {
  State() : context(EVP_MD_CTX_new()) { TROUPE_CHECK(context != nullptr); }
  ~State() { EVP_MD_CTX_free(context); }
  EVP_MD_CTX* context;
};

ContentHash::ContentHash(std::string etag, std::uint64_t size_bytes) : etag_(std::move(etag)) {
  const bool hexadecimal = std::ranges::all_of(
      etag_, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
  if (!hexadecimal || (etag_.size() != 40 && etag_.size() != 64)) return;
  state_ = std::make_unique<State>();
  const auto* kind = etag_.size() == 64 ? EVP_sha256() : EVP_sha1();
  TROUPE_CHECK(EVP_DigestInit_ex(state_->context, kind, nullptr) == 1);
  if (etag_.size() == 40) {
    const auto header = fmt::format("blob {}", size_bytes);
    update({header.c_str(), header.size() + 1});  // with the zero at its end
  }
}

ContentHash::~ContentHash() = default;

void ContentHash::update(std::string_view data) {
  if (state_) TROUPE_CHECK(EVP_DigestUpdate(state_->context, data.data(), data.size()) == 1);
}

bool ContentHash::matches() {
  if (!state_) return true;
  std::array<std::byte, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  TROUPE_CHECK(EVP_DigestFinal_ex(state_->context, reinterpret_cast<unsigned char*>(digest.data()),
                                  &size) == 1);
  return to_hex(std::span(digest).first(size)) == etag_;
}

}  // namespace troupe::train::hub
