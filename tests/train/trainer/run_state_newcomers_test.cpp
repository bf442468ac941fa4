// Worlds that change: machines that have just come, before a step stands with them.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "tests/train/trainer/elastic_run.h"

namespace troupe::train {
namespace {

using run_state_test::check_resize;
using run_state_test::ElasticRun;
using run_state_test::find;
using run_state_test::killed;
using run_state_test::record;
using std::chrono::milliseconds;
using std::chrono::seconds;

TEST_CASE("a machine that leaves before the first step with it does not hold the others up") {
  ElasticRun elastic({0});
  elastic.tell(StepFinished{1, 4});
  elastic.come_on_new_node(1);
  elastic.all_pause(5);
  CHECK(elastic.run.running());
  CHECK(find<AbortGeneration>(elastic.tell(MachineLeaves{1})));
  check_resize(elastic.all_stop(), 2, "machine 1 leaves");
  CHECK(elastic.run.running());
  CHECK(elastic.run.failures() == 0);
}

TEST_CASE("a machine that others cannot meet is done without") {
  ElasticRun elastic({0, 1});
  elastic.tell(StepFinished{1, 4});
  elastic.come_on_new_node(2);
  elastic.all_pause(5);
  const auto again = elastic.all_stop();
  CHECK(find<BeginGeneration>(again));
  CHECK_FALSE(record(again, "resize"));
  const auto without = elastic.all_stop();
  check_resize(without, 4, "machine 2 leaves");
  REQUIRE(record(without, "notice"));
  CHECK(record(without, "notice")->text ==
        "machine 2 is done without: no step came of 2 attempts with it, the last one: peer; start "
        "it anew when the others reach it");
  elastic.tell(StepFinished{4, 6});
  CHECK_FALSE(find<PauseAfterStep>(elastic.later(seconds(10))));
  elastic.die(2);
  CHECK(find<PauseAfterStep>(elastic.come_on_new_node(2)));
}

TEST_CASE("a machine that others cannot meet, with the number of one that is lost") {
  ElasticRun elastic({0, 1});
  elastic.tell(StepFinished{1, 4});
  elastic.die(1);
  elastic.all_stop();
  SUBCASE("it is on another node: done without") {
    const auto begun = elastic.come_on_new_node(1);
    REQUIRE(find<BeginGeneration>(begun));
    CHECK(find<BeginGeneration>(begun)->tries_newcomers);
    CHECK_FALSE(record(elastic.all_stop(), "resize"));
    check_resize(elastic.all_stop(), 2, "machine 1 leaves");
    CHECK(elastic.run.failures() == 1);  // the loss, not what came of the newcomer
    CHECK_FALSE(elastic.run.ended());
    // A new process of it there does not change what the others reach.
    elastic.tell(StepFinished{4, 5});
    elastic.die(1);
    CHECK_FALSE(find<PauseAfterStep>(elastic.come_again(1)));
    CHECK(find<PauseAfterStep>(elastic.come_on_new_node(1)));
  }
  SUBCASE("it is where it was: that counts as the run's failure") {
    const auto begun = elastic.come_again(1);
    REQUIRE(find<BeginGeneration>(begun));
    CHECK_FALSE(find<BeginGeneration>(begun)->tries_newcomers);
    elastic.all_stop();
    CHECK(elastic.run.failures() == 2);
  }
}

TEST_CASE("a machine that others cannot meet and cannot do without ends the run") {
  ElasticRun elastic({0, 1}, 2);
  elastic.tell(StepFinished{1, 4});
  elastic.die(1);
  elastic.all_stop();
  CHECK_FALSE(find<BeginGeneration>(elastic.come_on_new_node(1))->tries_newcomers);
  elastic.all_stop();
  elastic.all_stop();
  CHECK(elastic.run.memory().leaving.empty());
  // Three failures without a step between them: before the end, what is there is saved.
  const auto begun = elastic.later(seconds(1));
  REQUIRE(find<BeginGeneration>(begun));
  CHECK(find<BeginGeneration>(begun)->purpose == GenerationPurpose::kSave);
  const auto ended = elastic.all_stop();
  REQUIRE(find<EndRun>(ended));
  const std::string why = find<EndRun>(ended)->status.to_string();
  CHECK_MESSAGE(why.find("the run ended without a checkpoint of step 4") != std::string::npos, why);
  CHECK_MESSAGE(why.find("3 failures in a row without a new step") != std::string::npos, why);
}

TEST_CASE("a machine without a process when its run was found is the one that it was") {
  const World world{0, {0, 1, 2, 3}};
  std::vector<TrainerFound> found;
  for (const int trainer : {0, 1})
    found.push_back({.trainer = trainer,
                     .incarnation = 1,
                     .node = "n",
                     .generation = 2,
                     .rank = trainer,
                     .step = 5,
                     .world = world});
  RunState run = RunState::adopt_found(
      {.world_size = 6, .ranks_per_machine = 2, .first_machines = {0, 1}}, found, 0, {});
  run.apply(TrainerAlive{2, 2, "m"}, {});
  CHECK(find<BeginGeneration>(run.apply(TrainerAlive{3, 2, "m"}, {})));
  CHECK(run.memory().newcomers.empty());
}

TEST_CASE("where all that was in the newest world is lost its events tell which that was") {
  const std::vector<World> told = {{2, {0, 1, 4, 5}}, {1, {0, 1, 2, 3, 4, 5}}};
  const auto found = [&](const std::vector<TrainerFound>& living, std::int64_t steps) {
    return RunState::adopt_found(
        {.world_size = 6, .ranks_per_machine = 2, .first_machines = {0, 1}}, living, 3, {}, steps,
        {}, told);
  };
  RunState none = found({}, 5);
  CHECK(none.world().number == 2);
  CHECK(none.world().trainers == told[0].trainers);
  REQUIRE(none.memory().former.size() == 1);
  CHECK(none.memory().former[0].number == 1);
  // One that left knows an older plan, in which it had another rank.
  RunState older = found(
      {{.trainer = 3, .incarnation = 1, .node = "n", .generation = 3, .rank = 3, .world = told[1]}},
      5);
  CHECK(older.world().number == 2);
  CHECK(older.places().find(3)->rank == -1);
  // Who lives knows a newer one: its event was lost.
  const World newer{3, {0, 1}};
  RunState known = found(
      {{.trainer = 0, .incarnation = 1, .node = "n", .generation = 4, .rank = 0, .world = newer}},
      5);
  CHECK(known.world().number == 3);
}

TEST_CASE("a machine whose first process dies before it serves is another one all the same") {
  ElasticRun elastic({0, 1});
  elastic.tell(StepFinished{1, 4});
  elastic.tell(MachineLeaves{1});
  elastic.all_pause(5);
  elastic.tell(StepFinished{2, 6});
  elastic.die(1);
  elastic.tell(TrainerDied{2, 99, "another", killed()});
  elastic.tell(TrainerAlive{2, 100, "another"});
  CHECK(find<PauseAfterStep>(elastic.tell(TrainerAlive{3, 99, "another"})));
}

const Status& no_folder() {
  static const Status status = error(Code::kNotFound, "no folder /data/out");
  return status;
}

// Machine 1 of `elastic`, lost and there again on another node, cannot take part.
void come_unfit(ElasticRun& elastic, int rank, bool prepares_first) {
  elastic.tell(StepFinished{1, 4});
  elastic.die(1);
  elastic.all_stop();
  elastic.come_on_new_node(1);
  const auto failed = [&] {
    return elastic.tell(TrainerFailed{rank, elastic.run.generation(), no_folder()});
  };
  const auto told = prepares_first
                        ? elastic.tell(TrainerUnfit{elastic.run.trainer_of(rank), 3, no_folder()})
                        : failed();
  REQUIRE(record(told, "notice"));
  CHECK(
      record(told, "notice")->text ==
      "machine 1 cannot take part: no folder /data/out; mend that and start its machine's command "
      "anew");
  CHECK(find<AbortGeneration>(told));
  CHECK(failed().empty());  // both tell
  elastic.all_stop();
}

TEST_CASE("a machine that has come and cannot take part is none of the run's") {
  for (const bool prepares_first : {true, false}) {
    CAPTURE(prepares_first);
    ElasticRun elastic({0, 1});
    come_unfit(elastic, 2, prepares_first);
    check_resize(elastic.later(seconds(1)), 2, "machine 1 is lost");
    elastic.tell(StepFinished{elastic.run.generation(), 5});
    // A failure in a generation that is over changes nothing.
    CHECK(elastic.tell(TrainerFailed{0, 2, no_folder()}).empty());
    CHECK_FALSE(find<PauseAfterStep>(elastic.later(seconds(1))));
    // Its command is started anew.
    elastic.die(1);
    CHECK(find<PauseAfterStep>(elastic.come_on_new_node(1)));
    CHECK(elastic.run.failures() == 1);
  }
}

TEST_CASE("where the run needs one that cannot take part it waits for another, and says why") {
  for (const bool another_comes : {true, false}) {
    CAPTURE(another_comes);
    ElasticRun elastic({0, 1}, 2);
    come_unfit(elastic, 3, true);
    const auto waiting = elastic.later(seconds(2));
    REQUIRE(record(waiting, "waiting"));
    CHECK(record(waiting, "waiting")->text.find("machine 1 cannot take part") != std::string::npos);
    if (another_comes) {
      elastic.die(1);
      CHECK(find<BeginGeneration>(elastic.come_on_new_node(1)));
      CHECK(elastic.run.failures() == 1);
      continue;
    }
    elastic.later(seconds(60));
    const auto begun = elastic.later(milliseconds(200));
    REQUIRE(find<BeginGeneration>(begun));
    CHECK(find<BeginGeneration>(begun)->purpose == GenerationPurpose::kSave);
    elastic.all_leave([&](int rank) { return TrainerSaved{rank, elastic.run.generation(), 4}; });
    REQUIRE(elastic.run.memory().ended);
    CHECK(elastic.run.memory().ended->message().find("machine 1 cannot take part") !=
          std::string::npos);
  }
}

TEST_CASE("who leaves and is needed for want of the one that came stays") {
  ElasticRun elastic({0, 1}, 2);
  elastic.tell(StepFinished{1, 4});
  elastic.come_on_new_node(2);
  elastic.all_pause(5);
  elastic.tell(MachineLeaves{1});
  CHECK(elastic.run.memory().leaving.size() == 1);
  elastic.all_stop();
  check_resize(elastic.all_stop(), 4, "machine 2 leaves");
  CHECK(elastic.run.memory().leaving.empty());
  CHECK(elastic.trainers() == std::vector<int>{0, 1, 2, 3});
  CHECK(elastic.run.failures() == 0);
}

TEST_CASE("whose fault an attempt with newcomers was, in whatever order it is heard") {
  ElasticRun elastic({0, 1});
  elastic.tell(StepFinished{1, 4});
  elastic.come_on_new_node(2);
  elastic.all_pause(5);
  const auto rank_dies = [&](int rank) {
    return elastic.tell(TrainerDied{rank,
                                    rank < 2   ? 1U
                                    : rank < 4 ? 2U
                                               : 3U,
                                    fmt::format("n{}-{}", rank / 2, rank / 2), killed()});
  };
  const auto peer_stops = [&](int rank) {
    return elastic.tell(
        TrainerStopped{rank, elastic.run.generation(), error(Code::kAborted, "peer")});
  };
  SUBCASE("an old machine's, told first") { rank_dies(3); }
  SUBCASE("an old machine's, told after what followed") {
    peer_stops(0);
    CHECK(elastic.run.failures() == 0);
    rank_dies(3);
  }
  if (elastic.run.failures() == 1) {
    CHECK(elastic.run.memory().newcomers.at(0).attempts == 0);
    rank_dies(2);
    CHECK(elastic.run.failures() == 1);  // one generation, one failure
    return;
  }
  SUBCASE("the newcomer's, told first") { rank_dies(5); }
  SUBCASE("the newcomer's, told after what followed") {
    peer_stops(0);
    rank_dies(5);
  }
  CHECK(elastic.run.failures() == 0);
  CHECK(elastic.run.memory().newcomers.at(0).attempts == 1);
  // It dies again before the next generation: it is done without, whether its process comes or not.
  elastic.all_stop();
  elastic.tell(TrainerDied{5, 4, "n2-2", killed()});
  CHECK(elastic.run.memory().newcomers.at(0).barred);
  CHECK(elastic.run.running());
  CHECK(elastic.trainers() == std::vector<int>{0, 1, 2, 3});
  CHECK(elastic.run.failures() == 0);
}

TEST_CASE("of two machines that came the one that crashes is done without") {
  ElasticRun elastic({0});
  elastic.tell(StepFinished{1, 4});
  elastic.come_on_new_node(1);
  elastic.come_on_new_node(2);
  elastic.all_pause(5);
  for (const std::uint64_t incarnation : {2, 10}) {
    REQUIRE(elastic.run.world_size() == 6);
    elastic.tell(TrainerDied{2, incarnation, "n1-1", killed()});
    elastic.all_stop();
    elastic.tell(TrainerAlive{2, 10, "n1-1"});
  }
  CHECK(elastic.trainers() == std::vector<int>{0, 1, 4, 5});
  CHECK(elastic.run.failures() == 0);
}

// The ranks of a generation leave it, as that rank has lost that peer.
run_state_test::Commands all_lose(ElasticRun& elastic, int rank, int peer) {
  Status lost = error(Code::kUnavailable, "rank {} is not to be reached", peer);
  lost.with("peer", peer);
  run_state_test::Commands all = elastic.tell(TrainerStopped{rank, elastic.run.generation(), lost});
  for (auto& command : elastic.all_stop()) all.push_back(std::move(command));
  return all;
}

TEST_CASE("of two machines that do not reach each other one is done without") {
  ElasticRun elastic({0, 1, 2});
  elastic.tell(StepFinished{1, 4});
  SUBCASE("the link is cut, and stays cut") {
    // While it trains the end of one link is told by those that wait behind it.
    CHECK_FALSE(record(all_lose(elastic, 0, 4), "resize"));
    const auto without = all_lose(elastic, 2, 4);
    check_resize(without, 4, "machine 2 leaves");
    REQUIRE(record(without, "notice"));
    CHECK(record(without, "notice")->text ==
          "machine 2 is done without: it and another one of the run's machines do not reach each "
          "other; start it anew when the others reach it");
    const auto* begun = find<BeginGeneration>(without);
    REQUIRE(begun);
    REQUIRE(begun->former.size() == 1);  // from which its copy is taken
    CHECK(elastic.trainers() == std::vector<int>{0, 1, 2, 3});
    elastic.tell(StepFinished{elastic.run.generation(), 5});
    CHECK_FALSE(find<PauseAfterStep>(elastic.later(seconds(60))));
    CHECK(find<PauseAfterStep>(elastic.come_on_new_node(2)));
  }
  SUBCASE("a machine is lost as well: both are waited for") {
    all_lose(elastic, 0, 4);
    elastic.die(1);
    elastic.all_stop();
    CHECK_FALSE(record(elastic.come_on_new_node(1), "resize"));
    CHECK_FALSE(record(all_lose(elastic, 0, 4), "resize"));
  }
  SUBCASE("other links each time") {
    all_lose(elastic, 0, 2);
    CHECK_FALSE(record(all_lose(elastic, 4, 4), "resize"));
  }
}

TEST_CASE("a machine that was cut off and comes back is tried, and done without") {
  ElasticRun elastic({0, 1, 2});
  elastic.tell(StepFinished{1, 4});
  elastic.die(2);
  elastic.nowhere(2);
  elastic.all_stop();
  check_resize(elastic.later(seconds(1)), 4, "machine 2 is lost");
  elastic.tell(StepFinished{2, 5});
  elastic.come_again(2);  // on its node
  check_resize(elastic.all_pause(6), 6, "machine 2 came");
  REQUIRE(find<BeginGeneration>(elastic.all_stop()));
  check_resize(elastic.all_stop(), 4, "machine 2 leaves");
  CHECK(elastic.run.failures() == 1);
}

TEST_CASE("a machine that was done without is tried again where too few are left") {
  ElasticRun elastic({0, 1}, 2);
  elastic.tell(StepFinished{1, 4});
  elastic.come_on_new_node(2);
  elastic.all_pause(5);
  elastic.all_stop();
  elastic.all_stop();
  elastic.tell(StepFinished{elastic.run.generation(), 6});
  REQUIRE(elastic.trainers() == std::vector<int>{0, 1, 2, 3});
  elastic.die(1);
  elastic.nowhere(1);
  elastic.all_stop();
  const auto begun = elastic.later(seconds(1));
  check_resize(begun, 4, "machine 1 is lost, machine 2 came");
  REQUIRE(find<BeginGeneration>(begun));
  CHECK_FALSE(find<BeginGeneration>(begun)->tries_newcomers);
  elastic.all_stop();
  CHECK(elastic.run.failures() == 2);  // the loss, and what the run needs
}

TEST_CASE("a machine whose keeper died holds nothing: nobody leaves before a step stands with it") {
  ElasticRun elastic({0, 1, 2});
  elastic.tell(StepFinished{1, 4});
  Status with_keeper = killed();
  with_keeper.with("keeper", "died");
  for (const int trainer : {2, 3}) elastic.tell(TrainerDied{trainer, 2, "n1-1", with_keeper});
  CHECK(elastic.run.failures() == 1);
  elastic.tell(MachineLeaves{2});
  elastic.all_stop();
  const auto begun = elastic.come_again(1);
  REQUIRE(find<BeginGeneration>(begun));
  CHECK(find<BeginGeneration>(begun)->trainers.size() == 6);
  CHECK(find<PauseAfterStep>(elastic.tell(StepFinished{2, 5})));
  check_resize(elastic.all_pause(6), 4, "machine 2 leaves");
}

TEST_CASE("a machine with which a step stood that nobody heard of is none of those to spare") {
  ElasticRun elastic({0, 1});
  elastic.tell(StepFinished{1, 4});
  elastic.come_on_new_node(2);
  elastic.all_pause(5);
  const auto stop = [&](Reached reached) {
    return elastic.all_leave([&](int rank) {
      return TrainerStopped{rank, elastic.run.generation(), error(Code::kAborted, "peer"),
                            rank == 1 ? reached : Reached::kNoStep};
    });
  };
  SUBCASE("it stood") {
    stop(Reached::kStep);
    CHECK(elastic.run.memory().newcomers.empty());
    const auto begun = stop(Reached::kNoStep);
    REQUIRE(find<BeginGeneration>(begun));
    CHECK(find<BeginGeneration>(begun)->trainers.size() == 6);
    CHECK(find<BeginGeneration>(begun)->former.empty());
  }
  SUBCASE("it may have: the state of the world before is kept as well") {
    stop(Reached::kPrepared);
    CHECK(elastic.run.memory().newcomers.empty());
    const auto begun = stop(Reached::kNoStep);
    REQUIRE(find<BeginGeneration>(begun));
    CHECK(find<BeginGeneration>(begun)->trainers.size() == 6);
    CHECK(find<BeginGeneration>(begun)->former.size() == 1);
  }
}

TEST_CASE("a machine that waits for the run's data has a place: it is not given up") {
  ElasticRun elastic({0, 1});
  elastic.tell(StepFinished{1, 4});
  elastic.die(1);
  elastic.all_stop();
  for (const int trainer : {2, 3}) elastic.tell(TrainerWaiting{trainer, "no data yet", true});
  CHECK_FALSE(record(elastic.later(seconds(2)), "resize"));
  CHECK(find<BeginGeneration>(elastic.come_again(1)));
}

TEST_CASE("who has saved takes part again where the save is given up") {
  ElasticRun elastic({0, 1});
  elastic.tell(StepFinished{1, 4});
  elastic.tell(SaveRequested{});
  elastic.tell(TrainerSaved{3, 1, 5});
  CHECK(find<AbortGeneration>(elastic.later(seconds(4))));
  const auto begun = elastic.all_stop();
  REQUIRE(find<BeginGeneration>(begun));
  CHECK(find<BeginGeneration>(begun)->purpose == GenerationPurpose::kSave);
}

}  // namespace
}  // namespace troupe::train
