// Random schedules against a model of well-behaved trainers: whatever dies, hangs or comes late
// whenever, spares and the controller included, generations never overlap and the run ends.

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>

#include "runtime/base/random.h"
#include "tests/train/trainer/run_state_helpers.h"
#include "train/trainer/run_state.h"
#include "train/trainer/saved_stop.h"

namespace troupe::train {
namespace {

using run_state_test::killed;

constexpr std::int64_t kSteps = 30;

class Walk {
 public:
  explicit Walk(std::uint64_t seed) : random_(seed) {
    world_ = 1 + static_cast<int>(random_.below(4));
    const int spares = static_cast<int>(random_.below(3));
    settings_ = {.world_size = world_,
                 .spares = spares,
                 .fruitless_failures_max = 1000,
                 .post_mortem_timeout = std::chrono::milliseconds(random_.below(2) * 500)};
    nodes_ = 1 + static_cast<int>(random_.below(2));
    trainers_.resize(static_cast<std::size_t>(world_ + spares));
    for (std::size_t i = 0; i < trainers_.size(); ++i) {
      trainers_[i].node = "n" + std::to_string(i % static_cast<std::size_t>(nodes_));
    }
    if (seed % 2 != 0) save_at_ = static_cast<int>(random_.below(90));
    // With so much time it always saves after a step; with little the shorter ways are taken, too.
    hurries_ = seed % 4 == 3;
    if (!hurries_) settings_.save_timeout = std::chrono::hours(10);
    run_.emplace(settings_);
  }

  void run() {
    while (!ended_) {
      REQUIRE(++events_ < 20'000);
      now_ += std::chrono::milliseconds(1 + random_.below(40));
      event();
      check();
    }
    CHECK(run_->ended());
    if (const auto saved = saved_step_of(end_status_)) {
      CHECK(save_at_ >= 0);
      CHECK(*saved == step_);
    } else if (save_asked_ && end_status_.code() == Code::kCancelled) {
      // Nothing had been computed, or a rank died on and on.
      CHECK((step_ == 0 || hurries_));
    } else {
      INFO(end_status_.to_string());
      CHECK(end_status_.ok());
      CHECK(step_ == kSteps);
      CHECK(run_->last_step() == kSteps);
      CHECK_FALSE(run_->memory().recovery);  // every failure was told as recovered
    }
  }

 private:
  struct Trainer {
    std::string node;
    std::uint64_t incarnation = 1;
    bool alive = false;
    std::uint64_t heard = 0;  // the newest plan's generation
    int rank = -1;            // in it
    bool in_generation = false;
    bool told_to_stop = false;
    bool told_to_save = false;
    bool hangs = false;
    std::uint64_t aborted = 0;
  };

  void feed(const RunInput& input) {
    auto commands = run_->apply(input, now_);
    if (random_.below(40) == 0) return controller_dies(commands);
    carry_out(commands);
  }

  // It may have carried out some of the commands; what it knew was saved before that.
  void controller_dies(const std::vector<RunCommand>& commands) {
    const auto done = static_cast<std::ptrdiff_t>(random_.below(commands.size() + 1));
    carry_out({commands.begin(), commands.begin() + done});
    if (random_.below(4) != 0) {
      run_ = RunState::adopt(settings_, RunMemory(run_->memory()), now_);
    } else if (!run_->ended()) {
      std::vector<TrainerFound> found;
      for (std::size_t i = 0; i < trainers_.size(); ++i) {
        Trainer& t = trainers_[i];
        if (!t.alive) continue;
        if (t.hangs) {  // it does not answer: it is killed
          die(t);
          continue;
        }
        found.push_back(
            {static_cast<int>(i), t.incarnation, t.node, t.heard, t.rank, t.in_generation, step_});
      }
      run_ = RunState::adopt_found(settings_, found, newest_, now_);
      lost_memory_ = true;
    }
    const auto again = run_->commands_again();
    carry_out(again);
    // The head tells of all trainers to who asks anew.
    for (std::size_t i = 0; i < trainers_.size() && !ended_; ++i) {
      if (!trainers_[i].alive) continue;
      carry_out(run_->apply(
          TrainerAlive{static_cast<int>(i), trainers_[i].incarnation, trainers_[i].node}, now_));
    }
    if (lost_memory_ && save_asked_ && !ended_) carry_out(run_->apply(SaveRequested{}, now_));
  }

  void carry_out(const std::vector<RunCommand>& commands) {
    for (const auto& command : commands) visit([this](const auto& c) { on(c); }, command);
  }
  void on(const BeginGeneration& begin) {
    const bool alone = begin.purpose == GenerationPurpose::kSaveAlone;
    const int ranks = alone ? 1 : world_;
    REQUIRE(begin.trainers.size() == static_cast<std::size_t>(ranks));
    if (begin.purpose != GenerationPurpose::kTrain) REQUIRE(save_asked_);
    REQUIRE(std::set<int>(begin.trainers.begin(), begin.trainers.end()).size() ==
            begin.trainers.size());
    REQUIRE(begin.generation >= newest_);
    newest_ = begin.generation;
    purpose_ = begin.purpose;
    for (int rank = 0; rank < ranks; ++rank) {
      Trainer& t =
          trainers_[static_cast<std::size_t>(begin.trainers[static_cast<std::size_t>(rank)])];
      if (!t.alive || t.heard >= begin.generation) continue;  // told again
      // Nobody is in two generations.
      REQUIRE_FALSE(t.in_generation);
      t.heard = begin.generation;
      t.rank = rank;
      t.in_generation = true;
      t.told_to_stop = t.aborted >= begin.generation;
      // A rank's memory is a node's.
      auto& home = home_[rank];
      if (!home.empty()) REQUIRE(home == t.node);
      home = t.node;
    }
    // A new generation only where nobody is in an older one.
    for (const Trainer& t : trainers_) REQUIRE((!t.in_generation || t.heard == newest_));
  }
  void on(const AbortGeneration& abort) {
    for (Trainer& t : trainers_) {
      t.aborted = std::max(t.aborted, abort.generation);
      if (t.in_generation && t.heard <= abort.generation) t.told_to_stop = true;
    }
  }
  void on(const KillTrainer& kill) {
    Trainer& t = trainers_[static_cast<std::size_t>(run_->trainer_of(kill.rank))];
    if (t.alive) die(t);
  }
  void on(const SaveAndStop&) {
    trainers_[static_cast<std::size_t>(run_->trainer_of(0))].told_to_save = true;
  }
  void on(const RecordEvent& record) {
    if (record.event != "recovered") return;
    const auto part = [](const std::optional<Duration>& time) {
      if (time) CHECK(*time >= Duration::zero());
      return time.value_or(Duration::zero());
    };
    const RecoveryTimes& times = *record.times;
    CHECK(part(times.detected_after) + part(times.respawn) + part(times.reform) +
              part(times.attach) + part(times.first_step) ==
          times.whole);
    CHECK(record.lost_steps == 0);
    CHECK(*record.recomputed_steps <= 1);
  }
  void on(const PauseAfterStep&) { FAIL("nothing else than the ranks of its begin may come"); }
  void on(const EndRun& end) {
    ended_ = true;
    end_status_ = end.status;
  }

  void die(Trainer& t) {
    t = {.node = t.node, .incarnation = t.incarnation + 1};
    deaths_.push_back({&t, t.incarnation - 1});
  }

  void event() {
    if (events_ == save_at_) {
      save_asked_ = true;
      return feed(SaveRequested{});
    }
    if (random_.below(30) == 0) return feed(TimePassed{});
    // The head tells of deaths in its own time, and always before it tells of the next process.
    if (!deaths_.empty() && random_.below(2) == 0) {
      const auto [trainer, incarnation] = deaths_.front();
      deaths_.erase(deaths_.begin());
      const int number = number_of(*trainer);
      feed(TrainerDied{number, incarnation, trainer->node, killed()});
      if (!ended_ && random_.below(2) == 0) {
        feed(PostMortem{number, incarnation, now_ - std::chrono::milliseconds(5), "a step"});
      }
      return;
    }
    Trainer& t = trainers_[static_cast<std::size_t>(random_.below(trainers_.size()))];
    const int number = number_of(t);
    const bool death_untold = std::any_of(deaths_.begin(), deaths_.end(),
                                          [&](const auto& death) { return death.first == &t; });
    if (!t.alive) {
      if (death_untold) return;
      t.alive = true;
      return feed(TrainerAlive{number, t.incarnation, t.node});
    }
    if (kills_left_ > 0 && random_.below(9) == 0) {
      --kills_left_;
      return die(t);
    }
    if (t.hangs) {
      if (t.in_generation)
        feed(TrainerStuck{t.rank, t.heard, true, std::chrono::seconds(3), "", {}});
      return;
    }
    if (!t.in_generation) return;
    if (kills_left_ > 0 && random_.below(20) == 0) {
      --kills_left_;
      t.hangs = true;
      return;
    }
    if (t.told_to_stop) {
      t.in_generation = false;
      return twice(TrainerStopped{t.rank, t.heard, killed()});
    }
    if (t.heard == newest_ && purpose_ == GenerationPurpose::kSaveAlone) {
      t.in_generation = false;
      return twice(TrainerSaved{t.rank, t.heard, step_});
    }
    if (t.heard != newest_ || !all_in_newest()) return;  // forming
    if (loaded_.insert({t.heard, t.rank}).second) {
      return twice(
          TrainerLoaded{t.rank, t.heard, step_, LoadedFrom::kMemory, false, step_ + 1, ""});
    }
    if (saved_in_ == t.heard) {
      t.in_generation = false;
      return twice(TrainerSaved{t.rank, t.heard, step_});
    }
    if (purpose_ == GenerationPurpose::kSave) {
      if (t.rank != 0 || !all_loaded()) return;
      if (step_ == 0)
        return feed(TrainerFailed{0, t.heard, error(Code::kCancelled, "before its first step")});
      saved_in_ = t.heard;
      return feed(TrainerSaving{0, t.heard, step_});
    }
    if (step_ >= kSteps) {
      t.in_generation = false;
      return twice(TrainerFinished{t.rank, t.heard});
    }
    if (t.rank != 0 || !all_loaded()) return;
    if (t.told_to_save) saved_in_ = t.heard;
    ++step_;
    twice(StepFinished{t.heard, step_});
  }

  // A report that is retried when the controller dies may come twice.
  void twice(const RunInput& input) {
    feed(input);
    if (!ended_ && random_.below(5) == 0) feed(input);
  }

  int number_of(const Trainer& t) const { return static_cast<int>(&t - trainers_.data()); }
  bool all_in_newest() const {
    return std::count_if(trainers_.begin(), trainers_.end(), [&](const Trainer& t) {
             return t.heard == newest_ && t.rank >= 0;
           }) == world_;
  }
  bool all_loaded() const {
    for (int rank = 0; rank < world_; ++rank) {
      if (!loaded_.contains({newest_, rank})) return false;
    }
    return true;
  }
  void check() const {
    std::set<int> ranks;
    for (const auto& trainer : run_->places().trainers()) {
      if (trainer.rank >= 0) REQUIRE(ranks.insert(trainer.rank).second);
    }
    REQUIRE(ranks.size() == static_cast<std::size_t>(world_));
  }

  SeededRandom random_;
  int world_ = 1;
  int nodes_ = 1;
  RunSettings settings_;
  std::optional<RunState> run_;
  std::vector<Trainer> trainers_;
  std::vector<std::pair<Trainer*, std::uint64_t>> deaths_;  // that were not told yet
  std::map<int, std::string> home_;                         // of a rank's memory
  std::set<std::pair<std::uint64_t, int>> loaded_;
  TimePoint now_{std::chrono::seconds(1000)};
  std::uint64_t newest_ = 0;
  std::int64_t step_ = 0;
  std::uint64_t saved_in_ = ~std::uint64_t{0};
  int save_at_ = -1;
  bool save_asked_ = false;
  bool lost_memory_ = false;
  bool hurries_ = false;
  GenerationPurpose purpose_ = GenerationPurpose::kTrain;
  int events_ = 0;
  int kills_left_ = 25;
  bool ended_ = false;
  Status end_status_;
};

TEST_CASE("random schedules: one generation at a time, and the run always ends") {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    CAPTURE(seed);
    Walk(seed).run();
  }
}

}  // namespace
}  // namespace troupe::train
