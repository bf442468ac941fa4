#pragma once
// Which cluster a command talks to, and with which token: options, environment, ~/.troupe/current.

#include <memory>
#include <optional>
#include <string>

#include "runtime/base/clock.h"
#include "runtime/net/transport.h"
#include "scheduler/client/find_cluster.h"
#include "scheduler/client/head_client.h"
#include "tools/commands/command.h"
#include "troupe/unique_fd.h"

namespace troupe::tools {

// --- the token: never in arguments, environment or logs ------------------------------------------

struct TokenOptions {
  std::optional<std::string> file;
  bool from_stdin = false;
  bool insecure = false;
};
struct TokenSource {
  net::Token token;
  std::string file;  // empty: it came by standard input
};

// Its file, from wherever one looks; empty where it came by standard input.
std::string absolute_token_file(const TokenSource& source);

// --token-file, --token-stdin and --insecure.
void declare_token_options(Command& command, TokenOptions& options);
// Reads the token: from standard input, the file named, or `fallback_file`. With --insecure, or
// TROUPE_INSECURE=1 in the environment, its connections are not encrypted, and what that means is
// said on standard error. kNotFound where there is no file, with how it gets here; kInvalidArgument
// when both options are given.
Result<TokenSource> load_token(CommandContext& context, const TokenOptions& options,
                               const std::string& fallback_file);
// The same, and makes the file where there is none: the first start of a head.
Result<TokenSource> load_or_make_token(CommandContext& context, const TokenOptions& options);

// --- the cluster ---------------------------------------------------------------------------------

struct ClusterOptions {
  std::optional<std::string> address;
  TokenOptions token;
  std::optional<double> timeout_s;
  bool json = false;
};
// --address, --token-file, --token-stdin, --timeout, --json.
void declare_cluster_options(Command& command, ClusterOptions& options);

struct ClusterPlace : scheduler::ClusterPlace {
  TokenSource token;
};

// --address, else TROUPE_ADDRESS, else ~/.troupe/current. kNotFound where nothing names a cluster,
// kUnavailable where the record's head is gone.
Result<ClusterPlace> find_cluster(CommandContext& context,
                                  const std::optional<std::string>& address,
                                  const TokenOptions& token);

// A tool's connection to the head, closed by the destructor.
struct ClusterConnection {
  ClusterPlace place;
  Deadline deadline;
  std::unique_ptr<net::LoopThread> thread;
  std::shared_ptr<scheduler::HeadClient> head;
  ~ClusterConnection();
};
// `tool` names it in the head's log: "troupe status".
Result<std::unique_ptr<ClusterConnection>> connect_cluster(CommandContext& context,
                                                           const ClusterOptions& options,
                                                           const std::string& tool);

// A number of seconds as given by --timeout. kInvalidArgument when not positive or beyond a year.
Result<Duration> seconds_option(std::optional<double> seconds, Duration fallback);

}  // namespace troupe::tools
