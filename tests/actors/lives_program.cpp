// The program whose processes host the actors of lifetimes_test.cpp.

#include "actors/host.h"
#include "tests/actors/lives_actors.h"

int main(int argc, char** argv) {
  return troupe::host_main(argc, argv, troupe::actors<troupe::tests::Life>).value_or(2);
}
