#pragma once
// What `troupe submit --ship` sends along: a program, its libraries and its working folder as a
// package (scheduler/packages).

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/base/status.h"
#include "runtime/wire/types.h"
#include "tools/commands/command.h"

namespace troupe::tools {

struct ShipRequest {
  std::string folder;             // the working folder, absolute
  std::vector<std::string> argv;  // as it would be run in the folder
  // Names of files and folders, at any depth, or with a slash paths from the folder on, with
  // wildcards as in a shell. What lies in a folder that is left out is, too; .git always is, the
  // program never.
  std::vector<std::string> excluded;
  std::uint64_t bytes_max = 0;
};

struct Shipment {
  wire::Package package;
  std::unique_ptr<MappedFile> file;  // has no name any more
  std::vector<std::string> argv;     // as a node runs it in the package's working folder
  std::size_t file_count = 0;
};

// Packs it into a file in TMPDIR. `go_on` as write_package(). Each error names what is wrong, and
// the way out: kNotFound, kPermissionDenied for a program, library or file that cannot be run or
// read, kInvalidArgument for what no package may have, kResourceExhausted for too much, with what
// is the largest.
Result<Shipment> pack_shipment(CommandContext& context, const ShipRequest& request,
                               const std::function<bool()>& go_on);

}  // namespace troupe::tools
