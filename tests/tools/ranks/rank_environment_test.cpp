// Tests the variables that tell a rank's process its place.

#include "tools/ranks/rank_environment.h"

#include <doctest/doctest.h>

namespace troupe::tools::rank_environment_tests {
namespace {

const World kWorld{
    .size = 16, .nodes = 2, .master_addr = "10.0.0.2", .master_port = 23456, .restart_count = 3};
const RankPlace kPlace{.rank = 9, .local_rank = 1, .group_rank = 1, .local_world_size = 8};

TEST_CASE("every variable of torchrun's contract") {
  RunOptions options;
  options.role = "trainer";
  options.run_id = "job";
  options.max_restarts = 5;
  options.environment = {{"MINE", "1"}, {"RANK", "no"}};
  const auto seen = rank_environment(options, kWorld, kPlace, "/tmp/e.json", MapEnvironment());
  const std::map<std::string, std::string> wanted{
      {"LOCAL_RANK", "1"},
      {"RANK", "9"},
      {"GROUP_RANK", "1"},
      {"ROLE_RANK", "9"},
      {"ROLE_NAME", "trainer"},
      {"LOCAL_WORLD_SIZE", "8"},
      {"WORLD_SIZE", "16"},
      {"GROUP_WORLD_SIZE", "2"},
      {"ROLE_WORLD_SIZE", "16"},
      {"MASTER_ADDR", "10.0.0.2"},
      {"MASTER_PORT", "23456"},
      {"TORCHELASTIC_RESTART_COUNT", "3"},
      {"TORCHELASTIC_MAX_RESTARTS", "5"},
      {"TORCHELASTIC_RUN_ID", "job"},
      {"TORCHELASTIC_USE_AGENT_STORE", "False"},
      {"TORCHELASTIC_ERROR_FILE", "/tmp/e.json"},
      {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
      {"OMP_NUM_THREADS", "1"},
      {"MINE", "1"},
  };
  CHECK(seen == wanted);
}

TEST_CASE("what the launcher was given stands, and one rank of a node keeps all threads") {
  RunOptions options;
  const MapEnvironment given({{"OMP_NUM_THREADS", "6"}, {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "0"}});
  const auto seen = rank_environment(options, kWorld, kPlace, "", given);
  CHECK_FALSE(seen.contains("OMP_NUM_THREADS"));
  CHECK_FALSE(seen.contains("TORCH_NCCL_ASYNC_ERROR_HANDLING"));
  const auto single =
      rank_environment(options, {.master_addr = "127.0.0.1"}, {}, "", MapEnvironment());
  CHECK_FALSE(single.contains("OMP_NUM_THREADS"));
  options.environment["OMP_NUM_THREADS"] = "4";
  CHECK(rank_environment(options, kWorld, kPlace, "", MapEnvironment()).at("OMP_NUM_THREADS") ==
        "4");
}

TEST_CASE("a rank that is alone is told of no world") {
  RunOptions options;
  options.alone = true;
  options.environment = {{"ACCELERATE_USE_CPU", "True"}};
  CHECK(rank_environment(options, {}, {}, "x", MapEnvironment()) == options.environment);
}

TEST_CASE("the local rank stands in arguments where torchrun puts it, and $$ stays") {
  RunOptions options;
  options.program = {"prog",       "--a=${local_rank}",   "$local_rank",
                     "kill -9 $$", "$HOME/$local_rank_x", "${local_rank",
                     "${other}",   "x$local_rank.y"};
  CHECK(rank_words(options, 2) == std::vector<std::string>{"prog", "--a=2", "2", "kill -9 $$",
                                                           "$HOME/$local_rank_x", "${local_rank",
                                                           "${other}", "x2.y"});
  options.substitutes_local_rank = false;
  CHECK(rank_words(options, 2) == options.program);
  options.program = {"python3", "-u", "train.py", "--lr", "1"};
  options.local_rank_argument_at = 3;
  CHECK(rank_words(options, 1) ==
        std::vector<std::string>{"python3", "-u", "train.py", "--local_rank=1", "--lr", "1"});
}

TEST_CASE("lines of a rank are marked as torchrun marks them") {
  RunOptions options;
  CHECK(line_prefix(options, kPlace, MapEnvironment()) == "[default1]:");
  options.role = "worker";
  CHECK(line_prefix(options, kPlace, MapEnvironment()) == "[worker1]:");
  const std::map<std::string, std::string, std::less<>> variables{
      {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "${role_name}/${rank}.${local_rank}> "}};
  const MapEnvironment form(variables);
  CHECK(line_prefix(options, kPlace, form) == "worker/9.1> ");
}

}  // namespace
}  // namespace troupe::tools::rank_environment_tests
