#include "tools/launchers/hostfile.h"

#include <algorithm>
#include <optional>

#include "runtime/base/suggest.h"
#include "runtime/base/text.h"

namespace troupe::tools {
namespace {

constexpr int kSlotsMax = 4096;

std::optional<int> slot_number(std::string_view digits) {
  const auto number = parse_integer<int>(digits);
  return number && *number >= 0 && *number <= kSlotsMax ? number : std::nullopt;
}

Status bad_entry(std::string_view line) {
  return error(Code::kInvalidArgument,
               "Hostfile contains a bad entry: {}, unable to proceed with launching: a line is "
               "'HOST slots=N'",
               line);
}

// "HOST slots=N …"
Result<RunHost> host_from(std::string_view line) {
  constexpr std::string_view kSlots = "slots=";
  const std::size_t space = line.find_first_of(" \t");
  if (space == std::string_view::npos) return bad_entry(line);
  std::string_view rest = trim(line.substr(space));
  if (!rest.starts_with(kSlots)) return bad_entry(line);
  rest.remove_prefix(kSlots.size());
  const auto count = slot_number(rest.substr(0, rest.find_first_not_of("0123456789")));
  if (!count) return bad_entry(line);
  RunHost host{.name = std::string(line.substr(0, space)), .slots = {}};
  // The name becomes an argument of ssh, where a dash would begin a flag.
  if (host.name.starts_with('-')) return bad_entry(line);
  for (int slot = 0; slot < *count; ++slot) host.slots.push_back(slot);
  return host;
}

// "HOST[:SLOT,…]@…"; no slots: all of the host's.
Result<std::vector<RunHost>> parse_filter(std::string_view text) {
  std::vector<RunHost> filters;
  if (text.empty()) return filters;
  for (const std::string& part : split_words(text, '@')) {
    const std::size_t colon = part.find(':');
    RunHost& filter = filters.emplace_back();
    filter.name = std::string(trim(std::string_view(part).substr(0, colon)));
    if (filter.name.empty()) {
      return error(Code::kInvalidArgument, "the filter '{}' has no host before a '@' or ':'", text);
    }
    if (colon == std::string::npos) continue;
    for (const std::string& slot : split_words(std::string_view(part).substr(colon + 1), ',')) {
      const auto number = slot_number(trim(slot));
      if (!number) {
        return error(Code::kInvalidArgument, "the filter '{}': '{}' is no number of a slot", text,
                     slot);
      }
      filter.slots.push_back(*number);
    }
  }
  return filters;
}

}  // namespace

Result<std::vector<RunHost>> parse_hostfile(std::string_view text) {
  std::vector<RunHost> hosts;
  for (const std::string& whole : split_words(text, '\n')) {
    const std::string_view line = trim(whole);
    if (line.empty() || line.starts_with('#')) continue;
    RunHost host = TROUPE_TRY(host_from(line));
    const bool twice = std::any_of(hosts.begin(), hosts.end(),
                                   [&](const RunHost& other) { return other.name == host.name; });
    if (twice) {
      return error(Code::kInvalidArgument,
                   "Hostfile contains multiple entries for {}, unable to proceed with launching",
                   host.name);
    }
    hosts.push_back(std::move(host));
  }
  if (hosts.empty()) {
    return Status(
        Code::kInvalidArgument,
        "Hostfile is empty or not formatted correctly, unable to proceed with launching.");
  }
  return hosts;
}

Result<std::vector<RunHost>> filter_hosts(std::vector<RunHost> hosts, std::string_view include,
                                          std::string_view exclude) {
  if (!include.empty() && !exclude.empty()) {
    return Status(Code::kInvalidArgument, "include_str and exclude_str are mutually exclusive.");
  }
  if (include.empty() && exclude.empty()) return hosts;
  const auto filters = TROUPE_TRY(parse_filter(include.empty() ? exclude : include));
  std::vector<RunHost> named = hosts;
  for (RunHost& host : named) host.slots.clear();
  for (const RunHost& filter : filters) {
    const auto at = std::find_if(hosts.begin(), hosts.end(),
                                 [&](const RunHost& host) { return host.name == filter.name; });
    if (at == hosts.end()) {
      return error(Code::kInvalidArgument, "Hostname '{}' not found in hostfile", filter.name);
    }
    for (const int slot : filter.slots) {
      if (std::find(at->slots.begin(), at->slots.end(), slot) == at->slots.end()) {
        return error(Code::kInvalidArgument, "No slot '{}' specified on host '{}'", slot,
                     filter.name);
      }
    }
    auto& slots = named[static_cast<std::size_t>(at - hosts.begin())].slots;
    const auto& added = filter.slots.empty() ? at->slots : filter.slots;
    slots.insert(slots.end(), added.begin(), added.end());
  }
  const bool keeps_named = !include.empty();
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    std::erase_if(hosts[i].slots, [&](int slot) {
      const auto& slots = named[i].slots;
      return (std::find(slots.begin(), slots.end(), slot) != slots.end()) != keeps_named;
    });
  }
  std::erase_if(hosts, [](const RunHost& host) { return host.slots.empty(); });
  if (hosts.empty()) {
    return error(Code::kInvalidArgument, "no slot is left: {} leaves nothing of the hosts",
                 keeps_named ? "--include" : "--exclude");
  }
  return hosts;
}

Result<int> largest_slot(std::string_view filter) {
  int largest = -1;
  for (const RunHost& host : TROUPE_TRY(parse_filter(filter))) {
    for (const int slot : host.slots) largest = std::max(largest, slot);
  }
  return largest;
}

Status check_equal_slots(const std::vector<RunHost>& hosts) {
  for (const RunHost& host : hosts) {
    if (host.slots.size() == hosts.front().slots.size()) continue;
    return error(Code::kUnsupported,
                 "{} has {} slots and {} has {}: a training has as many ranks on every host; "
                 "choose slots with --include, or give --num_gpus",
                 hosts.front().name, hosts.front().slots.size(), host.name, host.slots.size());
  }
  return {};
}

std::string format_hosts(const std::vector<RunHost>& hosts) {
  std::vector<std::string> parts;
  for (const RunHost& host : hosts) {
    parts.push_back(fmt::format("{}:{}", host.name, join_numbers(host.slots, ",")));
  }
  return join_words(parts, "@");
}

Result<std::vector<RunHost>> parse_hosts(std::string_view text) {
  auto hosts = TROUPE_TRY(parse_filter(text));
  const bool complete =
      !hosts.empty() && std::none_of(hosts.begin(), hosts.end(),
                                     [](const RunHost& host) { return host.slots.empty(); });
  if (complete) return hosts;
  return error(Code::kInvalidArgument, "--hosts is '{}': it is HOST:SLOT,SLOT@HOST:SLOT", text);
}

void add_hosts(const RunOptions& options, const LauncherContext& context,
               std::vector<std::string>& words, std::map<std::string, std::string>& environment) {
  words.push_back("--hosts=" + format_hosts(options.hosts));
  if (options.ssh_arguments.empty()) return;
  environment["TROUPE_SSH"] =
      fmt::format("{} {}", context.environment.get("TROUPE_SSH").value_or("ssh"),
                  join_words(options.ssh_arguments, " "));
}

}  // namespace troupe::tools
