#pragma once
// What a hub's answers mean, in the kinds and words of huggingface_hub. The kind is the context
// "kind" of a status.

#include <string>

#include "runtime/base/status.h"
#include "train/hub/http.h"
#include "train/hub/repository.h"

namespace troupe::train::hub {

inline constexpr const char* kRepositoryNotFound = "RepositoryNotFoundError";
inline constexpr const char* kRevisionNotFound = "RevisionNotFoundError";
inline constexpr const char* kEntryNotFound = "EntryNotFoundError";
inline constexpr const char* kGatedRepository = "GatedRepoError";
inline constexpr const char* kLocalEntryNotFound = "LocalEntryNotFoundError";
inline constexpr const char* kHttpError = "HfHubHTTPError";

// The error of an answer whose status is not 2xx. URLs are shown without what follows "?": signed
// ones carry a credential there.
Status http_error(const Repository& repository, const std::string& url, const Response& response);
// An error of that kind.
bool is_kind(const Status& status, std::string_view kind);
std::string without_query(const std::string& url);

}  // namespace troupe::train::hub
