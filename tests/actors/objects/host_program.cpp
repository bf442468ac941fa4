// The program whose processes host the tests' actors.

#include "tests/actors/objects/test_actors.h"

int main(int argc, char** argv) {
  return troupe::host_main(argc, argv, troupe::actors<troupe::tests::Reader, troupe::tests::Keeper>)
      .value_or(2);
}
