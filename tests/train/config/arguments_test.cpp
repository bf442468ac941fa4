#include "train/config/arguments.h"

#include <doctest/doctest.h>

#include <vector>

namespace troupe::train {
namespace {

Result<SourceDocument> applied(std::vector<std::string> arguments, const char* text = "") {
  auto document = parse_document(text, "x.yaml");
  REQUIRE(document.ok());
  TROUPE_RETURN_IF_ERROR(apply_arguments(*document, arguments));
  return std::move(*document);
}

std::string values(std::vector<std::string> arguments, const char* text = "") {
  const auto document = applied(std::move(arguments), text);
  REQUIRE_MESSAGE(document.ok(), document.status().to_string());
  return json::write(document->values);
}

TEST_CASE("overrides are YAML values and reach into mappings") {
  CHECK(values({"seed=7", "troupe.workers=2"}, "seed: 1\n") ==
        R"({"seed":7,"troupe":{"workers":2}})");
  CHECK(values({"a=[1, 2]", "b={c: 3}", "d=", "e='8'", "f=x=y", "g=a:b"}) ==
        R"({"a":[1,2],"b":{"c":3},"d":null,"e":"8","f":"x=y","g":"a:b"})");
  CHECK(values({"lr_scheduler_kwargs.min_lr=1e-5"}) ==
        R"({"lr_scheduler_kwargs":{"min_lr":1E-5}})");
}

TEST_CASE("flags: values, bare booleans, negation, lists") {
  CHECK(values({"--stage", "sft", "--bf16", "--do-train", "--learning_rate", "1e-4"}) ==
        R"({"stage":"sft","bf16":true,"do_train":true,"learning_rate":1E-4})");
  CHECK(values({"--max_steps", "-1", "--seed=3"}) == R"({"max_steps":-1,"seed":3})");
  CHECK(values({"--no_enable_thinking"}) == R"({"enable_thinking":false})");
  CHECK(values({"--report_to", "wandb", "tensorboard"}) ==
        R"({"report_to":["wandb","tensorboard"]})");
  CHECK(values({"--troupe.workers", "2"}) == R"({"troupe":{"workers":2}})");
  CHECK(values({"--plot_loss", "false"}) == R"({"plot_loss":false})");
  CHECK(values({"--chaos", "kill@step=4,rank=1", "--workers=2"}) ==
        R"({"troupe":{"chaos":"kill@step=4,rank=1","workers":2}})");
  CHECK(values({"--run_name", "007", "save_strategy=no", "template=null"}) ==
        R"({"run_name":"007","save_strategy":"no","template":null})");
}

TEST_CASE("wrong arguments are named") {
  const auto message = [](std::vector<std::string> arguments, const char* text = "") {
    const auto document = applied(std::move(arguments), text);
    REQUIRE_FALSE(document.ok());
    return document.status().message();
  };
  CHECK(message({"seed"}).find("'seed' is no setting") != std::string::npos);
  CHECK(message({"=3"}).find("'=3' is no setting") != std::string::npos);
  CHECK(message({"a..b=3"}).find("'a..b' is no key") != std::string::npos);
  CHECK(message({"seed.x=3"}, "seed: 1\n") ==
        "'seed.x' cannot be set: 'seed' is no mapping (x.yaml:1)");
  CHECK(message({"--learning_rate"}).find("--learning_rate needs a value") != std::string::npos);
  CHECK(message({"--seed", "1", "2"}).find("'2' is too much") != std::string::npos);
  CHECK(message({"a=[1"}).find("argument 'a=[1'") != std::string::npos);
  std::string deep(2 * 50'000, '.');
  for (std::size_t i = 0; i < deep.size(); i += 2) deep[i] = 'a';
  CHECK(message({deep + "a=1"}).find("more than 16 parts") != std::string::npos);
}

}  // namespace
}  // namespace troupe::train
