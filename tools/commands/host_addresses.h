#pragma once
// Which addresses machines' names stand for, and which of the machines of a list this one is.

#include <optional>
#include <string>
#include <vector>

#include "tools/commands/command.h"
#include "tools/commands/remote_hosts.h"
#include "tools/ranks/run_options.h"

namespace troupe::tools {

// The numeric addresses that a host's name stands for, behind the name itself.
std::vector<std::string> addresses_of(const std::string& host);
// Whether a name, or one of its addresses, is this machine's.
Result<bool> is_this_machine(CommandContext& context, const std::string& host);
// The address of this machine that others mean by its name, numeric; empty where the name stands
// for none of them but loopback, as on Debian its own name does. 127.0.0.1 and localhost mean it.
Result<std::string> own_address_of(CommandContext& context, const std::string& host);
// Where this machine is among the hosts; nothing: it is none of them.
Result<std::optional<std::size_t>> own_host(CommandContext& context,
                                            const std::vector<RunHost>& hosts);
// Where the others reach this machine: `wanted` where it says, else the address that leads to the
// first of them.
Result<std::string> address_towards(CommandContext& context, const std::string& wanted,
                                    const std::vector<RunHost>& hosts,
                                    std::optional<std::size_t> own);

// All hosts but this one, over ssh, as nodes of the cluster at `head`. `labels`: of each host,
// besides the number of its machine.
Result<std::unique_ptr<RemoteHosts>> start_other_hosts(
    CommandContext& context, const std::vector<RunHost>& hosts, std::optional<std::size_t> own,
    std::vector<std::vector<std::string>> labels, const std::vector<std::string>& ssh_arguments,
    const net::Address& head, const net::Token& token, Duration stop_grace);

}  // namespace troupe::tools
