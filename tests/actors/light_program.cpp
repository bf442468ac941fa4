// The program whose processes host the actors of the light_*_test.cpp.

#include "tests/actors/light_test_actors.h"
#include "troupe/actor.h"

int main(int argc, char** argv) {
  using namespace troupe::tests;
  return troupe::host_main(argc, argv, troupe::actors<Cell, Thrifty, CellCaller, Counter, Recorder>)
      .value_or(2);
}
