#include "tools/commands/slurm_script.h"

#include <algorithm>

#include "runtime/base/suggest.h"
#include "tools/commands/shell_quoted.h"

namespace troupe::tools {
namespace {

bool is_plain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         std::string_view("_-./,:=@%+").find(c) != std::string_view::npos;
}

// sbatch reads its lines with rules of its own: a backslash takes any character but white space as
// it is, within quotation marks too, and only those keep white space.
std::string directive_text(std::string_view value) {
  const bool quoted = value.find_first_of(" \t") != std::string_view::npos;
  std::string text;
  for (const char c : value) {
    if (!is_plain(c) && c != ' ' && c != '\t') text += '\\';
    text += c;
  }
  return quoted ? '"' + text + '"' : text;
}

// A word as somebody would write it: quoted where it must be.
std::string shell_word(const std::string& word) {
  return !word.empty() && std::all_of(word.begin(), word.end(), is_plain) ? word
                                                                          : shell_quoted(word);
}

}  // namespace

void set_directive(SlurmJob& job, const std::string& name, const std::string& value) {
  for (auto& directive : job.directives) {
    if (directive.name != name) continue;
    directive.value = value;
    return;
  }
  job.directives.push_back({name, value});
}

const SlurmDirective* find_directive(const SlurmJob& job, std::string_view name) {
  const auto found = std::find_if(job.directives.begin(), job.directives.end(),
                                  [&](const SlurmDirective& at) { return at.name == name; });
  return found != job.directives.end() ? &*found : nullptr;
}

Result<std::string> slurm_script(const SlurmJob& job) {
  std::string text = "#!/bin/sh\n";
  for (const auto& [name, value] : job.directives) {
    if (name.find('\n') != std::string::npos || value.find('\n') != std::string::npos) {
      return error(Code::kInvalidArgument, "--{}: a line of sbatch's cannot hold a line break",
                   name.substr(0, name.find('\n')));
    }
    text +=
        fmt::format("#SBATCH --{}{}{}\n", name, value.empty() ? "" : "=", directive_text(value));
  }
  text += fmt::format("\ncd {} || exit 1\n", shell_word(job.working_directory));
  // A login shell's variables come along into the job.
  if (!job.unset.empty()) text += fmt::format("unset {}\n", join_words(job.unset, " "));
  for (const auto& [name, value] : job.variables) {
    text += fmt::format("export {}={}\n", name, shell_word(value));
  }
  text +=
      "# One task a node, which starts that node's trainers. A step that has lost a task is "
      "ended.\n"
      "# srun does not take the job's --cpus-per-task over by itself.\n"
      "exec srun --kill-on-bad-exit=1 "
      "${SLURM_CPUS_PER_TASK:+\"--cpus-per-task=$SLURM_CPUS_PER_TASK\"} \\\n ";
  for (const std::string& word : job.command) text += " " + shell_word(word);
  if (!job.requeued_argument.empty()) {
    text += fmt::format(" ${{SLURM_RESTART_COUNT:+{}}}", job.requeued_argument);
  }
  return text + "\n";
}

}  // namespace troupe::tools
