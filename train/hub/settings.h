#pragma once
// What the environment says of hubs: the variables of huggingface_hub and of ModelScope.

#include <string>

#include "runtime/base/environment.h"
#include "runtime/base/file_system.h"
#include "troupe/clock.h"

namespace troupe::train::hub {

// Variables that hold a hub's credential: for the process that asks the hub, and no other.
inline constexpr const char* kTokenVariables[] = {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN",
                                                  "MODELSCOPE_API_TOKEN"};

struct Settings {
  std::string cache;  // HF_HUB_CACHE, else HF_HOME/hub, else ~/.cache/huggingface/hub
  std::string endpoint = "https://huggingface.co";  // HF_ENDPOINT, without a slash at its end
  bool offline = false;                             // HF_HUB_OFFLINE, TRANSFORMERS_OFFLINE
  // HF_TOKEN, else the file HF_TOKEN_PATH (HF_HOME/token); empty: none. Never shown.
  std::string token;
  Duration metadata_timeout = std::chrono::seconds(10);  // HF_HUB_ETAG_TIMEOUT
  Duration stall_timeout = std::chrono::seconds(10);     // HF_HUB_DOWNLOAD_TIMEOUT
  bool shows_progress = true;                            // not HF_HUB_DISABLE_PROGRESS_BARS
  std::string certificates;  // REQUESTS_CA_BUNDLE, CURL_CA_BUNDLE, SSL_CERT_FILE; empty: system's

  bool modelscope = false;       // USE_MODELSCOPE_HUB
  std::string modelscope_cache;  // MODELSCOPE_CACHE, else ~/.cache/modelscope
  // MODELSCOPE_ENDPOINT, MODELSCOPE_DOMAIN
  std::string modelscope_endpoint = "https://www.modelscope.cn";
  std::string modelscope_token;  // MODELSCOPE_API_TOKEN; empty: none. Never shown.
  // The token is sent as a cookie, too: some of ModelScope's answers look there alone.
  bool token_as_cookie = false;

  static Settings from(const Environment& environment, FileSystem& files);
};

}  // namespace troupe::train::hub
