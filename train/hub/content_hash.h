#pragma once
// The hash by which a hub names a file's content: SHA-256 of large files (64 hexadecimal digits),
// git's SHA-1 of small ones (40).

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace troupe::train::hub {

class ContentHash {
 public:
  // Of a file of `size_bytes` that is to have the hash `etag`.
  ContentHash(std::string etag, std::uint64_t size_bytes);
  ~ContentHash();

  // Whether `etag` is a hash of the content; another server's may be anything.
  bool is_known() const { return state_ != nullptr; }
  void update(std::string_view data);
  // Of all that was put in. No update may follow. True where is_known() is not.
  bool matches();

 private:
  struct State;
  std::string etag_;
  std::unique_ptr<State> state_;
};

}  // namespace troupe::train::hub
