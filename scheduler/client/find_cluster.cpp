#include "scheduler/client/find_cluster.h"

#include <utility>

#include "runtime/net/parse_address.h"
#include "runtime/net/token.h"

namespace troupe::scheduler {
namespace {

constexpr const char* kAddressVariable = "TROUPE_ADDRESS";
constexpr const char* kInsecureVariable = "TROUPE_INSECURE";

Result<ClusterPlace> recorded_cluster(const Environment& environment, FileSystem& files,
                                      const WaysToSay& ways) {
  const auto path = TROUPE_TRY(cluster_record_path(environment));
  auto record = read_cluster_record(files, path);
  if (record.status().code() == Code::kNotFound) {
    return error(
        Code::kNotFound,
        "no cluster is known here: start one with 'troupe head', or name one with {} or "
        "{} (there is no {}; programs that 'troupe submit' runs are told theirs; a training "
        "without a cluster is told of by 'troupe why' and 'troupe timeline RUN'; a cluster that a "
        "program starts within itself, by start_embedded(), is that program's alone)",
        ways.address, kAddressVariable, path);
  }
  if (!record.ok()) return record.status();
  if (is_stale(*record)) {
    return error(Code::kUnavailable,
                 "the head at {} is gone: its process {} ended without taking back {}. Start it "
                 "again with 'troupe head --port {}', or remove that file",
                 format_address(record->host, record->port), record->pid, path, record->port);
  }
  ClusterPlace place{net::Address{record->host, record->port, {}}, "~/.troupe/current", {}};
  place.record = std::move(*record);
  return place;
}

}  // namespace

Result<ClusterPlace> find_cluster(const Environment& environment, FileSystem& files,
                                  const WaysToSay& ways) {
  const auto named = environment.get(kAddressVariable);
  if (!named || named->empty()) return recorded_cluster(environment, files, ways);
  return ClusterPlace{
      TROUPE_TRY(net::parse_address(*named, kAddressVariable)), kAddressVariable, {}};
}

Result<std::string> token_file_of(const ClusterPlace& place, const Environment& environment) {
  if (place.record && !place.record->token_file.empty()) return place.record->token_file;
  return default_token_file(environment);
}

Result<net::Token> read_cluster_token(FileSystem& files, const std::string& file,
                                      const WaysToSay& ways) {
  auto token = net::read_token_file(files, file);
  if (token.status().code() != Code::kNotFound) return token;
  return error(Code::kNotFound,
               "there is no token file {}: copy the one that 'troupe head' names from the head's "
               "machine (scp -p), or give {}",
               file, ways.token);
}

Result<bool> insecure_by_environment(const Environment& environment) {
  const auto variable = environment.get(kInsecureVariable);
  if (!variable || variable->empty()) return false;
  if (*variable != "0" && *variable != "1") {
    return error(Code::kInvalidArgument, "{} is '{}': it is 1, or 0 for encrypted connections",
                 kInsecureVariable, *variable);
  }
  return *variable == "1";
}

Status explain_unreached(const Status& status, const ClusterPlace& place,
                         const std::string& token_file) {
  const std::string where =
      fmt::format("head {} (named by {})", format_address(place.address.host, place.address.port),
                  place.source);
  switch (status.code()) {
    case Code::kUnavailable:
    case Code::kDeadlineExceeded:
      return Status(status.code(),
                    fmt::format("{} does not answer: {}. Is it running, and does a firewall let "
                                "the port through?",
                                where, status.message()));
    case Code::kUnauthenticated:
      return Status(
          status.code(),
          fmt::format("{} refused the token{}: {}. Copy the head's token file here", where,
                      token_file.empty() ? "" : " of " + token_file, status.message()));
    default:
      return status.prefixed(where);
  }
}

}  // namespace troupe::scheduler
