// troupe env: what a report of a fault needs, without secrets.

#include "tools/commands/env.h"

#include <filesystem>
#include <fstream>

#include "tests/support/text.h"
#include "tests/tools/troupe_program.h"

namespace troupe::tests {
namespace {

TEST_CASE("secrets are not shown, and other variables not at all") {
  using tools::shown_variable;
  using tools::tells_of_training;
  for (const char* name :
       {"HF_TOKEN", "WANDB_API_KEY", "TROUPE_SECRET", "HF_PASSWORD", "SLURM_AUTH"}) {
    CHECK(tells_of_training(name));
    CHECK(shown_variable(name, "abc") == "(set; not shown)");
  }
  CHECK(shown_variable("HF_ENDPOINT", "https://me:pass@host/") == "(set; not shown)");
  CHECK(shown_variable("HF_ENDPOINT", "https://host/") == "https://host/");
  CHECK(shown_variable("NCCL_DEBUG", "INFO\nX") == "INFO X");
  CHECK(shown_variable("CUDA_HOME", std::string(1000, 'x')).size() < 420);
  for (const char* name :
       {"CUDA_VISIBLE_DEVICES", "NCCL_DEBUG", "NNODES", "PET_NNODES", "FSDP_VERSION"}) {
    CHECK(tells_of_training(name));
  }
  for (const char* name : {"HOME", "SSH_AUTH_SOCK", "AWS_SECRET_ACCESS_KEY", "HTTP_PROXY"}) {
    CHECK_FALSE(tells_of_training(name));
  }
}

TEST_CASE("versions, machine and variables, as text and as JSON") {
  TroupeHome home;
  home.more().environment["HF_TOKEN"] = "hf_topsecret";
  home.more().environment["NCCL_DEBUG"] = "WARN";
  home.more().environment["HF_HOME"] = home.file("hf");
  home.more().environment["PYTHON_EXEC"] = home.file("no-python");
  const auto text = home.run({"env"});
  CAPTURE(text.out);
  REQUIRE(text.exit_code == 0);
  for (const char* line :
       {"\nCopy-and-paste the text below in your issue\n", "- Version: troupe ",
        "- Compiler: ", "- Kernel: Linux ",
        "- CPUs: ", "- Memory: ", "- GPUs: ", "- NVIDIA driver: ", "- NCCL: ", "- Python: none (",
        "- PyTorch version: none\n", "- `Accelerate` default config:\n\tNot found\n",
        "\t- NCCL_DEBUG=WARN\n", "\t- HF_TOKEN=(set; not shown)\n"}) {
    CAPTURE(line);
    CHECK(contains(text.out, line));
  }
  CHECK_FALSE(contains(text.out, "hf_topsecret"));
  std::filesystem::create_directories(home.file("hf/accelerate"));
  std::ofstream(home.file("hf/accelerate/default_config.yaml")) << "distributed_type: NO\n";
  const auto value = home.run_json({"env"});
  CHECK(json::find_string(value, "accelerate_file") ==
        home.file("hf/accelerate/default_config.yaml"));
  CHECK(json::find_string(*json::find(value, "accelerate"), "distributed_type") == "NO");
  CHECK(json::find_string(*json::find(value, "variables"), "NCCL_DEBUG") == "WARN");
  CHECK(json::find_string(*json::find(value, "facts"), "Kernel").has_value());
}

TEST_CASE("Python's own answer, and one that gives none") {
  TroupeHome home;
  const auto python = [&](const std::string& body) {
    std::ofstream(home.file("py")) << "#!/bin/sh\n" << body << "\n";
    std::filesystem::permissions(home.file("py"), std::filesystem::perms::owner_all);
    home.more().environment["PYTHON_EXEC"] = home.file("py");
    return home.run({"env"});
  };
  const auto answered =
      python(R"(echo '{"python": "3.9.1", "executable": "/p", "torch": "2.8.0", "peft": "0.17"}')");
  CHECK(contains(answered.out, "- Python: 3.9.1 (/p)\n"));
  CHECK(contains(answered.out, "- PyTorch version: 2.8.0\n"));
  CHECK(contains(answered.out, "- peft version: 0.17\n"));
  CHECK(contains(python("exit 3").out, "exit code 3"));
  CHECK(contains(python("echo nonsense").out, "- Python: none ("));
}

TEST_CASE("accelerate env and llamafactory-cli env are the same report") {
  TroupeHome home;
  home.more().environment["PYTHON_EXEC"] = home.file("no-python");
  std::ofstream(home.file("a.yaml")) << "distributed_type: FSDP\nnum_processes: 4\n";
  const auto accelerate =
      home.run({"run", "--", "accelerate", "env", "--config_file", home.file("a.yaml")});
  CHECK(accelerate.exit_code == 0);
  CHECK(contains(accelerate.out, "\t- distributed_type: FSDP\n"));
  CHECK(contains(home.run({"run", "--", "llamafactory-cli", "env"}).out, "- Version: troupe "));
  CHECK(home.run({"env", "--config_file", home.file("absent.yaml")}).exit_code != 0);
}

}  // namespace
}  // namespace troupe::tests
