// LLaMA-Factory's Ray keys, and the devices that accelerate's file names.

#include "train/config/ray_settings.h"

#include "tests/train/config/load_helpers.h"
#include "train/config/explain.h"

namespace troupe::train {
namespace {

using namespace tests;

TEST_CASE("resources_per_worker says what a trainer takes") {
  const auto config = accepted(load_with("resources_per_worker: {CPU: 3, GPU: 0.5, memory: 1e9, "
                                         "disk: 0.25}\n"))
                          .config;
  CHECK(config.troupe.threads_per_worker == 3);
  CHECK(config.troupe.gpus_per_worker == 0.5);
  const auto resources = worker_resources(config);
  REQUIRE(resources.ok());
  CHECK(resources->memory_bytes == 1e9);
  CHECK(resources->others == std::map<std::string, double>{{"disk", 0.25}});
  CHECK(cpus_per_trainer(config, 3) == 3);
  CHECK(cpus_per_trainer(TrainConfig(), 3) == 3);

  // Our own key says how many threads; what is taken of the node stays.
  const auto threads =
      accepted(load_with("resources_per_worker: {CPU: 3}", {"troupe.threads_per_worker=1"})).config;
  CHECK(threads.troupe.threads_per_worker == 1);
  CHECK(cpus_per_trainer(threads, 1) == 3);
  CHECK(accepted(load_with("resources_per_worker: {GPU: 0}")).config.troupe.device == "cpu");
  // LLaMA-Factory's own value: a machine without GPUs trains all the same.
  CHECK(accepted(load_with("resources_per_worker: {GPU: 1}")).config.troupe.device == "auto");
  CHECK(accepted(load_with("resources_per_worker: '{\"CPU\": 2}'"))
            .config.troupe.threads_per_worker == 2);
}

TEST_CASE("resources that no trainer can take are refused") {
  const auto refused = [](const std::string& value, std::vector<std::string> arguments = {}) {
    return refusal(load_with("resources_per_worker: " + value, std::move(arguments)));
  };
  CHECK(contains(refused("{GPU: 2}"), "a trainer computes on one GPU; use GPU: 1"));
  CHECK(contains(refused("{CPU: -1}"), "CPU: -1 is no amount"));
  CHECK(contains(refused("{CPU: many}"), "CPU"));
  CHECK(contains(refused("{disk: 0.00001}"), "no multiple of 1/10,000"));
  CHECK(contains(refused("{memory: 1e300}"), "memory: 1e+300 is no amount"));
  CHECK(contains(refused("{CPU: 1e7}"), "CPU: 1e+07 is more than a trainer may have (4096)"));
  CHECK(contains(refused("{object_store_memory: 1}"), "there is no object store"));
  CHECK(contains(refused("{GPU: 0.5}", {"troupe.gpus_per_worker=0.25"}),
                 "troupe.gpus_per_worker=0.25 and resources_per_worker.GPU=0.5 disagree"));
  CHECK(contains(refused("{GPU: 0}", {"troupe.device=cuda"}), "disagree about where trainers"));
}

TEST_CASE("placement_strategy is one of Ray's") {
  CHECK(accepted(load_with("")).config.launch.placement_strategy == "PACK");
  CHECK(accepted(load_with("placement_strategy: STRICT_SPREAD")).config.launch.placement_strategy ==
        "STRICT_SPREAD");
  CHECK(contains(refusal(load_with("placement_strategy: RANDOM")), "one of PACK, SPREAD"));
}

TEST_CASE("ray_init_kwargs are obeyed, without effect and said so, or refused") {
  const auto loaded = accepted(load_with(
      "ray_init_kwargs: {num_cpus: 8, dashboard_port: 8265, resources: {disk: 2}, runtime_env: "
      "{env_vars: {NCCL_DEBUG: INFO, LEVEL: 3}, pip: [x]}}\n"));
  CHECK(loaded.config.launch.trainer_variables ==
        std::map<std::string, std::string>{{"NCCL_DEBUG", "INFO"}, {"LEVEL", "3"}});
  CHECK(own_resources(loaded.config) == std::map<std::string, double>{{"disk", 2}});
  const auto said = [&](const char* text) {
    return std::any_of(loaded.notices.begin(), loaded.notices.end(),
                       [&](const auto& notice) { return contains(notice, text); });
  };
  CHECK(said("ray_init_kwargs.num_cpus has no effect: threads are counted"));
  CHECK(said("ray_init_kwargs.dashboard_port has no effect: output_dir has the run's logs"));
  CHECK(said("ray_init_kwargs.runtime_env.pip has no effect"));
  CHECK(loaded.notices.size() == 3);
  // What a variable holds may be a secret: it is neither shown nor kept.
  CHECK_FALSE(contains(json::write(to_json(loaded.config)), "INFO"));
  CHECK_FALSE(contains(explain_table(explain(loaded), true), "INFO"));
  CHECK(contains(explain_table(explain(loaded), false), "env_vars.NCCL_DEBUG"));

  const auto refused = [](const std::string& value) {
    return refusal(load_with("ray_init_kwargs: " + value));
  };
  CHECK(contains(refused("{address: auto}"), "ray_init_kwargs.address=auto is not supported"));
  CHECK(contains(refused("{address: auto}"), "troupe.address"));
  CHECK(contains(refused("{local_mode: true}"), "leave it out"));
  CHECK(contains(refused("{runtime_env: {image_uri: x}}"), "start 'troupe worker' in that"));
  CHECK(contains(refused("{num_cpu: 1}"), "did you mean"));
  CHECK(contains(refused("{resources: {disk: -1}}"), "ray_init_kwargs.resources: disk: -1"));
  CHECK(
      contains(refused("{runtime_env: {env_vars: {\"A=B\": x}}}"), "'A=B' is no variable's name"));
  CHECK(contains(refused("{runtime_env: {env_vars: 3}}"), "expected names and values"));
  CHECK(
      accepted(load_with("ray_init_kwargs: {address: local, local_mode: false}")).notices.empty());
  CHECK(accepted(load_with("ray_init_kwargs: '{\"num_cpus\": 4}'")).notices.size() == 1);
}

TEST_CASE("keys of Ray's results are said to have no effect") {
  const auto loaded = accepted(load_with("ray_run_name: x\nray_storage_path: ./elsewhere\n"));
  REQUIRE(loaded.notices.size() == 2);
  CHECK(contains(loaded.notices[0] + loaded.notices[1],
                 "ray_storage_path has no effect: output_dir receives everything"));
  CHECK(accepted(load_with("ray_storage_path: ./saves\n")).notices.empty());
}

TEST_CASE("accelerate's gpu_ids and use_cpu are obeyed") {
  const auto load = [](const std::string& lines, Variables variables = {},
                       std::vector<std::string> more = {}) {
    more.insert(more.begin(), "troupe.accelerate_config=acc.yaml");
    return load_with("", std::move(more), std::move(variables),
                     {{"acc.yaml", "distributed_type: MULTI_GPU\nnum_processes: 2\n" + lines}});
  };
  CHECK(accepted(load("gpu_ids: 1,3")).launch.visible_gpus == "1,3");
  CHECK(accepted(load("gpu_ids: 1")).launch.visible_gpus == "1");
  CHECK(accepted(load("gpu_ids: 1,3")).launch.gpu_ids_key == "troupe.accelerate_config.gpu_ids");
  CHECK(accepted(load("gpu_ids: all")).launch.gpu_ids_key.empty());
  CHECK(accepted(load("gpu_ids: all", {{"CUDA_VISIBLE_DEVICES", "2"}})).launch.visible_gpus == "2");
  CHECK(contains(refusal(load("gpu_ids: 1,3", {{"CUDA_VISIBLE_DEVICES", "2"}})),
                 "gpu_ids=1,3 and CUDA_VISIBLE_DEVICES=2 disagree"));
  CHECK(contains(refusal(load("gpu_ids: first")), "'first' is no device"));
  CHECK(contains(refusal(load("gpu_ids: 0,1", {}, {"troupe.address=a:1"})),
                 "trainers run on the nodes of a running cluster"));
  CHECK(accepted(load("use_cpu: true")).config.troupe.device == "cpu");
  CHECK(accepted(load("use_cpu: false")).config.troupe.device == "auto");
}

}  // namespace
}  // namespace troupe::train
