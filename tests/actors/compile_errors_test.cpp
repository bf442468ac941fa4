// Mistakes in the use of actors do not compile, and the compiler's words say what is wrong.

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <string>

#include "tests/support/test_data.h"

namespace troupe::tests {
namespace {

// What the compiler says to a file of tests/actors/compile_errors, as a whole.
std::string compiler_output(const std::string& file) {
  const std::string command = std::string(TROUPE_TEST_CXX) + " -std=c++20 -fsyntax-only -I" +
                              source_dir() + "/runtime/include -I" + source_dir() +
                              "/actors/include " + source_dir() + "/tests/actors/compile_errors/" +
                              file + " 2>&1";
  std::FILE* pipe = ::popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::string output;
  char buffer[4096];
  while (const auto n = std::fread(buffer, 1, sizeof buffer, pipe)) output.append(buffer, n);
  CHECK(::pclose(pipe) != 0);
  return output;
}

void check_says(const std::string& output, const std::string& words) {
  INFO(output);
  CHECK_MESSAGE(output.find(words) != std::string::npos, words);
}

// peer: OverloadTest
TEST_CASE("mistakes do not compile, with a message") {
  const std::string output = compiler_output("mistakes.cc");
  check_says(output, "a pointer means nothing in another process");
  check_says(output, "it refers to memory of the caller");
  check_says(output, "neither a supported standard type nor a plain aggregate");
  check_says(output, "a parameter that is a non-const reference");
  check_says(output, "ArgumentOfMethod<&PointerArgument::take, 2, int*>");
  check_says(output, "Request::memory");
  check_says(output, "an argument is a wider number than the actor method's parameter");
  check_says(output, "an argument does not convert to the actor method's parameter");
  check_says(output, "two methods of an actor have one name");
  check_says(output, "begin with that one's, in their order");
  check_says(output, "save() is const");
  check_says(output, "an actor with load() needs a public `STATE save() const`");
  check_says(output, "this is no actor class");
  check_says(output, "no constructor of this actor class takes the arguments");
}

TEST_CASE("a field that cannot travel is named, in at most 15 lines") {
  const std::string output = compiler_output("one_field.cc");
  check_says(output, "Request::memory");
  check_says(output, "ArgumentOfMethod<&Worker::take, 1, const Batch&>");
  check_says(output, "a pointer means nothing in another process");
  CHECK_MESSAGE(std::count(output.begin(), output.end(), '\n') <= 15, output);
}

}  // namespace
}  // namespace troupe::tests
