#pragma once
// Requests to a hub: with its token, tried again where that may help, redirects followed with care.

#include <functional>

#include "train/hub/http.h"
#include "train/hub/progress.h"
#include "train/hub/settings.h"

namespace troupe::train::hub {

// How many times a request is tried again after it brought nothing, and what is waited before each.
inline constexpr int kRetries = 5;
Duration retry_wait(int failures);

// Where an answer from `url` with that Location sends.
std::string redirect_of(const std::string& url, const std::string& location);

// The services that downloads use: files, HTTP, waiting, progress.
struct Services {
  FileSystem& files;
  OpenHttp open_http;
  std::function<void(Duration)> wait;  // sleeps
  Progress& progress;
};

// May be used from several threads, each with its own Http.
class Client {
 public:
  Client(const Settings& settings, const Services& services)
      : settings_(settings), services_(services) {}

  // The request, tried again after failures of connections (not where `once`), 429 and what a
  // server says of itself (500, 502, 503, 504). Of the body at most kBodyBytesMax are kept.
  // `relative_redirects`: those to another host are an answer. A failure is the connection's.
  struct Answer {
    Response response;
    std::string body;
    std::string url;  // that answered
  };
  Result<Answer> ask(Http& http, Request request, bool relative_redirects, bool once) const;

  // One try of a request for a body, which is never tried again; redirects are followed.
  Exchange fetch(Http& http, Request request, const BodySink& sink) const;

  // What to wait before the next try where the answer asks for one; nothing: it is to be taken as
  // it is. `waited`: what was waited for this request before.
  std::optional<Duration> wait_before_retry(const Response& response, int failures,
                                            Duration waited) const;

  // A request to the endpoint, with its token.
  Request to_endpoint(std::string method, const std::string& path) const;
  const Settings& settings() const { return settings_; }
  const Services& services() const { return services_; }

 private:
  const Settings& settings_;
  const Services& services_;
};

}  // namespace troupe::train::hub
