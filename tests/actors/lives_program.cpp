// The program whose processes host the actors of lifetimes_test.cpp and moving_test.cpp.

#include "tests/actors/lives_actors.h"
#include "troupe/actor.h"

int main(int argc, char** argv) {
  using namespace troupe::tests;
  return troupe::host_main(argc, argv, troupe::actors<Life, Tally, ExactTally, Rebuilder>)
      .value_or(2);
}
