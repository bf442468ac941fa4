#pragma once
// An ssh server of the test's own, on a free port of 127.0.0.1, 127.0.0.2, …, each of which stands
// for a host. Keys, configuration and the logins' home lie in a temporary directory.

#include <memory>
#include <string>
#include <vector>

#include "tests/support/command.h"
#include "tests/support/test_data.h"

namespace troupe::tests {

class LocalSshd {
 public:
  // Hosts 127.0.0.1 to 127.0.0.COUNT. Null, having said why, where none can run here.
  static std::unique_ptr<LocalSshd> start(int count);
  // The value that TROUPE_SSH is to have.
  std::string ssh() const { return "ssh -F " + directory_.file("config"); }
  // A host whose key nobody knows: it listens, too.
  std::string stranger() const;
  // The host where the program is of another version: the last one.
  std::string outdated() const;
  std::string host(int number) const { return "127.0.0." + std::to_string(number); }
  // A hostfile with these lines.
  std::string hostfile(const std::vector<std::string>& lines) const;

 private:
  explicit LocalSshd(int count) : count_(count) {}
  TemporaryDirectory directory_;
  int count_;
  std::unique_ptr<BackgroundCommand> server_;
};

}  // namespace troupe::tests
