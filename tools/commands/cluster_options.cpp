#include "tools/commands/cluster_options.h"

#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "runtime/net/parse_address.h"
#include "runtime/net/token.h"

namespace troupe::tools {
namespace {

constexpr Duration kToolTimeout = std::chrono::seconds(10);
constexpr scheduler::WaysToSay kOptions{"--address HOST:PORT", "--token-file or --token-stdin"};
constexpr const char* kInsecureWarning =
    "warning: --insecure: connections between machines are not encrypted. Whoever is on the "
    "network\n"
    "between them can read and change calls, data and weights, and so run programs on every node.\n"
    "(The token itself is not sent.) Head, workers and drivers must all be started so.\n";
constexpr double kTimeoutMaxS = 366.0 * 86400;

Status check_token_options(const TokenOptions& options) {
  if (options.file && options.from_stdin) {
    return error(Code::kInvalidArgument, "--token-file and --token-stdin exclude each other");
  }
  return {};
}

// How the options say that connections are protected; says aloud what --insecure means.
Result<net::Token> protected_token(CommandContext& context, const TokenOptions& options,
                                   net::Token token) {
  const bool insecure = TROUPE_TRY(scheduler::insecure_by_environment(context.environment));
  if (!insecure && !options.insecure) return token;
  context.err << kInsecureWarning << std::flush;
  return token.with(net::Security::kInsecure);
}

}  // namespace

std::string absolute_token_file(const TokenSource& source) {
  if (source.file.empty()) return {};
  std::error_code ec;
  const auto path = std::filesystem::absolute(source.file, ec);
  return ec ? source.file : path.string();
}

void declare_token_options(Command& command, TokenOptions& options) {
  command
      .option("--token-file", options.file, "FILE",
              "the file with the cluster's token (default: TROUPE_TOKEN_FILE, else "
              "~/.troupe/token), which only its owner may read")
      .flag("--token-stdin", options.from_stdin, "read the token from standard input, one line")
      .flag("--insecure", options.insecure,
            "do not encrypt connections between machines (also TROUPE_INSECURE=1); needed on every "
            "machine of the cluster or on none");
}

Result<TokenSource> load_token(CommandContext& context, const TokenOptions& options,
                               const std::string& fallback_file) {
  TROUPE_RETURN_IF_ERROR(check_token_options(options));
  if (options.from_stdin) {
    auto token = TROUPE_TRY(net::read_token(context.in));
    return TokenSource{TROUPE_TRY(protected_token(context, options, std::move(token))), {}};
  }
  const std::string& file = options.file ? *options.file : fallback_file;
  auto token = TROUPE_TRY(scheduler::read_cluster_token(context.files, file, kOptions));
  return TokenSource{TROUPE_TRY(protected_token(context, options, std::move(token))), file};
}

Result<TokenSource> load_or_make_token(CommandContext& context, const TokenOptions& options) {
  TROUPE_RETURN_IF_ERROR(check_token_options(options));
  if (options.from_stdin || options.file) return load_token(context, options, {});
  const auto file = TROUPE_TRY(scheduler::default_token_file(context.environment));
  auto token = TROUPE_TRY(net::load_or_create_token(context.files, context.random, file));
  return TokenSource{TROUPE_TRY(protected_token(context, options, std::move(token))), file};
}

void declare_cluster_options(Command& command, ClusterOptions& options) {
  command.option("--address", options.address, "HOST:PORT",
                 "the head (default: TROUPE_ADDRESS, else the head started last on this machine)");
  declare_token_options(command, options.token);
  command
      .option("--timeout", options.timeout_s, "SECONDS",
              "how long to wait for the head's answer (default 10)")
      .flag("--json", options.json, "print one line of JSON instead of text");
}

Result<ClusterPlace> find_cluster(CommandContext& context,
                                  const std::optional<std::string>& address,
                                  const TokenOptions& token) {
  ClusterPlace place;
  if (address && !address->empty()) {
    place.source = "--address";
    place.address = TROUPE_TRY(net::parse_address(*address, place.source));
  } else {
    static_cast<scheduler::ClusterPlace&>(place) =
        TROUPE_TRY(scheduler::find_cluster(context.environment, context.files, kOptions));
  }
  TokenOptions options = token;
  options.insecure = token.insecure || (place.record && place.record->insecure);
  std::string file;
  if (!token.file && !token.from_stdin) {
    file = TROUPE_TRY(scheduler::token_file_of(place, context.environment));
  }
  place.token = TROUPE_TRY(load_token(context, options, file));
  return place;
}

ClusterConnection::~ClusterConnection() {
  if (head) head->close();
}

Result<std::unique_ptr<ClusterConnection>> connect_cluster(CommandContext& context,
                                                           const ClusterOptions& options,
                                                           const std::string& tool) {
  const Duration timeout = TROUPE_TRY(seconds_option(options.timeout_s, kToolTimeout));
  auto place = TROUPE_TRY(find_cluster(context, options.address, options.token));
  auto connection = std::unique_ptr<ClusterConnection>(
      new ClusterConnection{std::move(place), Deadline::after(timeout),
                            std::make_unique<net::LoopThread>("troupe-tool"), nullptr});
  wire::ClientHello hello;
  hello.client_id = ClientId::make(context.random);
  hello.name = fmt::format("{} {}", tool, ::getpid());
  hello.kind = "tool";
  auto head =
      scheduler::HeadClient::connect(connection->thread->loop(), connection->place.address,
                                     connection->place.token.token, hello, connection->deadline);
  if (!head.ok()) {
    return scheduler::explain_unreached(head.status(), connection->place,
                                        connection->place.token.file);
  }
  connection->head = std::move(*head);
  return connection;
}

Result<Duration> seconds_option(std::optional<double> seconds, Duration fallback) {
  if (!seconds) return fallback;
  if (!std::isfinite(*seconds) || *seconds <= 0 || *seconds > kTimeoutMaxS) {
    return error(Code::kInvalidArgument,
                 "--timeout is {}: it is a number of seconds, more than 0 and at most a year",
                 *seconds);
  }
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(*seconds));
}

}  // namespace troupe::tools
