#pragma once
// Machines as deepspeed's launcher names them (deepspeed/launcher/runner.py): a hostfile's lines
// "worker-1 slots=4", and filters over them, "worker-1@worker-2:0,2".

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "tools/launchers/invocation.h"
#include "tools/ranks/run_options.h"

namespace troupe::tools {

// The hosts in the file's order, with slots 0, 1, …. Lines that begin with '#' and empty ones say
// nothing, nor does what stands behind the number. kInvalidArgument in deepspeed's words.
Result<std::vector<RunHost>> parse_hostfile(std::string_view text);

// --include and --exclude, of which one may stand: "HOST[:SLOT,SLOT…]@HOST…". A host without slots
// means all of its slots. Hosts and slots keep the hostfile's order. kInvalidArgument in
// deepspeed's words.
Result<std::vector<RunHost>> filter_hosts(std::vector<RunHost> hosts, std::string_view include,
                                          std::string_view exclude);

// The slot with the largest number that a filter names; -1: it names none.
Result<int> largest_slot(std::string_view filter);

// A training has as many trainers on every host: kUnsupported where slots differ in number.
Status check_equal_slots(const std::vector<RunHost>& hosts);
// "w0:0,1@w1:0,1", the form of a filter that names every slot; and its inverse.
std::string format_hosts(const std::vector<RunHost>& hosts);
Result<std::vector<RunHost>> parse_hosts(std::string_view text);

// The words and variables by which `troupe train` starts its other hosts.
void add_hosts(const RunOptions& options, const LauncherContext& context,
               std::vector<std::string>& words, std::map<std::string, std::string>& environment);

}  // namespace troupe::tools
