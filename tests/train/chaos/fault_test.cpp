#include "train/chaos/fault.h"

#include <doctest/doctest.h>

namespace troupe::train {
namespace {

TEST_CASE("faults are parsed with their defaults") {
  const auto faults =
      parse_faults("kill@step=40,rank=1; kill@step=7,phase=optimizer,generation=2;");
  REQUIRE(faults.ok());
  REQUIRE(faults->size() == 2);
  CHECK((*faults)[0] ==
        Fault{.step = 40, .rank = 1, .stage = Stage::kForward, .point = PointKind::kStage});
  CHECK((*faults)[1] ==
        Fault{.step = 7, .stage = Stage::kOptimizer, .point = PointKind::kStage, .generation = 2});
  CHECK(parse_faults("")->empty());
  CHECK(parse_faults(" ; ")->empty());
}

TEST_CASE("every kind of fault parses, and its text parses to the same fault") {
  for (const char* text : {
           "kill@step=40,rank=1,phase=checkpoint",
           "kill@step=1",
           "kill@phase=form,rank=any,hit=2,times=3",
           "stop@step=3,rank=1,unit=2,phase=backward",
           "exit@step=3,code=9",
           "exception@step=2,point=collective,operation=all_reduce,hit=4",
           "slow@step=3,rank=1,factor=7.5,steps=4",
           "nan@step=2,unit=1",
           "disk_full@rank=0,for_ms=300",
           "fail_write@hit=3",
           "torn_write@operation=write_at,then=fail",
           "torn_write@hit=2,file=model.safetensors",
           "fail_fsync@rank=1",
           "kill@point=chunk,number=3,operation=written,step=2",
           "kill@at=2.5",
           "kill@every=10,rank=1",
           "kill@rate=30,seed=7,times=100",
           "stop@every=60,times=1",
           "slow@every=60,factor=3,for_ms=500",
           "cut@at=1,node=1",
           "delay@every=2,delay_ms=40,jitter_ms=10,for_ms=700",
           "stall@step=4,node=0,for_ms=800",
           "kill_keeper@at=3,node=1",
           "kill_daemon@step=3",
           "kill_head@every=3,times=10",
           "kill_controller@at=1",
           "kill_node@every=20,times=3",
           "leave_node@step=4,node=1",
           "join_node@at=5,node=0",
           "record@file=/tmp/points",
       }) {
    CAPTURE(text);
    const auto faults = parse_faults(text);
    REQUIRE_MESSAGE(faults.ok(), faults.status().to_string());
    const auto again = parse_faults(faults_text(*faults));
    REQUIRE_MESSAGE(again.ok(), faults_text(*faults), again.status().to_string());
    CHECK(*again == *faults);
    CAPTURE(faults_text(*faults));
  }
  CHECK(faults_text(*parse_faults("kill@step=1;kill@at=2")) ==
        "kill@step=1,rank=0,phase=forward,point=stage;kill@at=2");
}

TEST_CASE("where a fault strikes by default") {
  const auto one = [](const char* text) { return parse_faults(text)->at(0); };
  CHECK(one("kill@step=3,unit=1").point == PointKind::kUnit);
  CHECK_FALSE(one("kill@step=3,unit=1").stage);
  CHECK(one("nan@step=3").point == PointKind::kGradient);
  CHECK(one("fail_fsync").point == PointKind::kFile);
  CHECK_FALSE(one("kill@operation=append").point);
  CHECK(one("kill@rate=2").rank == -1);
  CHECK(one("kill@rate=2").times == 0);
  CHECK(one("kill@at=2").times == 1);
  CHECK(one("cut@step=3").times == 1);
}

TEST_CASE("who strikes: the trainer at a point, or somebody outside") {
  const auto one = [](const char* text) { return parse_faults(text)->at(0); };
  CHECK(strikes_at_point(one("kill@step=3")));
  CHECK(strikes_at_point(one("fail_write")));
  CHECK(strikes_at_point(one("record@file=x")));
  CHECK_FALSE(strikes_at_point(one("kill@at=3")));
  CHECK_FALSE(strikes_at_point(one("kill_controller@step=3")));
  CHECK_FALSE(strikes_at_point(one("cut@step=3")));
  CHECK(needs_cluster(one("cut@step=3")));
  CHECK(needs_cluster(one("kill_head@at=1")));
  CHECK_FALSE(needs_cluster(one("kill_controller@at=1")));
  CHECK_FALSE(needs_cluster(one("kill@at=1")));
}

TEST_CASE("a wrong piece is named") {
  const auto message = [](const char* text) {
    const auto faults = parse_faults(text);
    REQUIRE_FALSE(faults.ok());
    return faults.status().message();
  };
  const auto names = [&](const char* text, const char* piece) {
    CAPTURE(text);
    CAPTURE(message(text));
    CHECK(message(text).find(piece) != std::string::npos);
  };
  CHECK(message("kill@step=x") == "'kill@step=x': step: 'x' is no whole number");
  names("kill@step=0", "below the least value");
  names("kill", "a step is missing");
  names("kill@rank=1", "a step is missing");
  names("nan", "a step is missing, as in nan@step=40");
  names("kill@step=1;boom@step=2", "the fault 'boom'");
  names("kil@step=2", "did you mean 'kill'?");
  names("kill@stp=1", "did you mean 'step'?");
  names("kill@step=1,phase=forwrd", "did you mean 'forward'?");
  names("kill@step=1,point=chnk", "did you mean 'chunk'?");
  names("kill@step=1,step=2", "stands twice");
  names("kill@step", "key=value");
  names("kill@step=99999999999999999999", "no whole number");
  names("kill@step=9999999999999", "beyond the greatest");
  names("kill@at=1,step=3", "step says where and at says when");
  names("kill@at=1,every=3", "exclude each other");
  names("kill@every=0", "not between");
  names("kill@step=1,seed=3", "seed belongs to rate");
  names("cut@node=1", "when it strikes is missing");
  names("cut@at=1,phase=forward", "unknown key of cut");
  names("fail_write@point=unit", "unknown key of fail_write");
  names("exit@step=1,code=256", "255");
  names("slow@step=1,factor=1", "above 1");
  names("slow@step=1,for_ms=3", "steps=N");
  names("torn_write@then=die", "one of kill, fail");
  names("record", "a file is missing");
  names("kill@operation=", "value is missing");
}

TEST_CASE("faults of a scenario are objects of the same keys") {
  const auto parse = [](const char* text) {
    return fault_from_json(*json::parse(text, "scenario"));
  };
  CHECK(*parse(R"({"fault": "kill", "step": 4, "rank": 1})") ==
        parse_faults("kill@step=4,rank=1")->at(0));
  CHECK(*parse(R"({"fault": "slow", "every": 1.5, "factor": 3})") ==
        parse_faults("slow@every=1.5,factor=3")->at(0));
  CHECK(parse(R"({"step": 4})").status().message().find("fault is missing") != std::string::npos);
  CHECK(parse(R"({"fault": "kill", "step": [4]})").status().message().find("step: a number") !=
        std::string::npos);
  CHECK(parse("[]").status().code() == Code::kInvalidArgument);
}

TEST_CASE("faults that struck nothing are told, each as often as it was given") {
  const auto faults =
      *parse_faults("kill@step=4,rank=1;kill@step=4,rank=1;nan@step=500;record@file=f");
  const std::string kill = fault_text(faults[0]), nan = fault_text(faults[2]);
  CHECK(never_struck(faults, {kill, kill, nan}).empty());
  CHECK(never_struck(faults, {kill}) == std::vector<std::string>{kill, nan});
  CHECK(never_struck(faults, {}) == std::vector<std::string>{kill, kill, nan});
  CHECK(check_ranks(faults, 2).ok());
  CHECK(check_ranks(faults, 1).message().find("has 1 ranks") != std::string::npos);
}

}  // namespace
}  // namespace troupe::train
