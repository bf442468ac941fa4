#include "tests/actors/pipelines/stage_actors.h"
#include "troupe/actor.h"

int main(int argc, char** argv) {
  using namespace troupe::tests;
  return troupe::host_main(argc, argv, troupe::actors<Square, Adder, Tally, Blob, Maker, Taker>)
      .value_or(2);
}
