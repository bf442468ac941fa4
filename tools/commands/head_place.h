#pragma once
// What a head takes on its machine before it runs: a port, and a state directory of its own.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "tools/commands/command.h"
#include "troupe/unique_fd.h"

namespace troupe::tools {

// A directory that no other head uses while this lives.
class StateDirectory {
 public:
  // Makes it where there is none (0700). kAlreadyExists while another head has it.
  static Result<StateDirectory> take(FileSystem& files, const std::string& path);
  const std::string& path() const { return path_; }
  std::string journal_path() const;
  // After the cluster was stopped nothing in it is of use: removes it, if nothing else is in it.
  void remove(FileSystem& files);

 private:
  StateDirectory(std::string path, UniqueFd lock)
      : path_(std::move(path)), lock_(std::move(lock)) {}
  std::string path_;
  UniqueFd lock_;  // flock(2) of the directory: ends with the process, however it ends
};

struct HeadPlace {
  std::uint16_t port = 0;
  StateDirectory state;
};

// The port that was asked for (kAlreadyExists where it is taken on `host`), else a free one; and
// the state directory, ~/.troupe/head-PORT unless `state_dir` names another. A free port is one
// whose default directory holds no earlier head's journal: that head comes back when its port is
// given.
Result<HeadPlace> take_head_place(CommandContext& context, const std::string& host,
                                  std::optional<std::uint16_t> port,
                                  const std::optional<std::string>& state_dir);

// The ports of heads on this machine that were killed: nobody runs on ~/.troupe/head-PORT, which
// has a journal still. At most `count`, the smallest first.
std::vector<std::uint16_t> killed_heads(CommandContext& context, std::size_t count);

// MASTER_PORT, where it is set. kInvalidArgument where it is no port.
Result<std::optional<std::uint16_t>> master_port(const Environment& environment);

}  // namespace troupe::tools
