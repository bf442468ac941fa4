#include "train/hub/errors.h"

namespace troupe::train::hub {
namespace {

const char* reason_of(int status) {
  switch (status) {
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 416:
      return "Range Not Satisfiable";
    case 429:
      return "Too Many Requests";
    case 500:
      return "Internal Server Error";
    case 502:
      return "Bad Gateway";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    default:
      return "error";
  }
}

Code code_of(int status) {
  if (status == 401) return Code::kUnauthenticated;
  if (status == 403) return Code::kPermissionDenied;
  if (status == 404) return Code::kNotFound;
  if (status == 429) return Code::kResourceExhausted;
  return status >= 500 ? Code::kUnavailable : Code::kFailedPrecondition;
}

}  // namespace

std::string without_query(const std::string& url) { return url.substr(0, url.find('?')); }

Status http_error(const Repository& repository, const std::string& url, const Response& response) {
  const std::string code = response.header("x-error-code");
  std::string said = response.header("x-error-message");
  if (!said.empty()) said = " " + said;
  const std::string shown = without_query(url);
  const std::string begin = fmt::format("{}: {} {} Error", repository.shown(), response.status,
                                        response.status >= 500 ? "Server" : "Client");
  if (code == "RevisionNotFound") {
    return error(Code::kNotFound, "{}. Revision Not Found for url: {}.{}", begin, shown, said)
        .with("kind", kRevisionNotFound);
  }
  if (code == "EntryNotFound") {
    return error(Code::kNotFound, "{}. Entry Not Found for url: {}.", begin, shown)
        .with("kind", kEntryNotFound);
  }
  if (code == "GatedRepo") {
    return error(Code::kPermissionDenied,
                 "{}. Cannot access gated repo for url {}.{}. Ask for access on the hub's page of "
                 "it, and give a token of that account: HF_TOKEN, or hf_hub_token",
                 begin, shown, said)
        .with("kind", kGatedRepository);
  }
  const bool bad_token = said.find("Invalid credentials") != std::string::npos;
  if (code == "RepoNotFound" || (response.status == 401 && !bad_token)) {
    return error(Code::kNotFound,
                 "{}. Repository Not Found for url: {}. Please make sure you specified the correct "
                 "name; if it is a private or gated repository, give a token: HF_TOKEN, or "
                 "hf_hub_token",
                 begin, shown)
        .with("kind", kRepositoryNotFound);
  }
  return error(code_of(response.status), "{}: {} for url: {}{}{}", begin,
               reason_of(response.status), shown, said,
               bad_token ? ": look at HF_TOKEN, hf_hub_token and the file HF_TOKEN_PATH" : "")
      .with("kind", kHttpError);
}

bool is_kind(const Status& status, std::string_view kind) { return status.context("kind") == kind; }

}  // namespace troupe::train::hub
