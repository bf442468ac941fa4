// Words beside jieba 0.42.1's, with a dictionary and a table of probabilities cut down from its
// own.

#include "train/scores/word_cutter.h"

#include <doctest/doctest.h>

#include "tests/support/test_data.h"
#include "tests/support/text.h"
#include "train/scores/text_scores.h"

namespace troupe::train {
namespace {

constexpr const char* kDictionary = R"(AT&T 3 nz
C语言 3 n
c++ 3 nz
业 4553 n
中国 129470 ns
中国科学院 873 nt
学院 4240 n
他 401339 r
到 205341 v
了 883634 ul
北京 34488 ns
大厦 777 n
来到 1 v
毕业 1 n
清华 1199 nz
清华大学 1155 nt
网易 3 nt
计算 1 v
计算所 93 n
)";
// (U+676D is 杭, and so on.)
constexpr const char* kEmissions = R"(from __future__ import unicode_literals

P={'B': {'\u676d': -8.51481655923439,
       '\u7814': -6.454286082611493,
       '\u5c0f': -5.795450196520336,
       '\u660e': -6.1727322498412684,
       '\u7855': -9.845628952841585,
       '\u58eb': -8.52044870692226},
 'E': {'\u676d': -11.538424157809672,
       '\u7814': -8.507894077801376,
       '\u5c0f': -7.367972609622759,
       '\u660e': -6.0628385076222795,
       '\u7855': -10.83619975909861,
       '\u58eb': -6.632091737813107},
 'M': {'\u676d': -9.85322857176392,
       '\u7814': -8.275346003744641,
       '\u5c0f': -5.095185283088565,
       '\u660e': -6.2138513881680035,
       '\u7855': -9.669545544371644,
       '\u58eb': -6.865292275600575},
 'S': {'\u676d': -10.06132624067233,
       '\u7814': -10.710871868714525,
       '\u5c0f': -6.247496378368061,
       '\u660e': -7.527281993375174,
       '\u7855': -11.142115508150766,
       '\u58eb': -9.419925113248999}}
)";

// A folder like that of the Python package.
struct Package {
  Package() {
    REQUIRE(files.create_directories(folder.file("finalseg")).ok());
    write("dict.txt", kDictionary);
    write("finalseg/prob_emit.py", kEmissions);
  }
  void write(const std::string& name, const std::string& text) {
    REQUIRE(write_file_atomically(files, folder.file(name), text).ok());
  }

  PosixFileSystem files;
  tests::TemporaryDirectory folder;
};

std::vector<std::u32string> cut(const WordCutter& cutter, const std::u32string& text) {
  std::vector<std::u32string> out;
  for (const auto word : cutter.cut(text)) out.emplace_back(word);
  return out;
}

using Words = std::vector<std::u32string>;

TEST_CASE("words of Chinese text are jieba's") {
  Package package;
  const auto loaded = WordCutter::load(package.files, package.folder.path());
  REQUIRE(loaded.ok());
  CHECK(loaded->has_dictionary());
  CHECK(cut(*loaded,
            U"我来到北京清华大学学C语言和c++，AT&T的3.14%股……他来到了网易杭研大厦。\r\n"
            U"小明硕士毕业于中国科学院计算所！很好吗？") ==
        Words{U"我",     U"来到", U"北京", U"清华大学", U"学",    U"C语言", U"和",
              U"c++",    U"，",   U"AT&T", U"的",       U"3.14%", U"股",    U"…",
              U"…",      U"他",   U"来到", U"了",       U"网易",  U"杭研",  U"大厦",
              U"。",     U"\r\n", U"小明", U"硕士",     U"毕业",  U"于",    U"中国科学院",
              U"计算所", U"！",   U"很",   U"好",       U"吗",    U"？"});
  const auto rouge = rouge_scores(*loaded, "小明来到了清华大学。很好吗？他来到北京。",
                                  "小明到了北京的清华大学！他很好。");
  CHECK(rouge.rouge_1 == 60.8696);
  CHECK(rouge.rouge_2 == 8.6957);
  CHECK(rouge.rouge_l == 40.0);
}

TEST_CASE("only Chinese characters need the dictionary") {
  CHECK(WordCutter::needs_dictionary(U"a 清 b"));
  CHECK_FALSE(WordCutter::needs_dictionary(U"Привет, wörld 😀 カタカナ 。"));
  const WordCutter cutter;
  CHECK_FALSE(cutter.has_dictionary());
  CHECK(cut(cutter, U"c++ c# x++ v1.2.3 50% a_b-c AT&T") ==
        Words{U"c++", U" ",   U"c#", U" ", U"x", U"++", U" ", U"v1.2", U".", U"3",
              U" ",   U"50%", U" ",  U"a", U"_", U"b",  U"-", U"c",    U" ", U"AT&T"});
}

TEST_CASE("files that are not jieba's are named with the line") {
  Package package;
  const auto refused = [&] {
    const auto loaded = WordCutter::load(package.files, package.folder.path());
    REQUIRE_FALSE(loaded.ok());
    return loaded.status();
  };
  package.write("dict.txt", "北京 34488 ns\n北 many ns\n");
  CHECK(refused().code() == Code::kDataLoss);
  CHECK(tests::contains(refused().message(), "dict.txt line 2"));
  package.write("dict.txt", kDictionary);
  package.write("finalseg/prob_emit.py", "P={'B': {'\\u676d': often,\n");
  CHECK(tests::contains(refused().message(), "prob_emit.py line 1"));
  package.write("finalseg/prob_emit.py", "P = None\n");
  CHECK(tests::contains(refused().message(), "tables"));
  REQUIRE(package.files.remove(package.folder.file("finalseg/prob_emit.py")).ok());
  CHECK(refused().code() == Code::kNotFound);
}

}  // namespace
}  // namespace troupe::train
