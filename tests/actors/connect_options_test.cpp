// What a driver takes from the environment, and hosts of another version than their node.

#include "actors/connect_options.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <future>

#include "runtime/memory/unix_socket.h"
#include "runtime/net/token.h"
#include "runtime/process/child.h"
#include "runtime/process/executable.h"
#include "runtime/process/host_channel.h"
#include "tests/support/test_data.h"

namespace troupe::tests {
namespace {

using namespace std::chrono_literals;

struct Surroundings {
  TemporaryDirectory directory;
  PosixFileSystem files;
  SystemRandom random;
  std::map<std::string, std::string, std::less<>> variables;
  net::Token token = net::make_token(random);
  const JobId job{1, 2};

  Surroundings() {
    write("token", token);
    variables = {{"TROUPE_ADDRESS", "10.0.0.2:6379"},
                 {"TROUPE_TOKEN_FILE", directory.file("token")},
                 {"TROUPE_INSECURE", "0"},
                 {"TROUPE_JOB_ID", job.to_string()}};
  }
  void write(const std::string& name, const net::Token& what) {
    REQUIRE(write_file_atomically(files, directory.file(name), net::token_text(what).value(), 0600)
                .ok());
  }
  Result<ConnectOptions> complete(ConnectOptions options = {}) {
    auto complete = detail::complete(std::move(options), MapEnvironment(variables), files);
    if (!complete.ok()) return complete.status();
    return complete->options;
  }
  void refused(Code code, const std::string& text) {
    const Status status = complete().status();
    CHECK(status.code() == code);
    CHECK_MESSAGE(status.message().find(text) != std::string::npos, status.message());
  }
};

TEST_CASE("a job's program needs to say nothing: cluster, token and job are in its environment") {
  Surroundings here;
  const auto options = here.complete().value();
  CHECK(options.host == "10.0.0.2");
  CHECK(options.port == 6379);
  CHECK(options.token == here.token);
  CHECK(options.token.security() == net::Security::kTls);
  CHECK(options.job_id == here.job);
  here.variables["TROUPE_INSECURE"] = "1";
  CHECK(here.complete()->token.security() == net::Security::kInsecure);
}

TEST_CASE("what a driver says itself goes before the environment") {
  Surroundings here;
  const net::Token own = net::make_token(here.random);
  const auto same = here.complete({.host = "10.0.0.2", .port = 6379, .token = own}).value();
  CHECK(same.token == own);
  CHECK(same.job_id == here.job);
  const auto other = here.complete({.host = "10.0.0.3", .port = 6379}).value();
  CHECK(other.host == "10.0.0.3");
  CHECK(other.job_id.empty());  // the job is of another cluster
  CHECK(here.complete({.job_id = JobId{7, 7}})->job_id == JobId{7, 7});
  // What is not needed is not judged.
  here.variables["TROUPE_ADDRESS"] = "nonsense";
  CHECK(here.complete({.host = "10.0.0.3", .port = 6379}).ok());
}

TEST_CASE("what is missing in the environment, or makes no sense there, is named") {
  Surroundings here;
  here.variables["TROUPE_JOB_ID"] = "zzz";
  here.refused(Code::kInvalidArgument, "TROUPE_JOB_ID");
  here.variables.erase("TROUPE_JOB_ID");
  CHECK(here.complete()->job_id.empty());
  here.variables["TROUPE_INSECURE"] = "yes";
  here.refused(Code::kInvalidArgument, "TROUPE_INSECURE is 'yes'");
  here.variables["TROUPE_TOKEN_FILE"] = here.directory.file("absent");
  here.refused(Code::kNotFound, here.directory.file("absent"));
  here.variables.erase("TROUPE_TOKEN_FILE");
  here.refused(Code::kFailedPrecondition, "TROUPE_TOKEN_FILE");  // and no home either
  here.variables["HOME"] = here.directory.path();
  here.refused(Code::kNotFound, here.directory.file(".troupe/token"));
  here.variables["TROUPE_ADDRESS"] = "10.0.0.2";
  here.refused(Code::kInvalidArgument, "TROUPE_ADDRESS is '10.0.0.2'");
  here.variables["TROUPE_ADDRESS"] = "";
  here.refused(Code::kNotFound, "'troupe submit'");
}

TEST_CASE("the head that was started here last is found without a word, as the command line does") {
  Surroundings here;
  here.variables = {{"HOME", here.directory.path()}};
  const std::string path = here.directory.file(".troupe/current");
  here.refused(Code::kNotFound, "(there is no " + path);
  scheduler::ClusterRecord record{"127.0.0.1", 7001, here.directory.file("token"), ::getpid(),
                                  scheduler::host_name()};
  REQUIRE(scheduler::write_cluster_record(here.files, path, record).ok());
  const auto found = here.complete().value();
  CHECK(found.host == "127.0.0.1");
  CHECK(found.port == 7001);
  CHECK(found.token == here.token);
  CHECK(found.job_id.empty());
  // Arguments go first, then the environment.
  CHECK(here.complete({.host = "10.0.0.9", .port = 1, .token = here.token})->host == "10.0.0.9");
  here.variables["TROUPE_ADDRESS"] = "10.0.0.2:6379";
  here.variables["TROUPE_TOKEN_FILE"] = here.directory.file("token");
  CHECK(here.complete()->host == "10.0.0.2");
  here.variables.erase("TROUPE_ADDRESS");
  record.insecure = true;
  record.token_file.clear();  // the head read its token from standard input
  REQUIRE(scheduler::write_cluster_record(here.files, path, record).ok());
  CHECK(here.complete()->token.security() == net::Security::kInsecure);
  // A head that ended without a word.
  const auto dead = process::spawn({.path = "/bin/true", .argv = {"true"}}).value();
  REQUIRE(process::wait(dead, Deadline::after(20s)).ok());
  record.pid = dead.pid;
  REQUIRE(scheduler::write_cluster_record(here.files, path, record).ok());
  here.refused(Code::kUnavailable, "the head at 127.0.0.1:7001 is gone");
  here.refused(Code::kUnavailable, "remove that file");
  here.refused(Code::kUnavailable, "'troupe head --port 7001'");
  // Connecting says where the name came from.
  record.pid = ::getpid();
  record.port = 1;  // nobody listens there
  REQUIRE(scheduler::write_cluster_record(here.files, path, record).ok());
  const MapEnvironment environment(here.variables);
  const auto refused = Cluster::connect({.timeout = 5s, .environment = &environment});
  CHECK(refused.status().code() == Code::kUnavailable);
  CHECK_MESSAGE(refused.status().message().find("named by ~/.troupe/current") != std::string::npos,
                refused.status().message());
}

TEST_CASE("a host says by name that its node is of another version, and ends") {
  auto sockets = memory::socket_pair().value();
  const auto image = process::Executable::open(bin_dir() + "/test_actors_host").value();
  process::SpawnOptions options;
  options.path = image->path();
  options.argv = {"host", "host", "--actor", "Counter", "--run", "-", "--rank", "-1"};
  const UniqueFd nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
  for (const int fd : {0, 1, 2}) options.descriptors.push_back({nothing.get(), fd});
  options.descriptors.push_back({sockets.second.get(), 3});
  const auto child = process::spawn(options).value();
  sockets.second.reset();

  std::promise<Status> failed;
  auto heard = failed.get_future();
  net::LoopThread thread("node");
  process::HostChannel channel(thread.loop(), std::move(sockets.first));
  thread.loop().post([&] {
    channel.start(
        [&, told = false](const wire::HostMessage& message, UniqueFd) mutable {
          const auto* why = get_if<wire::HostFailed>(&message);
          if (why != nullptr && !std::exchange(told, true)) failed.set_value(why->status);
        },
        [](const Status&) {});
    wire::HostStart start;
    start.spec.type = "Counter";
    start.token = wire::Bytes(32, std::byte{7});
    start.protocol_version = 99;
    REQUIRE(channel.send(start).ok());
  });
  REQUIRE(heard.wait_for(20s) == std::future_status::ready);
  const Status status = heard.get();
  CHECK(status.code() == Code::kProtocol);
  CHECK_MESSAGE(
      status.message().find(fmt::format("this program speaks protocol {}, its node speaks 99",
                                        wire::kProtocolVersion)) != std::string::npos,
      status.message());
  CHECK(process::wait(child, Deadline::after(20s)).ok());
  std::promise<void> stopped;
  thread.loop().post([&] {
    channel.stop();
    stopped.set_value();
  });
  stopped.get_future().wait_for(20s);
}

}  // namespace
}  // namespace troupe::tests
