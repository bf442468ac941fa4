#pragma once
// A small HTTP/1.1 server for pages that are read: GET only, on a thread of its own.
//
// What it defends against: a page of another site in somebody's browser (Host must be a numeric
// address, localhost, or a name that was given, so that no foreign name leads here; Origin, where
// there is one, must be this server), clients that send much or slowly, or do not read (the limits
// below). It knows no users: who can connect can read.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/net/transport.h"

namespace troupe::scheduler {

// What a client may cost: the line and headers of a request, connections. A scraper or a browser
// needs a few hundred bytes and a few connections.
inline constexpr std::size_t kHttpHeaderBytesMax = 8u << 10;
inline constexpr std::size_t kHttpConnectionsMax = 64;

struct HttpPage {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
};

struct HttpServerOptions {
  std::string host = "127.0.0.1";  // numeric address to listen on
  std::uint16_t port = 0;          // 0: a free one
  std::vector<std::string> names;  // further names under which it may be asked for
  Duration request_timeout = std::chrono::seconds(5);  // to come, to be answered, to be taken
  Duration idle_timeout = std::chrono::seconds(60);    // between requests of one connection
};

class HttpServer {
 public:
  // Any thread, once, with what makes the page on the server's thread. What comes later than the
  // request's time-out is not heard any more.
  using Answer = std::function<void(std::function<HttpPage()> make_page)>;
  // On the server's thread, which it must not keep: it may answer later, from anywhere. `path` is
  // without the query.
  using Handler = std::function<void(const std::string& path, Answer answer)>;

  // kAlreadyExists for a taken port, kInvalidArgument for a host that is no numeric address.
  static Result<std::unique_ptr<HttpServer>> start(HttpServerOptions options, Handler handler);
  // Closes every connection; when it returns the handler is not called any more.
  virtual ~HttpServer() = default;
  virtual const net::Address& address() const = 0;
};

}  // namespace troupe::scheduler
