#pragma once
// One HTTP request at a time over a connection that is kept. An interface: curl_http.h has the one
// that reaches the network.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "troupe/clock.h"

namespace troupe::train::hub {

struct Request {
  std::string method = "GET";  // or HEAD
  std::string url;
  std::vector<std::string> headers;  // "range: bytes=5-"
  std::string token;                 // of the header authorization; empty: none
  bool token_as_cookie = false;      // and of the cookie m_session_id
  Duration connect_timeout = std::chrono::seconds(10);
  Duration stall_timeout = std::chrono::seconds(10);  // without a byte
};

struct Response {
  int status = 0;                              // 0: none came
  std::map<std::string, std::string> headers;  // names in small letters

  std::string header(const std::string& name) const {
    const auto found = headers.find(name);
    return found == headers.end() ? std::string() : found->second;
  }
};

struct Exchange {
  Response response;
  // Why the answer is missing or incomplete: kUnavailable, kDeadlineExceeded; kNotFound where no
  // name server knows the host; kCancelled where nobody wanted the rest.
  Status end;
};

// Takes a piece of the body; false where the rest is not wanted.
using BodySink = std::function<bool(const Response& response, std::string_view piece)>;

class Http {
 public:
  virtual ~Http() = default;
  // Follows no redirect. The status may be any.
  virtual Exchange exchange(const Request& request, const BodySink& sink) = 0;
};

// Opens another connection; one for each thread.
using OpenHttp = std::function<Result<std::unique_ptr<Http>>()>;

}  // namespace troupe::train::hub
