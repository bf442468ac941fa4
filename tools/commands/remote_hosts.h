#pragma once
// Other machines that a run starts itself: over ssh each of them joins as a worker node
// (`troupe worker --token-stdin --with-stdin`) and stays until its standard input closes, whether
// because the run ends or because this process was killed.
//
// The token goes over ssh's standard input, never into arguments or the environment. Host keys must
// be known and nothing is asked. The program is that of $TROUPE in the host's environment, else the
// one with this program's path, else `troupe` of its PATH, and must be of this version.

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/environment.h"
#include "runtime/base/status.h"
#include "runtime/net/transport.h"
#include "troupe/unique_fd.h"

namespace troupe::tools {

struct RemoteHost {
  std::string name;                           // as ssh knows it
  std::vector<std::string> worker_arguments;  // of `troupe worker`, besides address and token
  std::string visible_devices;                // CUDA_VISIBLE_DEVICES; empty: as it is there
};

struct RemoteHostsOptions {
  std::vector<RemoteHost> hosts;
  net::Address head;
  net::Token token;
  std::vector<std::string> ssh{
      "ssh"};            // the program, and flags besides those that are always given
  int at_once_max = 16;  // that are on their way at a time
  Duration connect_timeout = std::chrono::seconds(10);
  Duration join_timeout = std::chrono::seconds(60);  // of a host, from the start of its ssh
};

// TROUPE_SSH, words as in "ssh -F my_config"; without it "ssh".
std::vector<std::string> ssh_program(const Environment& environment);

// The command line that a host's shell is given.
std::string remote_command(const RemoteHostsOptions& options, const RemoteHost& host,
                           const std::string& program, const std::string& version);

// Any thread.
class RemoteHosts {
 public:
  static Result<std::unique_ptr<RemoteHosts>> start(RemoteHostsOptions options);
  ~RemoteHosts();  // end()
  RemoteHosts(const RemoteHosts&) = delete;
  RemoteHosts& operator=(const RemoteHosts&) = delete;

  // Once none is on its way any more: those that did not come or did not stay, each with what ssh
  // or the host's program said last and the exit code. kUnavailable.
  Status failure() const;
  // To the programs that the hosts run.
  void signal(int signal);
  // Their standard input closes, and they end; after the grace their ssh is ended.
  void end(Duration grace = std::chrono::seconds(10));

 private:
  struct State;
  explicit RemoteHosts(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
  std::thread thread_;
};

}  // namespace troupe::tools
