#include "actors/connect_options.h"

#include <utility>

#include "runtime/net/parse_address.h"

namespace troupe::detail {
namespace {

constexpr scheduler::WaysToSay kMembers{"ConnectOptions::host and port",
                                        "ConnectOptions::token or TROUPE_TOKEN_FILE"};

// The submitted job that this process is a driver of, where it connects to that job's cluster.
Result<JobId> job_of(const net::Address& address, const Environment& environment) {
  const auto job = environment.get("TROUPE_JOB_ID");
  const auto named = environment.get("TROUPE_ADDRESS");
  if (!job || job->empty() || !named || named->empty()) return JobId{};
  // What is not needed is not judged.
  const auto cluster = net::parse_address(*named, "TROUPE_ADDRESS");
  if (!cluster.ok() || cluster->host != address.host || cluster->port != address.port) {
    return JobId{};
  }
  auto id = JobId::parse(*job);
  if (!id.ok()) return id.status().prefixed("TROUPE_JOB_ID");
  return id;
}

}  // namespace

Result<CompleteOptions> complete(ConnectOptions options, const Environment& environment,
                                 FileSystem& files) {
  CompleteOptions complete;
  if (options.host.empty()) {
    complete.place = TROUPE_TRY(scheduler::find_cluster(environment, files, kMembers));
    options.host = complete.place.address.host;
    options.port = complete.place.address.port;
  } else {
    complete.place = {{options.host, options.port, {}}, "ConnectOptions::host", {}};
  }
  if (options.token.empty()) {
    complete.token_file = TROUPE_TRY(scheduler::token_file_of(complete.place, environment));
    options.token = TROUPE_TRY(scheduler::read_cluster_token(files, complete.token_file, kMembers));
    const bool insecure = TROUPE_TRY(scheduler::insecure_by_environment(environment)) ||
                          (complete.place.record && complete.place.record->insecure);
    if (insecure) options.token = options.token.with(net::Security::kInsecure);
  }
  if (options.job_id.empty()) {
    options.job_id = TROUPE_TRY(job_of(complete.place.address, environment));
  }
  complete.options = std::move(options);
  return complete;
}

}  // namespace troupe::detail
