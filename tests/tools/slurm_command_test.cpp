// `troupe slurm`: the script that it writes.

#include <sys/stat.h>

#include "runtime/base/json.h"
#include "tests/support/runs/tiny_run.h"
#include "tests/support/text.h"
#include "tests/tools/troupe_program.h"
#include "tools/commands/slurm_script.h"

namespace troupe::tests {
namespace {

using std::string;
using tools::SlurmJob;

TEST_CASE("every word of a job script reaches the program as it was") {
  const TemporaryDirectory directory;
  // srun, as a shell finds it: each argument with a NUL behind it.
  write(directory.file("srun"),
        "#!/bin/sh\nprintf '%s\\0' \"$@\"\nprintf '%s' \"$PWD $NAME\" >&2\n");
  ::chmod(directory.file("srun").c_str(), 0700);
  SlurmJob job;
  job.working_directory = directory.file("a 'b' $c");
  REQUIRE(::mkdir(job.working_directory.c_str(), 0700) == 0);
  job.variables["NAME"] = "x y'$z";
  job.unset = {"NNODES"};
  job.command = {"/bin/prog", "a b",  "it's", "$HOME", "`id`", "\\", "\\n", "",       "*",
                 "\"q\"",     "x\ny", "~",    "#",     "k=v",  "ü",  "!",   "a;b&c|d"};
  job.requeued_argument = "--requeued";
  const string script = tools::slurm_script(job).value();
  const auto words_with = [&](const std::map<string, string>& more) {
    CommandOptions options{.environment = more};
    options.environment["PATH"] = directory.path() + ":/usr/bin:/bin";
    options.input = script;
    const auto run = run_command({"sh", "-s"}, options);
    INFO(run.err);
    CHECK(run.exit_code == 0);
    CHECK(contains(run.err, job.working_directory + " " + job.variables["NAME"]));
    return run.out;
  };
  string expected = string("--kill-on-bad-exit=1") + '\0';
  const string flag = expected;
  for (const string& word : job.command) expected += word + '\0';
  CHECK(words_with({}) == expected);
  const string again = words_with({{"SLURM_RESTART_COUNT", "2"}, {"SLURM_CPUS_PER_TASK", "8"}});
  CHECK(again ==
        flag + "--cpus-per-task=8" + '\0' + expected.substr(flag.size()) + "--requeued" + '\0');
}

TEST_CASE("what sbatch reads is quoted by its own rules") {
  SlurmJob job;
  job.working_directory = "/";
  job.command = {"x"};
  tools::set_directive(job, "comment", "a b\"c'd\\e#f");
  tools::set_directive(job, "exclusive", "");
  tools::set_directive(job, "gres", "gpu:a100:8");
  const string script = tools::slurm_script(job).value();
  CHECK(contains(script, "#SBATCH --comment=\"a b\\\"c\\'d\\\\e\\#f\"\n"));
  CHECK(contains(script, "#SBATCH --exclusive\n"));
  CHECK(contains(script, "#SBATCH --gres=gpu:a100:8\n"));
  tools::set_directive(job, "comment", "a\n#SBATCH --account=other");
  CHECK(contains(tools::slurm_script(job).status().message(), "cannot hold a line break"));
}

TEST_CASE("nodes, GPUs and CPUs of a job follow from the configuration, and flags win") {
  const TroupeHome home;
  const TinyRun tiny;
  const auto script = [&](const std::vector<string>& more) {
    auto words = tiny.train_arguments(
        "out", {{"troupe.workers", "16"}, {"per_device_train_batch_size", "1"}});
    words.erase(words.begin());
    words.front() = "slurm";
    words.insert(words.end(), more.begin(), more.end());
    const auto answer = home.run_json(words);
    return json::find_string(answer, "script").value();
  };
  const string spread = script({"--gpus-per-node", "8"});
  CHECK(contains(spread, "#SBATCH --nodes=2\n"));
  CHECK(contains(spread, "#SBATCH --gpus-per-node=8\n"));
  CHECK(contains(spread, "#SBATCH --cpus-per-task=8\n"));  // one thread each
  const string packed = script({"troupe.device=cuda", "--nodes=4"});
  CHECK(contains(packed, "#SBATCH --nodes=4\n"));
  CHECK(contains(packed, "#SBATCH --gpus-per-node=4\n"));
  const string others =
      script({"--gpus-per-node=a100:4", "--cpus-per-task", "48", "-t", "1-00:00:00",
              "--partition=gpu", "--account", "lab", "--qos", "high", "--mem=64G", "-J", "a job",
              "--sbatch", "signal=USR1@300", "--sbatch", "exclusive"});
  for (const char* line :
       {"--nodes=4", "--gpus-per-node=a100:4", "--cpus-per-task=48", "--time=1-00:00:00",
        "--partition=gpu", "--account=lab", "--qos=high", "--mem=64G", "--job-name=\"a job\"",
        "--signal=USR1@300", "--exclusive", "--requeue", "--open-mode=append"}) {
    CHECK_MESSAGE(contains(others, string("#SBATCH ") + line + "\n"), line);
  }
  CHECK_FALSE(contains(others, "TERM@"));
}

}  // namespace
}  // namespace troupe::tests
