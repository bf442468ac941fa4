#include "train/optimizer/schedule.h"

#include <doctest/doctest.h>

#include <cmath>
#include <numbers>

namespace troupe::train {
namespace {

json::Object kwargs(std::string_view text) {
  return json::parse(text, "kwargs").value().as_object();
}

double at(std::string_view name, std::int64_t step, std::string_view arguments = "{}",
          std::int64_t total = 100, std::int64_t warmup = 10, double rate = 1e-3) {
  return Schedule::make(name, kwargs(arguments), rate, total, warmup).value().factor(step);
}

const auto near = [](double value) { return doctest::Approx(value).epsilon(1e-12); };

TEST_CASE("warm-up") {
  for (const char* name : {"linear", "cosine", "cosine_with_restarts", "polynomial",
                           "constant_with_warmup", "inverse_sqrt", "warmup_stable_decay"}) {
    CAPTURE(name);
    CHECK(at(name, 0) == 0.0);
    CHECK(at(name, 4) == near(0.4));
    CHECK(at(name, 10) == near(1.0));
  }
  CHECK(at("constant", 0) == 1.0);
  CHECK(at("linear", 0, "{}", 100, 0) == 1.0);
}

TEST_CASE("after the warm-up") {
  CHECK(at("linear", 55) == near(0.5));
  CHECK(at("linear", 100) == 0.0);
  CHECK(at("linear", 120) == 0.0);
  CHECK(at("cosine", 55) == near(0.5));
  CHECK(at("cosine", 40) == near(0.5 * (1 + std::cos(std::numbers::pi / 3))));
  CHECK(at("cosine", 100) == near(0.0));
  CHECK(at("cosine", 55, R"({"num_cycles": 1.0})") == near(0.0));
  CHECK(at("cosine_with_restarts", 55, R"({"num_cycles": 2})") == near(1.0));
  CHECK(at("cosine_with_restarts", 100) == 0.0);
  CHECK(at("polynomial", 55, R"({"power": 2.0, "lr_end": 0.0})") == near(0.25));
  CHECK(at("polynomial", 100) == near(1e-7 / 1e-3));
  CHECK(at("polynomial", 200) == near(1e-7 / 1e-3));
  CHECK(at("constant_with_warmup", 99) == 1.0);
  CHECK(at("inverse_sqrt", 40) == near(0.5));
  CHECK(at("inverse_sqrt", 30000, "{}", 100, 0) == near(0.5));
}

TEST_CASE("with a least learning rate") {
  CHECK(at("cosine_with_min_lr", 55, R"({"min_lr_rate": 0.1})") == near(0.55));
  CHECK(at("cosine_with_min_lr", 100, R"({"min_lr": 1e-4})") == near(0.1));
  CHECK(at("cosine_warmup_with_min_lr", 0, R"({"min_lr_rate": 0.1})") == near(0.1));
  CHECK(at("cosine_warmup_with_min_lr", 99, R"({"min_lr_rate": 0.1})") == near(0.1));
  CHECK(at("cosine_warmup_with_min_lr", 0, R"({"min_lr_rate": 0.1, "warmup_lr_rate": 0.3})") ==
        near(0.3));
}

TEST_CASE("Axolotl's arguments of the cosine schedules") {
  CHECK(at("cosine", 4, R"({"warmup_power": 2})") == near(0.16));
  CHECK(at("cosine", 55, R"({"warmup_power": 2})") == near(0.5));
  const char* constant = R"({"min_lr_rate": 0.1, "constant_from": 0.5})";
  CHECK(at("cosine_with_min_lr", 4, constant) == near(0.4));
  CHECK(at("cosine_with_min_lr", 30, constant) == near(0.9 * 0.5 + 0.1));
  CHECK(at("cosine_with_min_lr", 50, constant) == near(0.1));
  CHECK(at("cosine_with_min_lr", 90, constant) == near(0.1));
  CHECK_FALSE(Schedule::make("cosine_with_min_lr",
                             kwargs(R"({"min_lr_rate": 0.1, "constant_from": 1.5})"), 1e-3, 100, 10)
                  .ok());
}

TEST_CASE("warm-up, stable, decay") {
  CHECK(at("warmup_stable_decay", 39) == 1.0);  // 90 // 3 stable
  CHECK(at("warmup_stable_decay", 70) == near(0.5));
  CHECK(at("warmup_stable_decay", 100) == 0.0);
  // The decay keeps its own default: it is not what the stable part leaves.
  CHECK(at("warmup_stable_decay", 100, R"({"num_stable_steps": 60})") == near(0.5));
  constexpr const char* linear =
      R"({"num_stable_steps": 50, "num_decay_steps": 40, "decay_type": "linear", "min_lr_ratio": 0.2})";
  CHECK(at("warmup_stable_decay", 59, linear) == 1.0);
  CHECK(at("warmup_stable_decay", 80, linear) == near(0.6));
  CHECK(at("warmup_stable_decay", 0, linear) == near(0.2));
  CHECK(at("warmup_stable_decay", 500, linear) == near(0.2));
  CHECK(at("warmup_stable_decay", 55, R"({"decay_type": "1-sqrt"})") == near(0.5));
}

TEST_CASE("wrong names and arguments") {
  const auto status = [](std::string_view name, std::string_view arguments) {
    return Schedule::make(name, kwargs(arguments), 1e-3, 100, 10).status();
  };
  CHECK(status("reduce_lr_on_plateau", R"({"steps": 1})").code() == Code::kInvalidArgument);
  CHECK(status("cosin", "{}").code() == Code::kInvalidArgument);
  CHECK(status("linear", R"({"num_cycles": 1})").code() == Code::kInvalidArgument);
  CHECK(status("cosine", R"({"num_cycles": "x"})").code() == Code::kInvalidArgument);
  CHECK(status("cosine_with_min_lr", "{}").code() == Code::kInvalidArgument);
  CHECK(!status("cosine_with_min_lr", R"({"min_lr": 0, "min_lr_rate": 0})").ok());
  CHECK(!status("polynomial", R"({"lr_end": 1.0})").ok());
  CHECK(!status("warmup_stable_decay", R"({"decay_type": "exp"})").ok());
}

// DeepSpeed's classes, step by step: made with the optimizer, stepped after each of its steps.
TEST_CASE("DeepSpeed's schedules, with the rate of the first steps") {
  const auto rates = [](std::string_view text, std::initializer_list<std::int64_t> steps) {
    const auto schedule =
        Schedule::make_deepspeed(json::parse(text, "scheduler").value(), 1e-3, 100, 10);
    REQUIRE_MESSAGE(schedule.ok(), schedule.status().to_string());
    std::vector<double> found;
    for (const std::int64_t step : steps) found.push_back(schedule->learning_rate(step));
    return found;
  };
  const auto check = [](const std::vector<double>& found, const std::vector<double>& wanted) {
    REQUIRE(found.size() == wanted.size());
    for (std::size_t i = 0; i < found.size(); ++i) CHECK(std::abs(found[i] - wanted[i]) < 1e-12);
  };
  // last_batch_iteration is −1 for the first step and 0 for the second.
  check(rates(R"({"type": "WarmupLR", "params": {"warmup_min_lr": 1e-4, "warmup_max_lr": "auto",
                 "warmup_num_steps": "auto", "warmup_type": "linear"}})",
              {0, 1, 2, 6, 10, 11, 50}),
        {1e-4, 1e-4, 1.9e-4, 5.5e-4, 9.1e-4, 1e-3, 1e-3});
  check(rates(R"({"type": "WarmupLR", "params": {"warmup_num_steps": 10}})", {0, 1, 4, 11}),
        {0, 0, 1e-3 * std::log(4.0) / std::log(10.0), 1e-3});
  check(rates(R"({"type": "WarmupDecayLR", "params": {"total_num_steps": "auto",
                 "warmup_num_steps": 10}})",
              {1, 11, 56, 101, 200}),
        {0, 1e-3, 5e-4, 0, 0});
  check(rates(R"({"type": "WarmupCosineLR", "params": {"total_num_steps": 100,
                 "warmup_num_steps": 10, "cos_min_ratio": 0.1, "warmup_min_ratio": 0.5,
                 "warmup_type": "linear"}})",
              {0, 1, 6, 55, 100}),
        {0, 5e-4, 7.5e-4, 5.5e-4, 1e-4});
  check(rates(R"({"type": "OneCycle", "params": {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3,
                 "cycle_first_step_size": 10, "cycle_second_step_size": 20, "decay_lr_rate": 1.0,
                 "decay_step_size": 10, "cycle_momentum": false}})",
              {0, 5, 10, 20, 40}),
        {1e-4, 5.5e-4, 1e-3, 5.5e-4, 5e-5});
  check(rates(R"({"type": "LRRangeTest", "params": {"lr_range_test_min_lr": 1e-4,
                 "lr_range_test_step_size": 10, "lr_range_test_step_rate": 2}})",
              {0, 5, 10}),
        {1e-4, 2e-4, 3e-4});
  check(rates(R"({"type": "LRRangeTest", "params": {"lr_range_test_staircase": true,
                 "lr_range_test_step_size": 10}})",
              {9, 10}),
        {1e-3, 2e-3});
  const auto refused = [](std::string_view text) {
    return Schedule::make_deepspeed(json::parse(text, "scheduler").value(), 1e-3, 100, 10)
        .status()
        .to_string();
  };
  CHECK(refused(R"({"type": "WarmupDecayLR", "params": {"total_num_steps": 90}})")
            .find("ds scheduler.params.total_num_steps=90 vs hf num_training_steps") !=
        std::string::npos);
  CHECK(refused(R"({"type": "Warmup"})").find("WarmupCosineLR") != std::string::npos);
}

}  // namespace
}  // namespace troupe::train
