#include "actors/chaos_cluster/marked_processes.h"

#include <dirent.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <memory>

#include "runtime/base/file_system.h"
#include "runtime/base/suggest.h"

namespace troupe::chaos {
namespace {

constexpr std::uint64_t kProcFileBytesMax = 1u << 20;

int number_in(std::string_view text) {
  int value = -1;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

std::optional<std::string> variable(const std::vector<std::string>& environment,
                                    std::string_view name) {
  for (const auto& entry : environment) {
    if (entry.size() > name.size() && entry.starts_with(name) && entry[name.size()] == '=') {
      return entry.substr(name.size() + 1);
    }
  }
  return std::nullopt;
}

std::vector<pid_t> all_pids() {
  std::vector<pid_t> pids;
  const std::unique_ptr<DIR, int (*)(DIR*)> proc(::opendir("/proc"), ::closedir);
  while (const dirent* entry = proc ? ::readdir(proc.get()) : nullptr) {
    const int pid = number_in(entry->d_name);
    if (pid > 0) pids.push_back(pid);
  }
  std::sort(pids.begin(), pids.end());
  return pids;
}

}  // namespace

MarkedProcess role_of(const std::vector<std::string>& words) {
  MarkedProcess process;
  const auto word_after = [&](std::string_view name) -> std::string {
    const auto it = std::find(words.begin(), words.end(), name);
    return it == words.end() || it + 1 == words.end() ? "" : *(it + 1);
  };
  if (words.size() < 2) return process;
  if (words[1] == "keeper") process.role = ProcessRole::kKeeper;
  if (words[1] == "worker") process.role = ProcessRole::kDaemon;
  if (words[1] == "head") process.role = ProcessRole::kHead;
  if (words[1] != "host") return process;
  const std::string actor = word_after("--actor");
  if (actor == "TrainController") process.role = ProcessRole::kController;
  if (actor == "TrainerActor") {
    process.role = ProcessRole::kTrainer;
    process.rank = number_in(word_after("--rank"));
  }
  return process;
}

std::vector<MarkedProcess> marked_processes(const std::string& mark) {
  PosixFileSystem files;
  std::map<pid_t, MarkedProcess> found;
  for (const pid_t pid : all_pids()) {
    const std::string folder = fmt::format("/proc/{}/", pid);
    const auto environment = files.read(folder + "environ", kProcFileBytesMax);
    if (!environment.ok()) continue;
    const auto variables = split_words(*environment, '\0');
    if (variable(variables, kChaosMark) != mark) continue;
    const auto command = files.read(folder + "cmdline", kProcFileBytesMax);
    const auto stat = files.read(folder + "stat", kProcFileBytesMax);
    if (!command.ok() || !stat.ok()) continue;
    MarkedProcess process = role_of(split_words(*command, '\0'));
    process.pid = pid;
    if (const auto node = variable(variables, kChaosNodeMark)) process.node = number_in(*node);
    // "PID (name) STATE PARENT …"; the name may hold anything.
    const auto rest = stat->substr(std::min(stat->rfind(')') + 2, stat->size()));
    process.state = rest.empty() ? '?' : rest[0];
    if (rest.size() > 2) process.parent = number_in(std::string_view(rest).substr(2));
    found.emplace(pid, process);
  }
  // A daemon whose child is a daemon watches over it.
  std::vector<pid_t> watchers;
  for (const auto& [pid, process] : found) {
    const auto parent = found.find(process.parent);
    if (parent != found.end() && parent->second.role == process.role &&
        (process.role == ProcessRole::kDaemon || process.role == ProcessRole::kHead)) {
      watchers.push_back(process.parent);
    }
  }
  std::vector<MarkedProcess> processes;
  for (auto& [pid, process] : found) {
    if (std::count(watchers.begin(), watchers.end(), pid) > 0) process.role = ProcessRole::kOther;
    processes.push_back(process);
  }
  return processes;
}

}  // namespace troupe::chaos
