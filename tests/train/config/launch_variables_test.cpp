// Every variable of another launcher: obeyed, without effect and said so, or refused by name.

#include "train/config/launch_variables.h"

#include <algorithm>
#include <set>
#include <sstream>

#include "runtime/base/suggest.h"
#include "tests/support/test_data.h"
#include "tests/train/config/load_helpers.h"
#include "train/config/explain.h"

namespace troupe::train {
namespace {

using namespace tests;

Variables example_of(const LaunchVariable& row) {
  Variables out;
  std::istringstream words(row.example);
  for (std::string word; words >> word;) {
    const auto equals = word.find('=');
    out[word.substr(0, equals)] = word.substr(equals + 1);
  }
  return out;
}

Result<LoadedConfig> load_in(Variables variables, std::vector<std::string> arguments = {}) {
  return load_with("", std::move(arguments), std::move(variables),
                   {{"ds.json", R"({"train_micro_batch_size_per_gpu": "auto",
                        "gradient_accumulation_steps": "auto",
                        "zero_optimization": {"stage": 1}})"}});
}

const ExplainRow* find_row(const std::vector<ExplainRow>& rows, const std::string& key) {
  const auto found =
      std::find_if(rows.begin(), rows.end(), [&](const auto& row) { return row.key == key; });
  return found == rows.end() ? nullptr : &*found;
}

bool is_said(const LoadedConfig& loaded, const std::string& name, const std::string& reason) {
  return std::any_of(loaded.notices.begin(), loaded.notices.end(), [&](const auto& notice) {
    return contains(notice, name) && contains(notice, "no effect: " + reason);
  });
}

TEST_CASE("every row of the table is what it says") {
  std::set<std::string> names;
  std::set<std::string> launchers;
  for (const auto& row : launch_variables()) {
    CAPTURE(row.name);
    CHECK(names.insert(row.name).second);
    launchers.insert(row.launcher);
    CHECK_FALSE(row.note.empty());
    REQUIRE(example_of(row).contains(row.name));
    const auto loaded = load_in(example_of(row));
    if (row.treatment == Treatment::kRefused) {
      const auto message = refusal(loaded);
      CHECK(loaded.status().code() == Code::kUnsupported);
      CHECK(contains(message, row.name + "="));
      CHECK(contains(message, "is not supported"));
      // Why, and what to do instead.
      CHECK(contains(message, row.note));
      CHECK((contains(row.note, "; ") || contains(row.note, "use ")));
      continue;
    }
    const auto config = accepted(loaded);
    const auto rows = explain(config);
    const auto* explained = find_row(rows, row.name);
    REQUIRE(explained);
    CHECK(explained->treatment == row.treatment);
    if (row.treatment == Treatment::kInert && !row.accelerates) {
      CHECK(is_said(config, row.name, row.note));
    }
    if (row.treatment == Treatment::kImplemented) CHECK(config.notices.empty());
    if (!row.needs.empty()) {
      auto without = example_of(row);
      without.erase(row.needs);
      CHECK(is_said(accepted(load_in(without)), row.name, row.needs + " is not on"));
    }
  }
  CHECK(launchers == std::set<std::string>{"Axolotl", "DeepSpeed", "LLaMA-Factory", "MPI", "SLURM",
                                           "accelerate", "torchrun"});
}

// The rows of one meaning, as launch_variables.md has them.
std::string line_of(const std::vector<std::string>& names, const LaunchVariable& row) {
  const char* what = row.treatment == Treatment::kImplemented ? "used"
                     : row.treatment == Treatment::kInert     ? "no effect"
                                                              : "refused";
  std::string note = row.note;
  if (!row.needs.empty()) note += fmt::format("; with {}", row.needs);
  return fmt::format("| `{}` | {} | {} |\n", join_words(names, "`, `"), what, note);
}

TEST_CASE("the table in launch_variables.md is this one") {
  PosixFileSystem files;
  const auto doc =
      files.read(troupe::tests::source_dir() + "/train/config/launch_variables.md", 1 << 20);
  REQUIRE(doc.ok());
  const auto& rows = launch_variables();
  std::string expected;
  for (std::size_t i = 0; i < rows.size();) {
    if (i == 0 || rows[i].launcher != rows[i - 1].launcher)
      expected +=
          fmt::format("\n## {}\n\n| variables | | |\n| --- | --- | --- |\n", rows[i].launcher);
    std::vector<std::string> names;
    const auto& first = rows[i];
    for (; i < rows.size() && rows[i].launcher == first.launcher && rows[i].note == first.note &&
           rows[i].treatment == first.treatment && rows[i].needs == first.needs;
         ++i)
      names.push_back(rows[i].name);
    expected += line_of(names, first);
  }
  const auto at = doc->find("\n## ");
  REQUIRE(at != std::string::npos);
  // What it should hold where it is out of date.
  CHECK(doc->substr(at) == expected);
}

TEST_CASE("switches that are off, and values that ask for nothing, are no refusals") {
  for (const auto& [name, value] :
       {std::pair("USE_MCA", "0"), std::pair("USE_KT", "false"),
        std::pair("PET_RDZV_BACKEND", "c10d"), std::pair("PARALLELISM_CONFIG_TP_SIZE", "1"),
        std::pair("ACCELERATE_USE_CPU", "False"), std::pair("ACCELERATE_DOWNCAST_BF16", "no")}) {
    CAPTURE(name);
    CHECK(accepted(load_in({{name, value}})).config.troupe.device == "auto");
  }
}

TEST_CASE("notices name all variables of one reason together") {
  const auto loaded = accepted(load_in({{"SLURM_JOB_ID", "7"}, {"SLURM_NNODES", "2"}}));
  REQUIRE(loaded.notices.size() == 1);
  CHECK(contains(loaded.notices[0],
                 "the environment's SLURM_JOB_ID, SLURM_NNODES have no effect: the run has this "
                 "machine"));
}

TEST_CASE("one of several processes of a launcher is refused with the way out") {
  const auto refused = [](Variables variables) { return refusal(load_in(std::move(variables))); };
  const auto torchrun = refused({{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}});
  CHECK(contains(torchrun,
                 "environment RANK=1, WORLD_SIZE=4: torchrun, or a launcher like it, "
                 "started this process as one of 4"));
  CHECK(contains(torchrun, "troupe.workers=4"));
  CHECK(contains(torchrun, "NNODES=$WORLD_SIZE NODE_RANK=$RANK"));
  // The first of them, too.
  CHECK(contains(refused({{"RANK", "0"}, {"WORLD_SIZE", "2"}}), "RANK=0, WORLD_SIZE=2"));
  CHECK(contains(refused({{"LOCAL_RANK", "0"}, {"WORLD_SIZE", "2"}}), "LOCAL_RANK=0"));
  CHECK(contains(refused({{"RANK", "3"}}), "as one of several"));
  CHECK(contains(refused({{"RANK", "first"}}), "environment RANK: 'first' is no whole number"));
  CHECK(contains(refused({{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}}),
                 "srun started this process as one of 2"));
  CHECK(contains(refused({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}}),
                 "srun --ntasks-per-node=1 bash -c"));
  CHECK(contains(refused({{"SLURM_PROCID", "0"},
                          {"SLURM_NTASKS", "1"},
                          {"SLURM_STEP_ID", "0"},
                          {"SLURM_STEP_NUM_TASKS", "8"}}),
                 "SLURM_STEP_NUM_TASKS=8"));
  CHECK(contains(refused({{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}}),
                 "mpirun started this process"));
  CHECK(contains(refused({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}}), "PMI_SIZE=2"));
}

TEST_CASE("values that mean one process run normally") {
  for (const auto& variables : {
           Variables{{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}},
           Variables{{"WORLD_SIZE", "4"}},
           Variables{{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}},
           // A shell of salloc, whose tasks srun would start.
           Variables{{"SLURM_JOB_ID", "7"}, {"SLURM_NTASKS", "8"}, {"SLURM_NNODES", "2"}},
           // salloc's shell as a step of its own.
           Variables{{"SLURM_PROCID", "0"},
                     {"SLURM_NTASKS", "8"},
                     {"SLURM_STEP_ID", "4294967290"},
                     {"SLURM_STEP_NUM_TASKS", "1"}},
           // The script that sbatch runs.
           Variables{{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}, {"ENVIRONMENT", "BATCH"}},
           Variables{{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}},
       }) {
    CHECK(accepted(load_in(variables)).world_size.value == 1);
  }
}

TEST_CASE("processes of a launcher that are the nodes of one run train together") {
  const auto launch = accepted(load_in({{"NNODES", "2"},
                                        {"NODE_RANK", "1"},
                                        {"MASTER_ADDR", "a"},
                                        {"MASTER_PORT", "1"},
                                        {"WORLD_SIZE", "2"},
                                        {"RANK", "1"}}))
                          .launch;
  CHECK(launch.node_rank == 1);
  CHECK(
      accepted(
          load_in(
              {{"NNODES", "2"}, {"NODE_RANK", "1"}, {"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}}))
          .launch.node_rank == 1);
  // $SLURM_NODEID was expanded where the job began: 0 on every node.
  CHECK(contains(
      refusal(load_in(
          {{"NNODES", "2"}, {"NODE_RANK", "0"}, {"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}})),
      "SLURM_PROCID=1 and NODE_RANK=0 disagree about which of the 2 nodes this is"));
  // Two tasks on each of two nodes.
  CHECK(contains(
      refusal(load_in(
          {{"NNODES", "2"}, {"NODE_RANK", "1"}, {"SLURM_PROCID", "2"}, {"SLURM_NTASKS", "4"}})),
      "as one of 4"));
}

TEST_CASE("what is obeyed reaches the configuration") {
  CHECK(accepted(load_in({{"AXOLOTL_NCCL_TIMEOUT", "900"}})).config.training.ddp_timeout_s == 900);
  CHECK(accepted(load_in({{"AXOLOTL_NCCL_TIMEOUT", "900"}}, {"ddp_timeout=60"}))
            .config.training.ddp_timeout_s == 60);
  CHECK(accepted(load_in({{"ACCELERATE_USE_CPU", "True"}})).config.troupe.device == "cpu");
  CHECK(accepted(load_in({}, {"use_cpu=true"})).config.troupe.device == "cpu");
  CHECK(contains(refusal(load_in({{"ACCELERATE_USE_CPU", "True"}}, {"troupe.device=cuda"})),
                 "troupe.device=cuda and ACCELERATE_USE_CPU=true (cpu) disagree about where "
                 "trainers compute"));
}

}  // namespace
}  // namespace troupe::train
