#include "scheduler/head/http_request.h"

#include <fmt/format.h>

#include <algorithm>

namespace troupe::scheduler {
namespace {

constexpr std::string_view kLineEnd = "\r\n";

char small_letter(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool same_word(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b, {}, small_letter, small_letter);
}

// What names of methods and headers are made of.
bool is_token(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) {
    const bool letter = small_letter(c) >= 'a' && small_letter(c) <= 'z';
    return letter || (c >= '0' && c <= '9') ||
           std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
  });
}

bool is_visible(char c) { return c > ' ' && c != '\x7f'; }
// Of a header's value, which may be in any letters.
bool is_of_value(char c) { return is_visible(c) || c == ' ' || c == '\t' || (c & '\x80') != 0; }

std::string_view without_blanks(std::string_view text) {
  const auto begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") + 1 - begin);
}

bool lists(std::string_view words, std::string_view word) {
  while (!words.empty()) {
    const auto comma = std::min(words.find(','), words.size());
    if (same_word(without_blanks(words.substr(0, comma)), word)) return true;
    words.remove_prefix(std::min(comma + 1, words.size()));
  }
  return false;
}

HttpReading refused(int status, std::string why) {
  return {.request = {}, .refusal = HttpPage{.status = status, .body = std::move(why)}};
}

// "GET /metrics HTTP/1.1"; false where it is something else.
bool read_first_line(std::string_view line, HttpRequest& request) {
  const auto first = line.find(' '), second = line.find(' ', first + 1);
  if (first == std::string_view::npos || second == std::string_view::npos) return false;
  const std::string_view target = line.substr(first + 1, second - first - 1);
  const std::string_view version = line.substr(second + 1);
  request.method = line.substr(0, first);
  request.target = target;
  request.keep_alive = version == "HTTP/1.1";
  return is_token(request.method) && !target.empty() && std::ranges::all_of(target, is_visible) &&
         (version == "HTTP/1.1" || version == "HTTP/1.0");
}

}  // namespace

HttpReading read_http_request(std::string_view came) {
  static constexpr const char* kMalformed = "This is no HTTP/1.1 request.\n";
  // An empty line before a request is passed over, as the standard asks.
  HttpRequest request;
  if (came.starts_with(kLineEnd)) request.bytes = kLineEnd.size();
  std::string_view rest = came.substr(request.bytes);
  const auto end = rest.substr(0, kHttpHeaderBytesMax).find("\r\n\r\n");
  if (end == std::string_view::npos) {
    if (rest.size() < kHttpHeaderBytesMax) return {};
    return refused(
        431, fmt::format("The request's headers are longer than {} bytes.\n", kHttpHeaderBytesMax));
  }
  request.bytes += end + 4;
  rest = rest.substr(0, end + kLineEnd.size());

  int hosts = 0;
  for (bool first = true; !rest.empty(); first = false) {
    const auto length = rest.find(kLineEnd);
    const std::string_view line = rest.substr(0, length);
    rest.remove_prefix(length + kLineEnd.size());
    if (first) {
      if (!read_first_line(line, request)) return refused(400, kMalformed);
      continue;
    }
    const auto colon = line.find(':');
    if (colon == std::string_view::npos) return refused(400, kMalformed);
    const std::string_view name = line.substr(0, colon);
    const std::string_view value = without_blanks(line.substr(colon + 1));
    if (!is_token(name) || !std::ranges::all_of(value, is_of_value))
      return refused(400, kMalformed);
    if (same_word(name, "Host")) {
      ++hosts;
      request.host = value;
    } else if (same_word(name, "Origin")) {
      request.origin = value;
    } else if (same_word(name, "Connection")) {
      if (lists(value, "close")) request.keep_alive = false;
      if (lists(value, "keep-alive") && !lists(value, "close")) request.keep_alive = true;
    } else if (same_word(name, "Transfer-Encoding") ||
               (same_word(name, "Content-Length") &&
                (value.empty() || value.find_first_not_of('0') != std::string_view::npos))) {
      return refused(413, "A request here has no body.\n");
    }
  }
  if (hosts > 1) request.host.reset();
  return {.request = std::move(request), .refusal = {}};
}

}  // namespace troupe::scheduler
