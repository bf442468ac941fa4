#include "train/hub/client.h"

#include <algorithm>

#include "runtime/base/text.h"
#include "train/hub/errors.h"

namespace troupe::train::hub {
namespace {

constexpr int kRedirectsMax = 5;
constexpr std::size_t kBodyBytesMax = 64u << 20;  // names of 50,000 files, and more
// Of 429 with Retry-After, together: the hub counts requests by windows of five minutes.
constexpr Duration kRateLimitWaitMax = std::chrono::minutes(10);

// "https://host:port"
std::string origin_of_url(const std::string& url) {
  const auto scheme = url.find("://");
  if (scheme == std::string::npos) return {};
  return url.substr(0, url.find_first_of("/?#", scheme + 3));
}

// A scheme stands before the first of these; "://" behind them is some parameter's.
bool is_absolute(const std::string& location) {
  const auto scheme = location.find("://");
  return scheme != std::string::npos && location.find_first_of("/?#") == scheme + 1;
}

bool is_redirect(const Response& response) {
  return response.status >= 300 && response.status < 400 && !response.header("location").empty();
}

// Where the answer sends the request. The token stays with the host that it is for.
void follow(Request& request, const Response& response) {
  auto next = redirect_of(request.url, response.header("location"));
  if (origin_of_url(next) != origin_of_url(request.url)) request.token.clear();
  request.url = std::move(next);
}

bool is_relative(const Response& response) {
  const auto location = response.header("location");
  return !is_absolute(location) && !location.starts_with("//");
}

}  // namespace

std::string redirect_of(const std::string& url, const std::string& location) {
  if (is_absolute(location)) return location;
  const auto origin = origin_of_url(url);
  if (location.starts_with("//")) return url.substr(0, url.find("://") + 1) + location;
  if (location.starts_with('/')) return origin + location;
  const auto path = without_query(url);
  return path.substr(0, path.rfind('/') + 1) + location;
}

Duration retry_wait(int failures) {
  return std::chrono::seconds(1 << std::clamp(failures - 1, 0, 3));
}

std::optional<Duration> Client::wait_before_retry(const Response& response, int failures,
                                                  Duration waited) const {
  if (failures > kRetries) return std::nullopt;
  const int status = response.status;
  if (status == 429) {
    const auto seconds = parse_integer<int>(response.header("retry-after"));
    const Duration wait =
        seconds && *seconds >= 0 ? Duration(std::chrono::seconds(*seconds)) : retry_wait(failures);
    if (waited + wait > kRateLimitWaitMax) return std::nullopt;
    if (wait > std::chrono::seconds(5)) {
      services_.progress.say(
          fmt::format("the hub takes no more requests for {} s (429); waiting",
                      std::chrono::duration_cast<std::chrono::seconds>(wait).count()));
    }
    return wait;
  }
  if (status == 0 || status == 500 || status == 502 || status == 503 || status == 504)
    return retry_wait(failures);
  return std::nullopt;
}

Request Client::to_endpoint(std::string method, const std::string& path) const {
  return {.method = std::move(method),
          .url = settings_.endpoint + path,
          .headers = {"accept-encoding: identity"},
          .token = settings_.token,
          .token_as_cookie = settings_.token_as_cookie,
          .connect_timeout = settings_.metadata_timeout,
          .stall_timeout = settings_.stall_timeout};
}

Result<Client::Answer> Client::ask(Http& http, Request request, bool relative_redirects,
                                   bool once) const {
  int failures = 0;
  int redirects = 0;
  Duration waited{};
  for (;;) {
    Answer answer{.url = request.url};
    auto exchange = http.exchange(request, [&](const Response&, std::string_view piece) {
      if (answer.body.size() + piece.size() > kBodyBytesMax) return false;
      answer.body += piece;
      return true;
    });
    answer.response = std::move(exchange.response);
    if (!exchange.end.ok()) {
      if (exchange.end.code() == Code::kCancelled)
        return error(Code::kResourceExhausted, "{}: the answer is longer than any that is expected",
                     without_query(request.url));
      answer.response.status = 0;
    }
    if (is_redirect(answer.response) && (!relative_redirects || is_relative(answer.response))) {
      if (++redirects > kRedirectsMax)
        return error(Code::kProtocol, "{}: too many redirects", without_query(request.url));
      follow(request, answer.response);
      continue;
    }
    // A machine without a network is told so at once.
    const bool hopeless = once || exchange.end.code() == Code::kNotFound ||
                          exchange.end.code() == Code::kInvalidArgument;
    const auto wait = hopeless && answer.response.status == 0
                          ? std::nullopt
                          : wait_before_retry(answer.response, ++failures, waited);
    if (!wait) {
      if (answer.response.status != 0) return answer;
      return exchange.end.prefixed(without_query(request.url));
    }
    services_.wait(*wait);
    waited += *wait;
  }
}

Exchange Client::fetch(Http& http, Request request, const BodySink& sink) const {
  for (int redirects = 0;; ++redirects) {
    auto exchange = http.exchange(request, [&](const Response& response, std::string_view piece) {
      return response.status >= 300 || sink(response, piece);
    });
    if (!is_redirect(exchange.response) || redirects == kRedirectsMax) return exchange;
    follow(request, exchange.response);
  }
}

}  // namespace troupe::train::hub
