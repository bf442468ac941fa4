#include "runtime/net/parse_address.h"

#include <charconv>
#include <string_view>

namespace troupe::net {

Result<Address> parse_address(const std::string& text, const std::string& what) {
  const std::size_t colon = text.rfind(':');
  const auto wrong = [&](std::string_view why) {
    return error(Code::kInvalidArgument,
                 "{} is '{}': {}; it reads HOST:PORT, such as 10.0.0.2:6379", what, text, why);
  };
  if (colon == std::string::npos) return wrong("the port is missing");
  std::string host = text.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string::npos) {
    return wrong("an IPv6 address stands in brackets");
  }
  if (host.empty()) return wrong("the host is missing");
  const std::string_view digits = std::string_view(text).substr(colon + 1);
  unsigned port = 0;
  const auto [end, failed] = std::from_chars(digits.begin(), digits.end(), port);
  if (failed != std::errc() || end != digits.end() || port == 0 || port > 65535) {
    return wrong("the port is not a number from 1 to 65535");
  }
  return Address{host, static_cast<std::uint16_t>(port), {}};
}

}  // namespace troupe::net
