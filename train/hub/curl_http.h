#pragma once
// HTTP by libcurl: HTTPS, proxies (HTTPS_PROXY, NO_PROXY), HTTP/2. Loaded when it is first used,
// for a program that asks no hub should not wait for its thirty libraries.

#include "train/hub/http.h"

namespace troupe::train::hub {

// `certificates`: a file of certificate authorities, or empty. kUnavailable where libcurl is not
// installed.
Result<std::unique_ptr<Http>> open_curl(const std::string& certificates);

}  // namespace troupe::train::hub
