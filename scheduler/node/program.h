#pragma once
// How a node runs the program of a job: where it finds it, and what the program is told so that a
// driver in it finds its cluster.

#include <string>

#include "runtime/base/environment.h"
#include "runtime/base/status.h"
#include "runtime/net/transport.h"
#include "runtime/process/spawn.h"
#include "runtime/wire/types.h"
#include "scheduler/node/package_place.h"

namespace troupe::scheduler {

// What the node knows.
struct ProgramSurroundings {
  std::string node;  // its name, for messages
  net::Address head;
  std::string token_file;
  net::Security security = net::Security::kTls;
  PackagePlace package;  // the spec's
};

// The program of `spec`, without descriptors. Its environment is the daemon's with the job's, and
//
//   TROUPE_ADDRESS     the head
//   TROUPE_TOKEN_FILE  a file with the token; never the token itself
//   TROUPE_INSECURE    1 where the cluster does not encrypt, else 0
//   TROUPE_JOB_ID      the job that a driver in it belongs to
//
// and what PackagePlace::tell() says. A program that was shipped is found in its package, and runs
// in the working folder there.
//
// kNotFound for a program or working directory that is not on this node, kPermissionDenied for a
// file that is not executable, kFailedPrecondition where the node has no token file: each names the
// node, the path and the way out. `environment`: the daemon's, for its PATH.
Result<process::SpawnOptions> program_options(const wire::ActorSpec& spec,
                                              const ProgramSurroundings& surroundings,
                                              const Environment& environment);

}  // namespace troupe::scheduler
