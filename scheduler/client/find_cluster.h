#pragma once
// Which cluster a program of this machine means, and with which token: what it says itself, else
// the environment, else the note of the head that was started here last (cluster_record.h). The
// same for `troupe COMMAND` and for Cluster::connect().

#include <optional>
#include <string>

#include "runtime/base/environment.h"
#include "runtime/base/file_system.h"
#include "runtime/base/status.h"
#include "runtime/net/transport.h"
#include "scheduler/client/cluster_record.h"

namespace troupe::scheduler {

// How users of the program say it themselves; for the way out in errors.
struct WaysToSay {
  const char* address = "";  // "--address HOST:PORT"
  const char* token = "";    // "--token-file"
};

struct ClusterPlace {
  net::Address address;
  std::string source;                   // "--address", "TROUPE_ADDRESS", "~/.troupe/current"
  std::optional<ClusterRecord> record;  // where that named the cluster
};

// TROUPE_ADDRESS, else ~/.troupe/current. kNotFound where nothing names a cluster, kUnavailable
// where the head that the note names is gone, kInvalidArgument where TROUPE_ADDRESS is none.
Result<ClusterPlace> find_cluster(const Environment& environment, FileSystem& files,
                                  const WaysToSay& ways);

// The file of its token: the one that the head's note names, else TROUPE_TOKEN_FILE, else
// ~/.troupe/token.
Result<std::string> token_file_of(const ClusterPlace& place, const Environment& environment);
// kNotFound where there is no such file, with how it gets here.
Result<net::Token> read_cluster_token(FileSystem& files, const std::string& file,
                                      const WaysToSay& ways);
// Whether TROUPE_INSECURE asks for connections that are not encrypted.
Result<bool> insecure_by_environment(const Environment& environment);

// What a user can do about a failure to reach the head at `place`. `token_file` may be empty.
Status explain_unreached(const Status& status, const ClusterPlace& place,
                         const std::string& token_file);

}  // namespace troupe::scheduler
