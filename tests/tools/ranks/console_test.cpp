#include "tools/ranks/console.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <sstream>

#include "troupe/unique_fd.h"

namespace troupe::tools {
namespace {

// A pipe that takes nothing.
struct FullPipe {
  FullPipe() {
    int fds[2];
    REQUIRE(::pipe2(fds, O_CLOEXEC | O_NONBLOCK) == 0);
    reader = UniqueFd(fds[0]);
    writer = UniqueFd(fds[1]);
    const std::string page(4096, 'x');
    while (::write(fds[1], page.data(), page.size()) > 0) {
    }
  }
  UniqueFd reader;
  UniqueFd writer;
};

struct Shown {
  std::ostringstream out;
  std::ostringstream err;
};

TEST_CASE("text comes in its order, and a line does not go on in another's") {
  Shown shown;
  {
    Console console({.out = shown.out, .err = shown.err, .one_terminal = true});
    console.write("rank 0", false, "one\n");
    console.write("rank 0", true, "\r10%");
    console.write("rank 0", true, "\r20%");
    console.write("rank 1", true, "a line\n");
    console.write("rank 1", true, "30%");
    console.write("rank 1", false, "two\n");
    console.err() << "said " << 5 << std::endl;
    console.drain();
  }
  CHECK(shown.out.str() == "one\ntwo\n");
  CHECK(shown.err.str() == "\r10%\r20%\na line\n30%\nsaid 5\n");
}

TEST_CASE("a console that takes nothing holds nobody up, and what is left out is said") {
  Shown shown;
  FullPipe pipe;
  std::string big(4096, 'b');
  big.back() = '\n';
  {
    Console console({.out = shown.out, .err = shown.err, .out_fd = pipe.writer.get()}, 3 * 4096);
    for (int i = 0; i < 10; ++i) console.write("rank 0", false, big);
    console.write("rank 0", true, "left out as well: the order is kept\n");
    pipe.reader.reset();  // now it takes everything
    console.drain();
    console.write("rank 0", false, "room again\n");
    console.drain();
  }
  CHECK(shown.out.str() == big + big + big + "room again\n");
  CHECK(shown.err.str().find("8 lines left out") != std::string::npos);

  const FullPipe stopped;
  Shown nothing;
  {
    Console console({.out = nothing.out, .err = nothing.err, .out_fd = stopped.writer.get()}, 4096,
                    std::chrono::milliseconds(1));
    console.write("rank 0", false, big);
    console.hurry();
    console.drain();
  }
  CHECK(nothing.out.str().empty());
}

}  // namespace
}  // namespace troupe::tools
