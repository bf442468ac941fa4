// What a save writes, and that nothing is lost between two of them.

#include "actors/state_saver.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <string>
#include <vector>

namespace troupe::detail::state_saver_test {
namespace {

wire::Bytes text(const std::string& characters) {
  const auto* const bytes = reinterpret_cast<const std::byte*>(characters.data());
  return {bytes, bytes + characters.size()};
}

constexpr std::size_t kAnswerBytes = 20;
std::string answer(char letter) { return std::string(kAnswerBytes, letter); }

// A class whose answers are many times the same letter: all of them, or the last one.
struct Scene {
  std::string answered;  // all
  UniqueFd kept;         // by the node
  int memories = 0;
  bool node_refuses = false;
  Status state_of;
  std::vector<SavedAnswers> asked;
  std::optional<StateSaver> saver = make();

  StateSaver make() {
    return StateSaver(
        [this](int fd) {
          if (node_refuses) return error(Code::kUnavailable, "the node takes nothing");
          ++memories;
          kept = UniqueFd(::dup(fd));
          return Status();
        },
        [](const Status&) { FAIL("there is no copy"); });
  }
  Status run(char letter, std::size_t state_bytes = 8) {
    answered += answer(letter);
    return saver->save(
        [&]() -> Result<SavedState> {
          if (!state_of.ok()) return state_of;
          return SavedState{1, 7, wire::Bytes(state_bytes, static_cast<std::byte>(letter))};
        },
        [&](SavedAnswers which) {
          asked.push_back(which);
          return text(which == SavedAnswers::kAll
                          ? answered
                          : answered.substr(answered.size() - kAnswerBytes));
        });
  }
  SavedState what_is_kept() { return make().open(UniqueFd(::dup(kept.get()))).value().value(); }
  SavedState next_process() {
    saver.emplace(make());
    return saver->open(UniqueFd(::dup(kept.get()))).value().value();
  }
};

using enum SavedAnswers;

TEST_CASE("each answer is written once, until the memory is full; all are found") {
  Scene scene;
  for (int i = 0; i < 1000; ++i) REQUIRE(scene.run(static_cast<char>('a' + i % 26)).ok());
  CHECK(scene.asked.front() == kAll);
  const auto all = std::ranges::count(scene.asked, kAll);
  CHECK(all > 1);
  CHECK(all < 50);
  CHECK(scene.memories > 1);
  CHECK(scene.memories < 10);
  const SavedState state = scene.next_process();
  CHECK(state.answered == text(scene.answered));
  CHECK(state.bytes[0] == std::byte{'a' + 999 % 26});
  scene.asked.clear();
  REQUIRE(scene.run('x').ok());
  REQUIRE(scene.run('y').ok());
  CHECK(scene.asked == std::vector{kAll, kSince});
}

TEST_CASE("after a save that failed all that was answered is written") {
  Scene scene;
  REQUIRE(scene.run('a').ok());
  REQUIRE(scene.run('b').ok());
  REQUIRE(scene.asked == std::vector{kAll, kSince});
  SUBCASE("the class's own save()") {
    scene.state_of = error(Code::kActorError, "no");
    CHECK(scene.run('c').code() == Code::kActorError);
    CHECK(scene.what_is_kept().answered == text(answer('a') + answer('b')));
  }
  SUBCASE("the node takes no new memory") {
    scene.node_refuses = true;
    CHECK(scene.run('c', 1 << 20).code() == Code::kUnavailable);
    CHECK(scene.what_is_kept().answered == text(answer('a') + answer('b')));
  }
  scene.state_of = {};
  scene.node_refuses = false;
  scene.asked.clear();
  REQUIRE(scene.run('d').ok());
  CHECK(scene.asked == std::vector{kAll});
  CHECK(scene.next_process().answered == text(scene.answered));
}

TEST_CASE("a state that grows has room again; one without answers begins an area each time") {
  Scene scene;
  for (std::size_t bytes = 1; bytes < 100'000; bytes = bytes * 3 / 2 + 1) {
    REQUIRE(scene.run('a', bytes).ok());
    REQUIRE(scene.run('b', bytes).ok());
    CHECK(scene.next_process().answered == text(scene.answered));
  }
  for (int i = 1; i < 10; ++i) {
    REQUIRE(scene.saver
                ->save(
                    [&]() -> Result<SavedState> {
                      return SavedState{1, 7, wire::Bytes(100, static_cast<std::byte>(i))};
                    },
                    {})
                .ok());
  }
  const SavedState state = scene.next_process();
  CHECK(state.bytes == wire::Bytes(100, std::byte{9}));
  CHECK(state.answered.empty());
}

}  // namespace
}  // namespace troupe::detail::state_saver_test
