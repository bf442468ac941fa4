// The program whose processes host the actors of ray_test.cpp.

#include "tests/peers/ray_actors.h"
#include "troupe/actor.h"

int main(int argc, char** argv) {
  return troupe::host_main(argc, argv, troupe::tests::kRayActors).value_or(2);
}
