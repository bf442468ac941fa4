#pragma once
// A hub on this machine, and the second host that large files come from: the HTTP APIs of Hugging
// Face's hub and of ModelScope, with faults that a test asks for.

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "troupe/unique_fd.h"

namespace troupe::tests {

class HubServer {
 public:
  static const std::string kCommit, kCommit2;
  struct Seen {
    std::string method, to, path, range, authorization, cookie;
    int status = 0;
  };
  // A fault that the server answers one request with.
  struct Fault {
    enum Kind { kStatus, kCut, kIgnoreRange } kind = kStatus;
    int status = 0;
    std::map<std::string, std::string> headers = {};
    std::size_t cut_after = 0;  // bytes of the body
  };

  // Serves the repository acme/tiny with these files; those that end in .safetensors come from the
  // second host.
  explicit HubServer(std::map<std::string, std::string> files, std::vector<std::string> order);
  ~HubServer();

  std::string endpoint() const;
  std::string second_host() const;
  // The next request of that method whose path has `part` meets the fault; in this order.
  void plan(const std::string& method, const std::string& part, Fault fault, int times = 1);
  // For every answer of the second host: after how many bytes it is cut; nothing: never.
  std::function<std::optional<std::size_t>()> cut_by;
  std::vector<Seen> take_seen();
  std::uint64_t body_bytes() const { return body_bytes_; }

 private:
  struct Answer {
    int status = 200;
    std::map<std::string, std::string> headers;
    std::string body;
    std::optional<std::size_t> cut_after;
  };
  void accept_all(int listener, bool second);
  void serve(int fd, bool second);
  Answer answer(Seen& seen, bool second);
  Answer modelscope(const Seen& seen);
  Answer content(const Seen& seen, const std::string& body, std::string etag);
  std::optional<Fault> next_fault(const Seen& seen);

  std::map<std::string, std::string> files_;
  std::vector<std::string> order_;
  UniqueFd listeners_[2];
  int ports_[2] = {};
  std::mutex mutex_;
  std::vector<std::pair<std::pair<std::string, std::string>, Fault>> plan_;
  std::vector<Seen> seen_;
  std::vector<int> connections_;
  std::vector<std::thread> threads_;
  bool ends_ = false;
  std::atomic<std::uint64_t> body_bytes_ = 0;
};

// git's name of a content, and its SHA-256, in hexadecimal.
std::string git_sha1(const std::string& content);
std::string sha256_hex(const std::string& content);

}  // namespace troupe::tests
