#include "train/hub/settings.h"

#include "runtime/base/suggest.h"
#include "runtime/base/text.h"

namespace troupe::train::hub {
namespace {

constexpr std::uint64_t kTokenBytesMax = 64 << 10;

// huggingface_hub's rule: 1, true, yes, on.
bool is_true(const Environment& environment, const char* name) {
  const auto value = lower_case(environment.get(name).value_or(""));
  return value == "1" || value == "true" || value == "yes" || value == "on";
}

// The first of the variables that is set and not empty.
std::string first_of(const Environment& environment, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (auto value = environment.get(name); value && !value->empty()) return *value;
  }
  return {};
}

std::string with_home(const Environment& environment, std::string path) {
  if (path == "~" || path.starts_with("~/"))
    path = environment.get("HOME").value_or("") + path.substr(1);
  return path;
}

Duration seconds_of(const Environment& environment, const char* name, Duration otherwise) {
  const auto seconds = parse_integer<int>(environment.get(name).value_or(""));
  return seconds && *seconds > 0 ? Duration(std::chrono::seconds(*seconds)) : otherwise;
}

}  // namespace

Settings Settings::from(const Environment& environment, FileSystem& files) {
  Settings out;
  std::string cache = first_of(environment, {"XDG_CACHE_HOME"});
  if (cache.empty()) cache = join_path(environment.get("HOME").value_or(""), ".cache");
  std::string home = with_home(environment, first_of(environment, {"HF_HOME"}));
  if (home.empty()) home = join_path(cache, "huggingface");
  out.cache = with_home(environment, first_of(environment, {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE",
                                                            "TRANSFORMERS_CACHE"}));
  if (out.cache.empty()) out.cache = join_path(home, "hub");
  const auto set_endpoint = [](std::string& to, std::string endpoint) {
    while (endpoint.ends_with('/')) endpoint.pop_back();
    if (!endpoint.empty()) to = std::move(endpoint);
  };
  set_endpoint(out.endpoint, first_of(environment, {"HF_ENDPOINT"}));
  out.offline =
      is_true(environment, "HF_HUB_OFFLINE") || is_true(environment, "TRANSFORMERS_OFFLINE");
  if (!is_true(environment, "HF_HUB_DISABLE_IMPLICIT_TOKEN")) {
    out.token = trim(first_of(environment, {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}));
    std::string file = with_home(environment, first_of(environment, {"HF_TOKEN_PATH"}));
    if (file.empty()) file = join_path(home, "token");
    if (out.token.empty()) out.token = trim(files.read(file, kTokenBytesMax).value_or(""));
  }
  out.metadata_timeout = seconds_of(environment, "HF_HUB_ETAG_TIMEOUT", out.metadata_timeout);
  out.stall_timeout = seconds_of(environment, "HF_HUB_DOWNLOAD_TIMEOUT", out.stall_timeout);
  out.shows_progress = !is_true(environment, "HF_HUB_DISABLE_PROGRESS_BARS");
  out.certificates =
      first_of(environment, {"REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"});
  out.modelscope = environment.enabled("USE_MODELSCOPE_HUB");
  out.modelscope_cache = with_home(environment, first_of(environment, {"MODELSCOPE_CACHE"}));
  if (out.modelscope_cache.empty()) out.modelscope_cache = join_path(cache, "modelscope");
  auto domain = first_of(environment, {"MODELSCOPE_ENDPOINT", "MODELSCOPE_DOMAIN"});
  if (!domain.empty() && domain.find("://") == std::string::npos) domain = "https://" + domain;
  set_endpoint(out.modelscope_endpoint, std::move(domain));
  out.modelscope_token = trim(first_of(environment, {"MODELSCOPE_API_TOKEN"}));
  return out;
}

}  // namespace troupe::train::hub
