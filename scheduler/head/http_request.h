#pragma once
// The head of an HTTP/1.1 request, as it comes in bytes from anybody. What is not clearly one is
// refused: there is no leniency to be confused by.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "scheduler/head/http_server.h"

namespace troupe::scheduler {

struct HttpRequest {
  std::string method;
  std::string target;
  std::optional<std::string> host;    // of exactly one Host
  std::optional<std::string> origin;  // the last one
  bool keep_alive = true;
  std::size_t bytes = 0;  // of what came: what is behind is another request
};

struct HttpReading {
  // Neither: more is to come.
  std::optional<HttpRequest> request;
  std::optional<HttpPage>
      refusal;  // and the connection ends: where another one begins is not known
};
HttpReading read_http_request(std::string_view came);

}  // namespace troupe::scheduler
