// torchrun's command line.

#include "tests/tools/launchers/launcher_world.h"
#include "tools/launchers/launchers.h"

namespace troupe::tools::torchrun_tests {
namespace {

using namespace tools::tests;

TEST_CASE("a script of the user's, with torchrun's defaults") {
  LauncherWorld world;
  const std::string script = world.script();
  const auto options = world.ranks({"torchrun", script, "--lr", "0.1"});
  CHECK(options.program == Words{"python3", "-u", script, "--lr", "0.1"});
  CHECK(options.nodes_min == 1);
  CHECK(options.nodes_max == 1);
  CHECK(options.processes == "1");
  CHECK(options.rendezvous == Rendezvous::kStatic);
  CHECK(options.max_restarts == 0);
  CHECK(options.run_id == "none");
  CHECK(options.role == "default");
  CHECK(options.log_dir.empty());
  CHECK(options.substitutes_local_rank);
  CHECK_FALSE(options.ends_with_ranks_code);
  CHECK(world.notices.empty());
  // The same by its module, and under a path.
  CHECK(world.ranks({"python3", "-m", "torch.distributed.run", script}).program ==
        Words{"python3", "-u", script});
  CHECK(world.ranks({"/opt/venv/bin/torchrun", script}).program == Words{"python3", "-u", script});
}

TEST_CASE("flags") {
  LauncherWorld world;
  const std::string script = world.script();
  const auto options = world.ranks({"torchrun",
                                    "--nnodes=2",
                                    "--nproc_per_node",
                                    "4",
                                    "--node-rank",
                                    "1",
                                    "--master_addr",
                                    "10.0.0.2",
                                    "--master_port",
                                    "1234",
                                    "--max-restarts=3",
                                    "--rdzv-id",
                                    "job",
                                    "--role",
                                    "worker",
                                    "-r",
                                    "3",
                                    "--tee",
                                    "0:1",
                                    "--log-dir",
                                    "/tmp/logs",
                                    "--local-ranks-filter",
                                    "0,2",
                                    "--monitor-interval",
                                    "1",
                                    "--start-method",
                                    "fork",
                                    script});
  CHECK(options.nodes_max == 2);
  CHECK(options.processes == "4");
  CHECK(options.node_rank == 1);
  CHECK(options.head_host == "10.0.0.2");
  CHECK(options.head_port == 1234);
  CHECK(options.max_restarts == 3);
  CHECK(options.run_id == "job");
  CHECK(options.role == "worker");
  CHECK(options.redirects.of(3) == Streams{.out = true, .err = true});
  CHECK(options.tee.of(0) == Streams{.out = true, .err = false});
  CHECK(options.tee.of(1) == Streams{});
  CHECK(options.log_dir == "/tmp/logs");
  CHECK(options.console_ranks == std::vector<int>{0, 2});
  CHECK(options.join_timeout == std::chrono::seconds(900));
  CHECK(world.noticed("OMP_NUM_THREADS is 1"));
  world.set("OMP_NUM_THREADS", "2");
  (void)world.ranks({"torchrun", "--nproc-per-node", "2", script});
  CHECK(world.notices.empty());
}

TEST_CASE("modules and programs") {
  LauncherWorld world;
  const std::string script = world.script();
  CHECK(world.ranks({"torchrun", "-m", "my.module", "x"}).program ==
        Words{"python3", "-u", "-m", "my.module", "x"});
  CHECK(world.ranks({"torchrun", "--no-python", "/bin/true", "x"}).program ==
        Words{"/bin/true", "x"});
  world.set("VIRTUAL_ENV", "/opt/venv");
  CHECK(world.ranks({"torchrun", script}).program == Words{"/opt/venv/bin/python", "-u", script});
  world.set("PYTHON_EXEC", "/usr/bin/python9");
  CHECK(world.ranks({"torchrun", script}).program == Words{"/usr/bin/python9", "-u", script});
  CHECK(
      world.refusal({"torchrun", "-m", "--no-python", "x"}) ==
      "torchrun: Don't use both the '--no-python' flag and the '--module' flag at the same time.");
}

TEST_CASE("rendezvous") {
  LauncherWorld world;
  const std::string script = world.script();
  const auto dynamic = world.ranks({"torchrun", "--nnodes=1:4", "--rdzv-backend=c10d",
                                    "--rdzv-endpoint=[fd00::1]:2000", "--rdzv-conf",
                                    "join_timeout=60, last_call_timeout=5", script});
  CHECK(dynamic.rendezvous == Rendezvous::kDynamic);
  CHECK(dynamic.nodes_min == 1);
  CHECK(dynamic.nodes_max == 4);
  CHECK(dynamic.head_host == "fd00::1");
  CHECK(dynamic.head_port == 2000);
  CHECK(dynamic.join_timeout == std::chrono::seconds(60));
  CHECK(dynamic.last_call == std::chrono::seconds(5));
  CHECK(
      world.ranks({"torchrun", "--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=host", script})
          .head_port == 29400);
  CHECK(world.ranks({"torchrun", "--nnodes=2", "--rdzv-endpoint=host", script}).head_port == 29500);
  CHECK(world.ranks({"torchrun", "--standalone", script}).rendezvous == Rendezvous::kDynamic);
  (void)world.ranks({"torchrun", "--nnodes=2", "--rdzv-backend=c10d", "--master-addr=h", script});
  CHECK(world.noticed("--master-addr and --master-port have no effect"));

  const auto refused = [&](const Words& flags) {
    Words words{"torchrun"};
    words.insert(words.end(), flags.begin(), flags.end());
    words.push_back(script);
    return world.refusal(words);
  };
  CHECK(contains(refused({"--rdzv-backend=foo"}),
                 "The rendezvous backend 'foo' is not registered. Did you forget to call "
                 "`register`?"));
  CHECK(contains(refused({"--rdzv-backend=etcd-v2"}), "use c10d; no etcd is needed"));
  CHECK(refused({"--rdzv-conf=timeout"}) ==
        "torchrun: The rendezvous configuration option 'timeout' must have a value specified.");
  CHECK(contains(refused({"--nnodes=1:2"}), "needs --rdzv-backend=c10d"));
  CHECK(contains(refused({"--standalone", "--nnodes=2"}), "--standalone is one node"));
  CHECK(contains(refused({"--nnodes=2", "--node-rank=2"}), "--node-rank=2 of 2 nodes"));
}

TEST_CASE("PET_ variables are the flags' defaults") {
  LauncherWorld world;
  const std::string script = world.script();
  world.set("PET_NPROC_PER_NODE", "3");
  world.set("PET_MAX_RESTARTS", "2");
  world.set("PET_STANDALONE", "");  // Kubeflow sets it so
  const auto options = world.ranks({"torchrun", "--max-restarts=1", script});
  CHECK(options.processes == "3");
  CHECK(options.max_restarts == 1);
  CHECK(options.rendezvous == Rendezvous::kStatic);
}

TEST_CASE("errors in torchrun's words") {
  LauncherWorld world;
  const std::string script = world.script();
  CHECK(world.refusal({"torchrun"}) ==
        "torchrun: error: the following arguments are required: training_script");
  CHECK(world.refusal({"torchrun", "--bogus", script}) ==
        "torchrun: error: unrecognized arguments: --bogus");
  CHECK(world.refusal({"torchrun", "--max-restarts=x", script}) ==
        "torchrun: error: argument --max-restarts: invalid int value: 'x'");
  CHECK(contains(world.refusal({"torchrun", "--nproc-per-node=x", script}),
                 "Unsupported nproc_per_node value: x"));
  CHECK(contains(world.refusal({"torchrun", "--nnodes=1:2:3", script}),
                 "nnodes=1:2:3 is not in \"MIN:MAX\" format"));
  CHECK(contains(world.refusal({"torchrun", "--tee=9", script}), "9 does not match: <^[0123]$>"));
  CHECK(contains(world.refusal({"torchrun", "--logs-specs=x", script}), "use --log-dir"));
  CHECK(contains(world.refusal({"torchrun", world.path("absent.py")}), "absent.py is not there"));
  CHECK(exit_code_of(Status(Code::kInvalidArgument, "x")) == 2);
  CHECK(exit_code_of(Status(Code::kNotFound, "x")) == 1);
}

TEST_CASE("a training of ours is given what its launcher would have set") {
  LauncherWorld world;
  const auto one = world.troupe({"torchrun", "--standalone", "--nnodes=1", "--nproc-per-node=8",
                                 world.path("src/train.py"), "--stage", "sft", "--do_train"});
  CHECK(one.words == Words{"train", "--stage", "sft", "--do_train"});
  CHECK(one.environment == std::map<std::string, std::string>{{"FORCE_TORCHRUN", "1"},
                                                              {"NPROC_PER_NODE", "8"},
                                                              {"MAX_RESTARTS", "0"}});
  CHECK(world.noticed("is not there; its arguments are LLaMA-Factory's"));
  const auto two = world.troupe({"torchrun", "--master_port", "29501", "--nproc_per_node=8",
                                 "--nnodes=2", "--node_rank=1", "--master_addr=192.168.0.1", "-m",
                                 "axolotl.cli.train", "config.yaml"});
  CHECK(two.words == Words{"train", "config.yaml"});
  CHECK(two.environment.at("NNODES") == "2");
  CHECK(two.environment.at("NODE_RANK") == "1");
  CHECK(two.environment.at("MASTER_ADDR") == "192.168.0.1");
  CHECK(two.environment.at("MASTER_PORT") == "29501");
  CHECK_FALSE(two.environment.contains("RDZV_ID"));
  // The same line on every node.
  const auto same = world.troupe({"torchrun", "--nnodes=2", "--nproc_per_node=8", "--rdzv_id=77",
                                  "--rdzv_backend=c10d", "--rdzv_endpoint=192.168.0.1:29400", "-m",
                                  "axolotl.cli.train", "config.yaml"});
  CHECK(same.environment.at("NNODES") == "2");
  CHECK(same.environment.at("RDZV_ID") == "77");
  CHECK_FALSE(same.environment.contains("NODE_RANK"));
  CHECK(same.environment.at("MASTER_ADDR") == "192.168.0.1");
  CHECK(same.environment.at("MASTER_PORT") == "29400");
  CHECK(same.words == Words{"train", "config.yaml"});
  // Nodes that come and go, and how long they are waited for; the file's own keys come first.
  const auto elastic =
      world.troupe({"torchrun", "--nnodes=1:3", "--rdzv_id=77", "--rdzv_backend=c10d",
                    "--rdzv_endpoint=192.168.0.1:29400", "--rdzv-conf",
                    "join_timeout=60,last_call_timeout=5,timeout=7", "-m", "axolotl.cli.train",
                    "config.yaml", "troupe.join_timeout_s=90"});
  CHECK(elastic.environment.at("MIN_NNODES") == "1");
  CHECK(elastic.environment.at("MAX_NNODES") == "3");
  CHECK(elastic.words ==
        Words{"train", "config.yaml", "troupe.join_timeout_s=90", "troupe.last_call_s=5"});
}

TEST_CASE("troupe run has torchrun's flags, and runs programs as they are") {
  LauncherWorld world;
  const std::string script = world.script();
  const MapEnvironment environment;
  const auto read = [&](const Words& words) {
    const LauncherContext context{.environment = environment, .files = world.files()};
    return troupe_run(words, context);
  };
  const auto program = read({"--nproc-per-node", "2", "--address", "h:1", "/bin/sh", "-c", "true"});
  REQUIRE(program.ok());
  const auto& ranks = std::get<RankCommand>(program->what);
  CHECK(ranks.options.program == Words{"/bin/sh", "-c", "true"});
  CHECK(ranks.options.ends_with_ranks_code);
  CHECK(ranks.address == "h:1");
  const auto python = read({"--nproc-per-node", "2", script});
  CHECK(std::get<RankCommand>(python->what).options.program == Words{"python3", "-u", script});
  const auto piped = read({"--nproc-per-node", "1", "-"});  // from standard input
  CHECK(std::get<RankCommand>(piped->what).options.program == Words{"python3", "-u", "-"});
  const auto launcher = read({"--nproc-per-node", "2", "torchrun", "x.py"});
  CHECK(contains(launcher.status().message(), "troupe run -- torchrun"));
  for (const Words& refused :
       {Words{"--max-restarts=x", script}, Words{"--node-rank=-1", script},
        Words{"--standby-after=-1", script}, Words{"--standalone", "--nnodes=2", script},
        Words{"--nnodes=1:2", script}, Words{"--nnodes=2", "--node-rank=2", script},
        Words{"--rdzv-backend=etcd", script}, Words{"--nnodes=2", "--master-port=0", script},
        Words{"--rdzv-backend=c10d", "--nnodes=2", "--rdzv-endpoint=h:x", script},
        Words{"--nproc-per-node=2"}}) {
    const auto result = read(refused);
    // `troupe run` begins its messages with its name; they do not go on with torchrun's.
    CHECK_FALSE(result.ok());
    CHECK_FALSE_MESSAGE(contains(result.status().message(), "torchrun"), result.status().message());
  }
}

}  // namespace
}  // namespace troupe::tools::torchrun_tests
