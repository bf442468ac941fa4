// deepspeed's command line, read without a process being started.
#include <doctest/doctest.h>

#include "runtime/base/suggest.h"
#include "tests/support/test_data.h"
#include "tools/launchers/launchers.h"
#include "tools/ranks/rank_environment.h"

namespace troupe::tools {
namespace {

// A folder with a script of the user's, and the command lines read there.
struct Desk {
  explicit Desk(int gpus = 0) : gpus_(gpus) { write("train.py", "import torch\n"); }

  std::string write(const std::string& name, const std::string& text) {
    const std::string path = directory.file(name);
    REQUIRE(write_file_atomically(files, path, text).ok());
    return path;
  }
  Result<Invocation> read(const std::string& words) {
    variables.emplace("HOME", directory.path());
    const MapEnvironment environment(variables);
    const LauncherContext context{
        .environment = environment, .files = files, .gpus_here = [this] { return gpus_; }};
    std::vector<std::string> list;
    for (const std::string& word : split_words(words, ' ')) {
      list.push_back(word == "train.py" ? directory.file(word) : word);
    }
    return interpret(list, context);
  }
  RunOptions ranks(const std::string& words) {
    const auto invocation = read(words);
    INFO(invocation.status().to_string());
    REQUIRE(invocation.ok());
    notices = invocation->notices;
    REQUIRE(std::holds_alternative<RankCommand>(invocation->what));
    return std::get<RankCommand>(invocation->what).options;
  }
  std::string refusal(const std::string& words) {
    const auto invocation = read(words);
    REQUIRE_FALSE(invocation.ok());
    return invocation.status().message();
  }

  troupe::tests::TemporaryDirectory directory;
  PosixFileSystem files;
  std::map<std::string, std::string, std::less<>> variables;
  std::vector<std::string> notices;
  int gpus_;
};

using Slots = std::vector<int>;

TEST_CASE("deepspeed without a hostfile takes this machine's GPUs, or CPU ranks, and says so") {
  Desk desk(4);
  RunOptions options = desk.ranks("deepspeed train.py --lr 1");
  CHECK(options.processes == "4");
  CHECK(options.hosts.front().slots == Slots{0, 1, 2, 3});
  CHECK(options.slots_are_gpus);
  CHECK(desk.ranks("deepspeed --num_gpus 2 train.py").hosts.front().slots == Slots{0, 1});
  CHECK(desk.ranks("ds --include localhost:1,3 train.py").hosts.front().slots == Slots{1, 3});
  CHECK(desk.ranks("deepspeed -e localhost:0 train.py").hosts.front().slots == Slots{1, 2, 3});
  CHECK(desk.refusal("deepspeed --include localhost:4 train.py") ==
        "No slot '4' specified on host 'localhost'");

  Desk none;
  options = none.ranks("deepspeed train.py");
  CHECK(options.processes == "1");
  CHECK_FALSE(options.slots_are_gpus);
  REQUIRE(none.notices.size() == 1);
  CHECK(none.notices.front() == "there is no GPU here: every slot is a rank on the CPU");
  CHECK(none.ranks("deepspeed --num_accelerators=3 train.py").processes == "3");
  CHECK(none.ranks("deepspeed --include localhost:0,1 train.py").processes == "2");
}

TEST_CASE("CUDA_VISIBLE_DEVICES is a filter where there is no other") {
  Desk desk(4);
  desk.variables["CUDA_VISIBLE_DEVICES"] = "1,2";
  CHECK(desk.ranks("deepspeed train.py").hosts.front().slots == Slots{1, 2});
  CHECK(desk.notices.front() == "Detected VISIBLE_DEVICES=1,2: setting --include=localhost:1,2");
  CHECK(desk.ranks("deepspeed --include localhost:3 train.py").hosts.front().slots == Slots{3});
  CHECK(desk.notices.front().starts_with("Detected VISIBLE_DEVICES=1,2 but ignoring it"));
}

TEST_CASE(
    "a rank of deepspeed's finds its number as the script's first argument and in variables") {
  Desk desk(2);
  const std::string script = desk.directory.file("train.py");
  RunOptions options = desk.ranks("deepspeed train.py --deepspeed ds.json");
  options.program.front() = "python3";
  CHECK(rank_words(options, 1) == std::vector<std::string>{"python3", "-u", script,
                                                           "--local_rank=1", "--deepspeed",
                                                           "ds.json"});
  const MapEnvironment none;
  const World world{.size = 2, .nodes = 1, .master_addr = "127.0.0.1", .master_port = 7};
  const auto variables = rank_environment(
      options, world, {.rank = 1, .local_rank = 1, .group_rank = 0, .local_world_size = 2}, "",
      none);
  CHECK(variables == std::map<std::string, std::string>{{"CROSS_RANK", "0"},
                                                        {"CROSS_SIZE", "1"},
                                                        {"CUDA_VISIBLE_DEVICES", "0,1"},
                                                        {"LOCAL_RANK", "1"},
                                                        {"LOCAL_SIZE", "2"},
                                                        {"MASTER_ADDR", "127.0.0.1"},
                                                        {"MASTER_PORT", "7"},
                                                        {"RANK", "1"},
                                                        {"WORLD_SIZE", "2"}});
  CHECK_FALSE(desk.ranks("deepspeed --no_local_rank train.py").local_rank_argument_at);
  options = desk.ranks("deepspeed --no_python /bin/echo ${local_rank}");
  CHECK(rank_words(options, 0) ==
        std::vector<std::string>{"/bin/echo", "--local_rank=0", "${local_rank}"});
  options = desk.ranks("python -m deepspeed.launcher.runner --module my.train --x");
  CHECK(rank_words(options, 0).back() == "--x");
  CHECK(rank_words(options, 0)[4] == "--local_rank=0");
}

TEST_CASE("a hostfile's machines are started from here, unless they are started by hand") {
  Desk desk;
  const std::string hostfile = desk.write("hosts", "w0 slots=2\nw1 slots=4\n");
  RunOptions options = desk.ranks("deepspeed -H " + hostfile + " --ssh_port 2222 train.py");
  CHECK(options.starts_hosts);
  CHECK(options.nodes_min == 2);
  CHECK(options.nodes_max == 2);
  CHECK(options.hosts[1].slots == Slots{0, 1, 2, 3});
  CHECK(options.ssh_arguments == std::vector<std::string>{"-p", "2222"});
  CHECK_FALSE(desk.ranks("deepspeed -H " + hostfile + " --include w1 train.py").starts_hosts);
  options = desk.ranks("deepspeed -H " + hostfile + " --num_nodes 2 --num_gpus 1 train.py");
  CHECK(options.hosts[1].slots == Slots{0});

  options = desk.ranks("deepspeed -H " + hostfile +
                       " --no_ssh --node_rank 1 --master_addr 10.0.0.1 train.py");
  CHECK_FALSE(options.starts_hosts);
  CHECK(options.node_rank == 1);
  CHECK(options.processes == "4");
  CHECK(options.head_host == "10.0.0.1");
  CHECK(options.head_port == 29500);
  CHECK(desk.refusal("deepspeed --no_ssh -H " + hostfile + " train.py") ==
        "--no_ssh needs --node_rank, from 0 to 1, on every host (--node_rank is -1)");
}

TEST_CASE("what deepspeed refuses is refused in its words, and what is not here by name") {
  Desk desk;
  const std::string hostfile = desk.write("hosts", "w0 slots=2\n");
  CHECK(desk.refusal("deepspeed") ==
        "deepspeed: error: the following arguments are required: user_script");
  CHECK(desk.refusal("deepspeed --num_nodes 2 train.py") ==
        "Num nodes is >1 but no extra nodes available via hostfile");
  CHECK(desk.refusal("deepspeed --num_gpus 2 --include localhost:0 train.py") ==
        "Cannot specify num_nodes/gpus with include/exclude");
  CHECK(desk.refusal("deepspeed --num_gpus x train.py") ==
        "deepspeed: error: argument --num_gpus: invalid int value: 'x'");
  CHECK(desk.refusal("deepspeed -H " + hostfile + " --num_nodes 2 train.py") ==
        "--num_nodes=2, and " + hostfile + " has 1 hosts");
  CHECK(desk.refusal("deepspeed --autotuning run train.py").find("--autotuning") !=
        std::string::npos);
  CHECK(desk.refusal("deepspeed --includ_e localhost train.py").find("did you mean") !=
        std::string::npos);
  CHECK(desk.refusal("deepspeed --include localhost:1 your_program.py <other> --deepspeed x.json")
            .find("your_program.py is not there") != std::string::npos);
}

TEST_CASE(".deepspeed_env gives the ranks variables") {
  Desk desk;
  desk.write(".deepspeed_env", "# ours\n\nNCCL_DEBUG=INFO\nA=b=c\n");
  RunOptions options = desk.ranks("deepspeed train.py");
  CHECK(options.environment ==
        std::map<std::string, std::string>{{"A", "b=c"}, {"NCCL_DEBUG", "INFO"}});
  desk.variables["DS_ENV_FILE"] = desk.write("bad", "NOTHING\n");
  CHECK(desk.refusal("deepspeed train.py").ends_with("'NOTHING' is no line of the form KEY=VALUE"));
}

TEST_CASE("a training under deepspeed is done here, with its slots as trainers") {
  Desk desk;
  const auto words = [&](const std::string& line) {
    const auto invocation = desk.read(line);
    INFO(invocation.status().to_string());
    REQUIRE(invocation.ok());
    REQUIRE(std::holds_alternative<TroupeCommand>(invocation->what));
    return std::get<TroupeCommand>(invocation->what);
  };
  const auto command =
      words("deepspeed --num_gpus 2 src/train.py --deepspeed ds.json --stage sft --local_rank=0");
  CHECK(command.words ==
        std::vector<std::string>{"train", "--deepspeed", "ds.json", "--stage", "sft"});
  CHECK(command.environment.at("NPROC_PER_NODE") == "2");
  const std::string hostfile = desk.write("hosts", "w0 slots=2\nw1 slots=4\n");
  const auto several =
      words("deepspeed --num_gpus 2 --ssh_port 7 -H " + hostfile + " src/train.py x.yaml");
  CHECK(several.words == std::vector<std::string>{"train", "x.yaml", "--hosts=w0:0,1@w1:0,1"});
  CHECK(several.environment.at("TROUPE_SSH") == "ssh -p 7");
  CHECK(desk.refusal("deepspeed -H " + hostfile + " src/train.py x.yaml")
            .starts_with("w0 has 2 slots and w1 has 4"));
}

}  // namespace
}  // namespace troupe::tools
