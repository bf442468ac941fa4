#include "train/hub/curl_http.h"

#define CURL_DISABLE_TYPECHECK
#include <curl/curl.h>
#include <dlfcn.h>

#include <algorithm>

#include "runtime/base/text.h"

namespace troupe::train::hub {
namespace {

// CURLOPT_PROTOCOLS and CURLPROTO_HTTP | CURLPROTO_HTTPS, which newer headers warn of.
constexpr auto kProtocolNumbers = static_cast<CURLoption>(CURLOPTTYPE_LONG + 181);
constexpr long kHttpAndHttps = 3;

struct Curl {
  decltype(&::curl_global_init) global_init;
  decltype(&::curl_easy_init) init;
  decltype(&::curl_easy_setopt) set;
  decltype(&::curl_easy_perform) perform;
  decltype(&::curl_easy_getinfo) info;
  decltype(&::curl_easy_reset) reset;
  decltype(&::curl_easy_cleanup) cleanup;
  decltype(&::curl_easy_strerror) text;
  decltype(&::curl_slist_append) append;
  decltype(&::curl_slist_free_all) free_list;
};

Result<Curl> load_curl() {
  void* library = nullptr;
  for (const char* name : {"libcurl.so.4", "libcurl-gnutls.so.4"}) {
    if (!library) library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
  }
  Curl curl{};
  bool complete = library != nullptr;
  const auto load = [&](auto& function, const char* name) {
    function = complete ? reinterpret_cast<std::decay_t<decltype(function)>>(::dlsym(library, name))
                        : nullptr;
    complete = complete && function != nullptr;
  };
  load(curl.global_init, "curl_global_init");
  load(curl.init, "curl_easy_init");
  load(curl.set, "curl_easy_setopt");
  load(curl.perform, "curl_easy_perform");
  load(curl.info, "curl_easy_getinfo");
  load(curl.reset, "curl_easy_reset");
  load(curl.cleanup, "curl_easy_cleanup");
  load(curl.text, "curl_easy_strerror");
  load(curl.append, "curl_slist_append");
  load(curl.free_list, "curl_slist_free_all");
  if (!complete || curl.global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
    return error(Code::kUnavailable,
                 "nothing can be downloaded: libcurl is not here (apt install libcurl4); or "
                 "download by another program, and give the folder");
  }
  return curl;
}

const Result<Curl>& the_curl() {
  static const Result<Curl> curl = load_curl();
  return curl;
}

long milliseconds(Duration duration) {
  return static_cast<long>(std::chrono::duration_cast<std::chrono::milliseconds>(duration).count());
}

class CurlHttp final : public Http {
 public:
  CurlHttp(const Curl& curl, CURL* handle, std::string certificates)
      : curl_(curl), handle_(handle), certificates_(std::move(certificates)) {}
  ~CurlHttp() override { curl_.cleanup(handle_); }

  Exchange exchange(const Request& request, const BodySink& sink) override {
    out_ = {};
    sink_ = &sink;
    wanted_ = true;
    error_text_[0] = '\0';
    curl_.reset(handle_);  // connections stay
    curl_slist* headers = nullptr;
    for (const auto& header : request.headers) headers = curl_.append(headers, header.c_str());
    if (!request.token.empty())
      headers = curl_.append(headers, ("authorization: Bearer " + request.token).c_str());
    if (!request.token.empty() && request.token_as_cookie)
      headers = curl_.append(headers, ("cookie: m_session_id=" + request.token).c_str());
    const auto set = [&](CURLoption option, auto value) { curl_.set(handle_, option, value); };
    set(CURLOPT_URL, request.url.c_str());
    // (Before 7.85 a library knows the numbers alone.)
    if (curl_.set(handle_, CURLOPT_PROTOCOLS_STR, "http,https") != CURLE_OK)
      set(kProtocolNumbers, kHttpAndHttps);
    set(CURLOPT_HTTPHEADER, headers);
    set(CURLOPT_NOBODY, request.method == "HEAD" ? 1L : 0L);
    set(CURLOPT_NOSIGNAL, 1L);
    set(CURLOPT_USERAGENT, "troupe");
    set(CURLOPT_CONNECTTIMEOUT_MS, milliseconds(request.connect_timeout));
    set(CURLOPT_LOW_SPEED_LIMIT, 1L);
    set(CURLOPT_LOW_SPEED_TIME, std::max(1L, milliseconds(request.stall_timeout) / 1000));
    set(CURLOPT_BUFFERSIZE, 256L << 10);
    set(CURLOPT_ERRORBUFFER, error_text_);
    set(CURLOPT_HEADERFUNCTION, &CurlHttp::header_came);
    set(CURLOPT_HEADERDATA, this);
    set(CURLOPT_WRITEFUNCTION, &CurlHttp::body_came);
    set(CURLOPT_WRITEDATA, this);
    if (!certificates_.empty()) set(CURLOPT_CAINFO, certificates_.c_str());
    const CURLcode code = curl_.perform(handle_);
    curl_.free_list(headers);
    if (!wanted_) {
      out_.end = error(Code::kCancelled, "the rest was not wanted");
    } else if (code != CURLE_OK) {
      const bool unknown =
          code == CURLE_COULDNT_RESOLVE_HOST || code == CURLE_COULDNT_RESOLVE_PROXY;
      const bool no_url = code == CURLE_UNSUPPORTED_PROTOCOL || code == CURLE_URL_MALFORMAT;
      out_.end = error(code == CURLE_OPERATION_TIMEDOUT ? Code::kDeadlineExceeded
                       : unknown                        ? Code::kNotFound
                       : no_url                         ? Code::kInvalidArgument
                                                        : Code::kUnavailable,
                       "{}", error_text_[0] != '\0' ? error_text_ : curl_.text(code));
    }
    return std::move(out_);
  }

 private:
  static std::size_t header_came(char* data, std::size_t size, std::size_t count, void* self) {
    auto& response = static_cast<CurlHttp*>(self)->out_.response;
    std::string_view line(data, size * count);
    while (line.ends_with('\n') || line.ends_with('\r')) line.remove_suffix(1);
    if (line.starts_with("HTTP/")) {
      // Of a proxy's answer, or 100 Continue, nothing stays.
      response = {};
      const auto space = line.find(' ');
      if (space != std::string_view::npos)
        response.status = parse_integer<int>(line.substr(space + 1, 3)).value_or(0);
    } else if (const auto colon = line.find(':'); colon != std::string_view::npos) {
      auto value = line.substr(colon + 1);
      while (value.starts_with(' ') || value.starts_with('\t')) value.remove_prefix(1);
      response.headers[lower_case(line.substr(0, colon))] = value;
    }
    return size * count;
  }
  static std::size_t body_came(char* data, std::size_t size, std::size_t count, void* self) {
    auto& http = *static_cast<CurlHttp*>(self);
    http.wanted_ = (*http.sink_)(http.out_.response, {data, size * count});
    return http.wanted_ ? size * count : 0;
  }

  const Curl& curl_;
  CURL* handle_;
  std::string certificates_;
  Exchange out_;
  const BodySink* sink_ = nullptr;
  bool wanted_ = true;
  char error_text_[CURL_ERROR_SIZE] = {};
};

}  // namespace

Result<std::unique_ptr<Http>> open_curl(const std::string& certificates) {
  const auto& curl = the_curl();
  if (!curl.ok()) return curl.status();
  CURL* handle = curl->init();
  if (!handle) return error(Code::kOutOfMemory, "there is no memory for a connection");
  return std::unique_ptr<Http>(std::make_unique<CurlHttp>(*curl, handle, certificates));
}

}  // namespace troupe::train::hub
