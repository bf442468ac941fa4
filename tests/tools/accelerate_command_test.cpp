// accelerate's command lines, carried out by the real program: what each rank of an unmodified
// script sees.

#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "tests/support/text.h"
#include "tests/tools/troupe_program.h"

namespace troupe::tests {
namespace {

using Variables = std::map<std::string, std::string>;

void put(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

// Variables of the rank that left its environment in `path`.
Variables read_variables(const std::string& path) {
  std::ifstream in(path);
  Variables variables;
  for (std::string line; std::getline(in, line);) {
    const auto equals = line.find('=');
    if (equals != std::string::npos) variables[line.substr(0, equals)] = line.substr(equals + 1);
  }
  return variables;
}

constexpr const char* kScript = "#!/bin/sh\nenv > \"$1/rank-${RANK:-none}\"\n";

TEST_CASE("accelerate launch on CPUs: every rank of a script finds what Accelerator() reads") {
  TroupeHome home;
  put(home.file("script.sh"), kScript);
  std::filesystem::permissions(home.file("script.sh"), std::filesystem::perms::owner_all);
  const auto done =
      home.run({"run", "--", "accelerate", "launch", "--cpu", "--num_processes", "2",
                "--mixed_precision", "bf16", "--no_python", home.file("script.sh"), home.path()});
  CAPTURE(done.err);
  REQUIRE(done.exit_code == 0);
  CHECK(contains(done.err, "these are 2 ranks, which meet by gloo on CPUs"));
  std::set<std::string> ports;
  for (const std::string rank : {"0", "1"}) {
    CAPTURE(rank);
    const auto seen = read_variables(home.file("rank-" + rank));
    for (const auto& [name, value] : Variables{{"RANK", rank},
                                               {"LOCAL_RANK", rank},
                                               {"WORLD_SIZE", "2"},
                                               {"LOCAL_WORLD_SIZE", "2"},
                                               {"ACCELERATE_USE_CPU", "True"},
                                               {"ACCELERATE_MIXED_PRECISION", "bf16"},
                                               {"ACCELERATE_DYNAMO_BACKEND", "NO"},
                                               {"CCL_WORKER_COUNT", "0"},
                                               {"KMP_BLOCKTIME", "1"},
                                               {"TORCHELASTIC_USE_AGENT_STORE", "False"}}) {
      CAPTURE(name);
      CHECK(seen.contains(name));
      if (seen.contains(name)) CHECK(seen.at(name) == value);
    }
    ports.insert(seen.at("MASTER_ADDR") + ":" + seen.at("MASTER_PORT"));
  }
  CHECK(ports.size() == 1);
}

TEST_CASE("under the name accelerate, one process is told of no world, and its failure is 1") {
  TroupeHome home;
  put(home.file("script.py"),
      "import os, sys\nopen(sys.argv[1] + '/seen', "
      "'w').write(repr(sorted(os.environ)))\nsys.exit(7)\n");
  const std::string name = home.file("accelerate");
  std::filesystem::create_symlink(bin_dir() + "/troupe", name);
  const auto done =
      run_command({name, "launch", "--cpu", home.file("script.py"), home.path()}, home.options());
  CAPTURE(done.err);
  CHECK(done.exit_code == 1);
  std::ifstream in(home.file("seen"));
  const std::string seen((std::istreambuf_iterator<char>(in)), {});
  CHECK(contains(seen, "'ACCELERATE_USE_CPU'"));
  for (const char* variable : {"'RANK'", "'WORLD_SIZE'", "'LOCAL_RANK'", "'TORCHELASTIC_RUN_ID'"}) {
    CHECK_FALSE(contains(seen, variable));
  }
  const auto refused =
      run_command({name, "launch", "--cpu", "--multi_gpu", "x.py"}, home.options());
  CHECK(refused.exit_code == 2);
  CHECK(contains(refused.err, "You can only use one of `--cpu`, `--multi_gpu`"));
}

TEST_CASE("accelerate config asks on standard input, and launch reads what it wrote") {
  TroupeHome home;
  auto options = home.options();
  options.environment["HF_HOME"] = home.file("hf");
  options.input = "0\n1\n1\nno\nno\nno\nno\n2\nbf16\n";  // multi-CPU, two processes
  const std::string troupe = bin_dir() + "/troupe";
  const auto asked = run_command({troupe, "run", "--", "accelerate", "config"}, options);
  CAPTURE(asked.out);
  REQUIRE(asked.exit_code == 0);
  CHECK(contains(asked.out, "How many processes should be used for distributed training? [1]: "));
  CHECK(contains(asked.out, "accelerate configuration saved at " + home.file("hf")));
  put(home.file("script.sh"), kScript);
  std::filesystem::permissions(home.file("script.sh"), std::filesystem::perms::owner_all);
  const auto done = run_command({troupe, "run", "--", "accelerate", "launch", "--no_python",
                                 home.file("script.sh"), home.path()},
                                options);
  CAPTURE(done.err);
  REQUIRE(done.exit_code == 0);
  CHECK(read_variables(home.file("rank-1"))["ACCELERATE_MIXED_PRECISION"] == "bf16");
}

TEST_CASE("flags of accelerate launch reach a training of ours") {
  TroupeHome home;
  const auto refused = [&](std::vector<std::string> flags) {
    std::vector<std::string> words{"run", "--", "accelerate", "launch", "--num_processes", "2"};
    words.insert(words.end(), flags.begin(), flags.end());
    words.insert(words.end(), {"src/train.py", home.file("x.yaml"), "--explain"});
    put(home.file("x.yaml"), "model_name_or_path: absent\n");
    const auto done = home.run(words);
    CHECK(done.exit_code != 0);
    CHECK(contains(done.err, "src/train.py is not there; its arguments are LLaMA-Factory's"));
    return done.err;
  };
  CHECK(contains(refused({"--mixed_precision", "fp8"}),
                 "troupe.accelerate_config.mixed_precision=fp8 is not supported"));
  CHECK(contains(refused({"--use_fsdp", "--fsdp_version", "2", "--use_parallelism_config",
                          "--parallelism_config_tp_size", "2"}),
                 "parallelism_config.parallelism_config_tp_size=2 is not supported"));
}

}  // namespace
}  // namespace troupe::tests
