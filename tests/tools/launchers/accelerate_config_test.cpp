// accelerate config: the questions, and the file that comes of the answers.

#include <sstream>

#include "tests/tools/launchers/launcher_world.h"
#include "train/config/accelerate.h"

namespace troupe::tools::accelerate_config_tests {
namespace {

using namespace tools::tests;

struct Held {
  Status status;
  std::string said;
};

Held hold(LauncherWorld& world, const Words& words, const std::string& answers) {
  const auto result = world.interpret(words);
  INFO(result.status().to_string());
  REQUIRE(result.ok());
  std::istringstream in(answers);
  std::ostringstream out;
  Held held;
  held.status = std::get<Dialogue>(result->what).hold(in, out);
  held.said = out.str();
  return held;
}

std::string text_of(LauncherWorld& world, const std::string& path) {
  return world.files().read(path, 1 << 20).value_or("none");
}

TEST_CASE("without answers there is the default file, where launch looks for it") {
  LauncherWorld world;
  const auto held = hold(world, {"accelerate", "config"}, "");
  REQUIRE(held.status.ok());
  const auto path = world.path("home/.cache/huggingface/accelerate/default_config.yaml");
  CHECK(held.said.ends_with("accelerate configuration saved at " + path + "\n"));
  CHECK(text_of(world, path) == R"(compute_environment: LOCAL_MACHINE
debug: false
distributed_type: 'NO'
downcast_bf16: 'no'
enable_cpu_affinity: false
gpu_ids: all
machine_rank: 0
main_training_function: main
mixed_precision: 'no'
num_machines: 1
num_processes: 1
rdzv_backend: static
same_network: true
tpu_env: []
tpu_use_cluster: false
tpu_use_sudo: false
use_cpu: false
)");
  CHECK(world.ranks({"accelerate", "launch", world.script()}).alone);
  CHECK_FALSE(world.noticed("The following values"));
}

TEST_CASE(
    "several machines with DeepSpeed; what is not there, and what is misspelt, is asked again") {
  LauncherWorld world;
  const auto path = world.path("c.yaml");
  const auto held =
      hold(world, {"accelerate", "config", "--config_file", path},
           "1\n0\n"                           // AWS is not there; this machine
           "9\n4\n"                           // nor a TPU; multi-GPU
           "two\n2\n1\n"                      // machines, rank
           "10.0.0.2\n29501\n"                // address, port
           "no\nc10d\n"                       // not one network
           "\n"                               // no checks
           "no\n"                             // dynamo
           "maybe\nyes\n"                     // DeepSpeed
           "no\n3\n1\n0\n4\nyes\n0.5\nyes\n"  // stage 3, offload, steps, clipping, 16 bit
           "no\nno\n"                         // zero.Init, experts
           "1\n"                              // the standard launcher
           "16\n2\n");                        // GPUs, bf16
  REQUIRE(held.status.ok());
  for (const char* said :
       {"In which compute environment are you running?\n  0. This machine\n  1. AWS",
        "AWS (Amazon SageMaker): training runs on machines of one's own", "TPU: no such device",
        "Please enter an integer from 1 to", "Please enter yes or no.",
        "How many different machines will you use (use more than 1 for multi-node training)? "
        "[1]: "}) {
    CAPTURE(said);
    CHECK(contains(held.said, said));
  }
  CHECK(text_of(world, path) == R"(compute_environment: LOCAL_MACHINE
debug: false
deepspeed_config:
  deepspeed_multinode_launcher: standard
  gradient_accumulation_steps: 4
  gradient_clipping: 0.5
  offload_optimizer_device: cpu
  offload_param_device: none
  zero3_init_flag: false
  zero3_save_16bit_model: true
  zero_stage: 3
distributed_type: DEEPSPEED
downcast_bf16: 'no'
enable_cpu_affinity: false
machine_rank: 1
main_process_ip: 10.0.0.2
main_process_port: 29501
main_training_function: main
mixed_precision: bf16
num_machines: 2
num_processes: 16
rdzv_backend: c10d
same_network: false
tpu_env: []
tpu_use_cluster: false
tpu_use_sudo: false
use_cpu: false
)");
}

TEST_CASE("FSDP's answers make a file that a training reads") {
  LauncherWorld world;
  const auto path = world.path("deep/er/f.yaml");
  const auto held = hold(world, {"accelerate-config", "--config_file", path},
                         "\nmulti-GPU\n1\n\n\nno\nyes\n"  // one machine, FSDP
                         "\nyes\nno\n0\nyes\n\n\nno\n"    // version 2, …
                         "yes\n2\n2\n1\n1\n"              // a mesh
                         "4\n2\n");
  REQUIRE(held.status.ok());
  const auto read = train::read_accelerate_file(path, world.files());
  INFO(read.status().to_string());
  REQUIRE(read.ok());
  CHECK(read->fsdp.has_value());
  CHECK(read->processes->value == 4);
  REQUIRE(read->mesh.has_value());
  CHECK(read->mesh->value.replicate == 2);
  CHECK(read->mesh->value.shard == 2);
  CHECK(read->mixed_precision->value == "bf16");
}

TEST_CASE("nothing is written where an answer is missing or contradicts another") {
  LauncherWorld world;
  const auto path = world.path("x.yaml");
  const auto ended = hold(world, {"accelerate", "config", "--config_file", path}, "0\n4\n2\n0\n");
  CHECK(
      contains(ended.status.message(), "the input ended at the question 'What is the IP address"));
  const auto one_gpu = hold(world, {"accelerate", "config", "--config_file", path}, "0\n4\n");
  CHECK(contains(one_gpu.status.message(), "only using 1 GPU on a single machine"));
  CHECK_FALSE(world.files().exists(path));
}

TEST_CASE("config default asks nothing, writes JSON, and never over another file") {
  LauncherWorld world;
  const auto path = world.path("d.yaml");
  const Words words{"accelerate", "config",        "default", "--mixed_precision",
                    "BF16",       "--config_file", path};
  CHECK(hold(world, words, "").said == "accelerate configuration saved at " + path + "\n");
  const auto value = json::parse(text_of(world, path), path);
  REQUIRE(value.ok());
  CHECK(json::find_string(*value, "distributed_type") == "NO");
  CHECK(json::find_string(*value, "mixed_precision") == "bf16");
  CHECK(json::find_bool(*value, "use_cpu") == true);
  const auto again = world.interpret(words);
  REQUIRE(again.ok());
  CHECK(contains(std::get<Answer>(again->what).text, "will not override"));
  world.gpus = 4;
  CHECK(hold(world, {"accelerate", "config", "default"}, "").status.ok());
  const auto with_gpus = json::parse(
      text_of(world, world.path("home/.cache/huggingface/accelerate/default_config.yaml")), "d");
  CHECK(json::find_string(*with_gpus, "distributed_type") == "MULTI_GPU");
  CHECK(json::find_integer(*with_gpus, "num_processes") == 4);
  CHECK(contains(world.refusal({"accelerate", "config", "default", "--mixed_precision", "x"}),
                 "should be one of 'no', 'fp16', 'bf16', or 'fp8'. Received x"));
  CHECK(contains(world.refusal({"accelerate", "config", "update"}), "accelerate config update"));
}

}  // namespace
}  // namespace troupe::tools::accelerate_config_tests
