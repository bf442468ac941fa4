// AdamW under an undo log, ended at every instant: what is left is finished to the same bits.

#include <cstring>
#include <span>

#include "tests/train/cuda/fake/ended_update.h"
#include "tests/train/cuda/kernels/host_blocks.h"
#include "train/optimizer/adamw.h"

namespace troupe::train::tests {
namespace {

using troupe::tests::EndingLaunch;
using troupe::tests::LaunchEnd;

constexpr int kFewThreads = 4;
constexpr std::int64_t kFew = kFewThreads * kPack;  // elements of a chunk
constexpr std::int64_t kWritersMax = 3;
constexpr std::uint64_t kSeed = 0x123456789abcdef0;  // of random rounding

// Words of memory, aligned as the device's.
template <class T>
class Words {
 public:
  explicit Words(const std::vector<T>& values)
      : words_((values.size() * sizeof(T) + sizeof(cuda::UndoHeader) - 1) /
               sizeof(cuda::UndoHeader)) {
    std::memcpy(words_.data(), values.data(), values.size() * sizeof(T));
    size_ = values.size();
  }
  T* data() { return reinterpret_cast<T*>(words_.data()); }
  std::span<T> span() { return {data(), size_}; }
  bool operator==(const Words& other) const {
    return std::memcmp(words_.data(), other.words_.data(), size_ * sizeof(T)) == 0;
  }

 private:
  std::vector<cuda::UndoHeader> words_;
  std::size_t size_ = 0;
};

// What a rank keeps in memory that outlives it: two ranges, not in the order of its buffers, with
// other chunks' elements around them, and boundaries of decay in the midst of chunks and packs.
template <class State>
struct Rank {
  static constexpr std::int64_t kChunks = 7, kElements = 10 * kFew, kSlots = 2 * kWritersMax;
  std::vector<cuda::ChunkRange> ranges = {
      {0, 5 * kFew, 6 * kFew, 2 * kFew, 0},
      {3, 20 * kFew, kFew, 5 * kFew, 3 * kFew},
  };
  ParameterGroups groups = {{6 * kFew + 3, {.decays = true}},
                            {6 * kFew + 5, {}},
                            {21 * kFew + kPack, {.decays = true}},
                            {30 * kFew, {}}};
  std::vector<cuda::DecayEnd> ends;
  Words<State> p = Words<State>(stored<State>(random_values(kElements, 1)));
  Words<float> g = Words<float>(random_values(kElements, 2));
  Words<State> m = Words<State>(stored<State>(random_values(kElements, 3, 0.1f)));
  Words<State> v = Words<State>(squares());
  std::vector<std::uint64_t> marks = std::vector<std::uint64_t>(kChunks);
  std::vector<cuda::UndoHeader> headers = std::vector<cuda::UndoHeader>(kSlots);
  std::vector<cuda::PackWords> saved = std::vector<cuda::PackWords>(
      static_cast<std::size_t>(kSlots * 3 * kFew) * sizeof(State) / sizeof(cuda::PackWords));

  Rank() {
    for (const ParameterGroups::Range& range : groups.ranges())
      ends.push_back({range.end, groups.of(range).decays ? 1 : 0});
  }
  static std::vector<State> squares() {
    std::vector<float> values = random_values(kElements, 4, 0.1f);
    for (float& x : values) x = x * x;
    return stored<State>(values);
  }

  static AdamWStep step_of(std::int64_t step) {
    return {.learning_rate = 3e-3,
            .weight_decay = 0.1,
            .step = step,
            .gradient_scale = 1.0f / static_cast<float>(step)};
  }
  cuda::TransactedAdamW<State> at(std::int64_t step, bool randomly = false) {
    const AdamWFactors f(step_of(step), {.decays = true});
    return {
        p.data(),
        g.data(),
        m.data(),
        v.data(),
        ranges.data(),
        std::ssize(ranges),
        ends.data(),
        kChunks,
        static_cast<std::uint64_t>(step),
        marks.data(),
        headers.data(),
        saved.data(),
        f.gradient_scale,
        {f.beta1_rest, f.beta2, f.beta2_rest, f.step_size, f.root_correction, f.epsilon, f.keep},
        randomly,
        kSeed};
  }
  // Whether it came to its end.
  bool update(std::int64_t step, std::int64_t writers, const LaunchEnd& end, bool randomly = false,
              std::int64_t* moments = nullptr) {
    EndingLaunch launch(end);
    const bool whole =
        troupe::tests::run_update<State, kFewThreads>(at(step, randomly), kSlots, writers, launch);
    if (moments) *moments = launch.moments();
    return whole;
  }
  // By train/optimizer, over the same memory.
  void update_on_cpu(std::int64_t step, bool randomly = false) {
    AdamWStep given = step_of(step);
    if (randomly) given.rounding_key = kSeed;
    using Bits = std::conditional_t<sizeof(State) == 2, std::uint16_t, float>;
    const auto part = [](State* base, std::int64_t offset, std::int64_t count) {
      return std::span(reinterpret_cast<Bits*>(base) + offset, static_cast<std::size_t>(count));
    };
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      const cuda::ChunkRange& range = ranges[i];
      const std::int64_t chunks =
          (i + 1 < ranges.size() ? ranges[i + 1].first_chunk : kChunks) - range.first_chunk;
      const std::int64_t count = chunks * kFew;
      adamw_update(
          given, groups, range.flat, part(p.data(), range.parameters, count),
          std::span<const float>(g.data() + range.gradients, static_cast<std::size_t>(count)),
          part(m.data(), range.moments, count), part(v.data(), range.moments, count));
    }
  }
  bool same_state(const Rank& other) const { return p == other.p && m == other.m && v == other.v; }
  void forget() {
    std::fill(marks.begin(), marks.end(), 0);
    std::fill(headers.begin(), headers.end(), cuda::UndoHeader{});
  }
};

template <class State>
void check_bits(bool randomly = false) {
  Rank<State> expected;
  expected.update_on_cpu(1, randomly);
  expected.update_on_cpu(2, randomly);
  for (std::int64_t writers = 1; writers <= kWritersMax; ++writers) {
    Rank<State> direct, held;
    for (std::int64_t step = 1; step <= 2; ++step) {
      CHECK(held.update(step, writers, {.seed = static_cast<std::uint64_t>(writers)}, randomly));
      const cuda::TransactedAdamW<State> a = direct.at(step, randomly);
      for (std::int64_t writer = 0; writer < writers; ++writer) {
        const cuda::Block<kFewThreads> block{writer};
        cuda::DeviceWords words;
        cuda::UpdateWriter<State, kFewThreads, cuda::DeviceWords> body(a, writer, writers);
        for (body.open(block, words); body.working(); body.announce(block, words))
          body.change(block, words);
      }
    }
    CHECK(direct.same_state(expected));
    CHECK(held.same_state(expected));
    CHECK(direct.marks == std::vector<std::uint64_t>(Rank<State>::kChunks, 2));
  }
}

TEST_CASE("an update under a log has the optimizer's bits, whoever writes which chunk") {
  check_bits<float>();
  check_bits<Bf16>();
  check_bits<Bf16>(true);
}

// An update of step 6 that ended at `moment`, finished by processes of which the next one was
// ended, too; they have other numbers of blocks. Marks and slots of step 5 lie in the log.
template <class State>
Rank<State> finished(const Rank<State>& before, std::int64_t moment, std::int64_t next_moment,
                     std::uint64_t seed, bool randomly, bool without_fences = false) {
  Rank<State> rank = before;
  const std::int64_t writers[] = {2, 3, 1};
  const std::int64_t moments[] = {moment, next_moment, 0};
  for (std::size_t life = 0; life < 3; ++life) {
    const LaunchEnd end{
        .moment = moments[life], .seed = seed * 3 + life, .without_fences = without_fences};
    if (rank.update(6, writers[(seed + life) % 3], end, randomly)) break;
  }
  return rank;
}

template <class State>
void check_every_moment(bool randomly) {
  Rank<State> before;
  REQUIRE(before.update(5, 2, {}, randomly));
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    Rank<State> undisturbed = before;
    std::int64_t moments = 0;
    REQUIRE(undisturbed.update(6, 1 + static_cast<std::int64_t>(seed) % 3, {.seed = seed * 3},
                               randomly, &moments));
    REQUIRE_FALSE(undisturbed.same_state(before));
    std::int64_t worst = 0;
    for (std::int64_t moment = 1; moment <= moments; ++moment) {
      for (const std::int64_t next : {std::int64_t{2}, 1 + moment * 7 % moments, moment}) {
        const Rank<State> rank = finished(before, moment, next, seed, randomly);
        if (!rank.same_state(undisturbed)) worst = moment;
      }
    }
    CHECK_MESSAGE(worst == 0, "seed ", seed, ", ended at moment ", worst);
  }
}

TEST_CASE(
    "an update that is ended at every instant, and again while it is finished: the same bits") {
  check_every_moment<float>(false);
  check_every_moment<Bf16>(false);
}

TEST_CASE("random rounding is the same when an update is finished by another process") {
  check_every_moment<Bf16>(true);
}

TEST_CASE("the test would see a missing fence") {
  Rank<float> before;
  REQUIRE(before.update(5, 2, {}));
  Rank<float> undisturbed = before;
  std::int64_t moments = 0;
  REQUIRE(undisturbed.update(6, 2, {}, false, &moments));
  int wrong = 0;
  for (std::int64_t moment = 1; moment <= moments; ++moment) {
    for (std::uint64_t seed = 1; seed <= 3; ++seed)
      wrong += !finished(before, moment, moment, seed, false, true).same_state(undisturbed);
  }
  CHECK(wrong > 0);
}

TEST_CASE("an update that is done is not done again, until it is forgotten") {
  Rank<float> once;
  REQUIRE(once.update(1, 2, {}));
  Rank<float> twice = once;
  REQUIRE(twice.update(1, 3, {.seed = 2}));
  CHECK(twice.same_state(once));
  // A slot that names a chunk of the step which was not done when it was forgotten.
  Rank<float> left;
  REQUIRE_FALSE(left.update(1, 2, {.moment = 20}));
  Rank<float> again;
  again.headers = left.headers, again.marks = left.marks;
  std::fill(again.saved.begin(), again.saved.end(), cuda::PackWords{{1, 2, 3, 4}});
  again.forget();
  REQUIRE(again.update(1, 2, {}));
  CHECK(again.same_state(once));
}

}  // namespace
}  // namespace troupe::train::tests
