#pragma once
// PyTorch as a peer: peer.py in whatever Python there is.

#include <map>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/json.h"
#include "runtime/base/status.h"
#include "tools/gpu_check/bench.h"

namespace troupe::tools::gpu {

class PeerProgram {
 public:
  // `folder` gets the program and what it writes, and outlives the object.
  static Result<PeerProgram> make(const Bench& bench, std::string folder);

  // The JSON that it prints for these arguments. kUnsupported: no such Python, no PyTorch in it, or
  // one that sees no GPU; the way out is said. Other errors have its last lines.
  Result<json::Value> run(std::vector<std::string> arguments, Duration limit) const;
  // "cuda"; "cpu" in a rehearsal.
  const std::string& device() const { return device_; }

 private:
  Status unavailable(const std::string& why) const;
  PeerProgram(std::string python, std::string folder, std::string device,
              std::map<std::string, std::string> environment)
      : python_(std::move(python)),
        folder_(std::move(folder)),
        device_(std::move(device)),
        environment_(std::move(environment)) {}
  std::string python_, folder_, device_;
  std::map<std::string, std::string> environment_;
};

}  // namespace troupe::tools::gpu
