#include "actors/connect_options.h"

#include "runtime/net/parse_address.h"
#include "runtime/net/token.h"

namespace troupe::detail {
namespace {

// A variable that is set to nothing is not set.
std::optional<std::string> variable(const Environment& environment, std::string_view name) {
  auto value = environment.get(name);
  if (value && value->empty()) return std::nullopt;
  return value;
}

Result<net::Token> token_of(const Environment& environment, FileSystem& files) {
  auto file = variable(environment, "TROUPE_TOKEN_FILE");
  if (!file) {
    const auto home = variable(environment, "HOME");
    if (!home) {
      return error(Code::kNotFound,
                   "no token: set ConnectOptions::token, or TROUPE_TOKEN_FILE to the cluster's "
                   "token file");
    }
    file = join_path(*home, ".troupe/token");
  }
  auto token = net::read_token_file(files, *file);
  if (token.status().code() == Code::kNotFound) {
    return error(Code::kNotFound,
                 "there is no token file {}: copy the one that 'troupe head' names from the head's "
                 "machine, or name it with TROUPE_TOKEN_FILE",
                 *file);
  }
  if (!token.ok()) return token.status();
  const auto insecure = variable(environment, "TROUPE_INSECURE");
  if (insecure && *insecure != "0" && *insecure != "1") {
    return error(Code::kInvalidArgument, "TROUPE_INSECURE is '{}': it is 1, or 0", *insecure);
  }
  return insecure == "1" ? token->with(net::Security::kInsecure) : std::move(*token);
}

}  // namespace

Result<ConnectOptions> complete(ConnectOptions options, const Environment& environment,
                                FileSystem& files) {
  const auto text = variable(environment, "TROUPE_ADDRESS");
  std::optional<net::Address> named;
  if (text) {
    auto address = net::parse_address(*text, "TROUPE_ADDRESS");
    // What is not needed is not judged.
    if (address.ok()) {
      named = std::move(*address);
    } else if (options.host.empty()) {
      return address.status();
    }
  }
  if (options.host.empty()) {
    if (!named) {
      return error(Code::kNotFound,
                   "no cluster is named: set ConnectOptions::host and port, or TROUPE_ADDRESS, or "
                   "run this program with 'troupe submit'");
    }
    options.host = named->host;
    options.port = named->port;
  }
  if (options.token.empty()) options.token = TROUPE_TRY(token_of(environment, files));
  const bool same = named && named->host == options.host && named->port == options.port;
  const auto job = variable(environment, "TROUPE_JOB_ID");
  if (options.job_id.empty() && same && job) {
    auto id = JobId::parse(*job);
    if (!id.ok()) return id.status().prefixed("TROUPE_JOB_ID");
    options.job_id = *id;
  }
  return options;
}

}  // namespace troupe::detail
